"""Tests of a CUDA device on the stand-in driver: memory, streams, events, captures and graphs."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dnnffi.errors import CudaError
from dnnffi.runtime.cuda import runtime as module

OUT_OF_MEMORY, CAPTURE_UNSUPPORTED = 2, 900


def in_a_thread(function):
    """Return the result of ``function`` in a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(60)
    return found[0]


def on_device(runtime, values):
    """Copy values to device memory, and return the buffer."""
    values = np.ascontiguousarray(values)
    buffer = runtime.allocate(values.nbytes)
    runtime.copy(buffer.ptr, values.ctypes.data, values.nbytes, 0)
    return buffer


def on_host(runtime, buffer, count):
    found = np.empty(count, np.uint8)
    runtime.copy(found.ctypes.data, buffer.ptr, count, 0)
    runtime.synchronize(0)
    return found.tolist()


def captured(runtime, work, **keywords):
    """Capture ``work(stream)``, and return the graph."""
    stream = runtime.new_stream()
    runtime.begin_capture(stream.ptr, **keywords)
    work(stream.ptr)
    return runtime.end_capture(stream.ptr)


# Devices


@pytest.mark.parametrize("device", [0, 1])
def test_a_block_runs_on_its_device(runtime, device):
    with runtime.use(device):
        assert runtime.current_device() == device
        buffer, stream, event = runtime.allocate(8), runtime.new_stream(), runtime.new_event()
        assert (buffer.device, stream.device, event.device) == (device,) * 3
    assert runtime.current_device() == 0


def test_the_name_of_a_device_has_the_version_of_the_driver(runtime, monkeypatch):
    monkeypatch.setattr(module, "kernel_module_version", lambda: "580.65.06")
    assert runtime.device_name(1) == "Stand-in 1, driver 580.65.06"
    monkeypatch.setattr(module, "kernel_module_version", lambda: "")
    assert runtime.device_name(0) == "Stand-in 0, driver API 13000"


def test_the_version_of_the_kernel_module_is_that_of_its_file(monkeypatch):
    for content, expected in ((b" 580.65.06\n", "580.65.06"), (b"", "")):
        monkeypatch.setattr(module, "read_kernel_file", lambda path, content=content: content)
        module.kernel_module_version.cache_clear()
        assert module.kernel_module_version() == expected
    module.kernel_module_version.cache_clear()


def test_attributes_are_those_of_the_driver(runtime, driver):
    assert runtime.attributes(0) == driver.attributes(0)
    assert runtime.device_count() == 2


# Memory


def test_copies_go_in_all_directions(runtime):
    first = on_device(runtime, np.arange(6, dtype=np.uint8))
    second = runtime.allocate(6)
    runtime.copy(second.ptr, first.ptr, 4, 0)
    runtime.clear(second.ptr + 4, 2, 0)
    assert on_host(runtime, second, 6) == [0, 1, 2, 3, 0, 0]


def test_rows_are_copied_between_pitches(runtime):
    first = on_device(runtime, np.arange(12, dtype=np.uint8))
    second = on_device(runtime, np.zeros(10, np.uint8))
    runtime.copy_rows(second.ptr + 1, 3, first.ptr, 4, 2, 3, 0)
    assert on_host(runtime, second, 10) == [0, 0, 1, 0, 4, 5, 0, 8, 9, 0]


def test_nothing_is_copied_or_cleared_where_there_are_no_bytes(runtime, standin):
    runtime.copy(0, 0, 0, 0)
    runtime.copy_rows(0, 0, 0, 0, 0, 3, 0)
    runtime.copy_rows(0, 0, 0, 0, 3, 0, 0)
    runtime.clear(0, 0, 0)
    names = "cuMemcpyAsync", "cuMemcpy2DAsync_v2", "cuMemsetD8Async"
    assert sum(map(standin.calls, names)) == 0


def test_memory_of_no_bytes_has_an_address(runtime):
    assert runtime.allocate(0).ptr


