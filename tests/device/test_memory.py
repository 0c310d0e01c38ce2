"""Device memory of both kinds of arrays, on a driver without a device."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from dnnffi.device import memory as module
from dnnffi.device.cupy import CupyMemory
from dnnffi.device.external import DeviceArray, ExternalMemory, device_array, using
from dnnffi.device.interface import Launch, StreamAt
from dnnffi.errors import CaptureError, CudaError, UnsupportedError
from dnnffi.runtime.hip import HipRuntime

NULL = StreamAt(0)


@pytest.fixture
def buffers(on_standin):
    """Two buffers of four bytes, the first of ones; ``read`` is what is in the second."""
    owners = [on_standin.allocate(4), on_standin.allocate(4)]
    first, second = (owner.ptr for owner in owners)
    ones, found = np.ones(4, np.uint8), np.empty(4, np.uint8)
    on_standin.copy(first, ones.ctypes.data, 4, 0)
    on_standin.clear(second, 4, 0)

    def read():
        on_standin.copy(found.ctypes.data, second, 4, 0)
        return found.tolist()

    yield SimpleNamespace(first=first, second=second, read=read)
    owners.clear()  # pytest keeps what this fixture returned for longer than the stand-in


def test_attributes_and_names_are_those_of_the_device(device_memory):
    assert device_memory.architecture(1) == (9, 0, 132)
    assert device_memory.shared_bytes(1) == 227 << 10
    assert device_memory.l2_bytes(0) == 50 << 20
    assert device_memory.device_count() == 2
    assert device_memory.device_name(1).startswith("Stand-in 1, driver ")
    assert device_memory.dtype("bfloat16").name == "bfloat16"


def test_a_block_runs_on_its_device(device_memory):
    assert device_memory.current_device() == 0
    with device_memory.use(1):
        assert device_memory.current_device() == 1
    assert device_memory.current_device() == 0


def test_streams_wait_for_events(device_memory, standin):
    event = device_memory.new_event()
    device_memory.record(event, NULL)
    device_memory.wait(StreamAt(0x7000), event)
    assert standin.calls("cuStreamWaitEvent") == 1


def test_elapsed_is_the_time_of_the_calls(device_memory, buffers):
    def calls():
        for _ in range(3):
            device_memory.clear(buffers.second, 4, NULL)

    assert device_memory.elapsed(calls) == 3.0


def test_a_captured_graph_runs_when_it_is_launched(device_memory, buffers):
    streams = []

    def record(stream):
        streams.append((stream.ptr, device_memory.current_stream().ptr))
        device_memory.copy(buffers.second, buffers.first, 4, stream)

    graph = device_memory.capture(record)
    assert buffers.read() == [0, 0, 0, 0]
    graph.launch(NULL)
    assert buffers.read() == [1, 1, 1, 1]
    assert streams[0][0] == streams[0][1] != 0  # the stream of the capture is the current one
    assert device_memory.current_stream().ptr == 0
    assert graph.launches == 1
    assert graph.nbytes == 1 << 20  # which the device has less, with the graph


def test_captures_of_a_thread_are_on_one_stream_per_device(device_memory):
    streams = []
    for device in (0, 1, 0, 1):
        with device_memory.use(device):
            device_memory.capture(streams.append)
    assert (streams[0], streams[1]) == (streams[2], streams[3])
    assert [stream.device for stream in streams] == [0, 1, 0, 1]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_capture_that_fails_leaves_nothing(device_memory, standin, error):
    def fail(stream):
        raise error

    device_memory.capture(lambda stream: None)  # makes the stream, and the word of the null stream
    before = standin.live()
    with pytest.raises(error):
        device_memory.capture(fail)
    assert standin.live() == before
    assert device_memory.current_stream().ptr == 0
    device_memory.capture(lambda stream: None)


def test_an_invalid_capture_raises(device_memory, standin):
    standin.fail("cuStreamEndCapture", 901)
    with pytest.raises(CudaError, match="cuStreamEndCapture"):
        device_memory.capture(lambda stream: None)
    device_memory.capture(lambda stream: None)


def test_who_asks_for_the_stream_of_a_capture_is_refused(device_memory):
    asked = []

    def record(stream):
        with pytest.raises(CaptureError):
            device_memory.is_capturing(device_memory.current_stream())
        with pytest.raises(CaptureError):
            device_memory.capture(asked.append)
        asked.append(stream)

    device_memory.capture(record)
    assert len(asked) == 1
    assert not device_memory.is_capturing(device_memory.current_stream())


def test_a_stream_of_the_users_says_whether_it_is_captured(device_memory, on_standin):
    stream = on_standin.new_stream()
    assert not device_memory.is_capturing(stream)
    assert device_memory.capture_id(stream) == 0
    on_standin.begin_capture(stream.ptr)
    assert device_memory.is_capturing(stream)
    assert device_memory.capture_id(stream) > 0
    with device_memory.beside_capture():
        on_standin.allocate(8)
    on_standin.abandon_capture(stream.ptr)


def test_the_null_stream_is_in_no_capture_and_not_asked(device_memory, standin):
    assert not device_memory.is_capturing(NULL)
    assert device_memory.capture_id(NULL) == 0
    assert standin.calls("cuStreamIsCapturing") == 0


def test_works_of_a_capture_are_branches_of_its_graph(device_memory, buffers):
    streams = set()

    def work(launch):
        streams.add(launch.stream.ptr)
        device_memory.copy(buffers.second, buffers.first, 2, launch.stream)

    graph = device_memory.capture(
        lambda stream: device_memory.at_once(Launch(stream, 0), [work, work, work])
    )
    assert len(streams) == 3
    graph.launch(NULL)
    assert buffers.read() == [1, 1, 0, 0]


def test_graphs_on_the_null_stream_are_kept_apart_by_work(device_memory, standin):
    graphs = [device_memory.capture(lambda stream: None) for _ in range(4)]
    before = standin.calls("cuMemsetD8Async")
    for graph in graphs[:3]:
        graph.launch(NULL)
    assert standin.calls("cuMemsetD8Async") == before
    graphs[3].launch(NULL)
    assert standin.calls("cuMemsetD8Async") == before + 1


def test_kernels_are_those_of_the_process_on_the_current_device(device_memory, monkeypatch):
    asked = []

    class Kernels:
        def get(self, *given, **keywords):
            asked.append((given, keywords))
            return SimpleNamespace(blocks_per_multiprocessor=lambda threads, nbytes: 2)

        def cluster_counts(self, device):
            return (132 + device,)

    monkeypatch.setattr(module, "process_kernels", Kernels)
    monkeypatch.setattr(module, "kernel_problem", lambda: "need NVRTC")
    assert device_memory.kernel_problem() == "need NVRTC"
    with device_memory.use(1):
        kernel = device_memory.kernel("source", "name", cooperative=True, shared_bytes=7)
        assert device_memory.blocks_at_once(kernel, 128, 7) == 2 * 132
    assert device_memory.cluster_counts(1) == (133,)
    how = {"headers": (), "cooperative": True, "shared_bytes": 7}
    assert asked == [(("source", "name", 1), how)]


# Arrays of CuPy


def test_cupys_scratch_is_a_pool_of_its_own(fake_cupy, on_standin):
    memory, synchronized = CupyMemory(), []
    stream = SimpleNamespace(ptr=0, synchronize=lambda: synchronized.append(True))
    fake_cupy.streams = [stream]
    with memory.scratch():
        (pool,) = fake_cupy.pools
        assert pool.is_used
        assert not pool.is_freed
    assert not pool.is_used
    assert pool.is_freed
    assert synchronized == [True]


def test_a_step_is_captured_with_a_pool_of_its_own(fake_cupy, buffers):
    memory, used = CupyMemory(), []

    def step():
        used.append([pool.is_used for pool in fake_cupy.pools])
        memory.copy(buffers.second, buffers.first, 4, memory.current_stream())
        return "result"

    graph = memory.capture_step(step)
    assert used == [[], [True]]  # once as it is, once captured
    memory.clear(buffers.second, 4, NULL)
    assert graph.launch() == "result"
    assert buffers.read() == [1, 1, 1, 1]
    graph.close()
    with pytest.raises(ValueError, match="closed"):
        graph.launch()


def test_a_step_is_launched_on_the_current_stream_of_its_own_device(fake_cupy, on_standin):
    memory, devices = CupyMemory(), []
    graph = memory.capture_step(lambda: None)
    found = memory.current_stream
    memory.current_stream = lambda: devices.append(memory.current_device()) or found()
    with memory.use(1):
        graph.launch()
    assert devices == [0]


def test_a_step_that_fails_leaves_nothing(fake_cupy, standin):
    memory, calls = CupyMemory(), []

    def step():
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError

    with pytest.raises(MemoryError):
        memory.capture_step(step)
    assert standin.live() == {}


def test_cupy_for_rocm_has_the_runtime_of_hip(fake_cupy, monkeypatch):
    fake_cupy.cuda.runtime.is_hip = True
    hip = HipRuntime.__new__(HipRuntime)
    monkeypatch.setattr(module, "device_runtime", {"rocm": hip}.__getitem__)
    memory = CupyMemory()
    assert memory.kind == "rocm"
    assert not memory.is_capturing(StreamAt(0x7000))
    assert memory.capture_id(StreamAt(0x7000)) == 0
    assert memory.kernel_problem() == "run on CUDA only"
    with memory.beside_capture(), pytest.raises(UnsupportedError, match="this is ROCm"):
        memory.kernel("source", "name")
    with pytest.raises(UnsupportedError, match="this is ROCm"):
        memory.capture(lambda stream: None)


# Arrays of other libraries


class Allocator:
    """Device memory as a user's library allocates it."""

    def __init__(self, runtime):
        self.runtime, self.made = runtime, []

    def __call__(self, shape, dtype):
        buffer = self.runtime.allocate(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        address = buffer.ptr
        made = SimpleNamespace(
            buffer=buffer,
            __cuda_array_interface__={
                "shape": shape,
                "typestr": np.dtype(dtype).str,
                "data": (address, False),
                "version": 3,
            },
        )
        self.made.append(made)
        return made


@pytest.fixture
def external(on_standin):
    made = ExternalMemory("cuda")
    yield made
    made._local.__dict__.clear()


def test_arrays_are_the_allocators_and_scratch_is_not(external, on_standin, standin):
    allocator = Allocator(on_standin)
    with using(allocator):
        assert external.empty((2, 3), "f4").owner is allocator.made[0]
        zeros = external.zeros((3,), np.float32)
        assert zeros.get().tolist() == [0, 0, 0]
        with external.scratch():
            array = external.empty((2, 3), np.float32)
            assert isinstance(array, DeviceArray)
            assert array.shape == (2, 3)
            with external.scratch():
                pass
            external.empty((1,), np.float32)
            array.fill(0)
            assert array.get().tolist() == [[0, 0, 0], [0, 0, 0]]
        assert len(allocator.made) == 2
        one, other = external.pairs((1,), (2,), np.dtype("f4"))()
        assert [one.owner, other.owner] == allocator.made[2:]
    del array
    assert standin.buffers == 4
    allocator.made.clear()


def test_scratch_ends_when_its_stream_has_run(external, standin):
    stream = SimpleNamespace(ptr=0x7000)
    with using(stream=stream.ptr):
        with external.scratch():
            before = standin.calls("cuStreamSynchronize")
        assert standin.calls("cuStreamSynchronize") == before + 1
        with pytest.raises(KeyError), external.scratch():
            raise KeyError
    with pytest.raises(RuntimeError, match="there is no allocator"):
        external.empty((1,), "f4")


def test_scratch_is_that_of_the_thread(external, on_standin):
    allocator, found = Allocator(on_standin), []

    def allocate():
        with using(allocator):
            found.append(external.empty((1,), "f4").owner)

    with external.scratch():
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join(60)
    assert found == allocator.made != []


def test_scratch_without_memory_raises_a_memory_error(external, standin):
    with external.scratch():
        standin.fail("cuMemAlloc_v2", 2)
        with pytest.raises(MemoryError):
            external.empty((1000,), "f4")


def test_a_constant_needs_no_allocator_and_can_be_made_in_a_capture(external, on_standin):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    stream = on_standin.new_stream()
    on_standin.begin_capture(stream.ptr)
    array = external.constant(values.T)
    on_standin.abandon_capture(stream.ptr)
    np.testing.assert_array_equal(array.get(), values.T)


def test_a_capture_in_a_block_of_using_keeps_its_allocator(external, on_standin):
    allocator = Allocator(on_standin)
    with using(allocator, stream=0x7000):
        external.capture(lambda stream: external.empty((1,), "f4"))
        assert external.current_stream().ptr == 0x7000
    assert len(allocator.made) == 1
    external._null_streams.clear()


def test_the_stream_of_an_array_is_waited_for_by_that_of_the_call(external, on_standin, standin):
    allocator = Allocator(on_standin)
    made = allocator((2,), "float32")
    with using(stream=0x7000):
        for producer, waits in ((0x7000, 0), (0x8000, 1), (None, 1)):
            made.__cuda_array_interface__["stream"] = producer
            device_array("x", made, "cuda")
            assert standin.calls("cuStreamWaitEvent") == waits
    allocator.made.clear()
