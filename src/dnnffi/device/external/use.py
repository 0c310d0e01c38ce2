"""The allocator and the stream of a thread's calls on arrays of other libraries than CuPy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Allocator = Callable[[tuple[int, ...], str], object]


class TrustedAllocator:
    """An allocator of dnnffi itself, whose arrays need no check."""

    def empty(
        self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None
    ) -> Any:
        """Return a new `DeviceArray`; ``strides`` are in bytes, None for a contiguous one."""
        raise NotImplementedError


class _Use(threading.local):
    """The allocator and the stream of the thread's calls."""

    allocator: Allocator | TrustedAllocator | None = None
    stream = 0


_use = _Use()


@contextmanager
def using(
    allocator: Allocator | TrustedAllocator | None = None,
    stream: int | Callable[[], int] = 0,
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
    try:
        _use.allocator, _use.stream = allocator, address
        yield
    finally:
        _use.allocator, _use.stream = before


@contextmanager
def on_stream(address: int) -> Iterator[None]:
    """Run on another stream, with the same allocator, for the length of a ``with`` block."""
    before = _use.stream
    try:
        _use.stream = address
        yield
    finally:
        _use.stream = before


@contextmanager
def allocating_with(allocator: TrustedAllocator) -> Iterator[None]:
    """Use another allocator, on the same stream, for the length of a ``with`` block."""
    before = _use.allocator
    try:
        _use.allocator = allocator
        yield
    finally:
        _use.allocator = before


def current_stream() -> int:
    """The address of the stream in use."""
    return _use.stream


def current_allocator() -> Allocator | TrustedAllocator | None:
    """The allocator in use."""
    return _use.allocator
