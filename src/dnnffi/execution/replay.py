"""CUDA graphs of one operation of a plan, known by the addresses that they work on.

A graph reads and writes fixed addresses. In a loop an allocator hands out the same few again and
again, so a call is looked up by its addresses: a known set replays, and nothing is copied. A set
that keeps coming is captured. Who brings new addresses in every call is not served by this and pays
one look-up.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import ref

from dnnffi.device.interface import Graph
from dnnffi.execution.locks import new_lock

Addresses = tuple[int, ...]

MOST_GRAPHS = 16
"""Graphs kept by each operation of a plan."""

MOST_BYTES = 256 * 2**20
"""Device memory of all graphs of a backend from which on a new one needs another's place."""

_MOST_SEEN = 64  # sets of addresses that are counted before the count begins anew


class _Held(NamedTuple):
    """A graph that is counted: its bytes, and its launches when it was last looked at."""

    nbytes: int
    launches: int


class GraphMemory:
    """The graphs of all plans of one backend and the memory that they hold.

    Before a capture, `has_room` is asked: if there is none, only a graph that was not launched for
    a while makes room. So a network with more graphs than fit keeps those that it has, instead of
    replacing one by the other in every step.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        # Executors that users have captured. Kept for good: such a graph may need their kernels,
        # and there is no way to know when it is gone.
        self.of_users: set[object] = set()
        self.gone: list[ref[Replays]] = []
        """Operations that were collected, which may be in the middle of anything; see `_settle`."""
        # Those that were looked at longest ago first.
        self._held: dict[tuple[ref[Replays], Addresses], _Held] = {}
        self._nbytes = 0
        self._lock = new_lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all graphs that are counted."""
        with self._lock:
            self._settle()
            return self._nbytes

    def has_room(self) -> bool:
        """Whether another graph may be captured; drops those that make room for it."""
        while (oldest := self._oldest()) is not None:
            replays, addresses, in_use = oldest
            if in_use:
                return False
            if replays is not None:
                replays.drop(addresses)  # without the lock: who knows what goes with a graph
        return True

    def _oldest(self) -> tuple[Replays | None, Addresses, bool] | None:
        """The graph that was looked at longest ago, whose it is, and whether it was launched since.

        One that was not is counted no more. None where there is room.
        """
        with self._lock:
            self._settle()
            if self._nbytes < self.most_bytes or not self._held:
                return None
            for key in self._held:  # noqa: B007 - the first one, without a call
                break
            owner, addresses = key
            held = self._held[key]
            replays = owner()
            graph = None if replays is None else replays.graphs.get(addresses)
            if graph is None or graph.launches == held.launches:
                self._count_out(key)
                return replays, addresses, False
            held = held._replace(launches=graph.launches)
            if key in self._held:
                del self._held[key]
                self._held[key] = held  # at the end now
            return replays, addresses, True

    def add(self, replays: Replays, addresses: Addresses, graph: Graph) -> None:
        """Count a new graph."""
        key, held = (replays.weak, addresses), _Held(graph.nbytes, graph.launches)
        with self._lock:
            self._count_out(key)
            self._held[key] = held
            self._nbytes += held.nbytes

    def remove(self, replays: Replays, addresses: Addresses) -> None:
        """Stop counting a graph that its operation has dropped."""
        with self._lock:
            if addresses not in replays.graphs:  # else another thread has captured it anew
                self._count_out((replays.weak, addresses))

    def _count_out(self, key: tuple[ref[Replays], Addresses]) -> None:
        # Without a call, so that no signal handler comes in between.
        if key in self._held:
            self._nbytes -= self._held[key].nbytes
            del self._held[key]

    def _settle(self) -> None:
        """Count the graphs of operations that are gone no more."""
        if self.gone:
            self.gone.clear()
            for key in list(self._held):
                if key[0]() is None:
                    self._count_out(key)


class Replays:
    """The graphs of one operation. `graphs` is what the path of a call looks into.

    Each change is one step of a dictionary. What two threads do at once may miss a count; the
    limits hold after the next `add`.
    """

    def __init__(self, memory: GraphMemory, most: int = MOST_GRAPHS, captured_at: int = 2) -> None:
        self.graphs: dict[Addresses, Graph] = {}
        self.weak = ref(self, memory.gone.append)
        self.graph_memory = memory
        self._most = most
        self._captured_at = captured_at
        self._seen: dict[Addresses, int] = {}

    def due(self, addresses: Addresses) -> bool:
        """Whether a call on ``addresses``, which no graph knows, is to be captured.

        On call ``captured_at`` with them; where the operation has all the graphs it may have, once
        they came more often than those of the graph that is launched least: a cycle of more sets
        than there may be graphs keeps those it has. And if there is memory.
        """
        seen = self._seen
        if len(seen) >= _MOST_SEEN and addresses not in seen:
            seen.clear()
        count = seen[addresses] = seen.get(addresses, 0) + 1
        needed = self._captured_at
        graphs = list(self.graphs.values())
        if len(graphs) >= self._most:
            needed += 1 + min(graph.launches for graph in graphs)
        return count >= needed and self.graph_memory.has_room()

    def add(self, addresses: Addresses, graph: Graph) -> None:
        """Keep a graph; where there are too many, those that are launched least go."""
        self._seen.pop(addresses, None)
        if self.graphs.setdefault(addresses, graph) is not graph:
            return  # another thread was faster
        self.graph_memory.add(self, addresses, graph)
        others = [known for known in list(self.graphs.items()) if known[1] is not graph]
        others.sort(key=lambda known: known[1].launches)
        too_many = max(0, len(others) + 1 - self._most)
        for known, _ in others[:too_many]:
            self.drop(known)
        if too_many:
            for _, other in others:
                other.launches //= 2  # what was launched long ago counts less
        if self.graphs.get(addresses) is not graph:
            # Another thread dropped it before it was counted.
            self.graph_memory.remove(self, addresses)

    def drop(self, addresses: Addresses) -> None:
        """Release one graph."""
        self.graphs.pop(addresses, None)
        self.graph_memory.remove(self, addresses)

    def clear(self) -> None:
        """Release all graphs."""
        self._seen.clear()
        for addresses in list(self.graphs):
            self.drop(addresses)

    @property
    def nbytes(self) -> int:
        """Device memory of the graphs, as far as it could be seen."""
        return sum(graph.nbytes for graph in list(self.graphs.values()))
