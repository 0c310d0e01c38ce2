"""Arrays on the host that other libraries own, and results in memory of the user's allocator.

The reference computes on NumPy arrays. `host_array` makes one over the memory of a user's object,
`allocated_copy` copies a result into an object of the allocator, and `owner_of` returns the object
whose memory such an array shows. Arguments and results are checked as in device memory, so that a
call that is refused there is refused here. This file is separate because it calls no runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnffi.device.dtypes import DLPACK_HOST
from dnnffi.device.external.array import (
    REFUSALS,
    DeviceArray,
    allocate,
    check_allocated,
    check_memory,
    device_array,
    dlpack_device,
    from_dlpack,
    read_interface,
)
from dnnffi.device.external.use import current_allocator, current_stream
from dnnffi.device.torch_tensors import detached
from dnnffi.spec.checks import is_peculiar

HOST = "host"
"""The kind of arrays on the host, where those on a device have "cuda" and "rocm"."""

_INTERFACE = "__array_interface__"
_EMPTY = np.empty(1, np.uint8)  # arrays without elements may have no address


class HostMemory:
    """Memory of a user's object, which it keeps alive: the base of a NumPy array over it.

    ``span`` is the number of bytes from the first element to the end of the last one.
    """

    __slots__ = ("__array_interface__", "nbytes", "owner")

    def __init__(self, described: DeviceArray, span: int) -> None:
        self.owner = described.owner
        self.nbytes = described.nbytes
        address = described.data.ptr if span else _EMPTY.ctypes.data
        self.__array_interface__ = {
            "shape": (span,),
            "typestr": "|u1",
            "data": (address, not described.flags.writeable),
            "version": 3,
        }


def is_on_host(value: Any) -> bool:
    """Whether ``value`` shows memory of the host: by DLPack, or else by ``__array_interface__``."""
    if isinstance(value, np.ndarray):
        return True
    if hasattr(value, "__dlpack_device__"):
        try:
            return value.__dlpack_device__()[0] in DLPACK_HOST
        except REFUSALS:
            return False  # `device_array` raises the error that names the argument
    return hasattr(value, _INTERFACE) and not hasattr(value, "__cuda_array_interface__")


def external_array(name: str, value: Any, kind: str, *, strided: bool = False) -> Any:
    """Return ``value`` as calls with an allocator take it, whose arrays are of this kind.

    On the host ("host") that is a NumPy array, in device memory ("cuda", "rocm") a `DeviceArray`.
    It must be contiguous, or with ``strided`` have strides from 0. Raises ``TypeError`` or
    ``ValueError`` naming the argument, and ``ValueError`` for a stream on the host.
    """
    if kind != HOST:
        return device_array(name, value, kind, strided=strided)
    if stream := current_stream():
        raise ValueError(
            f"options['stream'] must be 0, or left out, for arrays on the host; got {stream:#x}"
        )
    return host_array(name, value, strided=strided)


def host_array(name: str, value: Any, *, strided: bool = False) -> np.ndarray[Any, Any]:
    """Return a NumPy array over the memory of ``value``, which `owner_of` returns for it.

    ``value`` is a NumPy array, or shows its memory by DLPack or ``__array_interface__``. It must be
    contiguous, as in device memory, or with ``strided`` have strides from 0. Raises ``TypeError``
    or ``ValueError`` naming the argument.
    """
    if isinstance(value, np.ndarray) and owner_of(value) is not None:
        return value
    return _view(_described(name, value, strided))


def bfloat16_array(name: str, value: Any) -> np.ndarray[Any, Any] | None:
    """Return a read-only NumPy array over a bfloat16 array with DLPack on the host; else None.

    NumPy takes no bfloat16 by DLPack: the array gets the dtype of ml_dtypes. It is read-only
    because arrays of JAX do not change, and a capsule of this version does not say so. Raises
    ``ImportError`` without ml_dtypes, and what `from_dlpack` raises.
    """
    described = from_dlpack(name, value, HOST, 0, strided=True)
    if described.dtype.name != "bfloat16":
        return None
    array = _view(described)
    array.flags.writeable = False
    return array


def owner_of(array: Any) -> Any:
    """Return the user's object whose memory a NumPy array of `host_array` shows; else None."""
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    if base.__class__ is HostMemory and base.nbytes == array.nbytes:
        return base.owner
    return None


def allocated_copy(values: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any] | None:
    """Copy a result into a new array of the allocator in use, which is not trusted."""
    if values is None:
        return None
    allocator = current_allocator()
    assert callable(allocator)  # calls without a user's return NumPy's arrays
    what = "what the allocator returned"
    shape, dtype = values.shape, values.dtype
    strides = None if values.flags.c_contiguous else values.strides
    made = allocate(allocator, shape, dtype, strides)
    described = _described(what, made, strides is not None)
    check_allocated(what, described, shape, dtype, strides, _INTERFACE)
    array = _view(described)
    array[...] = values
    return array


def _described(name: str, value: Any, strided: bool) -> DeviceArray:
    """Address, shape, strides and dtype of an array on the host, and its owner."""
    value = detached(name, value)
    if is_peculiar(value.__class__):
        raise TypeError(f"{name} must be a plain array; got {type(value).__name__}")
    if isinstance(value, np.ndarray):
        dtype, address = value.dtype, value.ctypes.data
        if not dtype.isnative:
            raise TypeError(f"{name} must have the native byte order; got {dtype.str}")
        if dtype.hasobject:
            raise TypeError(f"{name} must have elements of numbers; got {dtype}")
        check_memory(name, address, address, value.shape, value.strides, dtype, strided=strided)
        strides = value.strides if strided else None
        at = 0, address, value.shape, dtype
        return DeviceArray(value, HOST, *at, value.flags.writeable, strides)
    found = dlpack_device(name, value)
    if found is not None:
        device_type, device = found
        if device_type in DLPACK_HOST:
            return from_dlpack(name, value, HOST, device, strided=strided)
        raise TypeError(_in_device_memory(name, value))
    if hasattr(value, "__cuda_array_interface__"):
        raise TypeError(_in_device_memory(name, value))
    interface = getattr(value, _INTERFACE, None)
    if isinstance(value, np.generic) or not isinstance(interface, dict):
        raise TypeError(
            f"{name} must be an array on the host, with DLPack or {_INTERFACE}; "
            f"got {type(value).__name__}"
        )
    if not isinstance(interface.get("data"), tuple):
        raise TypeError(f"{name} has no address in its {_INTERFACE}")
    entries = read_interface(name, interface, _INTERFACE, strided)
    at = 0, entries.address, entries.shape, entries.dtype
    return DeviceArray(value, HOST, *at, not entries.is_read_only, entries.strides)


def _in_device_memory(name: str, value: object) -> str:
    return (
        f"{name} must be on the host for backend 'reference' with an allocator; this "
        f"{type(value).__name__} is in device memory: copy it to the host, or pass all arrays in "
        f"device memory, with the backend of that device"
    )


def _view(described: DeviceArray) -> np.ndarray[Any, Any]:
    """Return a NumPy array over the memory of a description, which keeps the owner alive."""
    shape, dtype, strides, span = described.shape, described.dtype, described.strides, 0
    if described.size:
        steps = zip(shape, strides, strict=True)
        span = dtype.itemsize + sum((size - 1) * stride for size, stride in steps)
    memory = HostMemory(described, span)
    return np.ndarray(shape, dtype, np.asarray(memory), 0, strides if span else None)
