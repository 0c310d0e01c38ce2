"""Convolve complex arrays in one to three dimensions, as sigpy does, without cupy.cudnn.

    python examples/sigpy_conv.py                 # compared with SciPy (pip install scipy)
    python examples/sigpy_conv.py --size 512 --filter 9

`convolve`, `convolve_data_adjoint` and `convolve_filter_adjoint` have the arguments and results of
sigpy's functions of that name, which use CuPy 13's ``cupy.cudnn`` on a GPU. These run on cuDNN for
CuPy arrays, and on the reference for NumPy arrays.

Three things distinguish sigpy's convolution from `dnnffi.conv`:

- Signal processing flips the kernel, deep learning does not.
- Convolution is linear in each of its two arguments, so that a complex one is four real ones.
- Results are to be as precise as float32 can be: ``"math": "strict"`` keeps cuDNN from TF32.
"""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec
from math import prod
from typing import NamedTuple

import numpy as np
from command_line import count  # examples/command_line.py
from threadpoolctl import threadpool_limits

import dnnffi

STRICT = {"math": "strict"}
SIZES = {"size": 192, "filter": 7}
SIZES_ON_NUMPY = {"size": 96, "filter": 5}


class Geometry(NamedTuple):
    """Shapes as `dnnffi.conv` takes them, and how the result is seen by the caller."""

    data: tuple[int, ...]  # [B, c_i, m_1, ..., m_D]
    filt: tuple[int, ...]  # [c_o, c_i, n_1, ..., n_D]
    output: tuple[int, ...]  # [B, c_o, p_1, ..., p_D]
    seen: tuple[int, ...]  # the output with all axes of the batch
    keywords: dict[str, object]

    @property
    def flip(self):
        """An index that reverses the positions of a kernel."""
        return (slice(None), slice(None), *(slice(None, None, -1) for _ in self.filt[2:]))


def geometry(data_shape, filt_shape, mode, strides, multi_channel):
    """Return the shapes of a convolution. Raises ``ValueError`` naming what does not fit."""
    rank = len(filt_shape) - 2 * multi_channel
    if rank not in (1, 2, 3):
        raise ValueError(f"filt must have one to three dimensions to convolve; got {rank}")
    if mode not in ("full", "valid"):
        raise ValueError(f"mode must be 'full' or 'valid'; got {mode!r}")
    stride = (1,) * rank if strides is None else tuple(strides)
    if len(stride) != rank:
        raise ValueError(f"strides must have length {rank}; got {len(stride)}")
    outer, sizes = tuple(data_shape[: -rank - multi_channel]), tuple(data_shape[-rank:])
    kernel = tuple(filt_shape[-rank:])
    channels_out, channels_in = tuple(filt_shape[:2]) if multi_channel else (1, 1)
    if multi_channel and data_shape[-rank - 1] != channels_in:
        raise ValueError(f"data must have {channels_in} channels; got {data_shape[-rank - 1]}")
    if mode == "valid" and any(size < taps for size, taps in zip(sizes, kernel, strict=True)):
        raise ValueError(f"data must be as large as filt; got {sizes} and {kernel}")
    padding = tuple(taps - 1 if mode == "full" else 0 for taps in kernel)
    spec = dnnffi.ConvSpec(
        in_channels=channels_in,
        out_channels=channels_out,
        kernel=kernel,
        stride=stride,
        padding=padding,
    )
    output = spec.y_shape(prod(outer), sizes)
    return Geometry(
        (prod(outer), channels_in, *sizes),
        (channels_out, channels_in, *kernel),
        output,
        (*outer, *((channels_out,) if multi_channel else ()), *output[2:]),
        {"stride": stride, "padding": padding, "options": STRICT},
    )


def convolve(data, filt, mode="full", strides=None, multi_channel=False):
    """Convolve ``data`` [..., m_1, ..., m_D] with ``filt`` [n_1, ..., n_D], kernel flipped.

    With ``multi_channel`` they are [..., c_i, m_1, ..., m_D] and [c_o, c_i, n_1, ..., n_D].
    ``mode`` is "full" or "valid"; ``strides`` None or D integers. Returns [..., p_1, ..., p_D],
    or [..., c_o, p_1, ..., p_D].
    """
    shapes = geometry(data.shape, filt.shape, mode, strides, multi_channel)
    data, filt = alike(data.reshape(shapes.data), filt.reshape(shapes.filt)[shapes.flip])
    output = bilinear(lambda x, w: dnnffi.conv(x, w, **shapes.keywords), data, filt)
    return output.reshape(shapes.seen)


