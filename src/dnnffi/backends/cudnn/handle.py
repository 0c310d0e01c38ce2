"""cuDNN handles: one for each thread and device, on the caller's current stream."""

from __future__ import annotations

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.library import Library
from dnnffi.backends.resource import Resource


class Handle(Resource):
    """A ``cudnnHandle_t`` for the current device. Belongs to the thread that made it.

    Raises `CudnnError` where there is no GPU (``CUDNN_STATUS_NOT_INITIALIZED``).
    """

    def __init__(self, library: Library) -> None:
        lib = library.lib

        def create() -> object:
            out = ffi.new("cudnnHandle_t *")
            library.check(lib.cudnnCreate(out), "cudnnCreate")
            return out[0]

        super().__init__(create, lib.cudnnDestroy)
        self._library = library
        self._stream: int | None = None

    @property
    def stream(self) -> int | None:
        """Address of the stream last set, or None."""
        return self._stream

    def forget_stream(self) -> None:
        """Let the next `handle_for` set the stream, whatever it is."""
        self._stream = None

    def set_stream(self, stream: int) -> None:
        """Run what follows on the stream at this address (``cudnnSetStream``)."""
        library = self._library
        library.check(library.lib.cudnnSetStream(self.pointer, stream), "cudnnSetStream")
        self._stream = stream


def handle_for(library: Library, device: int) -> Handle:
    """The thread's handle for ``device``, which must be current, on the current stream."""
    try:
        handle: Handle = library.local.handles[device]
    except (AttributeError, KeyError):
        handle = _create(library, device)
    stream = library.memory.current_stream().ptr
    if handle._stream != stream:
        handle.set_stream(stream)
    return handle


def _create(library: Library, device: int) -> Handle:
    handle = Handle(library)
    if not hasattr(library.local, "handles"):
        library.local.handles = {}
    library.local.handles[device] = handle
    return handle


def close_handles(library: Library) -> None:
    """Close the handles of the calling thread."""
    handles = getattr(library.local, "handles", {})
    while handles:
        handles.popitem()[1].close()
