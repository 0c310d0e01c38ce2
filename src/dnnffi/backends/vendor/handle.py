"""Handles of the vendors: one for each thread and device, on the caller's current stream."""

from __future__ import annotations

import os
from typing import Any, ClassVar
from weakref import WeakSet

from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.backends.vendor.resource import Resource
from dnnffi.errors import DnnffiError


class Handle(Resource):
    """A handle for the current device. Belongs to the thread that made it."""

    _ffi: ClassVar[Any]
    _prefix: ClassVar[str]

    def __init__(self, library: VendorLibrary) -> None:
        lib, prefix = library.lib, self._prefix

        def create() -> object:
            out = self._ffi.new(f"{prefix}Handle_t *")
            library.check(getattr(lib, f"{prefix}Create")(out), f"{prefix}Create")
            return out[0]

        super().__init__(create, getattr(lib, f"{prefix}Destroy"))
        self._library = library
        self._set_stream = f"{prefix}SetStream"
        self._stream: int | None = None

    @property
    def stream(self) -> int | None:
        """Address of the stream last set, or None."""
        return self._stream

    def forget_stream(self) -> None:
        """Let the next `handle_for` set the stream, whatever it is."""
        self._stream = None

    def set_stream(self, stream: int) -> None:
        """Run what follows on the stream at this address."""
        library, name = self._library, self._set_stream
        library.check(getattr(library.lib, name)(self.pointer, stream), name)
        self._stream = stream


def handle_for(library: VendorLibrary, device: int) -> Handle:
    """The thread's handle for ``device``, which must be current, on the current stream."""
    try:
        handle: Handle = library.local.handles[device]
    except (AttributeError, KeyError):
        handle = _create(library, device)
    stream = library.memory.current_stream().ptr
    if handle._stream != stream:
        handle.set_stream(stream)
    return handle


def _create(library: VendorLibrary, device: int) -> Handle:
    handle = library.new_handle()
    _used.add(library)
    if not hasattr(library.local, "handles"):
        library.local.handles = {}
    library.local.handles[device] = handle
    return handle


def close_handles(library: VendorLibrary) -> None:
    """Close the handles of the calling thread."""
    handles = getattr(library.local, "handles", {})
    while handles:
        handles.popitem()[1].close()


_used: WeakSet[VendorLibrary] = WeakSet()


def refuse_after_fork() -> Any:
    """What a forked process gets instead of a handle, or of the current device."""
    raise DnnffiError(
        "this process was forked after dnnffi had used the GPU, and the driver does not work in "
        "it; start processes with the spawn or forkserver method of multiprocessing"
    )


class _Forked:
    """Stands in for what a thread had of a library before the fork."""

    @property
    def handles(self) -> Any:
        return refuse_after_fork()


def _refuse_in_child() -> None:
    for library in list(_used):
        library.local = _Forked()


os.register_at_fork(after_in_child=_refuse_in_child)
