"""The CUDA driver: contexts, attributes of devices, and modules of compiled kernels."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from dnnffi.errors import CudaError
from dnnffi.runtime import loader
from dnnffi.runtime.cuda._cdef import ffi

INSTALL = "an NVIDIA GPU and its driver, which brings libcuda"

_PLACES = (
    loader.already_loaded(r"libcuda\.so(\.\d+)*"),
    loader.system("libcuda.so.1"),
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
        self._contexts: dict[int, Any] = {}
        self._attributes: dict[int, DeviceAttributes] = {}
        self.check(lib.cuInit(0), "cuInit")

    def check(self, status: int, function: str) -> None:
        """Raise `CudaError` unless ``status``, returned by ``function``, is success."""
        if status:
            name, detail = (
                self._text(getattr(self.lib, get), status)
                for get in ("cuGetErrorName", "cuGetErrorString")
            )
            raise CudaError(status, name or "an unknown status", function, "", detail)

    @property
    def version(self) -> tuple[int, int]:
        """The newest version of CUDA that the driver supports (``cuDriverGetVersion``)."""
        number = ffi.new("int *")
        self.check(self.lib.cuDriverGetVersion(number), "cuDriverGetVersion")
        return number[0] // 1000, number[0] % 1000 // 10

    def attributes(self, device: int) -> DeviceAttributes:
        """Attributes of a device, asked of the driver once per process."""
        found = self._attributes.get(device)
        if found is None:
            found = self._attributes.setdefault(device, self._read_attributes(device))
        return found

    def make_current(self, device: int) -> None:
        """Make the primary context of a device current in this thread, as the CUDA runtime does.

        The context is retained once and never released: it lives as long as the process.
        """
        context = self._contexts.get(device)
        if context is None:
            made = ffi.new("CUcontext *")
            status = self.lib.cuDevicePrimaryCtxRetain(made, self._handle(device))
            self.check(status, "cuDevicePrimaryCtxRetain")
            context = self._contexts.setdefault(device, made[0])
        self.check(self.lib.cuCtxSetCurrent(context), "cuCtxSetCurrent")

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
