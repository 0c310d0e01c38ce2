"""The executor of recurrent networks on cuDNN: descriptors made once, one C call per operation."""

from __future__ import annotations

import time

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.algorithm import known_wrong, rule
from dnnffi.backends.cudnn.descriptors import (
    RNNDataDescriptor,
    RNNDescriptor,
    RNNInfo,
    TensorDescriptor,
)
from dnnffi.backends.cudnn.layout import weight_space_size
from dnnffi.backends.rnn_interface import (
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.backends.vendor.rnn_executor import VendorRNNExecutor
from dnnffi.device.interface import Launch
from dnnffi.errors import UnsupportedError
from dnnffi.log import logger
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import PACKED

_ADD = 0  # CUDNN_WGRAD_MODE_ADD, the only mode that cuDNN 9.19 takes for an RNN


class CudnnRNNExecutor(VendorRNNExecutor):
    """One RNN problem on cuDNN, on addresses.

    It stands on ``cudnnRNNForward``, ``cudnnRNNBackwardData_v8`` and
    ``cudnnRNNBackwardWeights_v8``. Raises `UnsupportedError` where the library has no such
    combination, `CudnnError` for any other status.
    """

    _layout = "cudnn"

    def _algorithm(self) -> str:
        problem = self.problem
        algorithm = problem.options.algorithm
        if algorithm == "auto":
            return rule(problem, self.library.memory.architecture(self.device))
        if wrong := known_wrong(problem, algorithm):
            raise self.library.unsupported(
                f"the algorithm {algorithm} is not used for {problem}: {wrong}"
            )
        return algorithm

    def _describe(self, launch: Launch) -> None:
        try:
            super()._describe(launch)
        except UnsupportedError as error:
            if self.problem.options.algorithm != "auto" or self.algorithm == "standard":
                raise
            # The rule guessed what this version, or this GPU, does not have. Who named an
            # algorithm gets that one or an error.
            logger.info("standard runs instead of %s, which was refused: %s", self.algorithm, error)
            self.algorithm = "standard"
            super()._describe(launch)

    def _make_descriptors(self, launch: Launch) -> None:
        problem, library = self.problem, self.library
        spec = problem.spec
        handle = launch.owner
        dropout = self.generator.descriptor(problem.dropout, handle) if self.generator else None
        self._rnn = self._own(RNNDescriptor(self._info(), dropout, library=library))
        if problem.options.clip is not None:
            self._rnn.set_clip(problem.options.clip, problem.options.clip_nan)
        data = (spec.dtype, problem.layout, problem.steps, problem.batch)
        lengths = problem.row_lengths
        self._x = self._own(RNNDataDescriptor(*data, spec.input_size, lengths, library=library))
        width = spec.output_size * spec.num_directions
        self._y = self._own(RNNDataDescriptor(*data, width, lengths, library=library))
        self._h = self._own(TensorDescriptor(spec.dtype, problem.h_shape, library=library))
        self._c = self._own(TensorDescriptor(spec.dtype, problem.c_shape, library=library))
        if self.algorithm == "persist_dynamic":
            arguments = handle.pointer, self._rnn.pointer, problem.batch
            begun = time.perf_counter()
            library.call("cudnnBuildRNNDynamic", *arguments, problem=problem)
            seconds = time.perf_counter() - begun
            logger.info("cuDNN compiled persist_dynamic in %.2f s for %s", seconds, problem)
        workspace, reserve = ffi.new("size_t *"), ffi.new("size_t *")
        library.call(
            "cudnnGetRNNTempSpaceSizes",
            *(handle.pointer, self._rnn.pointer, int(problem.training), self._x.pointer),
            *(workspace, reserve if problem.training else ffi.NULL),
            problem=problem,
        )
        self.workspace_bytes = self.least_workspace_bytes = int(workspace[0])
        self.reserve_bytes = int(reserve[0])
        self._weight_bytes = self._check_weight_bytes(weight_space_size(self._rnn, handle))

    def _info(self) -> RNNInfo:
        spec, options = self.problem.spec, self.problem.options
        math = {"strict": "fma", "fast": "allow_conversion"}.get(options.math)
        if math is None:
            # As PyTorch: tensor cores for the half types; float32 may use TF32.
            math = "tensor_op" if ITEM_SIZES[spec.dtype] == 2 else "default"
        return RNNInfo(
            mode=spec.mode,
            input_size=spec.input_size,
            hidden_size=spec.hidden_size,
            num_layers=spec.num_layers,
            bidirectional=spec.bidirectional,
            bias_mode="double" if spec.bias else "none",
            proj_size=spec.proj_size,
            dtype=spec.dtype,
            algorithm=self.algorithm,
            math=math,
            math_precision="float64" if spec.dtype == "float64" else "float32",
            padded_io=self.problem.layout != PACKED,
        )

    def _bind(self) -> None:
        lib = self.library.lib
        self._mode = int(self.problem.training)  # CUDNN_FWD_MODE_INFERENCE or _TRAINING
        self._clear = self.library.memory.clear
        self._forward = lib.cudnnRNNForward
        self._backward_data = lib.cudnnRNNBackwardData_v8
        self._backward_weights = lib.cudnnRNNBackwardWeights_v8
        self._descriptors = tuple(
            descriptor.pointer for descriptor in (self._rnn, self._x, self._y, self._h, self._c)
        )

    def forward(self, launch: Launch, at: ForwardAddresses) -> None:
        rnn, x_desc, y_desc, h_desc, c_desc = self._descriptors or self._raise_closed()
        x, y, h_0, h_n, c_0, c_n, weights, workspace, reserve, *_ = at
        status = self._forward(
            launch.handle,
            rnn,
            self._mode,
            0,  # lengths in device memory: not read since 8.9.1
            x_desc,
            x,
            y_desc,
            y,
            h_desc,
            h_0,
            h_n,
            c_desc,
            c_0,
            c_n,
            self._weight_bytes,
            weights,
            self.workspace_bytes,
            workspace,
            self.reserve_bytes,
            reserve,
        )
        if status:
            raise self.library.error(status, "cudnnRNNForward", self.problem)

    def backward_data(self, launch: Launch, at: BackwardDataAddresses) -> None:
        rnn, x_desc, y_desc, h_desc, c_desc = self._descriptors or self._raise_closed()
        y, h_0, c_0, weights, dy, dh_n, dc_n, dx, dh_0, dc_0, workspace, reserve, *_ = at
        status = self._backward_data(
            launch.handle,
            rnn,
            0,
            y_desc,
            y,
            dy,
            x_desc,
            dx,
            h_desc,
            h_0,
            dh_n,
            dh_0,
            c_desc,
            c_0,
            dc_n,
            dc_0,
            self._weight_bytes,
            weights,
            self.workspace_bytes,
            workspace,
            self.reserve_bytes,
            reserve,
        )
        if status:
            raise self.library.error(status, "cudnnRNNBackwardData_v8", self.problem)

    def backward_weights(
        self, launch: Launch, at: BackwardWeightsAddresses, accumulate: bool = False
    ) -> None:
        rnn, x_desc, y_desc, h_desc, _ = self._descriptors or self._raise_closed()
        x, h_0, y, dweights, workspace, reserve = at
        if not accumulate:
            self._clear(dweights, self._weight_bytes, launch.stream)  # the library adds
        status = self._backward_weights(
            launch.handle,
            rnn,
            _ADD,
            0,
            x_desc,
            x,
            h_desc,
            h_0,
            y_desc,
            y,
            self._weight_bytes,
            dweights,
            self.workspace_bytes,
            workspace,
            self.reserve_bytes,
            reserve,
        )
        if status:
            raise self.library.error(status, "cudnnRNNBackwardWeights_v8", self.problem)

    def backward(
        self,
        launch: Launch,
        data: BackwardDataAddresses,
        weights: BackwardWeightsAddresses,
        accumulate: bool = False,
    ) -> None:
        if not accumulate:
            # First, not between the two calls: that made graphs slower.
            self._clear(weights.dweights, self._weight_bytes, launch.stream)
        self.backward_data(launch, data)
        self.backward_weights(launch, weights, accumulate=True)
