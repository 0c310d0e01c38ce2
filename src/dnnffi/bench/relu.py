"""The derivative of a ReLU, with the sum in front of it, in one kernel."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from dnnffi.bench.kernels import elementwise
from dnnffi.device.interface import NDArray

# As in `dnnffi.bench.kernels`: (inputs, outputs, C for one element).
SOURCES: dict[str, tuple[str, str, str]] = {
    "relu_backward": ("T y, T a", "T dx", "dx = (A)y > 0 ? a : (T)(A)0;"),
    "relu_backward_sum": ("T y, T a, T b", "T dx", "dx = (A)y > 0 ? (T)((A)a + (A)b) : (T)(A)0;"),
}


def relu_backward(xp: ModuleType, y: NDArray, a: NDArray, b: NDArray | None = None) -> NDArray:
    """The sum of the gradients ``a`` and ``b`` [N, C, ...] where y, which a ReLU made, is positive.

    In the memory layout of y. ``a`` may be [N, C, 1, 1], for all elements of a channel.
    """
    dx = xp.empty_like(y)
    if xp is np:
        np.multiply(a if b is None else a + b, y > 0, out=dx)
        return dx
    # CuPy goes through arrays in the order of their axes: that of the memory is the fastest.
    arrays = [array for array in (y, a, b, dx) if array is not None]
    if not y.flags.c_contiguous:
        arrays = [array.transpose(0, *range(2, array.ndim), 1) for array in arrays]
    _kernel(xp, "relu_backward" if b is None else "relu_backward_sum")(*arrays)
    return dx


@cache
def _kernel(cupy: Any, name: str) -> Any:
    return elementwise(cupy, f"dnnffi_{name}", *SOURCES[name])
