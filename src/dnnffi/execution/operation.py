"""One operation of a plan: replayed as a graph, captured, or run directly."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dnnffi.device.interface import Graph, Launch, Stream
from dnnffi.execution.measure import FAILURES
from dnnffi.execution.replay import Addresses, GraphMemory, Replays
from dnnffi.log import logger


class Operation(Replays):
    """The graphs of one operation, and their capture; ``failed`` is called if a capture fails."""

    def __init__(
        self,
        memory: Any,
        launch_on: Callable[[Stream], Launch],
        graphs: GraphMemory,
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
        if known is not None and known.executor is executor:
            return known
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
        self.graph_memory.of_users.update((executor, launch.owner))
