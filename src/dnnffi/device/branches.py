"""Work that is captured as parallel branches of a graph: streams fork from one and join again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from dnnffi.device.interface import Launch

Work = Callable[[Launch], object]
"""A function that enqueues something on the stream of a launch."""


class Branches:
    """Enqueue works that need not wait for each other.

    In a capture each work has a branch of the graph. Elsewhere they follow each other on one
    stream: the events that order streams would cost the host more than small kernels take.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._local = threading.local()

    def run(self, launch: Launch, works: Sequence[Work]) -> None:
        """Enqueue all works, ordered after earlier and before later work on the launch's stream."""
        at = launch.stream.ptr
        # The null stream cannot be captured.
        if len(works) < 2 or not at or not self._runtime.is_capturing(at):
            for work in works:
                work(launch)
            return
        first, *others = works
        begun = self._recorded(at)
        with ExitStack() as joins:  # also after an error, which the caller may survive
            for work in others:
                side = self._fork(launch.device, begun)
                joins.callback(self._join, at, side)
                work(Launch(side, launch.device))
            first(launch)

    def _fork(self, device: int, begun: Any) -> Any:
        """Return a stream of this thread that joined the capture of the event ``begun``."""
        runtime = self._runtime
        by_device = self._local.__dict__.setdefault("streams", {})
        # A stream stays in a capture until that ends, which is not reported: each is queried.
        for stream in by_device.setdefault(device, []):
            if not runtime.is_capturing(stream.ptr):
                break
        else:
            stream = runtime.new_stream()
            by_device[device].append(stream)
        runtime.wait(stream.ptr, begun)
        return stream

    def _join(self, at: int, side: Any) -> None:
        self._runtime.wait(at, self._recorded(side.ptr))

    def _recorded(self, at: int) -> Any:
        """Record and return a new event on the stream at an address."""
        event = self._runtime.new_event()
        self._runtime.record(event, at)
        return event
