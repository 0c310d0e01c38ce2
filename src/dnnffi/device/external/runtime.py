"""The few functions of the CUDA and HIP runtimes that arrays without CuPy need.

Both have them under the same names with another prefix.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from dnnffi.errors import DnnffiError
from dnnffi.runtime import loader

_DEFAULT_COPY = 4  # cudaMemcpyDefault, hipMemcpyDefault: the addresses tell the direction
_NO_TIMING = 2  # cudaEventDisableTiming, hipEventDisableTiming
_MAJOR, _MINOR, _MULTIPROCESSORS = 75, 76, 16  # cudaDeviceAttr

_PREFIXES = {"cuda": "cuda", "rocm": "hip"}
_MAPPED = {"cuda": r"libcudart\.so(\.\d+)*", "rocm": r"libamdhip64\.so(\.\d+)*"}
_PLACES = {
    "cuda": (
        loader.already_loaded(_MAPPED["cuda"]),
        loader.pathfinder("cudart"),
        loader.system("libcudart.so.13", "libcudart.so.12"),
    ),
    "rocm": (
        loader.already_loaded(_MAPPED["rocm"]),
        loader.system("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"),
    ),
}
_INSTALL = {
    "cuda": "pip install nvidia-cuda-runtime (CUDA 12: nvidia-cuda-runtime-cu12)",
    "rocm": "the package hip-runtime-amd of ROCm (on Debian libamdhip64)",
}


class RuntimeCallError(DnnffiError, RuntimeError):
    """A function of the CUDA or HIP runtime failed; ``status`` is what it returned."""

    def __init__(self, function: str, status: int, text: str) -> None:
        self.function = function
        self.status = status
        super().__init__(f"{function} returned {text} ({status})")


class Event:
    """An event without times; destroyed with the object."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.ptr = ctypes.c_void_p()
        runtime.call("EventCreateWithFlags", ctypes.byref(self.ptr), ctypes.c_uint(_NO_TIMING))

    def __del__(self) -> None:
        if self.ptr.value:
            self._runtime.function("EventDestroy")(self.ptr)


class Runtime:
    """An open libcudart or libamdhip64. Addresses and streams are integers."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._prefix = _PREFIXES[kind]
        found = loader.load(
            {"cuda": "the CUDA runtime", "rocm": "the HIP runtime"}[kind],
            _PLACES[kind],
            ctypes.CDLL,
            f"{self._prefix}GetDevice",
            _INSTALL[kind],
        )
        self._lib = found.lib
        self.function("GetErrorName").restype = ctypes.c_char_p

    def function(self, name: str) -> ctypes._NamedFuncPointer:
        """A function by its name without the prefix."""
        return getattr(self._lib, self._prefix + name)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function that returns a status; `RuntimeCallError` unless it is success."""
        status = self.function(name)(*arguments)
        if status:
            text = (self.function("GetErrorName")(status) or b"an error").decode(errors="replace")
            raise RuntimeCallError(self._prefix + name, status, text)

    def _integer(self, name: str, *arguments: object) -> int:
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def current_device(self) -> int:
        return self._integer("GetDevice")

    def device_count(self) -> int:
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

    def architecture(self, device: int) -> tuple[int, int, int]:
        """Compute capability and multiprocessors, of CUDA only."""
        return (
            self._integer("DeviceGetAttribute", _MAJOR, device),
            self._integer("DeviceGetAttribute", _MINOR, device),
            self._integer("DeviceGetAttribute", _MULTIPROCESSORS, device),
        )

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy between any two places."""
        if nbytes:
            self.call(
                "MemcpyAsync",
                ctypes.c_void_p(to),
                ctypes.c_void_p(source),
                ctypes.c_size_t(nbytes),
                _DEFAULT_COPY,
                ctypes.c_void_p(stream),
            )

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        """Queue the writing of zeros."""
        if nbytes:
            self.call(
                "MemsetAsync",
                ctypes.c_void_p(address),
                0,
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(stream),
            )

    def synchronize(self, stream: int) -> None:
        self.call("StreamSynchronize", ctypes.c_void_p(stream))

    def record(self, event: Event, stream: int) -> None:
        self.call("EventRecord", event.ptr, ctypes.c_void_p(stream))

    def wait(self, stream: int, event: Event) -> None:
        self.call("StreamWaitEvent", ctypes.c_void_p(stream), event.ptr, ctypes.c_uint(0))


@cache
def runtime(kind: str) -> Runtime:
    """The runtime of "cuda" or "rocm". Raises `LibraryNotFoundError`."""
    return Runtime(kind)


def kind_in_process() -> str:
    """The runtime that this process has loaded, where an array does not tell whose it is."""
    found = [kind for kind, pattern in _MAPPED.items() if loader.mapped_libraries(pattern)]
    if len(found) != 1:
        raise TypeError(
            "an array with __cuda_array_interface__ alone does not tell CUDA from ROCm, and this "
            f"process has loaded {'both runtimes' if found else 'neither runtime'}"
        )
    return found[0]
