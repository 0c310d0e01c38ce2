"""Random sizes of problems, and the random host arrays that all models of a problem share."""

from __future__ import annotations

import random
from math import exp, log
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np

from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import NDArray

# Elements that are drawn; larger arrays repeat them. Drawing 1e8 elements would take longer than
# the measurement.
_DRAWN = 1 << 20

Card = TypeVar("Card")


class Draws:
    """Random sizes and choices; a seed gives the same ones in every version of Python.

    Only ``random()`` of Python's generator is used: the results of its other methods may change
    between versions.
    """

    def __init__(self, seed: int) -> None:
        self._uniform = random.Random(seed).random

    def deck(self, *pairs: tuple[Any, int]) -> list[Any]:
        """Return each value of the (value, count) pairs ``count`` times, in a random order."""
        return self.shuffled([value for value, count in pairs for _ in range(count)])

    def size(self, minimum: int, maximum: int, multiple: int = 1) -> int:
        """Return a size, log-uniform from ``minimum`` to ``maximum`` and rounded to a multiple."""
        drawn = minimum * (maximum / minimum) ** self._uniform()
        return max(1, round(drawn / multiple)) * multiple

    def integer(self, minimum: int, maximum: int) -> int:
        """Return an integer from ``minimum`` to ``maximum``, all equally likely."""
        return minimum + int(self._uniform() * (maximum - minimum + 1))

    def log_normal(self, median: float, deviation: float) -> float:
        """Return a number whose logarithm is normal around that of ``median``."""
        normal = NormalDist().inv_cdf(max(self._uniform(), 1e-12))
        return exp(log(median) + deviation * normal)

    def shuffled(self, values: list[Card]) -> list[Card]:
        """Return the values in a random order."""
        return [values[n] for _, n in sorted((self._uniform(), n) for n in range(len(values)))]


class Drawing:
    """Random arrays of ``dtype``; a seed gives the same ones."""

    def __init__(self, dtype: str, seed: int) -> None:
        self._dtype = dtype_object(dtype)
        self._rng = np.random.default_rng(seed)

    def normal(self, size: tuple[int, ...], deviation: float = 1.0) -> NDArray:
        """Return normal numbers with mean 0."""
        drawn = self._rng.standard_normal(self._count(size), "float32") * np.float32(deviation)
        return self._in(size, drawn)

    def uniform(self, size: tuple[int, ...], bound: float) -> NDArray:
        """Return uniform numbers from ``-bound`` to ``bound``."""
        return self._in(size, self._rng.uniform(-bound, bound, self._count(size)))

    def _count(self, size: tuple[int, ...]) -> int:
        return min(_DRAWN, int(np.prod(size)))

    def _in(self, size: tuple[int, ...], drawn: NDArray) -> NDArray:
        return np.resize(drawn.astype(self._dtype), size)
