"""Convolutions on NumPy or CuPy arrays, forward and backward: what the right answer is.

With zeros around x,

    y[n, k, o] = sum over c, t of w[k, c, t] * x[n, c, stride*o + dilation*t - padding]

where o is a position of the output, t one of the kernel, ``padding`` that before the first position
of x, and c runs over the channels of k's group.
The windows of x that the kernel sees make a matrix for each group, so that y is one product, and
backward weights another; backward data is the product with w and the sum of what each window gets.
A transposed convolution exchanges forward and backward data of the ordinary one.

Symbols: N batch, C input channels, K output channels, G groups, O output positions, T positions of
the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from dnnffi.device.arrays import array_module
from dnnffi.device.dtypes import compute_dtype
from dnnffi.device.interface import NDArray
from dnnffi.reference.threads import matmul_of, on_one_thread
from dnnffi.spec.conv import ConvSpec


# Infinity and NaN are values, as on a device: see the rule of dnnffi.reference.
@on_one_thread
@np.errstate(all="ignore")
def forward(
    spec: ConvSpec,
    x: NDArray,
    w: NDArray,
    bias: NDArray | None = None,
    *,
    activation: str | None = None,
    residual: NDArray | None = None,
    alpha: float = 1.0,
) -> NDArray:
    """``activation(conv(x, w) + alpha * residual + bias)`` [N, K, ...].

    float32 and float64 are computed in the dtype of ``x``, float16 and bfloat16 in float32; the
    result has the dtype of ``x``, and strides as they come. Shapes are not checked here.

    Parameters
    ----------
    x : [N, C, ...]
    w : [K, C/groups, ...]; of a transposed convolution [C, K/groups, ...]
    bias : [K] or None
    activation : "relu" or None
    residual : shape of the result, or None
    """
    sizes = spec.output_sizes(x.shape[2:])
    if spec.transposed:
        y = _scatter(spec.adjoint, _up(x), _up(w), sizes)
    else:
        y = _gather(spec, _up(x), _up(w), sizes)
    if residual is not None:
        y = y + alpha * _up(residual)
    if bias is not None:
        y = y + _up(bias).reshape(-1, *(1,) * spec.rank)
    if activation == "relu":
        y = array_module(y).maximum(y, 0)  # NaN stays
    return y.astype(x.dtype, copy=False)


@on_one_thread
@np.errstate(all="ignore")
def backward_data(spec: ConvSpec, dy: NDArray, w: NDArray, sizes: Sequence[int]) -> NDArray:
    """Gradient of sum(dy * conv(x, w)) by x [N, C, ...]; ``sizes`` are x's spatial ones."""
    if spec.transposed:
        dx = _gather(spec.adjoint, _up(dy), _up(w), sizes)
    else:
        dx = _scatter(spec, _up(dy), _up(w), sizes)
    return dx.astype(dy.dtype, copy=False)


@on_one_thread
@np.errstate(all="ignore")
def backward_weights(spec: ConvSpec, dy: NDArray, x: NDArray) -> NDArray:
    """Gradient of sum(dy * conv(x, w)) by w, of the shape of w."""
    image, outputs = (dy, x) if spec.transposed else (x, dy)
    ordinary = spec.adjoint if spec.transposed else spec
    columns = _columns(ordinary, _up(outputs))  # [G, K/G, N*O]
    windows = _windows(ordinary, _up(image), outputs.shape[2:])  # [G, C/G*T, N*O]
    dw = _product(columns, windows.swapaxes(1, 2))
    return dw.reshape(spec.weight_shape).astype(dy.dtype, copy=False)


@np.errstate(all="ignore")
def backward_bias(dy: NDArray) -> NDArray:
    """Gradient by the bias [K], in dy's dtype: dy summed in float64 over all but its channels."""
    given = _up(dy) if dy.dtype.name == "bfloat16" else dy  # no sum of it gives float64
    return given.sum(axis=(0, *range(2, dy.ndim)), dtype="float64").astype(dy.dtype)


