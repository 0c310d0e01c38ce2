"""The allocator and the stream of a thread's calls on arrays of other libraries than CuPy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Allocator = Callable[[tuple[int, ...], str], object]


class TrustedAllocator:
    """An allocator of dnnffi itself, whose arrays need no check."""

    def empty(
        self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None
    ) -> Any:
        """Return a new `DeviceArray`; ``strides`` are in bytes, None for a contiguous one."""
        raise NotImplementedError


Use = tuple[Allocator | TrustedAllocator | None, int]
"""An allocator, and the address of a stream."""


class _Thread(threading.local):
    """Allocator and stream of a thread: one value, so that an interrupt finds both or neither."""

    use: Use = None, 0


thread = _Thread()
"""Set by `using`, and directly by calls, which save the time of a context manager."""


def checked_use(
    allocator: Allocator | TrustedAllocator | None, stream: int | Callable[[], int]
) -> Use:
    """Return the arguments of `using` with the stream that is current now."""
    address: Any = stream() if callable(stream) else stream
    if isinstance(address, bool) or not isinstance(address, int) or address < 0:
        raise TypeError(f"stream must be the address of a stream, or return one; got {address!r}")
    return allocator, address


@contextmanager
def _within(use: Use) -> Iterator[None]:
    """Use it for the length of a ``with`` block."""
    before = thread.use
    try:
        thread.use = use
        yield
    finally:
        thread.use = before


def using(
    allocator: Allocator | TrustedAllocator | None = None,
    stream: int | Callable[[], int] = 0,
) -> AbstractContextManager[None]:
    """Allocate with ``allocator`` and run on ``stream`` for the length of a ``with`` block.

    ``allocator(shape, dtype_name)`` returns a new contiguous array in the memory of the current
    device, at a multiple of 16 bytes, as any object with DLPack or ``__cuda_array_interface__``;
    for channels last it is also given ``strides``, in elements, which the array must have. The
    memory may be reused only for work that is queued on ``stream`` after the object is gone: so it
    is with PyTorch's allocator on its current stream, and where freeing waits for the device.
    ``stream`` is an address, 0 for the default stream, or a function that returns one.
    """
    return _within(checked_use(allocator, stream))


def on_stream(address: int) -> AbstractContextManager[None]:
    """Run on another stream, with the same allocator, for the length of a ``with`` block."""
    return _within((thread.use[0], address))


def allocating_with(allocator: TrustedAllocator) -> AbstractContextManager[None]:
    """Use another allocator, on the same stream, for the length of a ``with`` block."""
    return _within((allocator, thread.use[1]))


def current_stream() -> int:
    """Return the address of the stream in use."""
    return thread.use[1]


def current_allocator() -> Allocator | TrustedAllocator | None:
    """Return the allocator in use."""
    return thread.use[0]
