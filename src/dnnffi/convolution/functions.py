"""Convolutions on arrays: the functions that users call.

The module is not called ``conv``: importing it would put it in the place of `dnnffi.conv`.

Symbols: N batch, C input channels, K output channels. Spatial dimensions are one, two or three.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from numpy import ndarray

from dnnffi.backends.conv_interface import ConvProblemPlan
from dnnffi.backends.registry import backend_of
from dnnffi.convolution import backend as conv_backend
from dnnffi.convolution import bias as conv_bias
from dnnffi.convolution.backend import ConvBackend, DeviceConvBackend, conv_backends
from dnnffi.convolution.reference_plan import ReferenceConvPlan, check_bias_gradient, check_conv
from dnnffi.convolution.signature import Asked, sign, sign_on_host
from dnnffi.device.arrays import as_array, conversion, is_external, kind
from dnnffi.device.cupy import import_cupy
from dnnffi.device.external.host import external_array
from dnnffi.device.external.use import checked_use, thread
from dnnffi.device.interface import AnyArray, ArrayT
from dnnffi.device.torch_tensors import is_compiling, uncompiled
from dnnffi.execution.embedding import (
    Embedding,
    embeds,
    in_user_memory,
    take_embedding,
    unwrap,
    wrapped,
)
from dnnffi.reference import conv as reference
from dnnffi.spec.checks import ITEM_SIZES, check_integer, check_number
from dnnffi.spec.conv import (
    RANKS,
    ConvSpec,
    Padding,
    check_padding,
    check_shape,
    per_dimension,
)
from dnnffi.spec.conv_cause import Shapes, conv_cause
from dnnffi.spec.conv_options import DEFAULTS, ConvOptions, ConvOptionsDict, conv_options
from dnnffi.spec.conv_problem import (
    ARGUMENTS,
    BACKWARD_DATA,
    BACKWARD_WEIGHTS,
    FORWARD,
    ConvProblem,
    check_activation,
)
from dnnffi.spec.layouts import CHANNELS_FIRST, memory_layout
from dnnffi.spec.names import Activation, BackendName, DType, Operation

Sizes = int | Sequence[int]


def conv(
    x: ArrayT,
    w: ArrayT,
    bias: ArrayT | None = None,
    /,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    activation: Activation | None = None,
    residual: ArrayT | None = None,
    alpha: float = 1.0,
    backend: BackendName | None = None,
    options: ConvOptionsDict | None = None,
) -> ArrayT:
    """Convolve: ``activation(conv(x, w) + alpha * residual + bias)``.

    The kernel is not flipped, as everywhere in deep learning. With zeros around x, output channel k
    at position o is the sum over the channels c of its group and the kernel's positions t of
    ``w[k, c, t] * x[c, stride*o + dilation*t - padding]``, with the padding before x.

    Parameters
    ----------
    x : [N, C, ...] with one, two or three spatial dimensions, in any strides. float16, bfloat16,
        float32 or float64; NumPy, CuPy, or anything with DLPack or ``__cuda_array_interface__``
    w : [K, C/groups, ...], of the dtype of x, as all arrays; NumPy arrays in either byte order
    bias : [K], or None
    stride, dilation : one integer, or one per spatial dimension
    padding : zeros added on both sides of x: one integer, or for each spatial dimension an integer
        or a pair (before, after). "valid" is 0. "same" gives y the sizes ceil(size / stride); if
        the number of zeros is odd, one more comes after x, as in TensorFlow, Keras and XLA
    groups : number of groups, which divides C and K; with C groups the convolution is depthwise
    activation : "relu" or None
    residual : shape of y, or None
    alpha : factor of ``residual``
    backend : "cudnn", "miopen", "reference", or None: chosen by the arrays (CuPy on CUDA, CuPy on
        ROCm, NumPy)
    options : a dictionary with any of these keys:

        - "math": "default" (float32 may be computed in TF32), "strict" or "fast"
        - "deterministic": True for the same bits in each call
        - "tune": "auto" (use what was measured), "now" (measure the candidates at the first call)
          or "off" (the library's heuristics alone)
        - "workspace_limit": bytes
        - "validate": True compares the result with that of the reference
        - "allocator": a function of a shape and the name of a dtype, and if the channels are last
          also of ``strides`` in elements, that returns a new array of another library; "stream":
          the address of the stream to run on, or a function that returns it. See `dnnffi.foreign`

    Returns
    -------
    y : [N, K, ...], sizes (size + before + after - dilation*(kernel - 1) - 1) // stride + 1, with
        the padding before and after x. Channels last in memory if x is; if x counts as either (one
        channel, or one element per channel), as w is

    Raises
    ------
    TypeError, ValueError
        The error names the argument, the value received and the value expected.
    UnsupportedError
        The backend cannot do this: MIOpen does not support all of it; cuDNN has no engine for the
        problem, or none that the options allow.
    LibraryNotFoundError, CudnnError, MiopenError
        The library was not found, or it failed.
    ValidationError
        With "validate": the result differs from the reference's by more than rounding.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> x = np.array([[[0.0, 0.0, 1.0, 0.0, 0.0]]])  # N, C and one spatial dimension
    >>> w = np.array([[[1.0, 2.0, 3.0]]])
    >>> dnnffi.conv(x, w, padding="same").tolist()
    [[[0.0, 3.0, 2.0, 1.0, 0.0]]]
    >>> dnnffi.conv(x, w, np.array([-1.0]), stride=2, padding=1, activation="relu").tolist()
    [[[0.0, 1.0, 0.0]]]
    >>> dnnffi.conv(x, w, padding=((2, 0),)).tolist()  # zeros before x alone
    [[[0.0, 0.0, 3.0, 2.0, 1.0]]]
    """
    geometry = stride, padding, dilation, 0
    asked = FORWARD, False, None, geometry, groups, activation, alpha, backend
    return run(asked, (x, w, bias, residual), options)


def conv_backward_data(
    dy: ArrayT,
    w: ArrayT,
    x_shape: Sequence[int],
    /,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    backend: BackendName | None = None,
    options: ConvOptionsDict | None = None,
) -> ArrayT:
    """Gradient of ``sum(dy * conv(x, w))`` with respect to x.

    The keywords and the errors are those of `conv`.

    Parameters
    ----------
    dy : [N, K, ...]; of a fused forward call, the gradient before its activation
    w : [K, C/groups, ...]
    x_shape : [N, C, ...]; with a stride, several sizes of x give the same size of y

    Returns
    -------
    dx : of ``x_shape``, channels last in memory if dy is

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> dy, w = np.array([[[1.0, 0.0]]]), np.array([[[1.0, 2.0, 3.0]]])
    >>> dnnffi.conv_backward_data(dy, w, (1, 1, 5), stride=2).tolist()
    [[[1.0, 2.0, 3.0, 0.0, 0.0]]]
    >>> dnnffi.conv_backward_data(dy, w, (1, 1, 6), stride=2).shape  # gives a y of the same size
    (1, 1, 6)
    """
    geometry = stride, padding, dilation, 0
    asked = BACKWARD_DATA, False, x_shape, geometry, groups, None, 1.0, backend
    return run(asked, (dy, w), options)


def conv_backward_weights(
    dy: ArrayT,
    x: ArrayT,
    w_shape: Sequence[int],
    /,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    backend: BackendName | None = None,
    options: ConvOptionsDict | None = None,
) -> ArrayT:
    """Gradient of ``sum(dy * conv(x, w))`` with respect to w.

    The keywords and the errors are those of `conv`.

    Parameters
    ----------
    dy : [N, K, ...]; of a fused forward call, the gradient before its activation
    x : [N, C, ...]
    w_shape : [K, C/groups, ...]

    Returns
    -------
    dw : of ``w_shape``, channels last in memory if dy is

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> dy, x = np.array([[[1.0, 0.0, 1.0]]]), np.array([[[1.0, 2.0, 3.0, 4.0]]])
    >>> dnnffi.conv_backward_weights(dy, x, (1, 1, 2)).tolist()
    [[[4.0, 6.0]]]
    """
    geometry = stride, padding, dilation, 0
    asked = BACKWARD_WEIGHTS, False, w_shape, geometry, groups, None, 1.0, backend
    return run(asked, (dy, x), options)


def conv_backward_bias(
    dy: ArrayT, /, *, backend: BackendName | None = None, options: ConvOptionsDict | None = None
) -> ArrayT:
    """Gradient of the bias, of ordinary and transposed convolutions: [K], from dy [N, K, ...].

    It is the sum over all axes but the channels, computed where dy is, for every backend: by
    dnnffi's own kernels on CUDA, up to 2**30 positions for each channel (with an allocator, more
    raise `UnsupportedError`), by array code elsewhere. The two 16-bit types are summed in
    float32 or higher. With ``options["allocator"]`` on ROCm MIOpen computes the sum, in float16 or
    float32 (``miopenConvolutionBackwardBias``).

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> dnnffi.conv_backward_bias(np.ones((2, 3, 4, 5))).tolist()
    [40.0, 40.0, 40.0]
    """
    if "torch._dynamo" in sys.modules and is_compiling():
        return uncompiled(conv_backward_bias)(dy, backend=backend, options=options)
    if embeds(options):
        rest = dict(options)

        def call(arrays: tuple[AnyArray, ...], summing: Any) -> AnyArray:
            return _backward_bias(arrays, summing, rest)

        return _embedded(("dy",), (dy,), backend, take_embedding(rest), call)
    taken = as_array("dy", dy)
    backend_of(backend, taken)
    if is_external(taken.__class__):
        import_cupy()  # says that there has to be an allocator
    return _backward_bias((taken,), conv_bias if kind(taken) == "cuda" else reference, options)


def _backward_bias(arrays: tuple[AnyArray, ...], summing: Any, options: object) -> AnyArray:
    (dy,) = arrays
    checked = conv_options(options)
    _rank("dy", dy)
    _check_dtype("dy", dy)
    dbias: AnyArray = summing.backward_bias(dy)
    if checked.validate and dy.size:
        check_bias_gradient(checked, dy, dbias)
    return dbias


def conv_transpose(
    x: ArrayT,
    w: ArrayT,
    bias: ArrayT | None = None,
    /,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    activation: Activation | None = None,
    residual: ArrayT | None = None,
    alpha: float = 1.0,
    backend: BackendName | None = None,
    options: ConvOptionsDict | None = None,
) -> ArrayT:
    """Transposed convolution: ``activation(conv_transpose(x, w) + alpha * residual + bias)``.

    It is backward data of the convolution with the same weights that goes from K to C channels.
    As `conv`, except for:

    Parameters
    ----------
    w : [C, K/groups, ...]
    stride : step of the kernel over the output
    padding : positions removed from both sides of the output, given as in `conv`. "same" gives y
        the sizes size * stride, as in TensorFlow and Keras
    output_padding : positions added at the end of the output, fewer than the larger of stride and
        dilation: with a stride, several output sizes belong to one input size

    Returns
    -------
    y : [N, K, ...], sizes (size - 1)*stride - before - after + dilation*(kernel - 1) + 1 +
        output_padding, with the padding before and after, in the memory layout of x

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> x, w = np.array([[[1.0, 2.0]]]), np.array([[[1.0, 1.0]]])
    >>> dnnffi.conv_transpose(x, w, stride=2).tolist()  # each value twice
    [[[1.0, 1.0, 2.0, 2.0]]]
    >>> dnnffi.conv_transpose(x, w, stride=2, output_padding=1).shape
    (1, 1, 5)
    """
    geometry = stride, padding, dilation, output_padding
    asked = FORWARD, True, None, geometry, groups, activation, alpha, backend
    return run(asked, (x, w, bias, residual), options)


def conv_transpose_backward_data(
    dy: ArrayT,
    w: ArrayT,
    x_shape: Sequence[int],
    /,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    backend: BackendName | None = None,
    options: ConvOptionsDict | None = None,
) -> ArrayT:
    """Gradient of ``sum(dy * conv_transpose(x, w))`` with respect to x.

    As `conv_backward_data`, with w [C, K/groups, ...].

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> dy, w = np.array([[[1.0, 2.0, 3.0, 4.0]]]), np.array([[[1.0, 1.0]]])
    >>> dnnffi.conv_transpose_backward_data(dy, w, (1, 1, 2), stride=2).tolist()
    [[[3.0, 7.0]]]
    """
    geometry = stride, padding, dilation, output_padding
    asked = BACKWARD_DATA, True, x_shape, geometry, groups, None, 1.0, backend
    return run(asked, (dy, w), options)


def conv_transpose_backward_weights(
    dy: ArrayT,
    x: ArrayT,
    w_shape: Sequence[int],
    /,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    backend: BackendName | None = None,
    options: ConvOptionsDict | None = None,
) -> ArrayT:
    """Gradient of ``sum(dy * conv_transpose(x, w))`` with respect to w.

    As `conv_backward_weights`, with ``w_shape`` [C, K/groups, ...].

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> dy, x = np.array([[[1.0, 2.0, 3.0, 4.0]]]), np.array([[[1.0, 10.0]]])
    >>> dnnffi.conv_transpose_backward_weights(dy, x, (1, 1, 2), stride=2).tolist()
    [[[31.0, 42.0]]]
    """
    geometry = stride, padding, dilation, output_padding
    asked = BACKWARD_WEIGHTS, True, w_shape, geometry, groups, None, 1.0, backend
    return run(asked, (dy, x), options)


def run_embedded(
    asked: Asked, arrays: tuple[Any, ...], options: object, embedding: Embedding
) -> AnyArray:
    """Run a call with an allocator; the result is an object of that allocator.

    ``options`` are the others.
    """

    def call(arrays: tuple[Any, ...], found: Any) -> AnyArray:
        return run(asked, arrays, options, found)

    return _embedded(ARGUMENTS[asked[0]], arrays, asked[-1], embedding, call)


def _embedded(
    names: Sequence[str],
    arrays: tuple[Any, ...],
    backend: Any,
    embedding: Embedding,
    call: Callable[..., AnyArray],
) -> AnyArray:
    """``call`` on arrays of another library; the result is an object of the user's allocator."""
    before = thread.use
    try:
        thread.use = checked_use(*embedding)
        found, memory_kind, first = conv_backends.for_allocator(
            backend, arrays[0], names[0], strided=True
        )
        strided = found.takes_strided
        if not strided:
            first = external_array(names[0], first, memory_kind)
        others = wrapped(names[1:], arrays[1:], memory_kind, strided=strided)
        result = call((first, *others), found)
        return unwrap(*in_user_memory([result], memory_kind))
    finally:
        thread.use = before


