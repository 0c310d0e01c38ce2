"""MIOpen's two sets of RNN functions with one interface.

Packed problems go through the older functions, which take a tensor descriptor for each step, dense
ones through the newer, which take sequences. Descriptors are made once for a problem; a call gives
addresses, 0 for an array that is missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.descriptors import RNNDescriptor, SeqTensorDescriptor, TensorDescriptor
from dnnffi.backends.miopen.library import Library
from dnnffi.backends.miopen.padding import Padding
from dnnffi.backends.rnn_interface import (
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.backends.vendor.handle import Handle
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.sequences import lengths_to_batch_sizes

_TRAINING, _INFERENCE = 0, 1


class Calls(ABC):
    """The three calls of a problem, and the bytes of workspace and reserve space they need."""

    workspace_bytes: int
    reserve_bytes: int

    def __init__(
        self, library: Library, problem: RNNProblem, rnn: RNNDescriptor, state: TensorDescriptor
    ) -> None:
        self._library, self._problem = library, problem
        self._rnn, self._state = rnn.pointer, state.pointer

    def _call(self, function: str, *arguments: Any) -> None:
        self._library.call(function, *arguments, problem=self._problem)

    @abstractmethod
    def forward(self, handle: Any, at: ForwardAddresses) -> None:
        """Enqueue the forward pass."""

    @abstractmethod
    def backward_data(self, handle: Any, at: BackwardDataAddresses) -> None:
        """Enqueue backward data."""

    @abstractmethod
    def backward_weights(self, handle: Any, at: BackwardWeightsAddresses) -> None:
        """Enqueue backward weights, which overwrites dweights."""


class StepCalls(Calls):
    """``miopenRNNForwardTraining`` and the others with a descriptor for each step."""

    def __init__(
        self,
        library: Library,
        problem: RNNProblem,
        rnn: RNNDescriptor,
        weights: TensorDescriptor,
        state: TensorDescriptor,
        handle: Handle,
        own: Callable[[Any], Any],
    ) -> None:
        super().__init__(library, problem, rnn, state)
        self._w, self._steps = weights.pointer, problem.steps
        dtype, rows = problem.spec.dtype, lengths_to_batch_sizes(problem.row_lengths)

        def steps_of(width: int) -> Any:
            # Steps with as many rows share a descriptor: MIOpen only reads it.
            made = {
                count: own(TensorDescriptor(dtype, (count, width), library=library)).pointer
                for count in set(rows)
            }
            return ffi.new("miopenTensorDescriptor_t[]", [made[count] for count in rows])

        self._xs, self._ys = steps_of(problem.x_shape[-1]), steps_of(problem.y_shape[-1])
        self.workspace_bytes = self._size("miopenGetRNNWorkspaceSize", handle)
        self.reserve_bytes = (
            self._size("miopenGetRNNTrainingReserveSize", handle) if problem.training else 0
        )

    def _size(self, function: str, handle: Handle) -> int:
        size = ffi.new("size_t *")
        self._call(function, handle.pointer, self._rnn, self._steps, self._xs, size)
        return int(size[0])

    def forward(self, handle: Any, at: ForwardAddresses) -> None:
        x, y, h_0, h_n, c_0, c_n, weights, workspace, reserve, *_ = at
        state = self._state
        arguments = (
            *(handle, self._rnn, self._steps, self._xs, x),
            *(state, h_0, state, c_0, self._w, weights),
            *(self._ys, y, state, h_n, state, c_n),
            *(workspace, self.workspace_bytes),
        )
        if self._problem.training:
            self._call("miopenRNNForwardTraining", *arguments, reserve, self.reserve_bytes)
        else:
            self._call("miopenRNNForwardInference", *arguments)

    def backward_data(self, handle: Any, at: BackwardDataAddresses) -> None:
        y, h_0, c_0, weights, dy, dh_n, dc_n, dx, dh_0, dc_0, workspace, reserve, *_ = at
        state = self._state
        self._call(
            "miopenRNNBackwardData",
            *(handle, self._rnn, self._steps, self._ys, y, self._ys, dy),
            *(state, dh_n, state, dc_n, self._w, weights, state, h_0, state, c_0),
            *(self._xs, dx, state, dh_0, state, dc_0),
            *(workspace, self.workspace_bytes, reserve, self.reserve_bytes),
        )

    def backward_weights(self, handle: Any, at: BackwardWeightsAddresses) -> None:
        x, h_0, y, dweights, workspace, reserve = at
        self._call(
            "miopenRNNBackwardWeights",
            *(handle, self._rnn, self._steps, self._xs, x, self._state, h_0, self._ys, y),
            *(self._w, dweights, workspace, self.workspace_bytes, reserve, self.reserve_bytes),
        )


class SequenceCalls(Calls):
    """``miopenRNNForward`` and the others with sequence descriptors, and zeros in the padding."""

    def __init__(
        self,
        library: Library,
        problem: RNNProblem,
        rnn: RNNDescriptor,
        state: TensorDescriptor,
        weight_bytes: int,
        handle: Handle,
        own: Callable[[Any], Any],
    ) -> None:
        super().__init__(library, problem, rnn, state)
        self._weight_bytes = weight_bytes
        x_width, y_width = problem.x_shape[-1], problem.y_shape[-1]

        def sequences(width: int) -> Any:
            shape = problem.layout, problem.steps, problem.batch, width, problem.row_lengths
            return own(SeqTensorDescriptor(problem.spec.dtype, *shape, library=library)).pointer

        self._x, self._y = sequences(x_width), sequences(y_width)
        self._x_padding = Padding(library, problem, x_width, own) if problem.training else None
        self._y_padding = Padding(library, problem, y_width, own)
        training_workspace, self.reserve_bytes = self._sizes(_TRAINING, handle)
        if problem.training:
            self.workspace_bytes, self._used_reserve = training_workspace, self.reserve_bytes
        else:
            # It answers that inference needs no reserve space, and refuses to run without.
            workspace, _ = self._sizes(_INFERENCE, handle)
            self._used_reserve, self.reserve_bytes = self.reserve_bytes, 0
            self._inner_workspace = aligned(workspace)
            self.workspace_bytes = self._inner_workspace + self._used_reserve

    def _sizes(self, mode: int, handle: Handle) -> tuple[int, int]:
        sizes = ffi.new("size_t[2]")
        asked = handle.pointer, self._rnn, self._x, mode
        self._call("miopenGetRNNTempSpaceSizes", *asked, sizes, sizes + 1)
        return int(sizes[0]), int(sizes[1])

    def forward(self, handle: Any, at: ForwardAddresses) -> None:
        x, y, h_0, h_n, c_0, c_n, weights, workspace, reserve, *_ = at
        mode, workspace_bytes = _TRAINING, self.workspace_bytes
        if not self._problem.training:
            mode, workspace_bytes = _INFERENCE, self._inner_workspace
            reserve = workspace + workspace_bytes
        self._call(
            "miopenRNNForward",
            *(handle, self._rnn, mode, self._x, x),
            *(self._state, h_0, h_n, self._state, c_0, c_n),
            *(self._y, y, weights, self._weight_bytes),
            *(workspace, workspace_bytes, reserve, self._used_reserve),
        )
        self._y_padding.zero(handle, y)

    def backward_data(self, handle: Any, at: BackwardDataAddresses) -> None:
        y, h_0, c_0, weights, dy, dh_n, dc_n, dx, dh_0, dc_0, workspace, reserve, *_ = at
        self._call(
            "miopenRNNBackwardSeqData",
            *(handle, self._rnn, self._y, y, dy),
            *(self._state, h_0, dh_n, dh_0, self._state, c_0, dc_n, dc_0),
            *(self._x, dx, weights, self._weight_bytes),
            *(workspace, self.workspace_bytes, reserve, self.reserve_bytes),
        )
        assert self._x_padding is not None
        self._x_padding.zero(handle, dx)

    def backward_weights(self, handle: Any, at: BackwardWeightsAddresses) -> None:
        x, h_0, y, dweights, workspace, reserve = at
        self._call(
            "miopenRNNBackwardWeightsSeqTensor",
            *(handle, self._rnn, self._x, x, self._state, h_0, self._y, y),
            *(dweights, self._weight_bytes),
            *(workspace, self.workspace_bytes, reserve, self.reserve_bytes),
        )


def aligned(nbytes: int) -> int:
    """Round ``nbytes`` up to a multiple of 256, at which another buffer may begin."""
    return -(-nbytes // 256) * 256
