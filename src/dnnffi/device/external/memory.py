"""Device memory with the arrays of any library: results are made by the user's allocator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from math import prod
from typing import Any

import numpy as np

from dnnffi.device.external.array import DeviceArray, allocated
from dnnffi.device.external.use import (
    TrustedAllocator,
    allocating_with,
    current_stream,
    on_stream,
)
from dnnffi.device.interface import Array, Stream, StreamAt
from dnnffi.device.memory import DeviceMemory
from dnnffi.runtime.cuda.runtime import OwnStream


class _RuntimeAllocator(TrustedAllocator):
    """Memory of the device runtime, of which nothing is left when its arrays are gone."""

    def __init__(self, memory: ExternalMemory) -> None:
        self._memory = memory

    def empty(
        self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None
    ) -> DeviceArray:
        """Return a new array; ``strides`` leave no gaps."""
        buffer = self._memory._cuda.allocate(prod(shape) * dtype.itemsize)
        at = self._memory.kind, buffer.device, buffer.ptr
        return DeviceArray(buffer, *at, shape, dtype, strides=strides)


class ExternalMemory(DeviceMemory):
    """Device memory with the allocator and the stream of `using`, on CUDA or ROCm.

    `constant` and everything within `scratch` is memory of the runtime: the user's allocator makes
    results, workspaces and reserve spaces alone.
    """

    ndarray: Any = DeviceArray

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.current_device = self._runtime.current_device
        self.device_count = self._runtime.device_count

    def empty(self, shape: Any, dtype: Any) -> DeviceArray:
        return allocated(tuple(shape), np.dtype(dtype), self.kind)

    def empty_strided(
        self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...], nbytes: int
    ) -> DeviceArray:
        return allocated(shape, np.dtype(dtype), self.kind, strides)

    def zeros(self, shape: Any, dtype: Any) -> DeviceArray:
        array = self.empty(shape, dtype)
        array.fill(0)
        return array

    def pairs(
        self, shape: tuple[int, ...], other: tuple[int, ...], dtype: Any
    ) -> Callable[[], tuple[Array, Array]]:
        return lambda: (self.empty(shape, dtype), self.empty(other, dtype))

    def constant(self, values: np.ndarray[Any, Any]) -> Array:
        values = np.ascontiguousarray(values)
        array = _RuntimeAllocator(self).empty(values.shape, values.dtype)
        self._cuda.write(array.data.ptr, values.ctypes.data, values.nbytes)
        return array

    def current_stream(self) -> Stream:
        return StreamAt(current_stream())

    @contextmanager
    def scratch(self) -> Iterator[None]:
        try:
            with allocating_with(_RuntimeAllocator(self)):
                yield
        finally:
            self._cuda.synchronize(current_stream())

    def _on_stream(self, stream: OwnStream) -> AbstractContextManager[Any]:
        return on_stream(stream.ptr)
