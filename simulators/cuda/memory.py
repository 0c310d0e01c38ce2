"""Host memory with the attributes that the vendor packages read of CuPy arrays.

With it the executors and the functional API run on the simulator of cuDNN as they do on CuPy.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import struct
import weakref
from contextlib import contextmanager, nullcontext

import numpy as np

from dnnffi.device.dtypes import dtype_object
from dnnffi.device.graphs import recording, refuse_in_capture
from dnnffi.device.interface import Architecture
from simulators.cuda import blocks

POISON = 0xA5  # unwritten values show in results


def numbers_of(arguments):
    """Return the arguments of a launch: 8 bytes each, and a struct as the last one."""
    return b"".join(
        one if type(one) is bytes else struct.pack("d" if type(one) is float else "q", one)
        for one in arguments
    )


class Pointer:
    """A stand-in for ``array.data`` of a CuPy array: an address and its device."""

    def __init__(self, array):
        self.array = array
        self.ptr = array.__array_interface__["data"][0]
        self.device_id = array.device_number


class SimulatedArray(np.ndarray):
    """A NumPy array with the attributes that the vendor packages read of CuPy's."""

    device_number = 0

    def __array_finalize__(self, parent):
        self.device_number = getattr(parent, "device_number", 0)

    @property
    def data(self):
        return Pointer(self)

    @property
    def __cuda_array_interface__(self):
        return self.__array_interface__

    @property
    def _c_contiguous(self):
        return self.flags.c_contiguous

    def get(self):
        return np.array(self)

    def set(self, values):
        self[...] = values

    def copy(self, order="C"):
        # A new allocation, which the stand-in has to know.
        result = self.memory.empty(self.shape, self.dtype)
        result[...] = self
        return result


class Stream:
    """A stream in name only: everything runs at once."""

    def __init__(self, ptr):
        self.ptr = ptr


class SimulatedGraph:
    """Calls of the library that were recorded instead of made."""

    nbytes = 1000

    def __init__(self, memory, calls):
        self.memory = memory
        self.calls = calls
        self.launches = 0
        self.executor = self.handle = None

    def launch(self, stream):
        self.launches += 1
        self.memory.milliseconds += self.memory.replay_costs
        for function, arguments in self.calls:
            status = function(*arguments)
            if status:
                raise RuntimeError(f"a replayed call returned {status}")


class RecordedLibrary:
    """The stand-in's functions; while a graph is captured, those that compute are recorded."""

    COMPUTING = (
        "cudnnBackendExecute",
        "cudnnRNNForward",
        "cudnnRNNBackwardData_v8",
        "cudnnRNNBackwardWeights_v8",
    )

    def __init__(self, lib, memory):
        self._lib = lib
        self._memory = memory

    def __getattr__(self, name):
        function = getattr(self._lib, name)
        if name not in self.COMPUTING:
            return function
        return lambda *arguments: self._memory.enqueue(function, arguments)


def copy_bytes(target, source, nbytes):
    """Copy bytes between addresses on the host; return the status of success."""
    ctypes.memmove(target, source, nbytes)
    return 0


