"""Use a graph in calls with new addresses, by copying through arrays of the graph.

For inference: the reserve space of training is larger than everything else together. Writing the
addresses into the graph instead would touch thousands of nodes.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from dnnffi.backends.rnn_interface import ForwardAddresses
from dnnffi.device.interface import Array, Graph, MemoryWithGraphs, Stream
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import RNNProblem

MAX_STAGED_BYTES = 64 * 2**20
"""Device memory that a plan may hold for this; problems that need more are not staged."""


class _Copied(NamedTuple):
    """The fields of `ForwardAddresses` that are copied, with their shapes, before and after."""

    read: dict[str, tuple[int, ...]]
    written: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, problem: RNNProblem) -> _Copied:
        read = {"x": problem.x_shape, "h_0": problem.h_shape}
        written = {"y": problem.y_shape, "h_n": problem.h_shape}
        if problem.spec.has_cell:
            read["c_0"] = written["c_n"] = problem.c_shape
        return cls(read, written)


def staged_bytes(problem: RNNProblem) -> int:
    """Return the device memory that staging the inference of a problem takes."""
    read, written = _Copied.of(problem)
    numbers = sum(map(prod, (*read.values(), *written.values())))
    return numbers * ITEM_SIZES[problem.spec.dtype]


def can_be_staged(problem: RNNProblem) -> bool:
    """Whether a graph may run a problem on copies of its arrays."""
    return not problem.training and staged_bytes(problem) <= MAX_STAGED_BYTES


class Staging:
    """Arrays that replace the caller's x, y and states. Weights and workspace are the caller's."""

    def __init__(self, problem: RNNProblem, memory: MemoryWithGraphs) -> None:
        self._copy = memory.copy
        self._copied = copied = _Copied.of(problem)
        dtype = memory.dtype(problem.spec.dtype)
        shapes = copied.read | copied.written
        self._arrays: dict[str, Array] = {
            name: memory.empty(shape, dtype) for name, shape in shapes.items()
        }
        self.nbytes = staged_bytes(problem)

    def stand_in(self, at: ForwardAddresses) -> ForwardAddresses:
        """Return ``at`` with the addresses of the staging arrays; an address that is 0 stays 0."""
        own = {n: array.data.ptr for n, array in self._arrays.items() if getattr(at, n)}
        return at._replace(**own)

    def run(self, graph: Graph, at: ForwardAddresses, stream: Stream) -> None:
        """Launch a graph of a forward pass on `stand_in`, and copy from and to ``at``."""
        for name in self._copied.read:
            self._between(name, at, stream, back=False)
        graph.launch(stream)
        for name in self._copied.written:
            self._between(name, at, stream, back=True)

    def _between(self, name: str, at: ForwardAddresses, stream: Stream, *, back: bool) -> None:
        own, given = self._arrays[name], getattr(at, name)
        if given:
            target, source = (given, own.data.ptr) if back else (own.data.ptr, given)
            self._copy(target, source, own.nbytes, stream)
