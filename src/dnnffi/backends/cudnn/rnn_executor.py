"""The RNN executor on cuDNN: descriptors made once, then one C call for each step of training."""

from __future__ import annotations

from typing import Any

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.algorithm import known_wrong, rule
from dnnffi.backends.cudnn.descriptors import (
    RNNDataDescriptor,
    RNNDescriptor,
    RNNInfo,
    TensorDescriptor,
)
from dnnffi.backends.cudnn.dropout import Generator
from dnnffi.backends.cudnn.handle import handle_for
from dnnffi.backends.cudnn.layout import weight_space_size
from dnnffi.backends.cudnn.library import Library, load
from dnnffi.backends.vendor import rnn_executor as rnn
from dnnffi.backends.vendor.context import Context, Phase
from dnnffi.errors import ContextError, UnsupportedError
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.options import check_algorithm
from dnnffi.spec.problem import PACKED, RNNProblem

_ADD = 0  # CUDNN_WGRAD_MODE_ADD, the only mode that cuDNN 9.19 takes for an RNN


class RNNExecutor(rnn.RNNExecutor):
    """One RNN problem on cuDNN, for callers who hold their own buffers.

    Making it makes the descriptors, picks the algorithm and asks for the buffer sizes; a call then
    checks its arrays and makes one C call, on CuPy's current stream, without allocating or
    synchronising. Several threads may share it: each uses its own handle. The calls stand on
    ``cudnnRNNForward``, ``cudnnRNNBackwardData_v8`` and ``cudnnRNNBackwardWeights_v8``.

    Parameters
    ----------
    problem : what to compute
    generator : random numbers of the dropout, where the problem has any
    device : the GPU, by default CuPy's current one
    library : the libcudnn, by default `dnnffi.backends.cudnn.library.load`

    Attributes
    ----------
    problem, device, library : as above
    algorithm : the algorithm in use
    generator : the random numbers in use, None where nothing is dropped
    workspace_bytes, reserve_bytes : sizes of the two buffers; contents of the workspace do not
        outlive a call
    least_workspace_bytes : what suffices without ``accumulate``, here the same
    weight_size : elements of the flat weight buffer

    Raises
    ------
    UnsupportedError
        The library has no such combination, or the problem has more than 65,535 steps.
    CudnnError
        Any other status of a cuDNN function.
    """

    _layout = "cudnn"

    def __init__(
        self,
        problem: RNNProblem,
        *,
        generator: Generator | None = None,
        device: int | None = None,
        library: Library | None = None,
    ) -> None:
        super().__init__(problem, generator, device, load() if library is None else library)

    def _algorithm(self) -> str:
        problem = self.problem
        algorithm = check_algorithm("cudnn", "cuDNN", self.library.version_text, problem.options)
        if algorithm == "auto":
            return rule(problem, self._memory.architecture(self.device))
        uneven = problem.lengths is not None and min(problem.lengths) != max(problem.lengths)
        if algorithm != "standard" and uneven:
            raise UnsupportedError(
                "cuDNN",
                self.library.version_text,
                f"the algorithm {algorithm} takes only rows of equal length; use standard",
            )
        if wrong := known_wrong(problem, algorithm):
            raise UnsupportedError(
                "cuDNN",
                self.library.version_text,
                f"the algorithm {algorithm} is not used for {problem}: {wrong}",
            )
        return algorithm

    def _describe(self) -> None:
        try:
            super()._describe()
        except UnsupportedError:
            if self.problem.options.algorithm != "auto" or self.algorithm == "standard":
                raise
            # The rule guessed what this version, or this GPU, does not have.
            self.algorithm = "standard"
            super()._describe()

    def _make_descriptors(self) -> None:
        problem, library = self.problem, self.library
        spec = problem.spec
        handle = handle_for(library, self.device)
        dropout = self.generator.descriptor(problem.dropout) if self.generator else None
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
            status = library.lib.cudnnBuildRNNDynamic(
                handle.pointer, self._rnn.pointer, problem.batch
            )
            library.check(status, "cudnnBuildRNNDynamic", problem)
        workspace, reserve = ffi.new("size_t *"), ffi.new("size_t *")
        status = library.lib.cudnnGetRNNTempSpaceSizes(
            handle.pointer,
            self._rnn.pointer,
            int(problem.training),
            self._x.pointer,
            workspace,
            reserve if problem.training else ffi.NULL,
        )
        library.check(status, "cudnnGetRNNTempSpaceSizes", problem)
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
        super()._bind()
        lib = self.library.lib
        self._forward = lib.cudnnRNNForward
        self._backward_data = lib.cudnnRNNBackwardData_v8
        self._backward_weights = lib.cudnnRNNBackwardWeights_v8
        self._descriptors = tuple(
            descriptor.pointer for descriptor in (self._rnn, self._x, self._y, self._h, self._c)
        )

    def forward_at(
        self,
        addresses: tuple[int, ...],
        context: Context | None = None,
        *,
        ordered: bool = True,
    ) -> None:
        x, y, h_0, h_n, c_0, c_n, weights, workspace = addresses
        handle = self._ready()
        rnn, x_desc, y_desc, h_desc, c_desc = self._descriptors
        mode = reserve = reserve_bytes = 0
        if self._training:
            mode, reserve, reserve_bytes = 1, self._refill(context), self.reserve_bytes
        elif context is not None:
            raise ContextError("forward of an inference problem takes no context")
        arguments = (
            handle,
            rnn,
            mode,  # CUDNN_FWD_MODE_INFERENCE or _TRAINING
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
            reserve_bytes,
            reserve,
        )
        if ordered and self.generator is not None:
            with self.generator:
                status = self._forward(*arguments)
        else:
            status = self._forward(*arguments)
        if status:
            raise self.library.error(status, "cudnnRNNForward", self.problem)
        if context is not None:
            context.phase = Phase.FORWARD

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
        rnn, x_desc, y_desc, h_desc, c_desc = self._descriptors
        status = self._backward_data(
            handle,
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
        rnn, x_desc, y_desc, h_desc, _ = self._descriptors
        if not accumulate:
            self._memory.clear(out, self._weight_bytes)  # the library adds
        status = self._backward_weights(
            handle,
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
            out,
            self.workspace_bytes,
            workspace,
            self.reserve_bytes,
            reserve,
        )
        if status:
            raise self.library.error(status, "cudnnRNNBackwardWeights_v8", self.problem)
