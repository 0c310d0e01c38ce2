"""Bindings of the real libMIOpen from its own header, for tests of the emulated device.

The bindings of dnnffi are not used, so that a failure of these tests is a fault of the device.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from functools import cache

import cffi
import numpy as np

from simulators.gfx1100.device_library import device

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
DTYPES = {np.dtype("float16"): 0, np.dtype("float32"): 1}


class MiopenStatusError(Exception):
    """Raised when a call returns a status other than success."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"{name} returned {status}")
        self.status = status


@cache
def interface():
    """Return cffi's FFI and the library."""
    ffi = cffi.FFI()
    ffi.cdef(_declarations())
    return ffi, ffi.dlopen("libMIOpen.so.1")


def _declarations() -> str:
    """Return the declarations of miopen.h, with its two uses of C++ replaced by C for cffi."""
    preprocessed = subprocess.run(
        ["gcc", "-E", "-x", "c", "-D__HIP_PLATFORM_AMD__", "-D__attribute__(x)=", "-"],
        input="#include <miopen/miopen.h>\n",
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    lines, in_miopen = [], False
    for line in preprocessed.splitlines():
        if found := re.match(r'# \d+ "(.*?)"', line):
            in_miopen = "/miopen/" in found[1]
        elif in_miopen:
            lines.append(line)
    text = re.sub(r"\[\[.*?\]\]", "", "\n".join(lines)).replace("_Bool", "bool")
    untagged = "struct miopenTensorArgument_t"
    text = text.replace(untagged, f"typedef {untagged} miopenTensorArgument_t;\n{untagged}", 1)
    return "typedef void *hipStream_t;\n" + text


class Session:
    """A handle with descriptors and buffers, which exist until ``close``."""

    def __init__(self) -> None:
        self.ffi, self.library = interface()
        self.hip = device()
        self._descriptors: list[tuple[str, object]] = []
        self._buffers: list[int] = []
        pointer = self.ffi.new("miopenHandle_t *")
        self.check("miopenCreate", pointer)
        self.handle = pointer[0]
        self.null = self.ffi.NULL

    def close(self) -> None:
        for kind, descriptor in reversed(self._descriptors):
            self.check(f"miopenDestroy{kind}Descriptor", descriptor)
        self.check("miopenDestroy", self.handle)
        for buffer in self._buffers:
            assert self.hip.hipFree(ctypes.c_void_p(buffer)) == 0

    def call(self, name: str, *arguments: object) -> int:
        """Call a function and return its status."""
        return getattr(self.library, name)(*arguments)

    def check(self, name: str, *arguments: object) -> None:
        if status := self.call(name, *arguments):
            raise MiopenStatusError(name, status)

    def run(self, name: str, *arguments: object) -> None:
        """Call a function whose first argument is the handle; raise as `check`."""
        self.check(name, self.handle, *arguments)

    def size(self, name: str, *arguments: object) -> int:
        """Return the size that a call writes to its last argument."""
        size = self.ffi.new("size_t *")
        self.check(name, *arguments, size)
        return size[0]

    def new(self, kind: str):
        pointer = self.ffi.new(f"miopen{kind}Descriptor_t *")
        self.check(f"miopenCreate{kind}Descriptor", pointer)
        self._descriptors.append((kind, pointer[0]))
        return pointer[0]

    def tensor(self, shape, dtype="float32"):
        """Create a descriptor of a contiguous tensor."""
        strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
        result = self.new("Tensor")
        kind = DTYPES[np.dtype(dtype)]
        self.check("miopenSetTensorDescriptor", result, kind, len(shape), list(shape), strides)
        return result

    def tensors(self, descriptors):
        return self.ffi.new("miopenTensorDescriptor_t[]", list(descriptors))

    def scalar(self, value: float):
        return self.ffi.new("float *", value)

    # Device memory.

    def allocate(self, size: int):
        """Allocate ``size`` bytes of device memory, without initializing them."""
        if size == 0:
            return self.null
        address = ctypes.c_void_p()
        assert self.hip.hipMalloc(ctypes.byref(address), ctypes.c_size_t(size)) == 0
        self._buffers.append(address.value)
        return self.ffi.cast("void *", address.value)

    def upload(self, array: np.ndarray):
        array = np.ascontiguousarray(array)
        buffer = self.allocate(array.nbytes)
        address = int(self.ffi.cast("uintptr_t", buffer))
        self._copy(address, array.ctypes.data, array.nbytes, HOST_TO_DEVICE)
        return buffer

    def download(self, buffer, shape, dtype) -> np.ndarray:
        array = np.empty(shape, dtype)
        address = int(self.ffi.cast("uintptr_t", buffer))
        self._copy(array.ctypes.data, address, array.nbytes, DEVICE_TO_HOST)
        return array

    def free(self, buffer) -> None:
        address = int(self.ffi.cast("uintptr_t", buffer))
        self._buffers.remove(address)
        assert self.hip.hipFree(ctypes.c_void_p(address)) == 0

    def _copy(self, to: int, from_: int, size: int, kind: int) -> None:
        to_, from_ = ctypes.c_void_p(to), ctypes.c_void_p(from_)
        assert self.hip.hipMemcpy(to_, from_, ctypes.c_size_t(size), kind) == 0
