"""Run captured work concurrently, on streams that fork from one and join it again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from dnnffi.device.driver import beside_capture
from dnnffi.device.interface import Launch

Work = Callable[[Launch], object]
"""What enqueues something on the stream of a launch."""


class Branches:
    """Enqueues works that need not wait for each other, through CuPy on CUDA.

    In a capture each has a branch of the graph. Elsewhere they follow each other on one stream: the
    events that order streams would cost the host more than small kernels take.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._local = threading.local()

    def run(self, launch: Launch, works: Sequence[Work]) -> None:
        """Enqueue all of them behind what was enqueued, and before what will be."""
        stream = launch.stream
        # The null stream cannot be captured.
        captured = stream.ptr and self._cupy.cuda.runtime.streamIsCapturing(stream.ptr)
        if len(works) < 2 or not captured:
            for work in works:
                work(launch)
            return
        first, *others = works
        begun = self._event()
        begun.record(stream)
        with ExitStack() as joins:  # also after an error, which the caller may survive
            for work in others:
                side = self._fork(launch.device, begun)
                joins.callback(self._join, stream, side)
                work(Launch(side, launch.device))
            first(launch)

    def _fork(self, device: int, begun: Any) -> Any:
        """A stream of this thread, which is in the capture of ``begun`` from now on."""
        runtime = self._cupy.cuda.runtime
        by_device = self._local.__dict__.setdefault("streams", {})
        # A stream stays in a capture until that ends, which nobody tells: each is asked.
        for stream in by_device.setdefault(device, []):
            if not runtime.streamIsCapturing(stream.ptr):
                break
        else:
            with beside_capture():
                stream = self._cupy.cuda.Stream(non_blocking=True)
            by_device[device].append(stream)
        runtime.streamWaitEvent(stream.ptr, begun.ptr)
        return stream

    def _join(self, stream: Any, side: Any) -> None:
        done = self._event()
        done.record(side)
        self._cupy.cuda.runtime.streamWaitEvent(stream.ptr, done.ptr)

    def _event(self) -> Any:
        return self._cupy.cuda.Event(disable_timing=True)
