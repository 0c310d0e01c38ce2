"""Memory of a user's allocator, behind the same doors as CuPy's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dnnffi.device.driver import capture_id
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.external.array import DeviceArray, device_array
from dnnffi.device.external.runtime import Event, Runtime, runtime
from dnnffi.device.interface import Architecture, Array

Allocator = Callable[[tuple[int, ...], str], object]


class _Use(threading.local):
    """What the thread's calls allocate with and run on."""

    allocator: Allocator | None = None
    stream = 0


_use = _Use()


@contextmanager
def using(
    allocator: Allocator | None = None, stream: int | Callable[[], int] = 0
) -> Iterator[None]:
    """Allocate with ``allocator`` and run on ``stream`` for the length of a ``with`` block.

    ``allocator(shape, dtype_name)`` returns a new contiguous array in the memory of the current
    device, as any object with DLPack or ``__cuda_array_interface__``. The memory may be reused
    only for work that is queued on ``stream`` after the object is gone: so it is with PyTorch's
    allocator on its current stream, and where freeing waits for the device. ``stream`` is an
    address, 0 for the default stream, or a function that returns one.
    """
    before = _use.allocator, _use.stream
    address: Any = stream() if callable(stream) else stream
    if isinstance(address, bool) or not isinstance(address, int) or address < 0:
        raise TypeError(f"stream must be the address of a stream, or return one; got {address!r}")
    _use.allocator, _use.stream = allocator, address
    try:
        yield
    finally:
        _use.allocator, _use.stream = before


def current_stream() -> int:
    """The address of the stream in use."""
    return _use.stream


def allocated(shape: tuple[int, ...], dtype: np.dtype[Any], kind: str | None) -> DeviceArray:
    """A new array of the allocator in use, which is not trusted: see `_check`."""
    if _use.allocator is None:
        raise RuntimeError("there is no allocator: give options['allocator'], or call within using")
    what = "what the allocator returned"
    array = device_array(what, _use.allocator(shape, dtype.name), kind)
    if array.shape != shape:
        raise ValueError(f"{what} must have shape {shape}; it has {array.shape}")
    if array.dtype != dtype:
        raise TypeError(f"{what} must have dtype {dtype}; it has {array.dtype}")
    if kind is not None and array.kind not in (None, kind):
        raise TypeError(f"{what} must be in memory of {kind}; it is in that of {array.kind}")
    current = runtime(kind).current_device() if kind else array.data.device_id
    if array.data.device_id != current:
        raise ValueError(
            f"{what} must be on the current device, {current}; it is on {array.data.device_id}"
        )
    if prod(shape) and not array.data.ptr:
        raise ValueError(f"{what} has no address")
    interface = getattr(array.owner, "__cuda_array_interface__", None)
    if interface is not None and interface["data"][1]:
        raise ValueError(f"{what} must be writable; it says that it is read-only")
    return array


class _Stream(NamedTuple):
    ptr: int


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

    def clear(self, address: int, nbytes: int) -> None:
        self._runtime.zero(address, nbytes, _use.stream)

    def current_stream(self) -> Any:
        return _Stream(_use.stream)

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

    def record(self, event: Any, stream: Any) -> None:
        self._runtime.record(event, stream.ptr)

    def wait(self, stream: Any, event: Any) -> None:
        self._runtime.wait(stream.ptr, event)

    def capture_id(self, stream: Any) -> int:
        # The default stream is in no capture.
        return capture_id(stream.ptr) if self.kind == "cuda" and stream.ptr else 0

    def is_capturing(self, stream: Any) -> bool:
        return self.capture_id(stream) != 0
