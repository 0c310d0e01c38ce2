"""CUDA graphs of one operation of a plan, known by the addresses that they work on.

A graph reads and writes fixed addresses. In a loop an allocator hands out the same few again and
again, so a call is looked up by its addresses: a known set replays, and nothing is copied. A set
that recurs is captured. A caller with new addresses in every call gains nothing and pays one
look-up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

from dnnffi.device.interface import Graph, Launch, Stream
from dnnffi.execution.locks import new_lock
from dnnffi.execution.measure import FAILURES
from dnnffi.log import logger

Addresses = tuple[int, ...]

MAX_GRAPHS = 16
"""Graphs kept by each operation of a plan."""

MAX_BYTES = 256 * 2**20
"""Device memory of a backend's graphs, in bytes, from which on a new graph replaces another."""

_MAX_SEEN = 64  # number of counted sets of addresses at which the count begins anew


class _Held(NamedTuple):
    """A graph that is counted: its bytes, and its launches when it was last looked at."""

    nbytes: int
    launches: int


class GraphBudget:
    """The graphs of all plans of one backend and the memory that they hold.

    Before a capture, `has_room` is asked: if there is none, only a graph that was not launched for
    a while makes room. So a network with more graphs than fit keeps those that it has, instead of
    replacing one by the other in every step.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        # Executors that users have captured. They are never dropped: the user's graph may need
        # their kernels, and there is no way to know when it is destroyed.
        self.user_captures: set[object] = set()
        self.gone: list[ref[Replays]] = []
        """Operations that were collected, at any point of the program; see `_settle`."""
        # Ordered by the last look, the oldest first.
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
                replays.drop(addresses)  # without the lock: dropping a graph may run other code
        return True

    def _oldest(self) -> tuple[Replays | None, Addresses, bool] | None:
        """Return the owner and addresses of the graph looked at longest ago, and if it ran since.

        A graph that was not launched since is no longer counted. None if there is free space.
        """
        with self._lock:
            self._settle()
            if self._nbytes < self.max_bytes or not self._held:
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
        """Stop counting the graphs of operations that were collected."""
        if self.gone:
            self.gone.clear()
            for key in list(self._held):
                if key[0]() is None:
                    self._count_out(key)


class Replays:
    """The graphs of one operation. A call looks its graph up in `graphs`.

    Each change is one step of a dictionary. Two threads at once may miss a count; the limits hold
    after the next `add`.
    """

    def __init__(
        self, budget: GraphBudget, max_graphs: int = MAX_GRAPHS, captured_at: int = 2
    ) -> None:
        self.graphs: dict[Addresses, Graph] = {}
        self.weak = ref(self, budget.gone.append)
        self.budget = budget
        self._max_graphs = max_graphs
        self._captured_at = captured_at
        self._seen: dict[Addresses, int] = {}

    def due(self, addresses: Addresses) -> bool:
        """Whether a call on ``addresses``, which no graph knows, is to be captured.

        It is due on call number ``captured_at`` with these addresses, if there is memory. If the
        operation has its maximum of graphs, it is due once the addresses came more often than the
        least launched graph ran: a cycle of more sets than graphs keeps the graphs that it has.
        """
        seen = self._seen
        if len(seen) >= _MAX_SEEN and addresses not in seen:
            seen.clear()
        count = seen[addresses] = seen.get(addresses, 0) + 1
        needed = self._captured_at
        graphs = list(self.graphs.values())
        if len(graphs) >= self._max_graphs:
            needed += 1 + min(graph.launches for graph in graphs)
        return count >= needed and self.budget.has_room()

    def add(self, addresses: Addresses, graph: Graph) -> None:
        """Keep a graph; above the maximum, drop the graphs that were launched least."""
        self._seen.pop(addresses, None)
        if self.graphs.setdefault(addresses, graph) is not graph:
            return  # another thread was faster
        self.budget.add(self, addresses, graph)
        others = [known for known in list(self.graphs.items()) if known[1] is not graph]
        others.sort(key=lambda known: known[1].launches)
        too_many = max(0, len(others) + 1 - self._max_graphs)
        for known, _ in others[:too_many]:
            self.drop(known)
        if too_many:
            for _, other in others:
                other.launches //= 2  # what was launched long ago counts less
        if self.graphs.get(addresses) is not graph:
            # Another thread dropped it before it was counted.
            self.budget.remove(self, addresses)

    def drop(self, addresses: Addresses) -> None:
        """Release one graph."""
        self.graphs.pop(addresses, None)
        self.budget.remove(self, addresses)

    def clear(self) -> None:
        """Release all graphs."""
        self._seen.clear()
        for addresses in list(self.graphs):
            self.drop(addresses)

    @property
    def nbytes(self) -> int:
        """Device memory of the graphs, as far as it could be seen."""
        return sum(graph.nbytes for graph in list(self.graphs.values()))


class CapturedOperation(Replays):
    """The graphs of one operation, and their capture; ``failed`` is called if a capture fails."""

    def __init__(
        self,
        memory: Any,
        launch_on: Callable[[Stream], Launch],
        graphs: GraphBudget,
        failed: Callable[[], object],
        captured_at: int = 2,
    ) -> None:
        super().__init__(graphs, captured_at=captured_at)
        self._memory = memory
        self._launch_on = launch_on
        self._failed = failed

    def graph(
        self, key: Addresses, executor: Any, call: Callable[[Launch], object]
    ) -> Graph | None:
        """Return the graph of ``call`` by ``executor`` on the addresses ``key``, or None.

        A missing graph is captured if it is due: when ``key`` recurs, and there is memory.
        """
        known = self.graphs.get(key)
        if known is not None:
            if known.executor is executor:
                return known
            self.drop(key)  # of a thread that captured before the executor changed
        if not self.due(key):
            return None
        launches: list[Launch] = []

        def record(stream: Stream) -> None:
            launches.append(self._launch_on(stream))
            call(launches[0])

        begun = time.perf_counter()
        try:
            graph: Graph = self._memory.capture(record)
        except FAILURES as error:
            logger.info(
                "a capture failed, and calls run without a graph: %s: %s",
                *(type(error).__name__, error),
            )
            self._failed()
            return None
        milliseconds = 1e3 * (time.perf_counter() - begun)
        logger.debug("captured a call in %.2f ms, %d bytes", milliseconds, graph.nbytes)
        # Kernels may be destroyed with the descriptors that they were compiled for, as those of
        # persist_dynamic are, and may use memory of the handle, which is freed with its thread.
        graph.executor, graph.handle = executor, launches[0].owner
        self.add(key, graph)
        return graph

    def keep_for_user(self, executor: Any, launch: Launch) -> None:
        """Keep the executor and handle of a call that the user is capturing on ``launch``."""
        self.budget.user_captures.update((executor, launch.owner))