_OPTIONAL = ("bias", "residual")
_GEOMETRY = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}  # the least of each


def run(
    asked: Asked,
    arrays: tuple[Any, ...],
    options: object,
    found: ConvBackend | None = None,
) -> AnyArray:
    """Find the plan, hand over. ``found`` is the backend of a call with an allocator."""
    if "torch._dynamo" in sys.modules and is_compiling():
        return uncompiled(run)(asked, arrays, options, found)
    if options is None:
        checked = DEFAULTS
    elif embeds(options):
        rest = dict(options)
        return run_embedded(asked, arrays, rest, take_embedding(rest))
    else:
        checked = conv_options(options)
    if found is None and arrays[0].__class__ is ndarray:
        return _run_on_host(asked, checked, arrays)
    plan = signed = None
    knows = conv_backend.on_cupy
    if found is not None:
        knows = found if isinstance(found, DeviceConvBackend) else None
    if knows is not None:
        signed = sign(asked, checked, arrays, knows.ndarray)
        if signed is not None:
            plan = knows.plans.find(signed[0])
    if plan is not None and signed is not None:
        result = plan.run_at(signed[1])
    else:
        plan, arrays = _checked(asked, checked, arrays, found)
        if knows is not None and signed is not None and plan.accepts(arrays):
            result = plan.run_at(signed[1])
            knows.plans.add(signed[0], plan)
        else:
            result = plan.run(*arrays)
    if checked.validate and plan.problem.batch:
        check_conv(plan.problem, arrays, result)
    return result


