"""A ROCm device on the HIP runtime: copies, events and streams; no kernels and no graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from dnnffi.errors import DnnffiError
from dnnffi.runtime import loader

_DEFAULT_COPY = 4  # hipMemcpyDefault: the addresses tell the direction
_NO_TIMING = 2  # hipEventDisableTiming

FILE_NAME = r"libamdhip64\.so(\.\d+)*"
"""A regular expression for the file name of the HIP runtime."""

_INSTALL = "the package hip-runtime-amd of ROCm (on Debian libamdhip64)"
_PLACES = (
    loader.already_loaded(FILE_NAME),
    loader.system("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"),
)


class RuntimeCallError(DnnffiError, RuntimeError):
    """A function of the HIP runtime failed; ``status`` is what it returned."""

    def __init__(self, function: str, status: int, text: str) -> None:
        self.function = function
        self.status = status
        super().__init__(f"{function} returned {text} ({status})")


class HipEvent:
    """An event without times; destroyed with the object."""

    def __init__(self, runtime: HipRuntime) -> None:
        self._runtime = runtime
        self.ptr = ctypes.c_void_p()
        runtime.call("EventCreateWithFlags", ctypes.byref(self.ptr), ctypes.c_uint(_NO_TIMING))

    def __del__(self) -> None:
        if self.ptr.value:
            self._runtime.function("EventDestroy")(self.ptr)


class HipRuntime:
    """An open libamdhip64. Addresses and streams are integers.

    Every method raises `RuntimeCallError` with the runtime's name for the status.
    """

    kind = "rocm"

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self.function("GetErrorName").restype = ctypes.c_char_p

    def function(self, name: str) -> Any:
        """Return a function by its name without the prefix."""
        return getattr(self._lib, f"hip{name}")

    def call(self, name: str, *arguments: object) -> None:
        """Call a function that returns a status; `RuntimeCallError` unless it is success."""
        status = self.function(name)(*arguments)
        if status:
            text = (self.function("GetErrorName")(status) or b"an error").decode(errors="replace")
            raise RuntimeCallError(f"hip{name}", status, text)

    def current_device(self) -> int:
        """Return the current device of the thread."""
        return self._integer("GetDevice")

    def device_count(self) -> int:
        """Return the number of devices."""
        return self._integer("GetDeviceCount")

    @contextmanager
    def use(self, device: int) -> Iterator[None]:
        """Make ``device`` the current one for the length of a ``with`` block."""
        before = self.current_device()
        if device == before:
            yield
            return
        self.call("SetDevice", device)
        try:
            yield
        finally:
            self.call("SetDevice", before)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Enqueue a copy between any two addresses, of devices or the host."""
        if nbytes:
            self.call(
                "MemcpyAsync",
                ctypes.c_void_p(target),
                ctypes.c_void_p(source),
                ctypes.c_size_t(nbytes),
                _DEFAULT_COPY,
                ctypes.c_void_p(stream),
            )

    def copy_rows(
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        stream: int,
    ) -> None:
        """Enqueue a copy of rows of ``width`` bytes; pitches are from row to row.

        Calls ``hipMemcpy2DAsync``.
        """
        if width and rows:
            self.call(
                "Memcpy2DAsync",
                *(ctypes.c_void_p(target), ctypes.c_size_t(target_pitch)),
                *(ctypes.c_void_p(source), ctypes.c_size_t(source_pitch)),
                *(ctypes.c_size_t(width), ctypes.c_size_t(rows)),
                *(_DEFAULT_COPY, ctypes.c_void_p(stream)),
            )

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Enqueue the writing of zeros."""
        if nbytes:
            self.call(
                "MemsetAsync",
                ctypes.c_void_p(address),
                0,
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(stream),
            )

    def synchronize(self, stream: int) -> None:
        """Wait until all work on ``stream`` is done."""
        self.call("StreamSynchronize", ctypes.c_void_p(stream))

    def new_event(self) -> HipEvent:
        """Return a new event that orders streams."""
        return HipEvent(self)

    def record(self, event: HipEvent, stream: int) -> None:
        """Record ``event`` on ``stream``."""
        self.call("EventRecord", event.ptr, ctypes.c_void_p(stream))

    def wait(self, stream: int, event: HipEvent) -> None:
        """Let ``stream`` wait for ``event``, without the host waiting."""
        self.call("StreamWaitEvent", ctypes.c_void_p(stream), event.ptr, ctypes.c_uint(0))

    def is_capturing(self, stream: int) -> bool:
        """Return False: nothing is captured on ROCm."""
        return False

    def capture_id(self, stream: int) -> int:
        """Return 0: nothing is captured on ROCm."""
        return 0

    def beside_capture(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def _integer(self, name: str) -> int:
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value))
        return value.value


def open_hip() -> HipRuntime:
    """Return the HIP runtime. Raises `LibraryNotFoundError` without libamdhip64."""
    found = loader.load("the HIP runtime", _PLACES, ctypes.CDLL, "hipGetDevice", _INSTALL)
    return HipRuntime(found.lib)
