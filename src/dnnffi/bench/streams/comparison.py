"""Comparison of the results of different libraries for one batch, on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dnnffi.bench.streams.model import Results, StreamModel
from dnnffi.device.interface import NDArray

MAX_DIFFERENCE = 0.02
"""Upper bound on the norm of a difference, divided by the norm of the expected result.

Rounding to bfloat16 stays well below it; leaving out resets at 1 % of the steps exceeds it.
"""


class Comparison:
    """The results of one batch by the first model of each rate of resets."""

    def __init__(self) -> None:
        self._first: dict[float, tuple[str, dict[str, NDArray]]] = {}

    def check(self, name: str, model: StreamModel, batch: Any) -> None:
        """Run a batch, and raise ValueError if its results differ from those of the first model."""
        found = dict(_host_arrays(model.step(model.load(batch))))
        first, expected = self._first.get(model.reset_rate, (name, found))
        for what, array in found.items():
            difference = _difference(array, expected[what])
            if not difference <= MAX_DIFFERENCE:  # NaN is a difference too
                raise ValueError(
                    f"{what} differs from that of {first} by {difference:.2g} times its norm; at "
                    f"most {MAX_DIFFERENCE:g} is allowed"
                )
        self._first.setdefault(model.reset_rate, (name, found))


def _host_arrays(results: Results) -> Iterator[tuple[str, NDArray]]:
    """Yield each result with its name, in float64 on the host."""
    yield "y", _to_host(results.y)
    if results.dx is None:
        return
    yield "dx", _to_host(results.dx)
    weights = results.dweights
    for number, array in enumerate(weights.arrays() if hasattr(weights, "arrays") else weights):
        yield f"the gradient of weight {number}", _to_host(array)


def _to_host(array: Any) -> NDArray:
    if hasattr(array, "detach"):  # PyTorch
        array = array.detach().double().cpu().numpy()
    elif hasattr(array, "get"):  # CuPy
        array = array.get()
    found: NDArray = np.asarray(array).astype("float64")
    return found


def _difference(found: NDArray, expected: NDArray) -> float:
    """Return the norm of the difference of two arrays, divided by that of the expected one."""
    if found.shape != expected.shape:
        raise ValueError(f"a result has shape {found.shape}; expected {expected.shape}")
    norm = float(np.linalg.norm(expected))
    return float(np.linalg.norm(found - expected)) / norm if norm else float(np.abs(found).max())
