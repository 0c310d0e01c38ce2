"""Arrays of another library in the stand-in's memory, and a CUDA runtime for them that is none."""

from __future__ import annotations

import ctypes

import numpy as np

from dnnffi.device.external import array, memory
from dnnffi.device.external.runtime import Runtime

_INTEGERS = {
    "GetDevice": 0,
    "GetDeviceCount": 1,
    "DeviceGetAttribute": 9,
    "EventCreateWithFlags": 1,
}


class HostRuntime(Runtime):
    """The calls that arrays without CuPy make, on host memory, where all runs at once."""

    def __init__(self):
        self.kind = "cuda"

    def function(self, name):
        return lambda *arguments: self.call(name, *arguments)

    def call(self, name, *arguments):
        values = [getattr(one, "value", one) for one in arguments]
        if name == "MemcpyAsync":
            ctypes.memmove(values[0], values[1], values[2])
        elif name == "MemsetAsync":
            ctypes.memset(values[0], values[1], values[2])
        elif name in _INTEGERS:
            arguments[0]._obj.value = _INTEGERS[name]
        else:
            assert name in ("StreamSynchronize", "EventRecord", "StreamWaitEvent", "EventDestroy")


def install(monkeypatch):
    """Let dnnffi use it for the length of a test."""
    found = HostRuntime()
    for module in (array, memory):
        monkeypatch.setattr(module, "runtime", lambda kind: found)
    monkeypatch.setattr(array, "kind_in_process", lambda: "cuda")


class UserArray:
    """What a user's allocator returns; it shows its memory as CuPy's arrays do."""

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
