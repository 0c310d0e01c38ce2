"""Memory of a user's allocator, with the interface of CuPy's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from dnnffi.device.driver import capture_id
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.external.array import DeviceArray, allocated
from dnnffi.device.external.runtime import Event, Runtime, runtime
from dnnffi.device.external.use import current_stream
from dnnffi.device.interface import Architecture, Array, Stream, StreamAt


class ExternalMemory:
    """`Memory` over the allocator and stream of `using`, on CUDA or ROCm."""

    ndarray: Any = DeviceArray

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._runtime: Runtime = runtime(kind)

    def current_device(self) -> int:
        return self._runtime.current_device()

    def empty(self, shape: Any, dtype: np.dtype[Any]) -> DeviceArray:
        return allocated(tuple(shape), np.dtype(dtype), self.kind)

    def zeros(self, shape: Any, dtype: np.dtype[Any]) -> DeviceArray:
        array = self.empty(shape, dtype)
        array.fill(0)
        return array

    def pairs(
        self, shape: tuple[int, ...], other: tuple[int, ...], dtype: Any
    ) -> Callable[[], tuple[Array, Array]]:
        return lambda: (self.empty(shape, dtype), self.empty(other, dtype))

    def clear(self, address: int, nbytes: int, stream: Stream) -> None:
        self._runtime.zero(address, nbytes, stream.ptr)

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        self._runtime.copy(target, source, nbytes, stream.ptr)

    def current_stream(self) -> Stream:
        return StreamAt(current_stream())

    def device_count(self) -> int:
        return self._runtime.device_count()

    def use(self, device: int) -> AbstractContextManager[Any]:
        return self._runtime.use(device)

    def dtype(self, name: str) -> np.dtype[Any]:
        return dtype_object(name)

    def architecture(self, device: int) -> Architecture:
        return Architecture(*self._runtime.architecture(device))

    def new_event(self) -> Any:
        return Event(self._runtime)

    def record(self, event: Any, stream: Stream) -> None:
        self._runtime.record(event, stream.ptr)

    def wait(self, stream: Stream, event: Any) -> None:
        self._runtime.wait(stream.ptr, event)

    def capture_id(self, stream: Stream) -> int:
        # The default stream is in no capture.
        return capture_id(stream.ptr) if self.kind == "cuda" and stream.ptr else 0

    def is_capturing(self, stream: Stream) -> bool:
        return self.capture_id(stream) != 0
