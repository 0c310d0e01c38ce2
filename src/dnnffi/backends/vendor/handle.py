"""Handles of a thread: one for each library and device, set to the stream of a call."""

from __future__ import annotations

from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.backends.vendor.resource import Resource
from dnnffi.device.graphs import refuse_beside_capture
from dnnffi.device.interface import Launch, Stream, StreamAt
from dnnffi.execution.cache import WeakRegistry
from dnnffi.execution.fork import refuse_after_fork
from dnnffi.operating_system import register_at_fork


class Handle(Resource):
    """A vendor's handle for the current device. Belongs to the thread that made it.

    It is made by ``cudnnCreate`` or ``miopenCreate``. Raises the vendor's `StatusError` if the
    machine has no device. ``launch`` has the stream of its calls, or is None before `set_stream`.
    """

    launch: Launch | None = None

    def __init__(self, library: VendorLibrary, device: int) -> None:
        prefix = library.prefix
        out = library.ffi.new(f"{prefix}Handle_t *")
        super().__init__(library, f"{prefix}Create", f"{prefix}Destroy", out)
        self.device = device
        self._library = library

    def forget_stream(self) -> None:
        """Let the next `launch_on` set the stream, whatever it is."""
        self.launch = None

    def set_stream(self, stream: Stream) -> Launch:
        """Run what follows on ``stream``."""
        library, name = self._library, f"{self._library.prefix}SetStream"
        library.check(getattr(library.lib, name)(self.pointer, stream.ptr), name)
        # By its address: a handle is not to keep a stream of its caller's alive.
        self.launch = Launch(StreamAt(stream.ptr), self.device, self.pointer, self)
        return self.launch


class _ThreadHandles(dict[int, Handle]):
    """The handles of a thread, by device. They are destroyed when the thread ends.

    A handle and its launch refer to each other. With that cycle, the garbage collector would
    destroy the handle at any later time, and in another thread.
    """

    def __del__(self) -> None:
        for handle in self.values():
            handle.forget_stream()


def launch_on(library: VendorLibrary, device: int, stream: Stream) -> Launch:
    """Return a launch on ``stream`` by the thread's handle for ``device``, the current one."""
    try:
        handle: Handle = library.local.handles[device]
    except (AttributeError, KeyError):
        handle = _create(library, device)
    launch = handle.launch
    if launch is None or launch.stream.ptr != stream.ptr:
        refuse_beside_capture(stream.ptr)
        return handle.set_stream(stream)
    return launch


def current_launch(library: VendorLibrary) -> Launch:
    """Return a launch on the current device and stream, for callers that begin there."""
    memory = library.memory
    return launch_on(library, memory.current_device(), memory.current_stream())


def _create(library: VendorLibrary, device: int) -> Handle:
    made = Handle(library, device)
    _used.add(library)
    # A signal handler in the middle of this may have made the thread's.
    handles: dict[int, Handle] = vars(library.local).setdefault("handles", _ThreadHandles())
    return handles.setdefault(device, made)


def close_handles(library: VendorLibrary) -> None:
    """Close the handles of the calling thread."""
    handles = getattr(library.local, "handles", {})
    while handles:
        handles.popitem()[1].close()


_used: WeakRegistry[VendorLibrary] = WeakRegistry()


class _Forked:
    """Stand-in for the handles of a library in a forked process; each access raises."""

    @property
    def handles(self) -> object:
        return refuse_after_fork()


def _refuse_in_child() -> None:
    for library in _used.snapshot():
        library.local = _Forked()


register_at_fork(after_in_child=_refuse_in_child)