def _run_on_host(asked: Asked, options: ConvOptions, arrays: tuple[Any, ...]) -> AnyArray:
    """`run` on an array of NumPy."""
    plans = conv_backend.on_host.plans
    signature = sign_on_host(asked, options, arrays)
    plan = None if signature is None else plans.find(signature)
    if plan is None:
        plan, arrays = _checked(asked, options, arrays, None)
        if signature is not None and isinstance(plan, ReferenceConvPlan):
            plans.add(signature, plan)
    result = plan.run(*arrays)
    if options.validate and plan.problem.batch:
        check_conv(plan.problem, arrays, result)
    return result


def _checked(
    asked: Asked,
    options: ConvOptions,
    values: tuple[Any, ...],
    embedding: ConvBackend | None,
) -> tuple[ConvProblemPlan, tuple[Any, ...]]:
    """Return the plan of a call, and its arrays.

    The first array decides the backend unless one is given, and the layout; if it has no definite
    layout, the second decides. In PyTorch either array makes the layout channels last.
    """
    operation, transposed, shape, geometry, groups, activation, alpha, backend = asked
    names = ARGUMENTS[operation]
    arrays: tuple[Any, ...] = tuple(
        None if array is None and name in _OPTIONAL else as_array(name, array)
        for name, array in zip(names, values, strict=True)
    )
    activation, alpha = check_activation(activation), check_number("alpha", alpha)
    first, second = arrays[:2]
    x_shape, w_shape = first.shape, second.shape
    if operation == BACKWARD_DATA:
        x_shape = check_shape("x_shape", shape)
    elif operation == BACKWARD_WEIGHTS:
        x_shape, w_shape = second.shape, check_shape("w_shape", shape)
    found = conv_backend.backend_for(backend, first) if embedding is None else embedding
    device = found.device_of(names[0], first)
    rank = _rank(names[0], first)
    sizes = tuple(
        check_padding(value, rank) if name == "padding" else per_dimension(name, value, rank, least)
        for value, (name, least) in zip(geometry, _GEOMETRY.items(), strict=True)
    )
    groups = check_integer("groups", groups)
    layout = _layout_of(first.shape, first.strides)
    if layout is None and second.ndim == first.ndim:
        layout = _layout_of(second.shape, second.strides)
    bias, residual = (array is not None for array in (*arrays, None, None)[2:4])
    key = (
        *(operation, transposed, x_shape, w_shape, first.dtype, layout, sizes, groups),
        *(activation, residual, alpha, bias, options, device),
    )
    plan = found.plans.find(key)
    if plan is not None:
        _check_arrays(found, plan.argument_shapes, device, names, arrays)
        return plan, arrays
    _check_dtype(names[0], first)
    name = "w_shape" if operation == BACKWARD_WEIGHTS else "w"
    rest = groups, transposed, first.dtype.name, name
    try:
        if len(w_shape) == rank + 2:
            spec = _spec_of(w_shape, sizes, *rest)
        else:  # sizes have the rank of the first array, and the error is of the weights
            spec = _make_spec(w_shape, geometry, *rest)
        problem = ConvProblem.of(
            operation,
            spec,
            x_shape,
            layout=layout or CHANNELS_FIRST,
            activation=activation,
            residual=residual,
            alpha=alpha,
            bias=bias,
            options=options,
        )
        # Before a library is asked for a plan.
        _check_arrays(found, problem.argument_shapes, device, names, arrays)
    except ValueError as error:
        shapes = {names[0]: first.shape, names[1]: second.shape, "x": x_shape, "w": w_shape}
        cause = _cause(operation, shapes, (names[0], names[1]), sizes, groups, transposed)
        if cause is None:
            raise
        raise ValueError(f"{error}; {cause}") from None
    return found.plans.get(key, lambda: found.prepare(problem, device)), arrays


