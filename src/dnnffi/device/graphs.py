"""Captured graphs, of a plan's operations and of a user's step, and what a capture excludes."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dnnffi.device.interface import Memory, Stream
from dnnffi.errors import CaptureError
from dnnffi.operating_system import register_at_fork

_captures: list[int] = []  # the thread of each that is in progress
_collecting = False  # whether the collector ran before the first of them


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python's garbage collector from running in any thread.

    The driver refuses to destroy a graph in a thread that captures. CuPy's graphs among the garbage
    would be lost, each with a warning. No lock: a signal handler may capture in the middle of this.
    """
    global _collecting
    thread = threading.get_ident()
    _captures.append(thread)
    try:
        if gc.isenabled():
            _collecting = True
            gc.disable()
        yield
    finally:
        _captures.remove(thread)
        _collect_after_captures()


def _collect_after_captures() -> None:
    global _collecting
    # Threads and handlers switch after calls, so none begins a capture between test and enable.
    if _collecting and not _captures:
        _collecting = False
        gc.enable()


def _forget_captures_of_other_threads() -> None:
    thread = threading.get_ident()
    _captures[:] = [one for one in _captures if one == thread]
    _collect_after_captures()


# A child has only the thread that forked: the captures of the others never end in it.
register_at_fork(after_in_child=_forget_captures_of_other_threads)


class _Recording(threading.local):
    """The address of the stream on which a thread captures a graph of a plan; None: on none."""

    at: int | None = None


_recording = _Recording()


@contextmanager
def recording(stream: Stream) -> Iterator[None]:
    """Let this thread enqueue nothing but what is to be captured on ``stream``.

    A signal handler or a callback of the garbage may run in the middle of a capture. What it
    enqueued would be in the graph, and run again in every launch on memory that it has given back:
    `refuse_in_capture` and `refuse_beside_capture` raise `CaptureError` first.
    """
    refuse_beside_capture(None)
    _recording.at = stream.ptr
    try:
        yield
    finally:
        _recording.at = None


def refuse_in_capture(at: int) -> None:
    """Refuse a call whose current stream, at this address, is the one of `recording`."""
    if at == _recording.at:
        _refuse()


def refuse_beside_capture(at: int | None) -> None:
    """Refuse a launch on another stream: the thread's handle would leave that of `recording`."""
    if _recording.at not in (None, at):
        _refuse()


def _refuse() -> None:
    raise CaptureError(
        "dnnffi was called, by a signal handler or a callback, in the middle of a call that this "
        "thread is capturing as a CUDA graph, which would record it; call it after that call"
    )


class NullStream:
    """The rows of graphs on a device's legacy null stream, which are kept short.

    In a row of different graphs of a vendor's kernels, with nothing else between them on that
    stream, each begins the later, the more precede it. Other streams and graphs of simple kernels
    are not delayed; why is not known. ``work`` ends the row: a kernel, a memset or an event with
    a time, but no plain event or query. Launching on another stream does not help: a
    second blocking stream is in no order with the user's own blocking streams
    (``tests/gpu/test_null_stream.py``), and another stream between two events is as late.

    Threads count together; a count that one of them loses makes a row longer.
    """

    # Number of different graphs: one step of a network adds nothing, a longer loop adds a 4-byte
    # memset in every third launch.
    _MAX_IN_A_ROW = 3

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._length = 0
        self.row = 0
        """The number of the row. A graph that was launched in it does not make it longer."""

    def lengthen(self) -> int:
        """Make room for another graph in the row, or begin a new one; returns its number."""
        if self._length >= self._MAX_IN_A_ROW:  # above it where two threads were here at once
            self._work()
            self._length = 0
            self.row += 1
        self._length += 1
        return self.row


class CudaGraph:
    """A captured graph of the runtime, with the memory that it holds."""

    def __init__(self, graph: Any, null: NullStream, nbytes: int) -> None:
        self._graph = graph
        self._null = null
        self._row = -1
        self.nbytes = nbytes
        self.launches = 0
        self.executor: Any = None
        self.handle: Any = None

    def launch(self, stream: Stream) -> None:
        self.launches += 1
        if not stream.ptr and self._row != self._null.row:
            self._row = self._null.lengthen()
        self._graph.launch(stream.ptr)


class StepGraph:
    """A captured step: `launch` runs it again. Keeps alive what the step refers to."""

    def __init__(self, graph: Any, memory: Memory, result: Any, kept: object) -> None:
        self._graph = graph
        self._memory = memory
        self._kept = kept
        self.result = result

    def launch(self) -> Any:
        """Enqueue the step on the current stream of the device on which it was captured.

        Returns what the step returned at the capture. Raises ``ValueError`` once the plan that
        captured it is closed.
        """
        graph, memory = self._graph, self._memory
        if graph is None:
            raise ValueError("the plan of this graph is closed")
        if memory.current_device() != graph.device:
            with memory.use(graph.device):
                return self.launch()
        graph.launch(memory.current_stream().ptr)
        return self.result

    def close(self) -> None:
        """Release the graph and its memory."""
        self._graph = self._kept = self.result = None