def convolve_data_adjoint(output, filt, data_shape, mode="full", strides=None, multi_channel=False):
    """Return the adjoint of `convolve` by its data, of ``output``: [``data_shape``]."""
    shapes = geometry(data_shape, filt.shape, mode, strides, multi_channel)
    filt = filt.reshape(shapes.filt)[shapes.flip].conj()
    output, filt = alike(output.reshape(shapes.output), filt)
    data = bilinear(
        lambda dy, w: dnnffi.conv_backward_data(dy, w, shapes.data, **shapes.keywords),
        *(output, filt),
    )
    return data.reshape(data_shape)


def convolve_filter_adjoint(
    output, data, filt_shape, mode="full", strides=None, multi_channel=False
):
    """Return the adjoint of `convolve` by its filter, of ``output``: [``filt_shape``]."""
    shapes = geometry(data.shape, filt_shape, mode, strides, multi_channel)
    output, data = alike(output.reshape(shapes.output), data.reshape(shapes.data).conj())
    filt = bilinear(
        lambda dy, x: dnnffi.conv_backward_weights(dy, x, shapes.filt, **shapes.keywords),
        *(output, data),
    )
    return filt[shapes.flip].reshape(filt_shape)


def alike(one, two):
    """Both in the dtype that holds both."""
    dtype = np.result_type(one.dtype, two.dtype)
    return one.astype(dtype, copy=False), two.astype(dtype, copy=False)


def bilinear(function, one, two):
    """``function(one, two)``, linear in both: four real calls where they are complex."""
    if one.dtype.kind != "c":
        return function(one, two)
    # Copied once here: a part of a complex array has gaps, and would be copied in each call.
    (a, b), (c, d) = ((array.real.copy(), array.imag.copy()) for array in (one, two))
    return function(a, c) - function(b, d) + 1j * (function(a, d) + function(b, c))


def by_scipy(data, filt, mode, strides):
    """Return the same on the host, without channels; both adjoints of its result too."""
    from scipy import signal

    every = tuple(slice(None, None, step) for step in strides)
    whole = signal.convolve(data, filt, mode=mode)
    output = whole[every]
    spread = np.zeros_like(whole)  # zeros where a stride left something out
    spread[every] = output
    back = "valid" if mode == "full" else "full"
    return (
        output,
        signal.correlate(spread, filt, mode=back),
        signal.correlate(spread, data, mode="valid"),
    )


def by_dnnffi(data, filt, mode, strides):
    """Compute the results of `by_scipy` with the functions above."""
    output = convolve(data, filt, mode, strides)
    return (
        output,
        convolve_data_adjoint(output, filt, data.shape, mode, strides),
        convolve_filter_adjoint(output, data, filt.shape, mode, strides),
    )


def arrays():
    """Return CuPy if it sees a GPU, else NumPy."""
    try:
        import cupy
    except ImportError:
        return np
    return cupy if cupy.cuda.is_available() else np


def timed(function, *arguments, repeat=5):
    """Return the results, and the milliseconds of the fastest of ``repeat`` later calls."""
    best = float("inf")
    for call in range(1 + repeat):
        start = time.perf_counter()
        results = function(*arguments)
        float(abs(results[-1]).ravel()[0])  # waits for the device
        if call:
            best = min(best, time.perf_counter() - start)
    return results, 1e3 * best


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=count, help="height and width of a picture, in pixels")
    parser.add_argument("--filter", type=count, help="height and width of the kernel, in pixels")
    xp, rng = arrays(), np.random.default_rng(0)
    sizes = SIZES_ON_NUMPY if xp is np else SIZES
    parser.set_defaults(**sizes)
    options = parser.parse_args()
    if options.filter > options.size:
        parser.error(f"--filter must be at most --size, {options.size}; got {options.filter}")
    if find_spec("scipy") is None:
        raise SystemExit("The results are compared with those of SciPy: pip install scipy")
    print("Sizes:", ", ".join(f"--{name} {getattr(options, name)}" for name in sizes))
    print(
        f"Convolution and its two adjoints, complex64, dnnffi on {xp.__name__}, SciPy on the host"
    )
    for mode, strides in (("full", (1, 1)), ("valid", (1, 1)), ("full", (2, 2))):
        data, filt = (
            (rng.standard_normal((*2 * (size,), 2)) @ (1, 1j)).astype("complex64")
            for size in (options.size, options.filter)
        )
        expected, other = timed(by_scipy, data, filt, mode, strides)
        found, own = timed(by_dnnffi, xp.asarray(data), xp.asarray(filt), mode, strides)
        on_host = [array if xp is np else array.get() for array in found]
        error = max(
            np.linalg.norm(one - two) / np.linalg.norm(two)
            for one, two in zip(on_host, expected, strict=True)
        )
        print(
            f"{mode:5}  strides {strides}  {own:8.2f} ms  SciPy {other:8.2f} ms  error {error:.1e}"
        )
        if error > 1e-5:
            raise SystemExit("the results differ by more than rounding")


if __name__ == "__main__":
    with threadpool_limits(limits=1):  # small products are faster on one thread
        main()
