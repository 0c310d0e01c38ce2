"""CUDA's driver and compiler by ctypes: memory as addresses, kernels as functions of addresses.

The examples `autograd_framework.py` and `raw_addresses.py` use it, to show that dnnffi needs no
array library. It is a part of those programs, not of dnnffi.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_longlong, c_size_t, c_uint, c_void_p

import numpy as np
from cuda.pathfinder import load_nvidia_dynamic_lib

THREADS = 256
"""Threads of a block."""

COMPUTE_CAPABILITY = 75, 76
"""The device attributes major and minor, as ``CUdevice_attribute`` numbers them."""

PROTOTYPES = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuMemAllocAsync": (POINTER(c_void_p), c_size_t, c_void_p),
    "cuMemFreeAsync": (c_void_p, c_void_p),
    "cuMemcpyHtoD_v2": (c_void_p, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_void_p, c_size_t),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, POINTER(c_void_p), c_void_p),
}
"""The arguments of each function of libcuda that is used. Addresses are ``c_void_p``."""


def loaded_driver() -> ctypes.CDLL:
    """Load libcuda of the system, or end the program with what it needs."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise SystemExit(f"This example needs an NVIDIA GPU and its driver: {error}") from None


class CudaDriver:
    """One GPU, by its primary context, which dnnffi uses too. All work is on the default stream.

    ``library`` is libcuda, by default the one of the system.
    """

    def __init__(self, device: int = 0, library=None) -> None:
        self._library = loaded_driver() if library is None else library
        for name, arguments in PROTOTYPES.items():
            getattr(self._library, name).argtypes = arguments
        self._device, context = c_int(), c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", byref(self._device), device)
        self._call("cuDevicePrimaryCtxRetain", byref(context), self._device)
        self._call("cuCtxSetCurrent", context)

    def allocate(self, nbytes: int) -> int:
        """Return the address of new device memory."""
        address = c_void_p()
        self._call("cuMemAllocAsync", byref(address), max(nbytes, 1), None)
        return address.value

    def free(self, address: int) -> None:
        """Free memory in the order of the stream: work that was queued before still has it."""
        self._call("cuMemFreeAsync", address, None)

    def upload(self, address: int, values: np.ndarray) -> None:
        """Copy a contiguous NumPy array to device memory."""
        self._call("cuMemcpyHtoD_v2", address, values.ctypes.data, values.nbytes)

    def download(self, address: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Copy device memory into a new NumPy array. Waits for the work that was queued."""
        values = np.empty(shape, dtype)
        self._call("cuMemcpyDtoH_v2", values.ctypes.data, address, values.nbytes)
        return values

    def kernels(self, source: str, names):
        """Compile CUDA C; return its kernels as functions of a number of threads and arguments.

        Kernels are ``extern "C"`` and take addresses and integers as ``long long``, and numbers as
        ``double``.
        """
        module = c_void_p()
        architecture = "sm_{}{}".format(*map(self._attribute, COMPUTE_CAPABILITY))
        self._call("cuModuleLoadData", byref(module), compiled(source, architecture))
        return {name: self._kernel(module, name) for name in names}

    def _kernel(self, module, name):
        function = c_void_p()
        self._call("cuModuleGetFunction", byref(function), module, name.encode())

        def launch(num_threads: int, *arguments: int | float) -> None:
            blocks = -(-num_threads // THREADS)
            values = [c_double(a) if isinstance(a, float) else c_longlong(a) for a in arguments]
            pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
            grid = blocks, 1, 1, THREADS, 1, 1
            self._call("cuLaunchKernel", function, *grid, 0, None, pointers, None)

        return launch

    def _attribute(self, number: int) -> int:
        value = c_int()
        self._call("cuDeviceGetAttribute", byref(value), number, self._device)
        return value.value

    def _call(self, name: str, *arguments) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            text = c_char_p()
            self._library.cuGetErrorName(status, byref(text))
            raise RuntimeError(f"{name} returned {(text.value or b'an error').decode()} ({status})")


def compiled(source: str, architecture: str) -> bytes:
    """Compile CUDA C by NVRTC for an architecture, such as "sm_90"."""
    nvrtc = ctypes.CDLL(load_nvidia_dynamic_lib("nvrtc").abs_path)
    program, size = c_void_p(), c_size_t()

    def call(name: str, *arguments) -> int:
        return getattr(nvrtc, name)(*arguments)

    if call("nvrtcCreateProgram", byref(program), source.encode(), b"kernels.cu", 0, None, None):
        raise RuntimeError("NVRTC made no program")
    option = c_char_p(f"--gpu-architecture={architecture}".encode())
    status = call("nvrtcCompileProgram", program, 1, byref(option))
    read = "CUBIN" if status == 0 else "ProgramLog"
    call(f"nvrtcGet{read}Size", program, byref(size))
    text = ctypes.create_string_buffer(size.value)
    call(f"nvrtcGet{read}", program, text)
    call("nvrtcDestroyProgram", byref(program))
    if status:
        raise RuntimeError(f"NVRTC returned {status}: {text.value.decode()}")
    return text.raw
