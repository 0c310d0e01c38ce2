"""Recognize arrays: NumPy's, CuPy's, and those that export their memory by DLPack."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from dnnffi.device.cupy import import_cupy
from dnnffi.device.dtypes import DLPACK_CUDA, DLPACK_HOST, DLPACK_ROCM
from dnnffi.device.external import DeviceArray, device_array
from dnnffi.device.external.array import REFUSALS
from dnnffi.device.external.array import array_over as external_array_over
from dnnffi.device.external.host import bfloat16_array, host_array
from dnnffi.device.interface import AnyArray
from dnnffi.device.torch_tensors import detached
from dnnffi.runtime.devices import kind_in_process
from dnnffi.spec.checks import is_peculiar


def _cupy_if_imported() -> Any:
    # An array of a module that was never imported cannot have been passed. Nor one of a module
    # that another thread is importing, which does not have its classes yet.
    cupy = sys.modules.get("cupy")
    return None if getattr(cupy, "ndarray", None) is None else cupy


def array_module(array: AnyArray) -> ModuleType:
    """``numpy`` or ``cupy``, whichever made ``array``."""
    cupy = _cupy_if_imported()
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy
    return np


_array_classes: set[type] = set()  # those seen: `as_array` is on the path of every call


def as_array(name: str, value: object) -> AnyArray:
    """``value`` as a NumPy or CuPy array, without a copy.

    Takes NumPy and CuPy arrays, and objects with DLPack, ``__array_interface__`` or
    ``__cuda_array_interface__`` (PyTorch, JAX, Numba). A bfloat16 array on the host gets the dtype
    of ml_dtypes and is read-only. Without CuPy, arrays on a device become
    `dnnffi.foreign.DeviceArray`, which only calls with an allocator take. Raises ``TypeError``
    naming the argument for anything else, and for NumPy's masked arrays and matrices, whose mask
    and product would be left out.
    """
    if value.__class__ in _array_classes:
        return value
    if is_peculiar(value.__class__):
        raise TypeError(f"{name} must be a plain array; got {type(value).__name__}")
    cupy = _cupy_if_imported()
    if (
        isinstance(value, np.ndarray)
        or (cupy is not None and isinstance(value, cupy.ndarray))
        or is_external(value.__class__)
    ):
        _array_classes.add(value.__class__)
        return value
    # DLPack first: its producer orders the streams by an event, the other protocol may wait.
    device_of = getattr(value, "__dlpack_device__", None)
    if device_of is not None:
        try:
            device_type, _ = device_of()
        except REFUSALS as error:
            raise cannot_be_seen(name, error) from error
        if device_type in DLPACK_HOST:
            exported: Any = detached(name, value)
            try:
                return np.from_dlpack(exported)
            except REFUSALS as error:
                return _not_of_numpy(name, exported, error)
        if device_type in (*DLPACK_CUDA, DLPACK_ROCM):
            return _on_device(name, value, "from_dlpack")
    if hasattr(value, "__cuda_array_interface__"):
        return _on_device(name, value, "asarray")
    if hasattr(value, "__array_interface__") and not isinstance(value, np.generic):
        return host_array(name, value)
    if device_of is not None:
        raise TypeError(
            f"{name} must be in memory of the host, CUDA or ROCm; this {type(value).__name__} is "
            f"elsewhere (DLPack device type {int(device_type)})"
        )
    instead = instead_of(name, value)
    if isinstance(value, list | tuple):
        instead = conversion(name, value, "float32")
    raise TypeError(
        f"{name} must be a NumPy or CuPy array, or an object with DLPack, __array_interface__ or "
        f"__cuda_array_interface__; got {type(value).__name__}{instead}"
    )


def _not_of_numpy(name: str, exported: Any, error: Exception) -> np.ndarray[Any, Any]:
    """Return a host array that NumPy refuses with ``error`` if it is bfloat16; else raise."""
    try:
        found = bfloat16_array(name, exported)
    except ImportError as missing:
        raise cannot_be_seen(name, missing) from missing
    except (BufferError, RuntimeError, TypeError, ValueError):
        raise cannot_be_seen(name, error) from error
    if found is None:
        raise cannot_be_seen(name, error) from error
    return found


def instead_of(name: str, value: object) -> str:
    """Return the end of an error message, which says what to give instead; or nothing."""
    if hasattr(value, "batch_sizes") and hasattr(value, "data"):  # PyTorch's PackedSequence
        return f"; give its data, with batch_sizes={name}.batch_sizes"
    return ""


def conversion(name: str, array: object, dtype: str) -> str:
    """Return the end of an error message, which says how to convert an argument to ``dtype``.

    ``array`` is the argument as the user passed it, or an array over its memory.
    """
    if isinstance(array, list | tuple):
        return f"; use numpy.asarray({name}, {dtype!r})"
    base = getattr(array, "base", None)  # of a tensor's memory this is a capsule
    if hasattr(array, "astype") and (base is None or isinstance(base, type(array))):
        return f"; use {name}.astype({dtype!r})"
    return f"; convert it to {dtype}"


def cannot_be_seen(name: str, error: Exception) -> TypeError:
    """Return the error for an array that its library does not hand out, or NumPy does not take."""
    return TypeError(
        f"{name} cannot be seen as an array of NumPy or CuPy ({error}); if it is bfloat16, "
        f"give it as float32"
    )


def _on_device(name: str, value: Any, function: str) -> AnyArray:
    """Convert ``value`` by a function of CuPy, or without CuPy to a `DeviceArray`."""
    try:
        cupy = import_cupy()
    except ImportError:
        return device_array(name, value)
    exported = detached(name, value)
    try:
        return getattr(cupy, function)(exported)
    except (BufferError, ValueError) as error:
        raise cannot_be_seen(name, error) from error


def kind(array: AnyArray) -> str | None:
    """Return the platform of an array: "host", "cuda" or "rocm"; None if its owner did not tell."""
    found = _kind_of_class(array.__class__)
    return array.kind if found is None else found


@cache
def _kind_of_class(array_class: type) -> str | None:
    # First, so that what is kept for NumPy's classes depends on no import that has not ended.
    if issubclass(array_class, np.ndarray):
        return "host"
    cupy = _cupy_if_imported()
    if cupy is not None and issubclass(array_class, cupy.ndarray):
        return "rocm" if cupy.cuda.runtime.is_hip else "cuda"
    return None if is_external(array_class) else "host"


def is_external(array_class: type) -> bool:
    """Whether it is the class of device arrays without CuPy."""
    return issubclass(array_class, DeviceArray)


def doubled(array: AnyArray) -> AnyArray:
    """``array`` in float64 where the reference can compute on it: on the host if not by CuPy."""
    return (to_host(array) if is_external(array.__class__) else array).astype("float64")


def device_of(array: AnyArray) -> str:
    """Return the memory that holds an array: "host", "cuda:0", "rocm:1"."""
    found = kind(array) or kind_in_process()
    return found if found == "host" else f"{found}:{array.data.device_id}"


def in_layout(array: AnyArray, *, channels_last: bool) -> AnyArray:
    """``array`` [N, C, ...] without gaps, the channels innermost or not; a copy where needed."""
    xp = array_module(array)
    if not channels_last:
        return xp.ascontiguousarray(array)
    return xp.moveaxis(xp.ascontiguousarray(xp.moveaxis(array, 1, -1)), -1, 1)


def is_aligned(array: AnyArray) -> bool:
    """Whether an array begins at a multiple of its elements' size."""
    return not address(array) % array.dtype.itemsize


