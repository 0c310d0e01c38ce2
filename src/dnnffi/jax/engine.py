"""Launches of handlers: with a vendor's handles, lent to one call at a time, or on the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from dnnffi.backends.vendor.handle import Handle
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.device.interface import Launch, StreamAt
from dnnffi.jax._cdef import ffi


class Lender(Protocol):
    """Lends launches to calls."""

    def device(self) -> int:
        """Return the current device of the calling thread."""

    def borrow(self, device: int, stream: int) -> Launch:
        """Return a launch on ``stream``, which is the caller's alone until it is given back."""

    def give_back(self, launch: Launch, *, failed: bool) -> None:
        """Take back what `borrow` lent; ``failed`` says that a call on it raised."""

    def copy(self, launch: Launch, target: int, source: int, nbytes: int) -> None:
        """Copy memory, in the order of the launch's stream."""

    def beside_capture(self) -> AbstractContextManager[None]:
        """Return a context in which objects may be made while XLA captures the thread's stream."""


class VendorHandles:
    """Handles of a vendor's library, apart from those of dnnffi's own functions.

    A handle is lent to one call at a time, whichever of XLA's threads it runs on, and is never
    destroyed: what XLA has captured may use its memory.
    """

    def __init__(self, library: VendorLibrary) -> None:
        self._library = library
        self._memory = library.memory
        self._handles: dict[int, list[Handle]] = {}

    def device(self) -> int:
        return self._memory.current_device()

    @contextmanager
    def current(self) -> Iterator[Launch]:
        """Yield a launch on the current device and stream, to make executors with."""
        launch = self.borrow(self.device(), self._memory.current_stream().ptr)
        try:
            yield launch
        finally:
            self.give_back(launch, failed=True)

    def borrow(self, device: int, stream: int) -> Launch:
        handles = self._handles.setdefault(device, [])
        try:
            handle = handles.pop()
        except IndexError:
            with self.beside_capture():
                handle = Handle(self._library, device)
        launch = handle.launch
        if launch is None or launch.stream.ptr != stream:
            return handle.set_stream(StreamAt(stream))
        return launch

    def give_back(self, launch: Launch, *, failed: bool) -> None:
        handle: Handle = launch.owner
        if failed:
            handle.forget_stream()  # the library may have left it on a stream of its own
        self._handles[launch.device].append(handle)

    def copy(self, launch: Launch, target: int, source: int, nbytes: int) -> None:
        self._memory.copy(target, source, nbytes, launch.stream)

    def beside_capture(self) -> AbstractContextManager[None]:
        return self._memory.beside_capture()


class Host:
    """The host, where nothing is lent: for the reference on the buffers of XLA there."""

    def device(self) -> int:
        return 0

    def borrow(self, device: int, stream: int) -> Launch:
        return Launch(StreamAt(0), 0)

    def give_back(self, launch: Launch, *, failed: bool) -> None:
        pass

    def copy(self, launch: Launch, target: int, source: int, nbytes: int) -> None:
        memory_at(target, nbytes)[:] = memory_at(source, nbytes)[:]

    def beside_capture(self) -> AbstractContextManager[None]:
        return nullcontext()


def memory_at(address: int, nbytes: int) -> Any:
    """Memory of the host as a buffer."""
    return ffi.buffer(ffi.cast("char *", address), nbytes)
