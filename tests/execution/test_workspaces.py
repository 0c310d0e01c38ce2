"""Workspaces by stream and thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dnnffi.execution import workspaces as workspace
from dnnffi.execution.workspaces import Workspaces


class FakeMemory:
    """Arrays of NumPy."""

    def dtype(self, name):
        return np.dtype(name)

    def empty(self, shape, dtype):
        return np.empty(shape, dtype)


@pytest.fixture
def workspaces():
    return Workspaces(FakeMemory())


def test_calls_on_a_stream_share_a_buffer(workspaces):
    first = workspaces.get(0, 16, 100)
    assert first.nbytes == 100
    assert first.dtype == np.uint8
    assert workspaces.get(0, 16, 100) is first
    assert workspaces.get(0, 16, 40) is first, "a smaller call uses the larger buffer"


def test_a_larger_call_gets_a_larger_buffer(workspaces):
    workspaces.get(0, 16, 100)
    larger = workspaces.get(0, 16, 300)
    assert larger.nbytes == 300
    assert workspaces.get(0, 16, 100) is larger
    assert workspaces.nbytes == 300


def test_streams_and_devices_do_not_share(workspaces):
    buffers = [workspaces.get(device, stream, 100) for device in range(2) for stream in (0, 1, 16)]
    assert len(set(map(id, buffers))) == 6
    assert workspaces.nbytes == 600


def test_threads_do_not_share_a_buffer_though_they_share_a_stream(workspaces):
    found = []
    thread = threading.Thread(target=lambda: found.append(workspaces.get(0, 16, 100)))
    thread.start()
    thread.join()
    assert workspaces.get(0, 16, 100) is not found[0]


def test_the_stream_of_each_thread_has_no_buffer_that_is_kept(workspaces):
    # One address stands for the streams of all threads.
    first = workspaces.get(0, 2, 100)
    assert workspaces.get(0, 2, 100) is not first
    assert workspaces.nbytes == 0


def test_a_call_without_a_workspace(workspaces):
    assert workspaces.get(0, 16, 0).nbytes == 0


def test_the_oldest_stream_is_forgotten_first(workspaces):
    streams = [16 * n for n in range(workspace._MOST_STREAMS + 2)]
    buffers = [workspaces.get(0, stream, 100) for stream in streams]
    assert workspaces.nbytes == 100 * workspace._MOST_STREAMS
    assert workspaces.get(0, streams[2], 100) is buffers[2]
    assert workspaces.get(0, streams[0], 100) is not buffers[0]


def test_clear_forgets_all(workspaces):
    first = workspaces.get(0, 16, 100)
    workspaces.clear()
    assert workspaces.nbytes == 0
    assert workspaces.get(0, 16, 100) is not first