def _make_spec(
    w_shape: tuple[int, ...],
    geometry: tuple[Any, ...],
    groups: int,
    transposed: bool,
    dtype: DType,
    name: str,
) -> ConvSpec:
    """Return the spec of a call; ``name`` is that of the argument with the weights' shape."""
    return ConvSpec.from_weight_shape(
        w_shape,
        **dict(zip(_GEOMETRY, geometry, strict=True)),
        groups=groups,
        transposed=transposed,
        dtype=dtype,
        name=name,
    )


def _cause(
    operation: Operation,
    shapes: Shapes,
    arrays: tuple[str, str],
    sizes: tuple[Any, ...],
    groups: int,
    transposed: bool,
) -> str | None:
    """Return the likely cause of shapes that do not fit together."""

    def fits(shapes: Shapes, groups: int, transposed: bool) -> bool:
        try:
            spec = _make_spec(shapes["w"], sizes, groups, transposed, "float32", "w")
            problem = ConvProblem.of(operation, spec, shapes["x"])
        except ValueError:
            return False
        found = {"x": problem.x_shape, "w": spec.weight_shape, "dy": problem.y_shape}
        return all(found[name] == shape for name, shape in shapes.items())

    return conv_cause(
        {name: tuple(shape) for name, shape in shapes.items()}, arrays, groups, transposed, fits
    )


