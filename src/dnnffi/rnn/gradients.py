"""`RNNContext`, which a training forward pass returns, and the gradients of its backward pass."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, NoReturn

from dnnffi.device.external.array import device_array
from dnnffi.device.external.host import HOST, allocated_copy
from dnnffi.device.external.use import checked_use, thread
from dnnffi.device.interface import ArrayT
from dnnffi.device.torch_tensors import is_compiling, uncompiled
from dnnffi.errors import ContextError, not_picklable
from dnnffi.execution.embedding import (
    Embedding,
    unwrap,
    wrapped,
)
from dnnffi.rnn import unchanged, validate
from dnnffi.rnn.call import CallArrays, pair
from dnnffi.rnn.context import Phase
from dnnffi.rnn.resets import check_sums, row_gradient
from dnnffi.spec.checks import check_flag
from dnnffi.spec.names import GradientName
from dnnffi.spec.problem import RNNProblem
from dnnffi.weights import RNNWeights


class Gradients(NamedTuple, Generic[ArrayT]):
    """Gradients that `RNNContext.backward` returns; one that was not asked for is None.

    ``x`` has the shape of x; ``hx`` the structure of hx (None where hx was None); ``weights`` the
    form that the weights had: a list in the same order, or an `RNNWeights` of the same layout;
    ``reset_to`` the structure and shapes of reset_to (None where that was None).
    """

    x: ArrayT | None
    hx: Any
    weights: Any
    reset_to: Any = None


_ALL_GRADIENTS: tuple[GradientName, ...] = ("x", "hx", "weights", "reset_to")
_GRADIENTS, _NAMES = frozenset(_ALL_GRADIENTS), ", ".join(_ALL_GRADIENTS)


class RNNContext(Generic[ArrayT]):
    """State saved by a training forward pass for its backward pass.

    Arrays are not copied: until `backward` has run, do not write to x, hx, resets, the weights or
    y, which it reads again. It reads x for the gradient of the weights only; h_n, c_n, lengths,
    batch_sizes and reset_to may change. A write to a tensor of PyTorch is noticed, a write to
    another array only with ``options={"validate": True}``.
    """

    def __init__(
        self, call: CallArrays, plan: Any, saved: Any, read: unchanged.Read = unchanged.NOTHING
    ) -> None:
        self._call = call
        self._plan = plan
        self._saved = saved
        self._read = read

    @property
    def is_spent(self) -> bool:
        """Whether a backward pass has used up what the forward pass saved."""
        return self._saved is None

    def __repr__(self) -> str:
        call, plan = self._call, self._plan
        spec, backend = plan.problem.spec, call.backend.name
        parts = [
            f"x {list(plan.x_shape)}",
            f"y {list(plan.y_shape)}",
            f"hidden {spec.hidden_size}",
            f"{spec.num_layers} layer{'s' * (spec.num_layers > 1)}",
            *("bidirectional",) * spec.bidirectional,
            spec.dtype,
            "reference" if backend == "reference" else f"{backend} device {call.device}",
            "spent by backward" if self.is_spent else "ready for backward",
        ]
        return f"<RNNContext of {spec.mode}: {', '.join(parts)}>"

    def __reduce__(self) -> NoReturn:
        raise not_picklable(
            self,
            "call backward in the process of the forward pass, and pickle the gradients; "
            "or pickle x, hx and the RNNWeights, and run the forward pass again",
        )

    def backward(
        self,
        dy: ArrayT | None = None,
        dhx: Any = None,
        *,
        need: Iterable[GradientName] = _ALL_GRADIENTS,
        retain: bool = False,
    ) -> Gradients[ArrayT]:
        """Return the gradients of sum(dy * y) + sum(dh_n * h_n) + sum(dc_n * c_n).

        Parameters
        ----------
        dy : shape of y, or None for zeros; padding past a row's length is not read
        dhx : shape of h_n, for an LSTM (dh_n, dc_n), either of them None for zeros; or None for
            zeros. One of dy, dh_n and dc_n must be an array
        need : which of "x", "hx", "weights", "reset_to" to compute
        retain : keep what the forward pass saved, at the cost of a copy of the reserve space, so
            that `backward` can be called again

        Raises
        ------
        ContextError
            The context was already used without ``retain``, or an array that it reads again was
            written to after the forward pass, as far as that is noticed.
        TypeError, ValueError
            The error names the argument, the value received and the value expected.
        CudnnError, MiopenError, ValidationError
            The library's backward pass failed, or with "validate" its results are wrong.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> one = np.array([[1.0]])
        >>> x, h_0 = np.array([1.0, 2.0]).reshape(2, 1, 1), np.zeros((1, 1, 1))
        >>> y, h_n, ctx = dnnffi.rnn_relu_forward(x, h_0, [one, one])
        >>> grads = ctx.backward(dy=np.ones_like(y), retain=True)
        >>> grads.x.ravel().tolist(), grads.hx.item()
        ([2.0, 1.0], 2.0)
        >>> dw_ih, dw_hh = grads.weights
        >>> dw_ih.item(), dw_hh.item()
        (4.0, 1.0)
        >>> ctx.backward(dhx=h_n, need="x").hx is None
        True
        """
        if "torch._dynamo" in sys.modules and is_compiling():
            return uncompiled(RNNContext.backward)(self, dy, dhx, need=need, retain=retain)
        if dy is None and (dhx is None or _is_pair_of_none(dhx)):
            raise TypeError(
                "backward needs dy or dhx; both are None, so all gradients would be zero"
            )
        return self._backward(dy, dhx, need, retain)

    def _backward(
        self, dy: Any, dhx: Any, need: Iterable[GradientName], retain: bool
    ) -> Gradients[Any]:
        """Return the gradients as `backward` does, also without any gradient, for dnnffi.torch."""
        try:
            wanted = frozenset((need,) if isinstance(need, str) else need)
        except TypeError:
            raise TypeError(f"need must be names out of {_NAMES}; got {need!r}") from None
        if unknown := wanted - _GRADIENTS:
            raise ValueError(f"need: unknown {sorted(map(str, unknown))}; known are {_NAMES}")
        check_flag("retain", retain)
        call, plan = self._call, self._plan
        problem: RNNProblem = plan.problem
        dh_n = dc_n = None
        if dhx is not None:
            dh_n, dc_n = pair(problem.spec, dhx, "dhx", ("dh_n", "dc_n"), partial=True)
            dh_n = call.optional("dh_n", dh_n, plan.h_shape)
            dc_n = call.optional("dc_n", dc_n, plan.c_shape)
        dy = call.optional("dy", dy, plan.y_shape)
        reset_h = None if call.resets is None else call.resets.h
        if "reset_to" in wanted and reset_h is not None and reset_h.shape[1] != problem.batch:
            check_sums(reset_h)  # before the reserve space is spent
        found = self._spend(dy, dh_n, dc_n, "weights" in wanted, retain)
        dx, dh_0, dc_0, dweights, of_resets = found
        dhx_0: Any = None
        if "hx" in wanted and call.h_0 is not None:
            dhx_0 = (dh_0, dc_0) if problem.spec.has_cell else dh_0
        return Gradients(
            dx if "x" in wanted else None,
            dhx_0,
            None if dweights is None else call.weight_gradient(dweights),
            self._of_reset_to(of_resets) if "reset_to" in wanted else None,
        )

    def _of_reset_to(self, found: Any) -> Any:
        """Return the gradient of reset_to, from the gradients of the reset states of each row."""
        resets = self._call.resets
        if resets is None or resets.h is None:
            return None
        h, c = (row_gradient(one, resets.rows) for one in found)
        return (h, c) if self._plan.problem.spec.has_cell else h

    def _spend(
        self, dy: Any, dh_n: Any, dc_n: Any, weights_needed: bool, retain: bool
    ) -> tuple[Any, Any, Any, Any, Any]:
        """Run the plan's backward pass on arrays that it takes, and return its gradients."""
        call, plan = self._call, self._plan
        if self._saved is None:
            raise ContextError(
                "backward was already called and spent the reserve space; call it with "
                "retain=True to be able to call it again"
            )
        self._read.check(call, weights_needed=weights_needed)
        found: tuple[Any, Any, Any, Any, Any] = plan.backward(
            self._saved, dy, dh_n, dc_n, weights_needed=weights_needed, retain=retain
        )
        if not retain:
            self._saved = None
        problem: RNNProblem = plan.problem
        if problem.options.validate and problem.has_steps:
            validate.check_backward(call, problem, dy, dh_n, dc_n, found[:3], found[3])
        return found