def test_memory_goes_back_with_its_object_in_another_thread(runtime, standin):
    with runtime.use(1):
        kept = [runtime.allocate(8)]
    assert standin.buffers == 1
    in_a_thread(kept.clear)
    assert standin.buffers == 0


def test_too_little_memory_is_a_memory_error(runtime, standin):
    standin.fail("cuMemAlloc_v2", OUT_OF_MEMORY)
    with pytest.raises(MemoryError, match=r"device 0 has no 5,000 bytes"):
        runtime.allocate(5000)
    standin.fail("cuMemAlloc_v2", 1)
    with pytest.raises(CudaError, match="cuMemAlloc_v2"):
        runtime.allocate(5000)


def test_what_is_written_is_there_and_the_default_stream_is_not_waited_for(runtime, standin):
    values = np.arange(5, dtype=np.uint8)
    buffers = [runtime.allocate(5) for _ in range(2)]
    for buffer in buffers:
        runtime.write(buffer.ptr, values.ctypes.data, 5)
    assert standin.streams == 1
    with runtime.use(1):
        buffers.append(runtime.allocate(5))
        runtime.write(buffers[-1].ptr, values.ctypes.data, 5)
    assert standin.streams == 1  # one a thread, of the device of its last use
    assert on_host(runtime, buffers[1], 5) == values.tolist()


def test_free_memory_is_that_of_the_current_device(runtime):
    assert runtime.free_bytes() == 1 << 30


# Streams and events


def test_milliseconds_between_events_are_those_of_the_work(runtime):
    buffer = runtime.allocate(8)
    start, end = runtime.new_event(timed=True), runtime.new_event(timed=True)
    runtime.record(start, 0)
    runtime.clear(buffer.ptr, 8, 0)
    runtime.clear(buffer.ptr, 8, 0)
    runtime.record(end, 0)
    runtime.wait_on_host(end)
    assert runtime.milliseconds(start, end) == 2.0


def test_an_event_that_orders_streams_takes_no_times(runtime):
    event = runtime.new_event()
    with pytest.raises(CudaError, match="cuEventElapsedTime"):
        runtime.milliseconds(event, event)


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("cuStreamCreate", lambda runtime: runtime.new_stream()),
        ("cuEventCreate", lambda runtime: runtime.new_event()),
        ("cuStreamSynchronize", lambda runtime: runtime.synchronize(0)),
        ("cuStreamIsCapturing", lambda runtime: runtime.is_capturing(0x7000)),
        ("cuMemGetInfo_v2", lambda runtime: runtime.free_bytes()),
        ("cuThreadExchangeStreamCaptureMode", lambda runtime: runtime.allocate(8)),
    ],
)
def test_a_call_that_fails_raises_the_status_and_leaves_nothing(runtime, standin, function, call):
    standin.fail(function, 700)
    with pytest.raises(CudaError, match=rf"{function} returned CUDA_ERROR_OTHER \(700\)"):
        call(runtime)
    assert standin.live() == {}


def test_an_object_that_cannot_be_destroyed_is_dropped_in_silence(runtime, standin, recwarn):
    stream = runtime.new_stream()
    standin.fail("cuThreadExchangeStreamCaptureMode", 4)  # at the end of the process
    del stream
    assert standin.streams == 1
    standin.lib.standin_streams = 0
    assert not recwarn.list


def test_events_are_destroyed_in_one_call_and_in_threads_without_a_context(runtime, standin):
    events = [runtime.new_event(), runtime.new_event()]
    before = standin.calls("cuCtxSetCurrent")
    events.pop()
    assert (standin.events, standin.calls("cuCtxSetCurrent")) == (1, before)
    in_a_thread(events.clear)
    assert standin.events == 0


# Captures and graphs