def cluster_counts_of(architecture):
    """Return clusters of 1, 2, ... 8 blocks of a device whose multiprocessors are one group."""
    major, _, multiprocessors = architecture
    return tuple(multiprocessors // blocks for blocks in range(1, 9)) if major >= 9 else ()


class SimulatedMemory:
    """`Memory` on the host; every allocation is made known to the stand-in."""

    kind = "cuda"

    def __init__(self, control, devices=1):
        self.control = control
        self.ndarray = type("SimulatedArray", (SimulatedArray,), {"memory": self})
        self.devices = devices
        self.device = 0
        self.capture_number = 0
        self.stream = Stream(0)
        self.waits = []
        self.allocations = 0
        self.fail_allocation = None
        self.fail_capture = None
        self.recording = self.recorded_on = None
        self.graphs = []
        # Milliseconds of a call, a replay and a copy on the clock of `elapsed`.
        self.milliseconds, self.call_costs, self.replay_costs = 0.0, 1.0, 0.5
        self.copy_costs = 0.01
        self.copies = 0
        self._numbers = itertools.count(1)

    def empty(self, shape, dtype=np.float32):
        self.allocations += 1
        if self.fail_allocation is not None:
            self.fail_allocation -= 1
            if self.fail_allocation < 0:
                self.fail_allocation = None
                raise MemoryError("out of device memory")
        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64))
        raw = self._allocate(max(size * dtype.itemsize, 1))
        array = np.ndarray.__new__(self.ndarray, shape, dtype, buffer=raw)
        array.device_number = self.device
        return array

    def pairs(self, shape, other, dtype):
        return lambda: (self.empty(shape, dtype), self.empty(other, dtype))

    def empty_strided(self, shape, dtype, strides, nbytes):
        raw = self.empty((nbytes,), np.uint8)
        array = np.ndarray.__new__(self.ndarray, shape, dtype, buffer=raw, strides=strides)
        array.device_number = self.device
        return array

    def kernel(self, source, name, headers=(), *, cooperative=False):
        """Return a CUDA kernel; one whose number of THREADS is free is run with one."""
        free = re.compile(r"(?<= int THREADS = )\d+")
        is_free = any(free.search(text) for _, text in headers)
        headers = tuple((header, free.sub("1", text)) for header, text in headers)
        library = blocks.kernel(source, name, headers)

        def work(grid, threads, arguments):
            across, down = (*grid, 1)[:2]
            given = numbers_of(arguments)
            for x, y in itertools.product(range(across), range(down)):
                sizes = (1 if is_free else threads[0], x, y, across, down)
                assert library.run_block(blocks.STACKS, given, *sizes) == 0, (
                    "a barrier is not for all"
                )
            return 0

        return lambda *launch, stream: self.enqueue(work, launch)

    def kernel_problem(self):
        return "" if self.kind == "cuda" else "run on CUDA only"

    def beside_capture(self):
        return nullcontext()

    def _allocate(self, size):
        raw = (ctypes.c_char * size)()
        address = ctypes.addressof(raw)
        ctypes.memset(address, POISON, size)
        self.control.standin_register(address, size)
        weakref.finalize(raw, self.control.standin_unregister, address)
        return raw

    def zeros(self, shape, dtype=np.float32):
        array = self.empty(shape, dtype)
        array[...] = 0
        return array

    def array(self, values, dtype=None):
        values = np.asarray(values, dtype)
        array = self.empty(values.shape, values.dtype)
        array[...] = values
        return array

    def clear(self, address, nbytes, stream):
        self.enqueue(lambda *arguments: ctypes.memset(*arguments) and 0, (address, 0, nbytes))

    def copy(self, target, source, nbytes, stream):
        if self.recording is not None and stream is self.recorded_on:
            self.enqueue(copy_bytes, (target, source, nbytes))
            return
        self.copies += 1
        self.milliseconds += self.copy_costs
        copy_bytes(target, source, nbytes)

    def copy_rows(self, target, target_pitch, source, source_pitch, width, rows, stream):
        for row in range(rows):
            ends = target + row * target_pitch, source + row * source_pitch
            self.enqueue(copy_bytes, (*ends, width))

    def at_once(self, launch, works):
        for work in reversed(works):  # callers must not rely on the order
            work(launch)

    def enqueue(self, function, arguments):
        if self.recording is not None:
            self.recording.append((function, arguments))
            return 0
        self.milliseconds += self.call_costs
        return function(*arguments)

    def current_device(self):
        return self.device

    def current_stream(self):
        return self.stream

    def new_stream(self):
        return Stream(next(self._numbers) * 16)

    def device_count(self):
        return self.devices

    @contextmanager
    def use(self, device):
        before, self.device = self.device, device
        try:
            yield
        finally:
            self.device = before

    def dtype(self, name):
        return dtype_object(name)

    def architecture(self, device):
        return Architecture(9, 0, 132)

    def shared_bytes(self, device):
        return 232_448

    def l2_bytes(self, device):
        return 50 << 20

    def cluster_counts(self, device):
        return cluster_counts_of(self.architecture(device))

    def new_event(self):
        return []

    def record(self, event, stream):
        event.append(stream.ptr)

    def wait(self, stream, event):
        self.waits.append((stream.ptr, event[-1]))

    def capture_id(self, stream):
        return self.capture_number

    def is_capturing(self, stream):
        refuse_in_capture(stream.ptr)
        return bool(self.capture_number)

    def capture(self, record):
        before, stream = self.stream, self.new_stream()
        with recording(stream):
            assert self.recording is None
            self.recording, self.recorded_on, self.stream = [], stream, stream
            try:
                record(stream)
                if self.fail_capture is not None:
                    raise self.fail_capture()
                graph = SimulatedGraph(self, self.recording)
            finally:
                self.recording, self.recorded_on, self.stream = None, None, before
        self.graphs.append(weakref.ref(graph))
        return graph

    def elapsed(self, calls):
        before = self.milliseconds
        calls()
        return self.milliseconds - before

    @contextmanager
    def scratch(self):
        before = self.control.standin_registered()
        yield
        now = self.control.standin_registered()
        assert now <= before, f"scratch memory was not given back: {now} arrays, {before} before"

    def device_name(self, device):
        return "simulated device"
