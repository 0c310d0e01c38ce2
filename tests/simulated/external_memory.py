"""Arrays with strides of a user's allocator on the stand-in, and kernels for them on the host."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from stress.user_arrays import UserArray

from dnnffi.device import memory


def install_kernels(simulator, monkeypatch):
    """Let calls with an allocator on the library of ``host`` run our kernels on the host, too."""

    def get(source, name, device, *, headers=(), cooperative=False, shared_bytes=0):
        return simulator.memory.kernel(source, name, headers, cooperative=cooperative)

    monkeypatch.setattr(memory, "process_kernels", lambda: SimpleNamespace(get=get))
    monkeypatch.setattr(memory, "kernel_problem", lambda: "")


class StridedArray(UserArray):
    """An array of a library that knows strides, which are counted in elements."""

    def __init__(self, allocate, shape, dtype, strides=None):
        span = shape
        if strides is not None and 0 not in shape:
            span = (1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)),)
        super().__init__(allocate, span, dtype)
        self.shape = tuple(shape)
        self.strides = strides

    def _in_bytes(self):
        return tuple(step * self.dtype.itemsize for step in self.strides)

    @property
    def __cuda_array_interface__(self):
        interface = super().__cuda_array_interface__
        return interface | {"strides": None if self.strides is None else self._in_bytes()}

    @property
    def values(self):
        """The elements, seen through the strides."""
        if self.strides is None:
            return self._view.reshape(self.shape)
        return np.lib.stride_tricks.as_strided(self._view, self.shape, self._in_bytes())

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype or self.dtype)


class Allocator:
    """An allocator that makes arrays with any strides; ``calls`` are its arguments."""

    def __init__(self, simulator):
        self._allocate = simulator.memory._allocate
        self.calls = []

    def __call__(self, shape, dtype, **more):
        self.calls.append((shape, dtype, more))
        return StridedArray(self._allocate, shape, dtype, **more)

    def put(self, values, strides=None):
        """An argument with these values."""
        made = StridedArray(self._allocate, values.shape, values.dtype, strides)
        made.values[...] = values
        return made
