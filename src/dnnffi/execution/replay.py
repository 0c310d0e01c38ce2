"""CUDA graphs of one operation of a plan, known by the addresses that they work on.

A graph reads and writes fixed addresses. In a loop an allocator hands out the same few again and
again, so a call is looked up by its addresses: a known set replays, and nothing is copied. A set
that keeps coming is captured. Who brings new addresses in every call is not served by this and pays
one look-up.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple
from weakref import finalize, ref

from dnnffi.device.interface import Graph

Addresses = tuple[int, ...]

MOST_GRAPHS = 16
"""Graphs kept by each operation of a plan."""

MOST_BYTES = 256 * 2**20
"""Device memory of all graphs of a backend from which on a new one needs another's place."""

_MOST_SEEN = 64  # sets of addresses that are counted before the count begins anew


class _Held(NamedTuple):
    """A graph that is counted: whose it is, its bytes, its launches when it was last looked at."""

    owner: ref[Replays]
    nbytes: int
    launches: int


class GraphMemory:
    """The graphs of all plans of one backend and the memory that they hold.

    Whoever is to be captured asks `has_room`: where there is none, only a graph that was not
    launched for a while makes room. So a network with more graphs than fit keeps those that it has,
    instead of replacing one by the other in every step.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.nbytes = 0
        # Executors that users have captured. Kept for good: nobody tells when such a graph is
        # gone, and it may need their kernels.
        self.of_users: set[object] = set()
        # Those that were looked at longest ago first.
        self._held: OrderedDict[tuple[int, Addresses], _Held] = OrderedDict()
        # A plan may be collected, and so call `forget`, in the middle of anything here.
        self._lock = threading.RLock()

    def has_room(self) -> bool:
        """Whether another graph may be captured; lets go of those that make room for it."""
        while self.nbytes >= self.most_bytes:
            with self._lock:
                if not self._held:
                    break
                key, held = next(iter(self._held.items()))
                of_plan, addresses = held.owner(), key[1]
                graph = None if of_plan is None else of_plan.graphs.get(addresses)
                if graph is not None and graph.launches != held.launches:
                    self._held[key] = held._replace(launches=graph.launches)
                    self._held.move_to_end(key)
                    return False
                if self._held.pop(key, None) is not None:  # it may be collected in between
                    self.nbytes -= held.nbytes
            # Without the lock: who holds the owner's may collect a plan, and so wait for this one.
            if of_plan is not None:
                of_plan.drop(addresses)
        return True

    def add(self, replays: Replays, addresses: Addresses, graph: Graph) -> None:
        """Count a new graph."""
        with self._lock:
            self._held[id(replays), addresses] = _Held(ref(replays), graph.nbytes, graph.launches)
            self.nbytes += graph.nbytes

    def remove(self, replays: Replays, addresses: Addresses) -> None:
        """Count a graph no more."""
        with self._lock:
            held = self._held.pop((id(replays), addresses), None)
            if held is not None:
                self.nbytes -= held.nbytes

    def forget(self, number: int) -> None:
        """Count the graphs of the `Replays` with this ``id`` no more: it is gone."""
        with self._lock:
            for key in [key for key in self._held if key[0] == number]:
                self.nbytes -= self._held.pop(key).nbytes


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
        they came more often than those of the graph that is launched least. And if there is memory.
        """
        with self._lock:
            if len(self._seen) >= _MOST_SEEN and addresses not in self._seen:
                self._seen.clear()
            count = self._seen[addresses] = self._seen.get(addresses, 0) + 1
            if len(self.graphs) < self._most:
                wanted = count >= self._captured_at
            else:
                least = min(graph.launches for graph in self.graphs.values())
                wanted = count > self._captured_at + least
        return wanted and self._memory.has_room()

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
        self._memory.add(self, addresses, graph)

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
