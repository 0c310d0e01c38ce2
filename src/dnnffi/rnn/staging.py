"""Calls with new addresses through a graph on arrays of its own, at the price of copies."""

from __future__ import annotations

from math import prod
from typing import Any

from dnnffi.device.interface import Array, Graph, MemoryWithGraphs
from dnnffi.execution.replay import Addresses
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import RNNProblem

MOST_STAGED_BYTES = 64 * 2**20
"""Device memory that a plan may hold for this; problems that need more are not staged."""

_WRITTEN = (1, 3, 5)  # y, h_n and c_n in the addresses of a forward


def staged_bytes(problem: RNNProblem) -> int:
    """The device memory that staging the inference of a problem takes."""
    numbers = prod(problem.x_shape) + prod(problem.y_shape) + 2 * prod(problem.h_shape)
    if problem.spec.has_cell:
        numbers += 2 * prod(problem.c_shape)
    return numbers * ITEM_SIZES[problem.spec.dtype]


class Staging:
    """Arrays in the place of a caller's x, y and states. Weights and workspace are his own."""

    def __init__(self, problem: RNNProblem, memory: MemoryWithGraphs) -> None:
        self._copy = memory.copy
        dtype = memory.dtype(problem.spec.dtype)
        shapes: list[tuple[int, ...]] = [problem.x_shape, problem.y_shape, *[problem.h_shape] * 2]
        if problem.spec.has_cell:
            shapes += [problem.c_shape] * 2
        self._arrays: list[Array] = [memory.empty(shape, dtype) for shape in shapes]
        self.nbytes = staged_bytes(problem)

    def stand_in(self, addresses: Addresses) -> Addresses:
        """The addresses of a forward with our own arrays in them; what is missing stays so."""
        own = [
            array.data.ptr if at else 0
            for array, at in zip(self._arrays, addresses[:6], strict=False)
        ]
        return (*own, *addresses[len(own) :])

    def run(self, graph: Graph, addresses: Addresses, stream: Any) -> None:
        """A graph of a forward on `stand_in`, for the caller's addresses."""
        arrays = list(zip(self._arrays, addresses, strict=False))
        for place, (array, at) in enumerate(arrays):
            if at and place not in _WRITTEN:
                self._copy(array.data.ptr, at, array.nbytes)
        graph.launch(stream)
        for place in _WRITTEN[: len(arrays) // 2]:
            array, at = arrays[place]
            if at:
                self._copy(at, array.data.ptr, array.nbytes)
