"""CUDA graphs of one operation of a plan, known by the addresses that they work on.

A graph reads and writes fixed addresses. In a loop an allocator hands out the same few again and
again, so a call is looked up by its addresses: a known set replays, and nothing is copied. A set
that keeps coming is captured. Who brings new addresses in every call is not served by this and pays
one look-up.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from weakref import finalize, ref

from dnnffi.arrays import Graph

Addresses = tuple[int, ...]

MOST_GRAPHS = 16
"""Graphs kept by each operation of a plan."""

MOST_BYTES = 256 * 2**20
"""Device memory held by all graphs of a backend; the oldest go first."""

_MOST_SEEN = 64  # sets of addresses that are counted before the count begins anew


class GraphMemory:
    """The graphs of all plans of one backend, oldest first, and the memory that they hold."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.nbytes = 0
        # Executors that users have captured. Kept for good: nobody tells when such a graph is
        # gone, and it may need their kernels.
        self.of_users: set[object] = set()
        self._held: OrderedDict[tuple[int, Addresses], tuple[ref[Replays], int]] = OrderedDict()
        # A plan may be collected, and so call `forget`, in the middle of anything here.
        self._lock = threading.RLock()

    def add(self, replays: Replays, addresses: Addresses, nbytes: int) -> None:
        """Count a new graph, and let go of the oldest where there are too many bytes."""
        dropped = []
        with self._lock:
            self._held[id(replays), addresses] = ref(replays), nbytes
            self.nbytes += nbytes
            while self.nbytes > self.most_bytes and len(self._held) > 1:
                (_, oldest), (owner, freed) = self._held.popitem(last=False)
                self.nbytes -= freed
                dropped.append((owner, oldest))
        # Without the lock: who holds the owner's may collect a plan, and so wait for this one.
        for owner, oldest in dropped:
            if (of_plan := owner()) is not None:
                of_plan.drop(oldest)

    def remove(self, replays: Replays, addresses: Addresses) -> None:
        """Count a graph no more."""
        with self._lock:
            _, nbytes = self._held.pop((id(replays), addresses), (None, 0))
            self.nbytes -= nbytes

    def forget(self, number: int) -> None:
        """Count the graphs of the `Replays` with this ``id`` no more: it is gone."""
        with self._lock:
            for key in [key for key in self._held if key[0] == number]:
                self.nbytes -= self._held.pop(key)[1]


class Replays:
    """The graphs of one operation. `graphs` is what the path of a call looks into."""

    def __init__(self, memory: GraphMemory, most: int = MOST_GRAPHS, captured_at: int = 2) -> None:
        self.graphs: dict[Addresses, Graph] = {}
        self._memory = memory
        self._most = most
        self._captured_at = captured_at
        self._seen: dict[Addresses, int] = {}
        self._lock = threading.Lock()
        finalize(self, memory.forget, id(self)).atexit = False

    def due(self, addresses: Addresses) -> bool:
        """Whether a call on ``addresses``, which no graph knows, is to be captured.

        On call ``captured_at`` with them; where the operation has all the graphs it may have, once
        they came more often than those of the graph that is launched least.
        """
        with self._lock:
            if len(self._seen) >= _MOST_SEEN and addresses not in self._seen:
                self._seen.clear()
            count = self._seen[addresses] = self._seen.get(addresses, 0) + 1
            if len(self.graphs) < self._most:
                return count >= self._captured_at
            least = min(graph.launches for graph in self.graphs.values())
            return count > self._captured_at + least

    def add(self, addresses: Addresses, graph: Graph) -> None:
        """Keep a graph; where there are too many, the one that is launched least goes."""
        with self._lock:
            self._seen.pop(addresses, None)
            if addresses in self.graphs:
                return  # another thread was faster
            least = None
            if len(self.graphs) >= self._most:
                least = min(self.graphs, key=lambda known: self.graphs[known].launches)
                del self.graphs[least]
                for other in self.graphs.values():
                    other.launches //= 2  # what was launched long ago counts less
            self.graphs[addresses] = graph
        if least is not None:
            self._memory.remove(self, least)
        self._memory.add(self, addresses, graph.nbytes)

    def drop(self, addresses: Addresses) -> None:
        """Let go of one graph; `GraphMemory` has already counted it out."""
        with self._lock:
            self.graphs.pop(addresses, None)

    def clear(self) -> None:
        """Let go of all graphs."""
        with self._lock:
            dropped = list(self.graphs)
            self.graphs.clear()
            self._seen.clear()
        for addresses in dropped:
            self._memory.remove(self, addresses)

    @property
    def nbytes(self) -> int:
        """Device memory of the graphs, as far as it could be seen."""
        return sum(graph.nbytes for graph in list(self.graphs.values()))
