"""The public convolution function on JAX arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from dnnffi.jax.arrays import as_jax, refuse_embedding
from dnnffi.jax.convolution import by_lax, operation
from dnnffi.jax.convolution.call import in_memory
from dnnffi.jax.convolution.implementations import implementation_of
from dnnffi.jax.primitives import Implementation
from dnnffi.spec.checks import ITEM_SIZES, check_choice
from dnnffi.spec.conv import RANKS, ConvSpec, Padding
from dnnffi.spec.conv_options import ConvOptions, ConvOptionsDict, conv_options
from dnnffi.spec.conv_problem import FORWARD, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST, LAYOUTS
from dnnffi.spec.names import Activation, MemoryLayout

Sizes = int | Sequence[int]


def conv(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    activation: Activation | None = None,
    residual: Any = None,
    alpha: float = 1.0,
    layout: MemoryLayout = CHANNELS_FIRST,
    implementation: str | None = None,
    options: ConvOptionsDict | None = None,
) -> Any:
    """Compute ``activation(conv(x, w) + alpha * residual + bias)``, as `dnnffi.conv` does.

    Parameters
    ----------
    x : [N, C, ...] with one, two or three spatial dimensions; [N, ..., C] with channels last
    w : [K, C/groups, ...]; [K, ..., C/groups] with channels last
    bias : [K], or None
    stride, dilation : one integer, or one for each spatial dimension
    padding : zeros added on both sides of x: one integer, or for each spatial dimension an integer
        or a pair (before, after), as ``lax`` takes pairs. "valid" is 0. "same" gives y the sizes
        ceil(size / stride), by the rule of ``lax``
    groups : divides C and K; with C groups the convolution is depthwise
    activation : "relu" or None
    residual : shape of y, or None
    alpha : factor of ``residual``, a number
    layout : "channels_first" or "channels_last", of all arrays; the latter is faster in float16 and
        bfloat16
    implementation : "cudnn", "lax" (``lax.conv_general_dilated``), "reference" (NumPy, on the
        host), or None: cuDNN on CUDA, and ``lax`` elsewhere and for what cuDNN refuses; ``lax``
        always computes an empty batch
    options : as `dnnffi.conv` has them: math, deterministic, workspace_limit, and tune, whose
        value "now" measures cuDNN's candidates while tracing. ``lax`` reads math alone

    All arrays have one dtype: float16, bfloat16, float32 or float64. y is [N, K, ...], or
    [N, ..., K] with channels last. There are derivatives of every order and mode, each by the same
    implementation.

    Raises
    ------
    TypeError, ValueError
        The error names the argument, and is raised during tracing.
    UnsupportedError, LibraryNotFoundError
        The named implementation cannot compute this, or was not found.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from dnnffi import jax as djax
    >>> x, w = jnp.ones((1, 5, 5, 2)), jnp.ones((3, 3, 3, 2))
    >>> layer = jax.jit(lambda x, w: djax.conv(x, w, padding="same", layout="channels_last"))
    >>> layer(x, w).shape, float(layer(x, w)[0, 2, 2, 0])
    ((1, 5, 5, 3), 18.0)
    """
    layout = check_choice("layout", layout, LAYOUTS)
    given = {"x": x, "w": w, "bias": bias, "residual": residual}
    arrays = {
        name: as_jax(name, array)
        for name, array in given.items()
        if array is not None or name in ("x", "w")
    }
    x_shape, w_shape = (_logical(name, arrays[name].shape, layout) for name in ("x", "w"))
    dtype = arrays["x"].dtype.name
    if dtype not in ITEM_SIZES:
        raise TypeError(
            f"x must have one of the dtypes {', '.join(ITEM_SIZES)}; got {dtype}; use "
            f"x.astype('float32')"
        )
    spec = ConvSpec.from_weight_shape(
        w_shape, stride=stride, padding=padding, dilation=dilation, groups=groups, dtype=dtype
    )
    problem = ConvProblem.of(
        FORWARD,
        spec,
        x_shape,
        layout=layout,
        activation=activation,
        residual=residual is not None,
        alpha=alpha,
        bias=bias is not None,
        options=_options(options),
    )
    shapes = dict(zip(given, problem.argument_shapes, strict=True))
    for name, array in arrays.items():
        shape = in_memory(shapes[name], problem)
        if array.dtype.name != dtype:
            raise TypeError(
                f"{name} must have the dtype of x, {dtype}; got {array.dtype}; use "
                f"{name}.astype({dtype!r})"
            )
        if array.shape != shape:
            raise ValueError(f"{name} must have shape {shape}; got {array.shape}")
    operands = tuple(arrays.values())
    chosen = implementation_of(implementation, operands)
    return _run(problem, chosen if problem.batch else None, implementation is None, operands)


def _logical(name: str, shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the shape with the channels in the second axis."""
    if len(shape) - 2 not in RANKS:
        raise ValueError(f"{name} must have 3, 4 or 5 dimensions; got shape {shape}")
    if layout == CHANNELS_LAST:
        return (shape[0], shape[-1], *shape[1:-1])
    return shape


def _options(options: object) -> ConvOptions:
    refuse_embedding(options)
    checked = conv_options(options)
    if checked.validate:
        raise ValueError(
            "options['validate'] is of dnnffi's own functions; compare with implementation='lax' "
            "instead"
        )
    return checked


@partial(jax.jit, static_argnums=(0, 1, 2))
def _run(
    problem: ConvProblem, chosen: Implementation | None, or_lax: bool, operands: tuple[Any, ...]
) -> Any:
    if chosen is None:
        return by_lax.compute(problem, *operands)
    return operation.run(chosen, problem, operands, or_lax=or_lax)
