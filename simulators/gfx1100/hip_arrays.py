"""Arrays of a library that dnnffi does not know, in the memory of the emulated device."""

from __future__ import annotations

import ctypes
from math import prod

import numpy as np

from simulators.gfx1100.device_library import device

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
OUT_OF_MEMORY = 2
ROCM = 10  # DLPack's kDLROCM
_CODES = {"i": 0, "u": 1, "f": 2}


class OutOfMemoryError(MemoryError):
    """Raised by the array library when the device has no memory."""


class HipError(RuntimeError):
    """Raised by the array library when a copy fails."""


class HipArray:
    """A contiguous array that owns its device memory and has ``__cuda_array_interface__``.

    ``HipArray.empty`` is an allocator for dnnffi.
    """

    def __init__(self, shape, dtype):
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.nbytes = prod(self.shape) * self.dtype.itemsize
        address = ctypes.c_void_p()
        self.address = 0
        if device().hipMalloc(ctypes.byref(address), ctypes.c_size_t(max(self.nbytes, 1))):
            raise OutOfMemoryError(f"{self.nbytes} bytes")
        self.address = address.value

    def __del__(self):
        if self.address:
            device().hipFree(ctypes.c_void_p(self.address))

    @classmethod
    def empty(cls, shape, dtype):
        return cls(shape, dtype)

    @classmethod
    def of(cls, values):
        """Copy a NumPy array to the device."""
        values = np.array(values, order="C")
        made = cls(values.shape, values.dtype)
        _copy(made.address, values.ctypes.data, values.nbytes, HOST_TO_DEVICE)
        return made

    def get(self):
        host = np.empty(self.shape, self.dtype)
        _copy(host.ctypes.data, self.address, host.nbytes, DEVICE_TO_HOST)
        return host

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 2,
        }


class DlpackArray(HipArray):
    """A `HipArray` that exports DLPack alone, with the device type of ROCm."""

    __cuda_array_interface__ = property()

    def __dlpack_device__(self):
        return ROCM, 0

    def __dlpack__(self, *, stream=None):
        return capsule_of(self)


class _Managed(ctypes.Structure):
    """``DLManagedTensor`` of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def capsule_of(array, device_type=ROCM, device_id=0, strides=None):
    """Return a DLPack capsule for ``array``, which keeps the structures it points to alive."""
    shape = (ctypes.c_int64 * len(array.shape))(*array.shape)
    steps = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
    managed = _Managed(
        array.address,
        device_type,
        device_id,
        len(array.shape),
        _CODES[array.dtype.kind],
        array.dtype.itemsize * 8,
        1,
        shape,
        steps,
        0,
    )
    array.exported = managed, shape, steps
    return _new_capsule(ctypes.addressof(managed), b"dltensor", None)


def _copy(to, source, nbytes, kind):
    addresses = ctypes.c_void_p(to), ctypes.c_void_p(source)
    if status := device().hipMemcpy(*addresses, ctypes.c_size_t(nbytes), kind):
        raise HipError(f"hipMemcpy returned {status}")
