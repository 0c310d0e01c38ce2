"""Tests of workspaces by stream and thread."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest
from stress.bounds import bounded

from dnnffi.execution import workspaces as workspace
from dnnffi.execution.workspaces import Workspaces


class FakeMemory:
    """Memory that allocates NumPy arrays."""

    def dtype(self, name):
        return np.dtype(name)

    def empty(self, shape, dtype):
        return np.empty(shape, dtype)


@pytest.fixture
def workspaces():
    return Workspaces(FakeMemory())


def get(workspaces, device, stream, nbytes):
    """Return the buffer of a call, which is over."""
    buffer = workspaces.take(device, stream, nbytes)
    workspaces.give_back(device, stream, buffer)
    return buffer


def test_calls_on_a_stream_share_a_buffer(workspaces):
    first = get(workspaces, 0, 16, 100)
    assert first.nbytes == 100
    assert first.dtype == np.uint8
    assert get(workspaces, 0, 16, 100) is first
    assert get(workspaces, 0, 16, 40) is first, "a smaller call uses the larger buffer"


def test_a_larger_call_gets_a_larger_buffer(workspaces):
    get(workspaces, 0, 16, 100)
    larger = get(workspaces, 0, 16, 300)
    assert larger.nbytes == 300
    assert get(workspaces, 0, 16, 100) is larger
    assert workspaces.nbytes == 300


def test_streams_and_devices_do_not_share(workspaces):
    buffers = [get(workspaces, device, stream, 100) for device in range(2) for stream in (0, 1, 16)]
    assert len(set(map(id, buffers))) == 6
    assert workspaces.nbytes == 600


def test_threads_do_not_share_a_buffer_though_they_share_a_stream(workspaces):
    found = []
    thread = threading.Thread(target=lambda: found.append(get(workspaces, 0, 16, 100)))
    thread.start()
    thread.join()
    assert get(workspaces, 0, 16, 100) is not found[0]


def test_the_stream_of_each_thread_has_no_buffer_that_is_kept(workspaces):
    # The address 2 stands for the per-thread stream of any thread.
    first = get(workspaces, 0, 2, 100)
    assert get(workspaces, 0, 2, 100) is not first
    assert workspaces.nbytes == 0


def test_a_call_without_a_workspace(workspaces):
    assert get(workspaces, 0, 16, 0).nbytes == 0


def test_the_oldest_stream_is_forgotten_first(workspaces):
    streams = [16 * n for n in range(workspace._MAX_STREAMS + 2)]
    buffers = [get(workspaces, 0, stream, 100) for stream in streams]
    assert workspaces.nbytes == 100 * workspace._MAX_STREAMS
    assert get(workspaces, 0, streams[2], 100) is buffers[2]
    assert get(workspaces, 0, streams[0], 100) is not buffers[0]


def test_clear_forgets_all(workspaces):
    first = get(workspaces, 0, 16, 100)
    workspaces.clear()
    assert workspaces.nbytes == 0
    assert get(workspaces, 0, 16, 100) is not first


class Telling(np.ndarray):
    """A buffer that calls a function when it is deleted, as a user's allocator may."""

    goes = None

    def __del__(self):
        if self.goes is not None:
            self.goes()


def test_a_buffer_that_goes_may_use_the_workspaces():
    found = []

    class Memory(FakeMemory):
        def empty(self, shape, dtype):
            buffer = np.empty(shape, dtype).view(Telling)
            buffer.goes = lambda: found.append(
                (workspaces.nbytes, get(workspaces, 1, 32, 10).nbytes)
            )
            return buffer

    workspaces = Workspaces(Memory())
    with bounded():
        for stream in (16, 32, 48):
            get(workspaces, 0, stream, 100)
        workspaces.clear()
    assert found[0] == (0, 10), "nothing was left when the first one went"
    assert len(found) == 3
    workspaces._memory = FakeMemory()
    for buffer in workspaces.buffers.values():
        buffer.goes = None


def test_a_handler_may_use_the_workspaces_that_it_interrupts(workspaces):
    # Python hashes and compares keys in a lookup, so a handler can run there.
    class Stream(int):
        def __hash__(self):
            if callable(signal.getsignal(signal.SIGUSR1)):
                signal.raise_signal(signal.SIGUSR1)
            return 16

        def __eq__(self, other):
            return int(self) == int(other)

    def handler(number, frame):
        get(workspaces, 0, 48, 10)
        workspaces.clear()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with bounded():
            buffer = get(workspaces, 0, Stream(16), 100)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert list(workspaces.buffers.values()) == [buffer]


def test_a_buffer_that_is_taken_is_not_given_to_another_call(workspaces):
    kept = get(workspaces, 0, 16, 100)
    taken = workspaces.take(0, 16, 100)
    assert taken is kept
    other = get(workspaces, 0, 16, 100)  # as of a signal handler in the middle of the call
    assert other is not taken
    workspaces.give_back(0, 16, taken)
    assert get(workspaces, 0, 16, 100) is taken


def test_a_call_that_needs_more_leaves_a_larger_buffer(workspaces):
    get(workspaces, 0, 16, 100)
    taken = workspaces.take(0, 16, 200)
    assert taken.nbytes == 200
    workspaces.give_back(0, 16, taken)
    assert get(workspaces, 0, 16, 150) is taken


def test_nothing_is_kept_of_the_default_stream_of_a_thread(workspaces):
    taken = workspaces.take(0, workspace.PER_THREAD_STREAM, 100)
    workspaces.give_back(0, workspace.PER_THREAD_STREAM, taken)
    assert workspaces.nbytes == 0