def _gather(spec: ConvSpec, x: NDArray, w: NDArray, outputs: Sequence[int]) -> NDArray:
    """conv(x, w) [N, K, ...] at the first ``outputs`` positions."""
    y = _product(_matrix(spec, w), _windows(spec, x, outputs))  # [G, K/G, N*O]
    return y.reshape(spec.out_channels, len(x), *outputs).swapaxes(0, 1)


def _scatter(spec: ConvSpec, dy: NDArray, w: NDArray, sizes: Sequence[int]) -> NDArray:
    """Return the adjoint of `_gather`: dx [N, C, ...] of spatial ``sizes``."""
    outputs = dy.shape[2:]
    # [G, C/G*T, N*O]
    windows = _product(_matrix(spec, w).swapaxes(1, 2), _columns(spec, dy))
    windows = windows.reshape(spec.in_channels, *spec.kernel, len(dy), *outputs)
    padded = _padded_sizes(spec, sizes)
    dx = array_module(dy).zeros((spec.in_channels, len(dy), *padded), dy.dtype)
    for tap, seen in _taps(spec.kernel, spec.stride, spec.dilation, tuple(outputs)):
        # For one position of the kernel the windows do not overlap.
        dx[seen] += windows[tap]
    return dx[(..., *_inside(spec, sizes))].swapaxes(0, 1)


def _product(a: NDArray, b: NDArray) -> NDArray:
    """Return a [G, L, M] times b [G, M, N]: G products of L*M*N multiply-adds."""
    product: NDArray = matmul_of(array_module(a), prod(a.shape[1:]) * b.shape[2])(a, b)
    return product


def _windows(spec: ConvSpec, x: NDArray, outputs: Sequence[int]) -> NDArray:
    """Return the inputs of the kernel at each position: [G, C/G*T, N*O]."""
    xp, batch, channels = array_module(x), len(x), spec.in_channels
    image = x.swapaxes(0, 1)
    if any(spec.padding):
        padded = _padded_sizes(spec, x.shape[2:])
        image = xp.zeros((channels, batch, *padded), x.dtype)
        image[(..., *_inside(spec, x.shape[2:]))] = x.swapaxes(0, 1)
    windows = xp.empty((channels, *spec.kernel, batch, *outputs), x.dtype)
    for tap, seen in _taps(spec.kernel, spec.stride, spec.dilation, tuple(outputs)):
        windows[tap] = image[seen]
    rows = channels // spec.groups * prod(spec.kernel)
    return windows.reshape(spec.groups, rows, batch * prod(outputs))


@lru_cache
def _taps(
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    outputs: tuple[int, ...],
) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Return indices of the kernel's positions in the windows, and of what each sees in the image.

    Windows are [C, T, N, O] here, the padded image is [C, N, ...].
    """
    taps = []
    for tap in np.ndindex(kernel):
        starts = (t * step for t, step in zip(tap, dilation, strict=True))
        seen = (
            slice(start, start + step * (output - 1) + 1, step)
            for start, step, output in zip(starts, stride, outputs, strict=True)
        )
        taps.append(((slice(None), *tap), (..., *seen)))
    return taps


def _padded_sizes(spec: ConvSpec, sizes: Sequence[int]) -> list[int]:
    sides = zip(spec.padding_before, sizes, spec.padding_after, strict=True)
    return [before + size + after for before, size, after in sides]


def _inside(spec: ConvSpec, sizes: Sequence[int]) -> tuple[slice, ...]:
    """Return the slices of the padded image that contain the image."""
    pairs = zip(spec.padding_before, sizes, strict=True)
    return tuple(slice(before, before + size) for before, size in pairs)


def _columns(spec: ConvSpec, y: NDArray) -> NDArray:
    """[N, K, ...] as [G, K/G, N*O]."""
    columns = len(y) * prod(y.shape[2:])
    return y.swapaxes(0, 1).reshape(spec.groups, spec.out_channels // spec.groups, columns)


def _matrix(spec: ConvSpec, w: NDArray) -> NDArray:
    """[K, C/G, ...] as [G, K/G, C/G*T]."""
    return w.reshape(spec.groups, spec.out_channels // spec.groups, prod(w.shape[1:]))


def _up(a: NDArray) -> Any:
    return a.astype(compute_dtype(a.dtype), copy=False)