class EmbeddedContext(RNNContext[Any]):
    """The context of a call with an allocator, which backward uses too."""

    def __init__(
        self,
        call: CallArrays,
        plan: Any,
        saved: Any,
        read: unchanged.Read,
        embedding: Embedding,
        kind: str,
    ) -> None:
        super().__init__(call, plan, saved, read)
        self._embedding = embedding
        self._kind = kind

    def _backward(
        self, dy: Any, dhx: Any, need: Iterable[GradientName], retain: bool
    ) -> Gradients[Any]:
        check_flag("retain", retain)
        before = thread.use
        try:
            thread.use = checked_use(*self._embedding)
            if self._kind == HOST:
                return self._backward_on_host(dy, dhx, need, retain)
            dy = None if dy is None else device_array("dy", dy, self._kind)
            dhx = wrapped(("dh_n", "dc_n"), dhx, self._kind)
            x, hx, weights, reset_to = super()._backward(dy, dhx, need, retain)
        finally:
            thread.use = before
        hx, reset_to = (
            tuple(map(unwrap, one)) if one.__class__ is tuple else unwrap(one)
            for one in (hx, reset_to)
        )
        return Gradients(unwrap(x), hx, weights, reset_to)

    def _backward_on_host(
        self, dy: Any, dhx: Any, need: Iterable[GradientName], retain: bool
    ) -> Gradients[Any]:
        """Return copies of the gradients, so that nothing is spent if the allocator fails."""
        dy = wrapped(("dy",), dy, HOST)
        dhx = wrapped(("dh_n", "dc_n"), dhx, HOST)
        saved = self._saved
        found = super()._backward(dy, dhx, need, True)
        found = Gradients(*map(_copied_to_user, found))
        if not retain:
            saved.take(Phase.FORWARD)
            self._saved = None
        return found


def _is_pair_of_none(dhx: Any) -> bool:
    return isinstance(dhx, tuple | list) and bool(dhx) and all(one is None for one in dhx)


def _copied_to_user(gradient: Any) -> Any:
    """Copy gradients on the host, of any structure, into objects of the user's allocator."""
    if isinstance(gradient, RNNWeights):
        return RNNWeights._of_result(allocated_copy(gradient._buffer), gradient.layout)
    if isinstance(gradient, tuple | list):
        return type(gradient)(map(_copied_to_user, gradient))
    return unwrap(allocated_copy(gradient))
