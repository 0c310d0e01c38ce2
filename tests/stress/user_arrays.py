"""Arrays of another library in the stand-in's memory, and a simulated CUDA runtime for them."""

from __future__ import annotations

import ctypes
import itertools
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np

import dnnffi
from dnnffi.backends.cudnn import library
from dnnffi.backends.vendor.handle import close_handles
from dnnffi.convolution.backend import conv_backends
from dnnffi.device import memory
from dnnffi.device.external import array
from dnnffi.rnn.backend import rnn_backends
from dnnffi.runtime.cuda.driver import DeviceAttributes
from simulators.cuda.memory import SimulatedGraph


class HostRuntime:
    """The runtime of a device on host memory, where everything runs at once.

    Captures, allocations and the clock are those of the stand-in library's own `HostMemory`.
    """

    kind = "cuda"

    def __init__(self):
        self.streams = itertools.count(0x1000, 16)
        self.captured_on = set()

    @property
    def memory(self):
        return library.loaded().memory

    def current_device(self):
        return 0

    def device_count(self):
        return 1

    def use(self, device):
        return nullcontext()

    def attributes(self, device):
        return DeviceAttributes((9, 0), 132, 227 << 10, 50 << 20)

    def device_name(self, device):
        return self.memory.device_name(device)

    def allocate(self, nbytes):
        raw = self.memory.empty((nbytes,), np.uint8)
        return SimpleNamespace(ptr=raw.data.ptr, device=0, owner=raw)

    def free_bytes(self):
        return 0

    def write(self, target, source, nbytes):
        ctypes.memmove(target, source, nbytes)

    def copy(self, target, source, nbytes, stream):
        self.enqueue(ctypes.memmove, target, source, nbytes)

    def copy_rows(self, target, target_pitch, source, source_pitch, width, rows, stream):
        for row in range(rows):
            ends = target + row * target_pitch, source + row * source_pitch
            self.copy(*ends, width, stream)

    def clear(self, address, nbytes, stream):
        self.enqueue(ctypes.memset, address, 0, nbytes)

    def enqueue(self, function, *arguments):
        if self.captured_on:
            self.memory.recording.append((lambda *given: function(*given) and 0, arguments))
        else:
            function(*arguments)

    def synchronize(self, stream):
        assert stream not in self.captured_on

    def new_stream(self):
        return SimpleNamespace(ptr=next(self.streams), device=0)

    def new_event(self, timed=False):
        return SimpleNamespace(at=None)

    def record(self, event, stream):
        event.at = self.memory.milliseconds

    def wait(self, stream, event):
        pass

    def wait_on_host(self, event):
        pass

    def milliseconds(self, start, end):
        return end.at - start.at

    def beside_capture(self):
        return nullcontext()

    def is_capturing(self, stream):
        return stream in self.captured_on or bool(self.memory.capture_number)

    def capture_id(self, stream):
        return self.memory.capture_number

    def begin_capture(self, stream, *, relaxed=False):
        assert self.memory.recording is None
        self.captured_on.add(stream)
        self.memory.recording = []

    def abandon_capture(self, stream):
        self.captured_on.discard(stream)
        self.memory.recording = None

    def end_capture(self, stream):
        simulator = self.memory
        calls = simulator.recording
        self.abandon_capture(stream)
        if simulator.fail_capture is not None:
            raise simulator.fail_capture()
        return SimulatedGraph(simulator, calls)

    def upload(self, graph, stream):
        pass


def install(monkeypatch):
    """Let dnnffi use it for the length of a test, and return it."""
    found = HostRuntime()
    for module in (array, memory):
        monkeypatch.setattr(module, "device_runtime", lambda kind: found)
    monkeypatch.setattr(array, "kind_in_process", lambda: "cuda")
    monkeypatch.setattr(memory, "kernel_problem", lambda: "are not tested here")
    return found


def forget(library):
    """Release everything that a library keeps for calls on arrays of users."""
    dnnffi.clear_plans()
    external = library.without_cupy()
    for backend in (*rnn_backends.used(), *conv_backends.used()):
        if getattr(backend, "library", None) is external:
            backend.resources.graphs.user_captures.clear()
    close_handles(external)
    external.memory._null_streams.clear()


class UserArray:
    """An array of a user's allocator, which shows its memory as CuPy's arrays do."""

    def __init__(self, allocate, shape, dtype):
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        self._memory = allocate(max(nbytes, 1))
        self._view = np.frombuffer(self._memory, self.dtype, nbytes // self.dtype.itemsize)

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (ctypes.addressof(self._memory), False),
            "strides": None,
            "version": 3,
        }

    @classmethod
    def of(cls, allocate, values):
        made = cls(allocate, values.shape, values.dtype)
        made._view[:] = values.reshape(-1)
        return made

    def __array__(self, dtype=None, copy=None):
        return self._view.reshape(self.shape).astype(dtype or self.dtype)
