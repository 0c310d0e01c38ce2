"""The derivative of a ReLU and the sum of the gradients that enter it, in one kernel."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from dnnffi.bench.kernels import elementwise
from dnnffi.device.interface import NDArray

# As in `dnnffi.bench.kernels`: (inputs, outputs, C code for one element).
SOURCES: dict[str, tuple[str, str, str]] = {
    "relu_backward": ("T y, T a", "T dx", "dx = (A)y > 0 ? a : (T)(A)0;"),
    "relu_backward_sum": ("T y, T a, T b", "T dx", "dx = (A)y > 0 ? (T)((A)a + (A)b) : (T)(A)0;"),
}


def relu_backward(xp: ModuleType, y: NDArray, a: NDArray, b: NDArray | None = None) -> NDArray:
    """Return ``a + b`` [N, C, ...] where y, the output of a ReLU, is positive, else 0.

    The result has the memory layout of y. ``a`` may be [N, C, 1, 1], for all elements of a channel.
    """
    dx = xp.empty_like(y)
    if xp is np:
        np.multiply(a if b is None else a + b, y > 0, out=dx)
        return dx
    # CuPy iterates in the order of the axes; the order of the memory is the fastest.
    arrays = [array for array in (y, a, b, dx) if array is not None]
    if not y.flags.c_contiguous:
        arrays = [array.transpose(0, *range(2, array.ndim), 1) for array in arrays]
    _kernel(xp, "relu_backward" if b is None else "relu_backward_sum")(*arrays)
    return dx


@cache
def _kernel(cupy: Any, name: str) -> Any:
    return elementwise(cupy, f"dnnffi_{name}", *SOURCES[name])
