"""The RNN executor on cuDNN: descriptors made once, then one C call for each step of training."""

from __future__ import annotations

from math import prod
from typing import Any, Self
from weakref import ref

from dnnffi.arrays import Array
from dnnffi.backends.arguments import ArrayCheck, Span, check_apart
from dnnffi.backends.context import (
    Context,
    Phase,
    check_before_data,
    check_before_weights,
    check_owner,
)
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
from dnnffi.errors import ContextError, DnnffiError, UnsupportedError
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import PACKED, RNNProblem
from dnnffi.spec.weights import weight_layout

_ADD = 0  # CUDNN_WGRAD_MODE_ADD, the only mode that cuDNN 9.19 takes for an RNN


def _nothing() -> None:
    """Stand in for the weak reference to an array that is None."""


_NOTHING_SEEN = (_nothing,) * 8 + ((),)
_MOST_SEEN = 16  # sets of buffers that an executor knows again


class RNNExecutor:
    """One RNN problem on cuDNN, for callers who hold their own buffers.

    Making it makes the descriptors, picks the algorithm and asks for the buffer sizes; a call then
    checks its arrays and makes one C call, on CuPy's current stream, without allocating or
    synchronising. Several threads may share it: each uses its own handle.

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
    weight_size : elements of the flat weight buffer

    Raises
    ------
    UnsupportedError
        The library has no such combination, or the problem has more than 65,535 steps.
    CudnnError
        Any other status of a cuDNN function.
    """

    def __init__(
        self,
        problem: RNNProblem,
        *,
        generator: Generator | None = None,
        device: int | None = None,
        library: Library | None = None,
    ) -> None:
        self.library = library = load() if library is None else library
        memory = library.memory
        self.device = device = memory.current_device() if device is None else device
        self.problem = problem
        spec = problem.spec
        self._memory = memory
        drops = problem.training and problem.dropout > 0 and spec.num_layers > 1
        if drops and generator is None:
            raise ValueError("generator: a problem with dropout needs random numbers")
        self.generator = generator if drops else None
        self.algorithm = self._algorithm()
        self._owned: list[Any] = []
        self._descriptors: tuple[Any, ...] = ()
        with memory.use(device):
            try:
                self._describe()
            except UnsupportedError:
                if problem.options.algorithm != "auto" or self.algorithm == "standard":
                    raise
                # The rule guessed what this version, or this GPU, does not have.
                self.algorithm = "standard"
                self._describe()
        self._bind()

    def _algorithm(self) -> str:
        problem = self.problem
        algorithm = problem.options.algorithm
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
            self._make_descriptors()
        except BaseException:
            self.close()
            raise

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
        self.workspace_bytes = int(workspace[0])
        self.reserve_bytes = int(reserve[0])
        self.weight_size = weight_layout(spec, "cudnn").size
        self._weight_bytes = weight_space_size(self._rnn, handle)
        if self._weight_bytes != self.weight_size * ITEM_SIZES[spec.dtype]:
            raise DnnffiError(
                f"cuDNN {library.version_text} wants {self._weight_bytes} bytes of weights for "
                f"{spec}; the layout that dnnffi predicts has "
                f"{self.weight_size * ITEM_SIZES[spec.dtype]}. Please report this"
            )

    def _own(self, descriptor: Any) -> Any:
        self._owned.append(descriptor)
        return descriptor

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
        """Everything a call needs, under one name each: the calls are the hot path."""
        problem, lib = self.problem, self.library.lib
        self._forward = lib.cudnnRNNForward
        self._backward_data = lib.cudnnRNNBackwardData_v8
        self._backward_weights = lib.cudnnRNNBackwardWeights_v8
        self._current_device = self._memory.current_device
        self._training = problem.training
        self._has_cell = problem.spec.has_cell
        self._x_size = prod(problem.x_shape)
        self._y_size = prod(problem.y_shape)
        self._h_size = prod(problem.h_shape)
        self._c_size = prod(problem.c_shape)
        self._item = ITEM_SIZES[problem.spec.dtype]
        check = ArrayCheck(self._memory, self.device, problem.spec.dtype)
        self._address, self._buffer = check.address, check.buffer
        self._seen: dict[int, tuple[Any, ...]] = {}
        self._descriptors = tuple(
            descriptor.pointer for descriptor in (self._rnn, self._x, self._y, self._h, self._c)
        )

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._owned

    def close(self) -> None:
        """Destroy the descriptors. A second call does nothing."""
        self._descriptors = ()
        while self._owned:
            self._owned.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def context(self, reserve: Array) -> Context:
        """A context on ``reserve``, a device buffer of at least ``reserve_bytes`` bytes."""
        if not self._training:
            raise ContextError("this executor is for inference; its problem has training=False")
        self._buffer("reserve", reserve, self.reserve_bytes)
        return Context(self, reserve)

    def forward(
        self,
        x: Array,
        h_0: Array | None,
        c_0: Array | None,
        weights: Array,
        *,
        out: tuple[Array, Array | None, Array | None],
        workspace: Array,
        context: Context | None = None,
    ) -> None:
        """Forward (``cudnnRNNForward``): fills ``out`` = (y, h_n, c_n).

        All arrays are contiguous, of the problem's shapes and the spec's dtype; ``weights`` is the
        flat buffer [weight_size]; ``workspace`` has at least ``workspace_bytes`` bytes. ``h_0``,
        ``c_0`` None is zeros; ``h_n``, ``c_n`` None is not wanted. A training problem needs a
        ``context``, which is then ready for backward data.

        Raises ``TypeError``, ``ValueError`` naming the argument, `ContextError`, `CudnnError`.
        """
        y, h_n, c_n = out
        addresses = self.check_forward(x, y, h_0, h_n, c_0, c_n, weights, workspace)
        self.forward_at(addresses, context)

    def check_forward(
        self,
        x: Array,
        y: Array,
        h_0: Array | None,
        h_n: Array | None,
        c_0: Array | None,
        c_n: Array | None,
        weights: Array,
        workspace: Array,
    ) -> tuple[int, ...]:
        """Addresses of the arrays of `forward`, in this order, each checked.

        Arrays that were checked before are known again: buffers are used many times.
        """
        seen = self._seen.get(id(y), _NOTHING_SEEN)
        if (
            seen[0]() is x
            and seen[1]() is y
            and seen[2]() is h_0
            and seen[3]() is h_n
            and seen[4]() is c_0
            and seen[5]() is c_n
            and seen[6]() is weights
            and seen[7]() is workspace
        ):
            known: tuple[int, ...] = seen[8]
            return known
        x_at, y_at = self._address("x", x, self._x_size), self._address("y", y, self._y_size)
        h_0_at, c_0_at = self._states(("h_0", "c_0"), h_0, c_0)
        h_n_at, c_n_at = self._states(("h_n", "c_n"), h_n, c_n)
        weights_at = self._address("weights", weights, self.weight_size)
        workspace_at = self._buffer("workspace", workspace, self.workspace_bytes)
        check_apart(
            (
                self._span("y", y_at, self._y_size),
                self._span("h_n", h_n_at, self._h_size),
                self._span("c_n", c_n_at, self._c_size),
                Span("workspace", workspace_at, self.workspace_bytes),
            ),
            (
                self._span("x", x_at, self._x_size),
                self._span("h_0", h_0_at, self._h_size),
                self._span("c_0", c_0_at, self._c_size),
                self._span("weights", weights_at, self.weight_size),
            ),
        )
        addresses = (x_at, y_at, h_0_at, h_n_at, c_0_at, c_n_at, weights_at, workspace_at)
        # Weak: an executor is not to keep its caller's buffers alive. The id is only a place to
        # look; that it is still the same array, the reference tells.
        arrays = (x, y, h_0, h_n, c_0, c_n, weights, workspace)
        references = (_nothing if array is None else ref(array) for array in arrays)
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen[id(y)] = (*references, addresses)
        return addresses

    def check_inputs(
        self, x: Array, h_0: Array | None, c_0: Array | None, weights: Array
    ) -> tuple[int, int, int, int]:
        """Addresses of (x, h_0, c_0, weights), checked as `forward` does."""
        return (
            self._address("x", x, self._x_size),
            *self._states(("h_0", "c_0"), h_0, c_0),
            self._address("weights", weights, self.weight_size),
        )

    def forward_at(
        self,
        addresses: tuple[int, ...],
        context: Context | None = None,
        *,
        ordered: bool = True,
    ) -> None:
        """`forward` on checked addresses: x, y, h_0, h_n, c_0, c_n, weights, workspace.

        Without ``ordered`` the caller sees to it that uses of the ``generator`` do not overlap.
        """
        x, y, h_0, h_n, c_0, c_n, weights, workspace = addresses
        handle = self._ready()
        rnn, x_desc, y_desc, h_desc, c_desc = self._descriptors
        mode = reserve = reserve_bytes = 0
        if self._training:
            if context is None:
                raise ContextError("forward of a training problem needs a context")
            check_owner(context, self)
            # Whatever happens now, what an earlier forward left is gone.
            context.phase = Phase.EMPTY
            mode, reserve, reserve_bytes = 1, context.reserve.data.ptr, self.reserve_bytes
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

    def backward_data(
        self,
        context: Context,
        y: Array,
        dy: Array,
        h_0: Array | None,
        c_0: Array | None,
        dh_n: Array | None,
        dc_n: Array | None,
        weights: Array,
        *,
        out: tuple[Array, Array | None, Array | None],
        workspace: Array,
    ) -> None:
        """Gradients of the inputs (``cudnnRNNBackwardData_v8``): fills ``out`` = (dx, dh_0, dc_0).

        ``y``, ``h_0``, ``c_0`` and ``weights`` are those of the forward. ``dh_n``, ``dc_n`` None
        is zeros; ``dh_0``, ``dc_0`` None is not wanted. Changes the reserve space: it runs once
        after each forward, and before backward weights.

        Raises as `forward`; `ContextError` also when asked in another order.
        """
        check_before_data(context, self)
        addresses = self.check_backward_data(
            y, dy, h_0, c_0, dh_n, dc_n, weights, *out, workspace=workspace
        )
        y_at, dy_at, h_0_at, c_0_at, dh_n_at, dc_n_at, weights_at, *out_at, workspace_at = addresses
        dx_at, dh_0_at, dc_0_at = out_at
        check_apart(
            (
                self._span("dx", dx_at, self._x_size),
                self._span("dh_0", dh_0_at, self._h_size),
                self._span("dc_0", dc_0_at, self._c_size),
                Span("workspace", workspace_at, self.workspace_bytes),
                Span("reserve", context.reserve.data.ptr, self.reserve_bytes),
            ),
            (
                self._span("y", y_at, self._y_size),
                self._span("dy", dy_at, self._y_size),
                self._span("h_0", h_0_at, self._h_size),
                self._span("c_0", c_0_at, self._c_size),
                self._span("dh_n", dh_n_at, self._h_size),
                self._span("dc_n", dc_n_at, self._c_size),
                self._span("weights", weights_at, self.weight_size),
            ),
        )
        self.backward_data_at(addresses, context)

    def check_gradients(
        self, dy: Array, dh_n: Array | None, dc_n: Array | None
    ) -> tuple[int, int, int]:
        """Addresses of (dy, dh_n, dc_n), checked as `backward_data` does."""
        return (
            self._address("dy", dy, self._y_size),
            *self._states(("dh_n", "dc_n"), dh_n, dc_n),
        )

    def check_backward_data(
        self,
        y: Array,
        dy: Array,
        h_0: Array | None,
        c_0: Array | None,
        dh_n: Array | None,
        dc_n: Array | None,
        weights: Array,
        dx: Array,
        dh_0: Array | None,
        dc_0: Array | None,
        workspace: Array,
    ) -> tuple[int, ...]:
        """Addresses of the arrays of `backward_data`, in this order, each checked."""
        dy_at, dh_n_at, dc_n_at = self.check_gradients(dy, dh_n, dc_n)
        return (
            self._address("y", y, self._y_size),
            dy_at,
            *self._states(("h_0", "c_0"), h_0, c_0),
            dh_n_at,
            dc_n_at,
            self._address("weights", weights, self.weight_size),
            self._address("dx", dx, self._x_size),
            *self._states(("dh_0", "dc_0"), dh_0, dc_0),
            self._buffer("workspace", workspace, self.workspace_bytes),
        )

    def backward_data_at(self, addresses: tuple[int, ...], context: Context) -> None:
        """`backward_data` on checked addresses, and a context that a forward has filled."""
        y, dy, h_0, c_0, dh_n, dc_n, weights, dx, dh_0, dc_0, workspace = addresses
        handle = self._ready()
        rnn, x_desc, y_desc, h_desc, c_desc = self._descriptors
        context.phase = Phase.EMPTY
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
            context.reserve.data.ptr,
        )
        if status:
            raise self.library.error(status, "cudnnRNNBackwardData_v8", self.problem)
        context.phase = Phase.DATA

    def backward_weights(
        self,
        context: Context,
        x: Array,
        h_0: Array | None,
        y: Array,
        *,
        out: Array,
        workspace: Array,
        accumulate: bool = False,
    ) -> None:
        """Gradient of the weights (``cudnnRNNBackwardWeights_v8``): fills ``out`` [weight_size].

        ``x``, ``h_0`` and ``y`` are those of the forward. With ``accumulate`` the gradient is
        added to what ``out`` holds. Runs once, after backward data on the same context.

        Raises as `forward`; `ContextError` also when asked in another order.
        """
        check_before_weights(context, self)
        addresses = self.check_backward_weights(x, h_0, y, out, workspace)
        x_at, h_0_at, y_at, out_at, workspace_at = addresses
        check_apart(
            (
                self._span("out", out_at, self.weight_size),
                Span("workspace", workspace_at, self.workspace_bytes),
                Span("reserve", context.reserve.data.ptr, self.reserve_bytes),
            ),
            (
                self._span("x", x_at, self._x_size),
                self._span("h_0", h_0_at, self._h_size),
                self._span("y", y_at, self._y_size),
            ),
        )
        self.backward_weights_at(addresses, context, accumulate)

    def check_backward_weights(
        self, x: Array, h_0: Array | None, y: Array, out: Array, workspace: Array
    ) -> tuple[int, ...]:
        """Addresses of the arrays of `backward_weights`, in this order, each checked."""
        return (
            self._address("x", x, self._x_size),
            0 if h_0 is None else self._address("h_0", h_0, self._h_size),
            self._address("y", y, self._y_size),
            self._address("out", out, self.weight_size),
            self._buffer("workspace", workspace, self.workspace_bytes),
        )

    def backward_weights_at(
        self, addresses: tuple[int, ...], context: Context, accumulate: bool = False
    ) -> None:
        """`backward_weights` on checked addresses, and a context after backward data."""
        x, h_0, y, out, workspace = addresses
        handle = self._ready()
        rnn, x_desc, y_desc, h_desc, _ = self._descriptors
        if not accumulate:
            self._memory.clear(out, self._weight_bytes)  # the library adds
        context.phase = Phase.SPENT
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
            context.reserve.data.ptr,
        )
        if status:
            raise self.library.error(status, "cudnnRNNBackwardWeights_v8", self.problem)

    def _ready(self) -> Any:
        """The thread's handle on its current stream, if a call can be made now."""
        if not self._descriptors:
            raise ValueError("this executor is closed")
        device = self._current_device()
        if device != self.device:
            raise ValueError(
                f"the current device must be the executor's, {self.device}; it is {device}"
            )
        return handle_for(self.library, device)._pointer

    def _states(self, names: tuple[str, str], h: Array | None, c: Array | None) -> tuple[int, int]:
        """Addresses of a hidden and a cell state, 0 for None."""
        h_at = 0 if h is None else self._address(names[0], h, self._h_size)
        if c is None:
            return h_at, 0
        if not self._has_cell:
            raise ValueError(f"{names[1]} must be None: {self.problem.spec.mode} has no cell state")
        return h_at, self._address(names[1], c, self._c_size)

    def _span(self, name: str, address: int, size: int) -> Span:
        """The memory of an array, nothing where it is None."""
        return Span(name, address, size * self._item if address else 0)
