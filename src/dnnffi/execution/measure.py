"""Measuring candidates: times on the current stream, scratch data, and whether results agree."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from statistics import median
from typing import Any

import numpy as np
from numpy.random import default_rng

from dnnffi.device.arrays import to_host
from dnnffi.device.interface import AnyArray, MemoryWithGraphs
from dnnffi.errors import LibraryNotFoundError

_BATCHES = 3  # times of a candidate, of which the median counts
_BATCH_MS = 1.0  # as many calls as fill this make a batch
_MAX_CALLS = 20
LONG_MS = 5.0
"""Milliseconds of a call from which two runs measure it: noise is a small part of it."""

PRUNING_RATIO = 3.0
"""Ratio of `first_time` to the best time so far above which a candidate is not measured further."""

_PARTS, _PART = 32, 2**14  # of a long array, those that are compared; elements of each

HostArrays = list[np.ndarray[Any, Any]]

FAILURES = (LibraryNotFoundError, MemoryError, RuntimeError)
"""Errors of a candidate that is left out: refused, too large for memory, failed on the device.

`CaptureError` is not among them: it is raised when a callback calls dnnffi during a capture.
"""


def first_time(call: Callable[[], object], memory: MemoryWithGraphs, limit: float) -> float:
    """Return the milliseconds of one run, or the least of more if it took longer than ``limit``.

    If the host does something else for a moment, the device waits for a launch. That must not
    decide about a candidate. A run is repeated twice, a long one once.
    """
    once = memory.elapsed(call)
    for _ in range(1 if once > LONG_MS else 2):
        if once <= limit:
            break
        once = min(once, memory.elapsed(call))
    return once


def median_time(
    call: Callable[[], object],
    memory: MemoryWithGraphs,
    best: float,
    pruning_ratio: float = PRUNING_RATIO,
) -> float:
    """Return the median milliseconds of a call.

    It is `first_time` if that is above ``pruning_ratio`` times ``best`` or above `LONG_MS`.
    """
    limit = min(pruning_ratio * best, LONG_MS)
    once = first_time(call, memory, limit)
    if once > limit:
        return once
    count = int(min(max(_BATCH_MS / max(once, 1e-3), 1), _MAX_CALLS))

    def calls() -> None:
        for _ in range(count):
            call()

    return median(memory.elapsed(calls) / count for _ in range(_BATCHES))


def sample(array: AnyArray) -> np.ndarray[Any, Any]:
    """Copy an array to the host; of a long array, parts at equal distances over its length."""
    flat = array.reshape(-1)
    parts = [flat]
    if flat.size > _PARTS * _PART:
        firsts = [number * (flat.size - _PART) // (_PARTS - 1) for number in range(_PARTS)]
        parts = [flat[first : first + _PART] for first in firsts]
    # Not in the 16 bit types, whose squares overflow.
    widened = np.float64 if array.dtype.name == "float64" else np.float32
    return np.concatenate([to_host(part) for part in parts]).astype(widened)


class Filler:
    """Arrays of random numbers from ``minimum`` to 1: a short pattern of the host, repeated."""

    def __init__(self, memory: MemoryWithGraphs, dtype: Any, minimum: float = -1.0) -> None:
        self._memory = memory
        self._dtype = dtype
        self._pattern = default_rng(0).uniform(minimum, 1, 65_521)  # prime: rows differ

    @np.errstate(all="ignore")
    def __call__(self, shape: tuple[int, ...], scale: float = 1.0) -> AnyArray:
        array: AnyArray = self._memory.empty(shape, self._dtype)
        flat, size, done = array.reshape(-1), prod(shape), min(self._pattern.size, prod(shape))
        flat[:done].set((self._pattern[:done] * scale).astype(self._dtype))
        while done < size:
            more = min(done, size - done)
            flat[done : done + more] = flat[:more]
            done += more
        return array


@np.errstate(all="ignore")
def disagreement(found: HostArrays, expected: HostArrays, allowed: float, whose: str) -> str:
    """Return why results are not those expected, which are ``whose``, or an empty string."""
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        scale = float(np.linalg.norm(other)) or 1.0
        deviation = float(np.linalg.norm(one - other)) / scale  # NaN for two infinities
        worst = deviation if deviation != deviation else max(worst, deviation)
    if worst <= allowed:
        return ""
    return f"its results differ from {whose} by {worst:.1e}, beyond {allowed:.0e}"