_spec_of = lru_cache(maxsize=1024)(_make_spec)  # asked for each image size
_layout_of = lru_cache(maxsize=1024)(memory_layout)  # asked in every call


def _rank(name: str, array: AnyArray) -> int:
    """Return the number of spatial dimensions of ``array``."""
    rank: int = array.ndim - 2
    if rank not in RANKS:
        raise ValueError(
            f"{name} must have 3, 4 or 5 dimensions, [N, channels, ...]; got shape "
            f"{tuple(array.shape)}"
        )
    return rank


@lru_cache
def _is_convolved(dtype: Any) -> bool:
    return dtype.name in ITEM_SIZES  # the name is slow to get


def _check_dtype(name: str, array: AnyArray) -> None:
    if not _is_convolved(array.dtype):
        raise TypeError(
            f"{name} must have one of the dtypes {', '.join(ITEM_SIZES)}; got {array.dtype}"
            f"{conversion(name, array, 'float32')}"
        )


def _check_arrays(
    found: ConvBackend,
    shapes: tuple[tuple[int, ...], ...],
    device: Any,
    names: tuple[str, ...],
    arrays: tuple[Any, ...],
) -> None:
    """Raise unless all arrays are where the first is, of its dtype, and of the shapes."""
    first, dtype = names[0], arrays[0].dtype
    for name, array, shape in zip(names, arrays, shapes, strict=True):
        if array is None:
            continue
        if array.dtype is not dtype and array.dtype.name != dtype.name:  # in any byte order
            raise TypeError(
                f"{name} must have the dtype of {first}, {dtype}; got {array.dtype}"
                f"{conversion(name, array, dtype.name)}"
            )
        if name is not first:
            where = found.device_of(name, array)
            if where != device:
                raise ValueError(f"{name} must be where {first} is, {device}; it is on {where}")
        if array.shape != shape:
            raise ValueError(f"{name} must have shape {shape}; got {tuple(array.shape)}")
