"""The RNN executor on MIOpen: descriptors made once, then few C calls for each step of training."""

from __future__ import annotations

from math import prod
from typing import Any

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.calls import Calls, SequenceCalls, StepCalls, aligned
from dnnffi.backends.miopen.descriptors import RNNDescriptor, RNNInfo, TensorDescriptor
from dnnffi.backends.miopen.dropout import Generator
from dnnffi.backends.miopen.handle import handle_for
from dnnffi.backends.miopen.layout import weight_space_size
from dnnffi.backends.miopen.library import Library, load
from dnnffi.backends.miopen.types import RNN_DATA_TYPES
from dnnffi.backends.vendor import rnn_executor as rnn
from dnnffi.backends.vendor.context import Context, Phase
from dnnffi.errors import ContextError, UnsupportedError
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.options import check_algorithm
from dnnffi.spec.problem import PACKED, RNNProblem

_ADD: int = ffi.integer_const("miopenTensorOpAdd")
_ZERO, _ONE = ffi.new("float *", 0.0), ffi.new("float *", 1.0)

_UNCOUNTED = 64
"""Backward weights aligns a part of its workspace by so many bytes and does not count them: it
writes that far behind the size that MIOpen 3.4.0 asks for."""


class RNNExecutor(rnn.RNNExecutor):
    """One RNN problem on MIOpen, for callers who hold their own buffers.

    Making it makes the descriptors and asks for the buffer sizes; a call then checks its arrays
    and makes the C calls, on the current stream, without allocating or synchronising. Several
    threads may share it: each uses its own handle. Packed problems stand on
    ``miopenRNNForwardTraining``, ``miopenRNNForwardInference``, ``miopenRNNBackwardData`` and
    ``miopenRNNBackwardWeights``, dense ones on ``miopenRNNForward``, ``miopenRNNBackwardSeqData``
    and ``miopenRNNBackwardWeightsSeqTensor``; ``miopenSetTensor`` writes the zeros of padding and
    of a missing ``h_0``, ``miopenOpTensor`` accumulates.

    Parameters
    ----------
    problem : what to compute
    generator : random numbers of the dropout, where the problem has any
    device : the GPU, by default the current one
    library : the libMIOpen, by default `dnnffi.backends.miopen.library.load`

    Attributes
    ----------
    problem, device, library : as above
    algorithm : the algorithm in use, "default" or "fundamental"
    workspace_bytes, reserve_bytes : sizes of the two buffers; contents of the workspace do not
        outlive a call
    least_workspace_bytes : what suffices without ``accumulate``, which needs room for a gradient
    weight_size : elements of the flat weight buffer

    Raises
    ------
    UnsupportedError
        MIOpen has no such thing: projections, clipping, float64, bfloat16, a math mode.
    MiopenError
        Any other status of a MIOpen function.
    """

    _layout = "miopen"

    def __init__(
        self,
        problem: RNNProblem,
        *,
        generator: Generator | None = None,
        device: int | None = None,
        library: Library | None = None,
    ) -> None:
        library = load() if library is None else library
        check_supported(problem, library)
        super().__init__(problem, generator, device, library)

    def _algorithm(self) -> str:
        algorithm = self.problem.options.algorithm
        return "default" if algorithm == "auto" else algorithm

    def _make_descriptors(self) -> None:
        problem, library = self.problem, self.library
        spec = problem.spec
        handle = handle_for(library, self.device)
        dropout = self.generator.descriptor(problem.dropout) if self.generator else None
        info = RNNInfo(
            mode=spec.mode,
            hidden_size=spec.hidden_size,
            num_layers=spec.num_layers,
            bidirectional=spec.bidirectional,
            bias=spec.bias,
            dtype=spec.dtype,
            algorithm=self.algorithm,
            padded_io=problem.layout != PACKED,
        )
        descriptor = self._own(RNNDescriptor(info, dropout, library=library))
        self._weight_bytes = self._check_weight_bytes(weight_space_size(descriptor, handle, spec))
        tensor = TensorDescriptor(spec.dtype, (self.weight_size,), library=library)
        weights = self._own(tensor)
        state = self._own(TensorDescriptor(spec.dtype, problem.h_shape, library=library))
        self._calls: Calls
        if problem.layout == PACKED:
            self._calls = StepCalls(library, problem, descriptor, weights, state, handle, self._own)
        else:
            self._calls = SequenceCalls(
                library, problem, descriptor, state, self._weight_bytes, handle, self._own
            )
        self._weights, self._state = weights.pointer, state.pointer
        self._divide_workspace()
        self.reserve_bytes = self._calls.reserve_bytes

    def _divide_workspace(self) -> None:
        """MIOpen's own part, then zeros for a missing ``h_0``, then room for a gradient."""
        problem = self.problem
        self._zeros = aligned(self._calls.workspace_bytes + _UNCOUNTED)
        # Without h_0 MIOpen leaves the recurrent bias out of the first step, and out of its
        # gradient (3.4.0).
        item = ITEM_SIZES[problem.spec.dtype]
        zeros_bytes = prod(problem.h_shape) * item if problem.spec.bias else 0
        self._scratch = self.least_workspace_bytes = self._zeros + aligned(zeros_bytes)
        self.workspace_bytes = self.least_workspace_bytes
        if problem.training:
            self.workspace_bytes += self._weight_bytes

    def _bind(self) -> None:
        super()._bind()
        self._bias = self.problem.spec.bias
        self._descriptors = (self._weights, self._state)

    def forward_at(
        self,
        addresses: tuple[int, ...],
        context: Context | None = None,
        *,
        ordered: bool = True,
    ) -> None:
        handle = self._ready()
        reserve = 0
        if self._training:
            reserve = self._refill(context)
        elif context is not None:
            raise ContextError("forward of an inference problem takes no context")
        if self._bias and not addresses[2]:
            zeros = self._zero_state(handle, addresses[7])
            addresses = (*addresses[:2], zeros, *addresses[3:])
        if ordered and self.generator is not None:
            with self.generator:
                self._calls.forward(handle, addresses, reserve)
        else:
            self._calls.forward(handle, addresses, reserve)
        if context is not None:
            context.phase = Phase.FORWARD

    def _zero_state(self, handle: Any, workspace: int) -> int:
        """The address of a state of zeros in the workspace."""
        address = workspace + self._zeros
        status = self.library.lib.miopenSetTensor(handle, self._state, address, _ZERO)
        if status:
            raise self.library.error(status, "miopenSetTensor", self.problem)
        return address

    def _run_backward_data(
        self,
        handle: Any,
        y: int,
        dy: int,
        dx: int,
        h_0: int,
        dh_n: int,
        dh_0: int,
        c_0: int,
        dc_n: int,
        dc_0: int,
        weights: int,
        workspace: int,
        reserve: int,
    ) -> None:
        addresses = (y, dy, dx, h_0, dh_n, dh_0, c_0, dc_n, dc_0, weights, workspace)
        self._calls.backward_data(handle, addresses, reserve)

    def _run_backward_weights(
        self,
        handle: Any,
        x: int,
        h_0: int,
        y: int,
        out: int,
        workspace: int,
        reserve: int,
        accumulate: bool,
    ) -> None:
        if self._bias and not h_0:
            h_0 = self._zero_state(handle, workspace)
        target = workspace + self._scratch if accumulate else out
        self._calls.backward_weights(handle, (x, h_0, y, target, workspace), reserve)
        if not accumulate:
            return
        # The library overwrites.
        status = self.library.lib.miopenOpTensor(
            handle,
            _ADD,
            _ONE,
            self._weights,
            out,
            _ONE,
            self._weights,
            target,
            _ZERO,
            self._weights,
            out,
        )
        if status:
            raise self.library.error(status, "miopenOpTensor", self.problem)


def check_supported(problem: RNNProblem, library: Library) -> None:
    """Raise `UnsupportedError` for what MIOpen does not have, saying which backend has it."""
    spec, options = problem.spec, problem.options
    check_algorithm("miopen", "MIOpen", library.version_text, options)
    limit = ""
    if spec.dtype not in RNN_DATA_TYPES:
        has = "cudnn and reference have"
        limit = f"RNNs are {' or '.join(RNN_DATA_TYPES)}, not {spec.dtype}; {has} it"
    elif spec.proj_size:
        limit = "an LSTM has no projection; cudnn and reference have it"
    elif options.clip is not None:
        limit = "the cell of an LSTM is not clipped; cudnn and reference do"
    elif options.math != "default":
        limit = f"there is no choice of math, {options.math!r} was asked for; cudnn has it"
    if limit:
        raise UnsupportedError("MIOpen", library.version_text, limit)