def test_a_graph_runs_when_it_is_launched(runtime):
    target = on_device(runtime, np.ones(4, np.uint8))
    source = on_device(runtime, np.arange(4, dtype=np.uint8))
    graph = captured(runtime, lambda at: runtime.copy(target.ptr, source.ptr, 4, at))
    assert on_host(runtime, target, 4) == [1, 1, 1, 1]
    runtime.upload(graph, 0x7000)
    for _ in range(2):
        runtime.clear(target.ptr, 4, 0)
        graph.launch(0)
        assert on_host(runtime, target, 4) == [0, 1, 2, 3]


def test_a_graph_is_launched_in_a_thread_without_a_context(runtime, standin):
    def launch():
        graph.launch(0)
        return standin.context_device()

    with runtime.use(1):
        graph = captured(runtime, lambda stream: None)
    assert in_a_thread(launch) == 1


def test_a_graph_that_cannot_be_launched_raises(runtime, standin):
    graph = captured(runtime, lambda at: None)
    standin.fail("cuGraphLaunch", 700)
    with pytest.raises(CudaError, match="cuGraphLaunch"):
        graph.launch(0)


def test_a_stream_says_which_capture_it_is_in(runtime):
    stream = runtime.new_stream()
    assert not runtime.is_capturing(stream.ptr)
    assert runtime.capture_id(stream.ptr) == 0
    numbers = []
    for _ in range(2):
        runtime.begin_capture(stream.ptr)
        assert runtime.is_capturing(stream.ptr)
        numbers.append(runtime.capture_id(stream.ptr))
        runtime.abandon_capture(stream.ptr)
    assert 0 < numbers[0] < numbers[1]


def test_a_thread_that_captures_may_make_and_drop_things(runtime, standin):
    dropped = [
        runtime.allocate(8),
        captured(runtime, lambda at: None),
    ]
    buffer, values = runtime.allocate(4), np.arange(4, dtype=np.uint8)

    def work(at):
        dropped.clear()
        dropped.extend((runtime.allocate(8), runtime.new_stream()))
        runtime.write(buffer.ptr, values.ctypes.data, 4)

    captured(runtime, work)
    assert on_host(runtime, buffer, 4) == [0, 1, 2, 3]
    assert standin.executables == 0


def test_what_a_capture_forbids_is_allowed_beside_it(runtime, driver):
    out = module.ffi.new("dev_ptr *")
    stream = runtime.new_stream()
    runtime.begin_capture(stream.ptr)
    assert driver.lib.cuMemAlloc_v2(out, 8) == CAPTURE_UNSUPPORTED
    with runtime.beside_capture():
        assert driver.lib.cuMemAlloc_v2(out, 8) == 0
        driver.lib.cuMemFree_v2(out[0])
    assert driver.lib.cuMemAlloc_v2(out, 8) == CAPTURE_UNSUPPORTED
    with pytest.raises(KeyError), runtime.beside_capture():
        raise KeyError
    assert driver.lib.cuMemAlloc_v2(out, 8) == CAPTURE_UNSUPPORTED
    runtime.abandon_capture(stream.ptr)


def test_a_relaxed_capture_forbids_nothing(runtime, driver):
    out = module.ffi.new("dev_ptr *")

    def work(at):
        assert driver.lib.cuMemAlloc_v2(out, 8) == 0
        driver.lib.cuMemFree_v2(out[0])

    captured(runtime, work, relaxed=True)


def test_a_capture_that_became_invalid_raises_and_can_be_abandoned(runtime, standin):
    stream = runtime.new_stream()
    runtime.begin_capture(stream.ptr)
    standin.fail("cuStreamEndCapture", 901)
    with pytest.raises(CudaError, match="cuStreamEndCapture"):
        runtime.end_capture(stream.ptr)
    runtime.abandon_capture(stream.ptr)
    assert not runtime.is_capturing(stream.ptr)


def test_a_graph_that_cannot_be_instantiated_is_given_back(runtime, standin):
    standin.fail("cuGraphInstantiateWithFlags", OUT_OF_MEMORY)
    with pytest.raises(CudaError, match="cuGraphInstantiateWithFlags"):
        captured(runtime, lambda at: None)
    assert standin.live() == {}
