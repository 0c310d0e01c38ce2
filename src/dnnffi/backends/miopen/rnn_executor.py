"""The executor of recurrent networks on MIOpen: descriptors made once, few C calls each time."""

from __future__ import annotations

from math import prod
from typing import Any

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.calls import Calls, SequenceCalls, StepCalls, aligned
from dnnffi.backends.miopen.descriptors import RNNDescriptor, RNNInfo, TensorDescriptor
from dnnffi.backends.miopen.layout import weight_space_size
from dnnffi.backends.miopen.limits import BIASED_ROWS_MENDED, GROUP_LIMITS, MAX_BIASED_ROWS
from dnnffi.backends.rnn_interface import (
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.backends.vendor.limits import check_limits
from dnnffi.backends.vendor.rnn_executor import VendorRNNExecutor
from dnnffi.device.interface import Launch
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import PACKED, RNNProblem

_ADD: int = ffi.integer_const("miopenTensorOpAdd")
_ZERO, _ONE = ffi.new("float *", 0.0), ffi.new("float *", 1.0)

_UNCOUNTED_BYTES = 64
"""Bytes that MIOpen 3.4.0 may write past the workspace size that it asks for.

Backward weights aligns a part of its workspace to them and does not count the padding.
"""


class MiopenRNNExecutor(VendorRNNExecutor):
    """One RNN problem on MIOpen, on addresses.

    Packed problems stand on ``miopenRNNForwardTraining``, ``miopenRNNForwardInference``,
    ``miopenRNNBackwardData`` and ``miopenRNNBackwardWeights``, dense ones on ``miopenRNNForward``,
    ``miopenRNNBackwardSeqData`` and ``miopenRNNBackwardWeightsSeqTensor``; ``miopenSetTensor``
    writes the zeros of padding and of a missing ``h_0``, ``miopenOpTensor`` accumulates. Raises
    `UnsupportedError` for what MIOpen does not have, `MiopenError` for any other status.
    """

    _layout = "miopen"

    @staticmethod
    def max_positions(problem: RNNProblem, library: Any) -> int | None:
        is_limited = problem.spec.bias and library.version < BIASED_ROWS_MENDED
        return MAX_BIASED_ROWS if is_limited else None

    def _algorithm(self) -> str:
        algorithm = self.problem.options.algorithm
        return "default" if algorithm == "auto" else algorithm

    def _make_descriptors(self, launch: Launch) -> None:
        problem, library = self.problem, self.library
        check_limits(GROUP_LIMITS, problem, library)
        spec = problem.spec
        handle = launch.owner
        dropout = self.generator.descriptor(problem.dropout, handle) if self.generator else None
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
        weights = self._own(TensorDescriptor(spec.dtype, (self.weight_size,), library=library))
        state = self._own(TensorDescriptor(spec.dtype, problem.h_shape, library=library))
        self._calls: Calls
        if problem.layout == PACKED:
            self._calls = StepCalls(library, problem, descriptor, weights, state, handle, self._own)
        else:
            self._calls = SequenceCalls(
                library, problem, descriptor, state, self._weight_bytes, handle, self._own
            )
        self._weights, self._state = weights.pointer, state.pointer
        self._divide_buffers()

    def _divide_buffers(self) -> None:
        """Set the sizes of the workspace and the reserve space, and where their parts begin.

        The workspace has MIOpen's own, then zeros for a missing ``h_0``, then a gradient to be
        added. The reserve space has MIOpen's own, then MIOpen's workspace of the backward pass:
        backward weights reads what backward data left there (3.4.0), but a workspace is anybody's
        between two calls. Each part makes up for something in the library that a test shows to be
        there still (``tests/gfx1100/test_executor.py``).
        """
        problem = self.problem
        workspace_bytes = aligned(self._calls.workspace_bytes + _UNCOUNTED_BYTES)
        self._kept, self.reserve_bytes = aligned(self._calls.reserve_bytes), 0
        if problem.training:
            self.reserve_bytes = self._kept + workspace_bytes
        self._zeros = workspace_bytes
        # Without h_0 MIOpen leaves the recurrent bias out of the first step, and out of its
        # gradient (3.4.0).
        item = ITEM_SIZES[problem.spec.dtype]
        zeros_bytes = prod(problem.h_shape) * item if problem.spec.bias else 0
        self._scratch = self.least_workspace_bytes = self._zeros + aligned(zeros_bytes)
        self.workspace_bytes = self.least_workspace_bytes
        if problem.training:
            self.workspace_bytes += self._weight_bytes

    def _bind(self) -> None:
        self._bias = self.problem.spec.bias
        self._descriptors = (self._weights, self._state)

    def forward(self, launch: Launch, at: ForwardAddresses) -> None:
        if not self._descriptors:
            self._raise_closed()
        if self._bias and not at.h_0:
            at = at._replace(h_0=self._zero_state(launch, at.workspace))
        self._calls.forward(launch.handle, at)

    def _zero_state(self, launch: Launch, workspace: int) -> int:
        """Return the address of a state of zeros in the workspace."""
        address = workspace + self._zeros
        arguments = launch.handle, self._state, address, _ZERO
        self.library.call("miopenSetTensor", *arguments, problem=self.problem)
        return address

    def backward_data(self, launch: Launch, at: BackwardDataAddresses) -> None:
        if not self._descriptors:
            self._raise_closed()
        kept = at.reserve + self._kept
        self._calls.backward_data(launch.handle, at._replace(workspace=kept))

    def backward_weights(
        self, launch: Launch, at: BackwardWeightsAddresses, accumulate: bool = False
    ) -> None:
        if not self._descriptors:
            self._raise_closed()
        if self._bias and not at.h_0:
            at = at._replace(h_0=self._zero_state(launch, at.workspace))
        kept = at.reserve + self._kept
        if not accumulate:
            self._calls.backward_weights(launch.handle, at._replace(workspace=kept))
            return
        # The library overwrites.
        target = at.workspace + self._scratch
        of_call = at._replace(workspace=kept, dweights=target)
        self._calls.backward_weights(launch.handle, of_call)
        added = _ONE, self._weights, at.dweights, _ONE, self._weights, target
        written = _ZERO, self._weights, at.dweights
        self.library.call(
            "miopenOpTensor", launch.handle, _ADD, *added, *written, problem=self.problem
        )
