"""Random host arrays, from which every model of a problem is made."""

from __future__ import annotations

import numpy as np

from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import NDArray

# More numbers than this are repeated: drawing 10^8 of them would take longer than the measuring.
_DRAWN = 1 << 20


class Drawing:
    """Draws arrays of ``dtype``, the same ones for a seed."""

    def __init__(self, dtype: str, seed: int) -> None:
        self._dtype = dtype_object(dtype)
        self._rng = np.random.default_rng(seed)

    def normal(self, size: tuple[int, ...], deviation: float = 1.0) -> NDArray:
        """Normal around 0."""
        drawn = self._rng.standard_normal(self._count(size), "float32") * np.float32(deviation)
        return self._in(size, drawn)

    def uniform(self, size: tuple[int, ...], bound: float) -> NDArray:
        """Uniform within ``bound`` around 0."""
        return self._in(size, self._rng.uniform(-bound, bound, self._count(size)))

    def _count(self, size: tuple[int, ...]) -> int:
        return min(_DRAWN, int(np.prod(size)))

    def _in(self, size: tuple[int, ...], drawn: NDArray) -> NDArray:
        return np.resize(drawn.astype(self._dtype), size)
