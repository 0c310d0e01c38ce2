"""The CUDA driver: contexts, attributes of devices, and modules of compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from dnnffi.errors import CudaError
from dnnffi.runtime import loader
from dnnffi.runtime.cuda._cdef import ffi

INSTALL = "an NVIDIA GPU and its driver, which brings libcuda"

INVALID_CONTEXT = ffi.integer_const("CUDA_ERROR_INVALID_CONTEXT")
"""The status of most functions in a thread where nothing has used a device yet."""

RELAXED = ffi.integer_const("CU_STREAM_CAPTURE_MODE_RELAXED")
"""The capture mode that forbids a thread nothing."""

_DEVICE = ffi.typeof("CUdevice *")
_MAX_NAME_BYTES = 256

_PLACES = (
    loader.already_loaded(r"libcuda\.so(\.\d+)*"),
    loader.system("libcuda.so.1", dlls=("nvcuda.dll",)),
)


class DeviceAttributes(NamedTuple):
    """Properties of a device that do not change while a process runs.

    ``shared_bytes`` is the most shared memory that a block can be given (opt-in).
    """

    compute_capability: tuple[int, int]
    num_multiprocessors: int
    shared_bytes: int
    l2_bytes: int


class Driver:
    """An open libcuda, initialised for this process.

    Devices are named by their ordinals, which are those of the CUDA runtime. Every method raises
    `CudaError` with the driver's name for the status.
    """

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        self._contexts: dict[int, int] = {}
        self._attributes: dict[int, DeviceAttributes] = {}
        self._ordinals: dict[int, int] = {}
        self._get_device = lib.cuCtxGetDevice
        self.check(lib.cuInit(0), "cuInit")

    def check(self, status: int, function: str) -> None:
        """Raise `CudaError` unless ``status``, returned by ``function``, is success."""
        if status:
            name, detail = (
                self._text(getattr(self.lib, get), status)
                for get in ("cuGetErrorName", "cuGetErrorString")
            )
            raise CudaError(status, name or "an unknown status", function, "", detail)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the driver by its name.

        In a thread that has no context, the primary context of device 0 becomes current first, as
        the CUDA runtime does at the first use of a thread.
        """
        status = getattr(self.lib, function)(*arguments)
        if status == INVALID_CONTEXT and not self._current_context():
            self.make_current(0)
            status = getattr(self.lib, function)(*arguments)
        if status:
            self.check(status, function)

    @property
    def version(self) -> tuple[int, int]:
        """The newest version of CUDA that the driver supports (``cuDriverGetVersion``)."""
        number = ffi.new("int *")
        self.check(self.lib.cuDriverGetVersion(number), "cuDriverGetVersion")
        return number[0] // 1000, number[0] % 1000 // 10

    def device_count(self) -> int:
        """Return the number of devices."""
        count = ffi.new("int *")
        self.check(self.lib.cuDeviceGetCount(count), "cuDeviceGetCount")
        return int(count[0])

    def device_name(self, device: int) -> str:
        """Return the name of a device, as "NVIDIA H100 80GB HBM3"."""
        name = ffi.new("char[]", _MAX_NAME_BYTES)
        status = self.lib.cuDeviceGetName(name, _MAX_NAME_BYTES, self._handle(device))
        self.check(status, "cuDeviceGetName")
        return ffi.string(name).decode(errors="replace")

    def total_bytes(self, device: int) -> int:
        """Return the memory of a device in bytes."""
        total = ffi.new("size_t *")
        status = self.lib.cuDeviceTotalMem_v2(total, self._handle(device))
        self.check(status, "cuDeviceTotalMem_v2")
        return int(total[0])

    def attributes(self, device: int) -> DeviceAttributes:
        """Return the attributes of a device, asked of the driver once per process."""
        found = self._attributes.get(device)
        if found is None:
            found = self._attributes.setdefault(device, self._read_attributes(device))
        return found

    def current_device(self) -> int:
        """Return the device of the thread's context: 0 if it has none, as in the CUDA runtime."""
        handle = ffi.new(_DEVICE)
        status = self._get_device(handle)
        if status:
            if status == INVALID_CONTEXT:
                return 0
            self.check(status, "cuCtxGetDevice")
        device = self._ordinals.get(handle[0])
        if device is None:
            ordinals = range(self.device_count())
            self._ordinals.update({self._handle(ordinal): ordinal for ordinal in ordinals})
            device = self._ordinals[handle[0]]
        return device

    def make_current(self, device: int) -> None:
        """Make the primary context of a device current in this thread, as the CUDA runtime does.

        The context is retained once and never released, until the process ends.
        """
        context = self._contexts.get(device)
        if context is None:
            made = ffi.new("context_ptr *")
            status = self.lib.cuDevicePrimaryCtxRetain(made, self._handle(device))
            self.check(status, "cuDevicePrimaryCtxRetain")
            context = self._contexts.setdefault(device, made[0])
        self.check(self.lib.cuCtxSetCurrent(context), "cuCtxSetCurrent")

    @contextmanager
    def primary(self, device: int) -> Iterator[None]:
        """Make the primary context of a device current for the length of a ``with`` block."""
        before = self._current_context()
        self.make_current(device)
        try:
            yield
        finally:
            self.lib.cuCtxSetCurrent(before)

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Let this thread allocate and make objects while it captures a stream.

        They are not in the graph. CUDA else refuses, and ends the capture.
        """
        exchange = self.lib.cuThreadExchangeStreamCaptureMode
        mode = ffi.new("CUstreamCaptureMode *", RELAXED)
        self.check(exchange(mode), "cuThreadExchangeStreamCaptureMode")
        try:
            yield
        finally:
            exchange(mode)  # holds the mode that the thread had

    def load_function(self, image: bytes, name: str) -> int:
        """Load a CUBIN or PTX image into the current context; return the address of a function.

        The module stays loaded: kernels are kept until the process ends.
        """
        module, function = ffi.new("CUmodule *"), ffi.new("CUfunction *")
        # PTX is text, which the driver reads up to a null character.
        self.check(self.lib.cuModuleLoadData(module, image + b"\0"), "cuModuleLoadData")
        status = self.lib.cuModuleGetFunction(function, module[0], name.encode())
        if status:
            self.lib.cuModuleUnload(module[0])
            self.check(status, "cuModuleGetFunction")
        return int(ffi.cast("uintptr_t", function[0]))

    def _current_context(self) -> int:
        """Return the address of the thread's context; 0 if it has none."""
        context = ffi.new("context_ptr *")
        self.check(self.lib.cuCtxGetCurrent(context), "cuCtxGetCurrent")
        return int(context[0])

    def _read_attributes(self, device: int) -> DeviceAttributes:
        handle, number = self._handle(device), ffi.new("int *")

        def read(name: str) -> int:
            attribute = ffi.integer_const(f"CU_DEVICE_ATTRIBUTE_{name}")
            status = self.lib.cuDeviceGetAttribute(number, attribute, handle)
            self.check(status, "cuDeviceGetAttribute")
            return int(number[0])

        return DeviceAttributes(
            (read("COMPUTE_CAPABILITY_MAJOR"), read("COMPUTE_CAPABILITY_MINOR")),
            read("MULTIPROCESSOR_COUNT"),
            read("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            read("L2_CACHE_SIZE"),
        )

    def _handle(self, device: int) -> int:
        handle = ffi.new("CUdevice *")
        self.check(self.lib.cuDeviceGet(handle, device), "cuDeviceGet")
        return int(handle[0])

    def _text(self, get: Any, status: int) -> str:
        text = ffi.new("const char **")
        return "" if get(status, text) else ffi.string(text[0]).decode(errors="replace")


@cache
def load_driver() -> Driver:
    """Return the driver of this process, opened at the first call.

    Raises `LibraryNotFoundError` without libcuda, and `CudaError` where it finds no device.
    """
    return Driver(loader.load("CUDA's driver", _PLACES, ffi.dlopen, "cuInit", INSTALL).lib)
