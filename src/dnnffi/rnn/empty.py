"""The plan of a problem without a step: states stay, and gradients of weights are zero.

Its batch is empty, or all its rows have length 0.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from dnnffi.device.arrays import array_module
from dnnffi.device.interface import AnyArray, Memory
from dnnffi.rnn.context import Context, Phase
from dnnffi.rnn.resets import Resets
from dnnffi.spec.names import LayoutName
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.weights import weight_layout
from dnnffi.weights import RNNWeights


class _Owner(NamedTuple):
    """The array module or memory that makes the arrays of a call, and the dtype of x."""

    module: Any
    dtype: Any


class EmptyRNNPlan:
    """Forward and backward passes of a problem without a step. No vendor's library is called.

    The library of x makes the arrays, or a backend's ``memory`` on ``device``, with gradients of
    weights in its ``layout``.
    """

    title = "a batch without a step"

    def __init__(
        self,
        problem: RNNProblem,
        memory: Memory | None = None,
        device: int = 0,
        layout: LayoutName = "torch",
    ) -> None:
        self.problem = problem
        self.x_shape, self.y_shape = problem.x_shape, problem.y_shape
        self.h_shape, self.c_shape = problem.h_shape, problem.c_shape
        self.has_cell = problem.spec.has_cell
        self._memory = memory
        self._device = device
        self._layout = layout

    def accepts(self, array: object, shape: tuple[int, ...]) -> bool:
        """Return False: each array has to be checked."""
        return False

    is_compatible = accepts

    def accepts_all(self, x: object, h_0: object, c_0: object) -> bool:
        """Return False, see `accepts`."""
        return False

    def forward(
        self,
        x: AnyArray,
        h_0: AnyArray | None,
        c_0: AnyArray | None,
        weights: Any,
        resets: Resets | None = None,
        lengths: AnyArray | None = None,
    ) -> tuple[AnyArray, AnyArray, AnyArray | None, Context]:
        """Return (y, h_n, c_n, the context for `backward`)."""
        owner = _Owner(self._memory or array_module(x), x.dtype)
        kept = owner, resets is not None and resets.h is not None
        with self._on_device():
            y = owner.module.zeros(self.y_shape, owner.dtype)
            h_n, c_n = self._copied(owner, h_0, c_0)
        return y, h_n, c_n, Context(self, 0, kept, Phase.FORWARD)

    def backward(
        self,
        saved: Context,
        dy: AnyArray | None,
        dh_n: AnyArray | None,
        dc_n: AnyArray | None,
        *,
        weights_needed: bool,
        retain: bool,
    ) -> tuple[AnyArray, AnyArray, AnyArray | None, Any, Any]:
        """Return (dx, dh_0, dc_0, gradient of the weights or None, those of reset states or None).

        The weights have the form of the backend's plans; states of resets are a pair.
        """
        if retain:
            saved.check(Phase.FORWARD)
        else:
            saved.take(Phase.FORWARD)
        try:
            owner, has_reset_to = saved.owner
            with self._on_device():
                dx = owner.module.zeros(self.x_shape, owner.dtype)
                of_states = self._copied(owner, dh_n, dc_n)
                of_weights = self._zeros(owner) if weights_needed else None
                of_resets = self._copied(owner, None, None) if has_reset_to else None
            return dx, *of_states, of_weights, of_resets
        except BaseException:
            saved.reach(Phase.FORWARD)  # nothing was spent
            raise

    def gradient(
        self, found: Any, weights: RNNWeights, out: RNNWeights | None, accumulate: bool
    ) -> RNNWeights:
        """``found``, of a backward pass, as the gradient of ``weights``; in ``out`` if given."""
        if out is None:
            if isinstance(found, list):
                return RNNWeights.pack(found, weights.spec, backend=weights.backend)
            return RNNWeights._of_result(found, weights.layout)
        if not accumulate:
            with self._on_device():
                out.flat[...] = 0
        return out

    def _copied(
        self, owner: _Owner, h: AnyArray | None, c: AnyArray | None
    ) -> tuple[AnyArray, AnyArray | None]:
        """Copy a state, or its gradient; zeros for a part that is None."""
        return (
            self._copy(owner, h, self.h_shape),
            self._copy(owner, c, self.c_shape) if self.has_cell else None,
        )

    def _copy(self, owner: _Owner, array: AnyArray | None, shape: tuple[int, ...]) -> AnyArray:
        copy = owner.module.zeros(shape, owner.dtype)
        if array is None:
            return copy
        if self._memory is None:
            copy[...] = array
        elif array.nbytes:
            stream = self._memory.current_stream()
            self._memory.copy(copy.data.ptr, array.data.ptr, array.nbytes, stream)
        return copy

    def _zeros(self, owner: _Owner) -> Any:
        """Return the gradient of the weights: arrays in PyTorch's order, or flat in the layout."""
        spec = self.problem.spec
        if self._memory is None:
            return [owner.module.zeros(one.shape, owner.dtype) for one in spec.parameter_shapes()]
        return owner.module.zeros((weight_layout(spec, self._layout).size,), owner.dtype)

    def _on_device(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._memory is None else self._memory.use(self._device)

    def report(self) -> str:
        """Return what runs, in plain words."""
        return f"{self.problem}\nnothing runs: no row has a step"