def check_aligned(name: str, array: AnyArray) -> None:
    """Raise ``ValueError`` for an array that does not begin at a multiple of its elements' size."""
    if not is_aligned(array):
        raise ValueError(
            f"{name} must begin at a multiple of its elements' {array.dtype.itemsize} bytes; "
            f"it is at {address(array):#x}"
        )


def aligned(name: str, array: AnyArray) -> AnyArray:
    """``array`` at a multiple of its elements' size: itself, or if it is contiguous a copy.

    With gaps it is refused: the kernels that copy it element by element would fail.
    """
    if not is_aligned(array):
        if array.flags.c_contiguous:
            return array.copy()
        check_aligned(name, array)
    return array


def ready(name: str, array: AnyArray) -> AnyArray:
    """``array`` contiguous and aligned to its elements: itself, or a copy, see `aligned`."""
    if array.flags.c_contiguous or not isinstance(array, np.ndarray):
        array = aligned(name, array)
    return array if array.flags.c_contiguous else array.copy()


def to_host(array: AnyArray) -> np.ndarray[Any, Any]:
    """Return ``array`` itself if it is NumPy's, else a copy on the host."""
    if isinstance(array, np.ndarray):
        return array
    return array.get()


def address(array: AnyArray) -> int:
    """Return the address of the first element of a NumPy or CuPy array."""
    # NumPy makes ``data`` a buffer, which bfloat16 cannot be in.
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def array_over(arrays: Sequence[AnyArray], start: int, size: int) -> AnyArray | None:
    """Return a flat array of ``size`` elements from ``start`` over the memory of ``arrays``.

    It keeps ``arrays`` alive. The caller has checked that they cover it. None where that memory
    has no one owner that NumPy could take a view of.
    """
    first = arrays[0]
    if isinstance(first, np.ndarray):
        root = _root(first)
        if not root.flags.c_contiguous or any(_root(array) is not root for array in arrays):
            return None
        # In bytes: the owner may have another dtype, and its length need not be whole elements.
        offset = start - root.ctypes.data
        nbytes = size * first.dtype.itemsize
        raw = root.reshape(-1).view(np.uint8)[offset : offset + nbytes]
        return raw.view(first.dtype)
    if is_external(first.__class__):
        return external_array_over(arrays, start, size)
    cupy = import_cupy()
    owner = tuple(arrays)
    bytes_ = size * first.dtype.itemsize
    memory = cupy.cuda.UnownedMemory(start, bytes_, owner, first.data.device_id)
    return cupy.ndarray((size,), first.dtype, cupy.cuda.MemoryPointer(memory, 0))


def _root(array: AnyArray) -> AnyArray:
    """Return the NumPy array that owns the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
