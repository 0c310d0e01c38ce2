"""An array in device memory that another library owns, and how it is read off its owner."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache, partial
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np

from dnnffi.device.dtypes import DLPACK_CUDA, DLPACK_HOST, DLPACK_ROCM, dtype_object
from dnnffi.device.external.known import is_tensor, read_known
from dnnffi.device.external.use import TrustedAllocator, current_stream, thread
from dnnffi.device.interface import ALIGNMENT
from dnnffi.device.torch_tensors import detached
from dnnffi.errors import not_picklable
from dnnffi.runtime.devices import DeviceRuntime, device_runtime, kind_in_process
from dnnffi.spec.checks import check_integer
from dnnffi.spec.layouts import contiguous_strides

_DLPACK_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
_INTERFACE_VERSION = 3  # the newest __cuda_array_interface__

REFUSALS = (BufferError, RuntimeError, ValueError)
"""Exceptions by which libraries refuse to export an array by DLPack."""


class Pointer(NamedTuple):
    """The ``data`` of a CuPy array: address and device; ``owner`` keeps the memory alive."""

    ptr: int
    device_id: int
    owner: object


class _Flags(NamedTuple):
    c_contiguous: bool = True
    writeable: bool = True


_WRITEABLE, _READ_ONLY = _Flags(), _Flags(writeable=False)

# By the class of tuples itself: a named tuple's own constructor is a function of Python.
_pointer: Callable[[tuple[int, int, object]], Pointer] = partial(tuple.__new__, Pointer)


class DeviceArray:
    """An array in the device memory of ``owner``, which it keeps alive.

    It has the attributes that backends read of a CuPy array, and the few operations that packing
    weights needs, which take contiguous arrays only. Operations run on the stream that `using`
    names. ``kind`` is "cuda", "rocm" or, where the owner did not tell, None. ``strides`` are in
    bytes; without them the array is contiguous.
    """

    __slots__ = (
        *("__weakref__", "_c_contiguous", "_strides", "data", "dtype", "flags", "kind", "owner"),
        "shape",
    )

    def __init__(
        self,
        owner: object,
        kind: str | None,
        device: int,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        writeable: bool = True,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self._strides = strides
        self.owner = owner
        self.kind = kind
        self.data = _pointer((address, device, owner))
        self.shape = shape
        self.dtype = dtype
        if strides is None or _is_contiguous(shape, strides, dtype.itemsize):
            self._c_contiguous = True
            self.flags = _WRITEABLE if writeable else _READ_ONLY
        else:
            self._c_contiguous = False
            self.flags = _Flags(False, writeable)

    def __reduce__(self) -> NoReturn:
        # A copy would have a copy of the owner, and the address of the memory of the first one.
        raise not_picklable(self, "copy the array that it was made of, or copy what get() returns")

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes that the elements take."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from an element to the next, in each dimension."""
        found = self._strides
        if found is None:
            found = self._strides = _contiguous_strides(self.shape, self.dtype.itemsize)
        return found

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data.ptr, not self.flags.writeable),
            "strides": None if self._c_contiguous else self.strides,
            "version": 3,
        }

    def _view(self, start: int, shape: tuple[int, ...]) -> DeviceArray:
        self._check_contiguous()
        address = self.data.ptr + start * self.dtype.itemsize
        at = self.data.device_id, address
        return DeviceArray(self.owner, self.kind, *at, shape, self.dtype, self.flags.writeable)

    def __getitem__(self, rows: object) -> DeviceArray:
        """Return some rows, without a copy."""
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise ValueError(f"a DeviceArray is taken in whole rows, by a slice; got {rows}")
        start, stop, _ = rows.indices(self.shape[0])
        row = prod(self.shape[1:])
        return self._view(start * row, (max(stop - start, 0), *self.shape[1:]))

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return a view of the same elements in another shape."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        if sizes.count(-1) == 1:  # that stands for the size that is left
            known = -prod(sizes)
            rest = self.size // known if known else -1
            sizes = tuple(rest if size == -1 else size for size in sizes)
        if min(sizes, default=0) < 0 or prod(sizes) != self.size:
            raise ValueError(f"cannot reshape {self.shape} into {sizes}")
        return self._view(0, tuple(sizes))

    def __setitem__(self, place: object, source: Any) -> None:
        """Copy an array of the same shape and dtype, from a device or the host, over this one."""
        target = self if place is Ellipsis else self[place]
        if isinstance(source, DeviceArray):
            address = source.data.ptr
        else:
            source = np.ascontiguousarray(source)
            address = source.ctypes.data
        if source.shape != target.shape or source.dtype != target.dtype:
            raise ValueError(
                f"cannot copy {source.dtype} {source.shape} over {target.dtype} {target.shape}"
            )
        for array in (target, source):
            if isinstance(array, DeviceArray):
                array._check_contiguous()
        stream, device = current_stream(), self._runtime()
        device.copy(target.data.ptr, address, target.nbytes, stream)
        if isinstance(source, np.ndarray):
            device.synchronize(stream)  # it may be gone when we return

    def fill(self, value: int) -> None:
        """Write zeros."""
        if value:
            raise ValueError(f"a DeviceArray is filled with 0 only; got {value}")
        self._check_contiguous()
        self._runtime().clear(self.data.ptr, self.nbytes, current_stream())

    def copy(self) -> DeviceArray:
        """Return the same in new memory, of the allocator that is in use."""
        new = allocated(self.shape, self.dtype, self.kind)
        new[...] = self
        return new

    def get(self) -> np.ndarray[Any, Any]:
        """Return a copy on the host, with the same strides. Waits for the stream."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        steps = zip(self.shape, self.strides, strict=True)
        span = self.dtype.itemsize + sum((size - 1) * stride for size, stride in steps)
        host = np.empty(span, np.uint8)
        stream, device = current_stream(), self._runtime()
        device.copy(host.ctypes.data, self.data.ptr, span, stream)
        device.synchronize(stream)
        return np.ndarray(self.shape, self.dtype, host, 0, self.strides)

    def set(self, values: np.ndarray[Any, Any]) -> None:
        """Copy from the host."""
        self[...] = values

    def _check_contiguous(self) -> None:
        if not self._c_contiguous:
            raise ValueError(
                f"this operation takes contiguous arrays; strides are {self.strides} bytes for "
                f"shape {self.shape} of {self.dtype}"
            )

    def _runtime(self) -> DeviceRuntime:
        return device_runtime(self.kind or kind_in_process())

    def __repr__(self) -> str:
        return (
            f"<DeviceArray {self.dtype} {list(self.shape)} of a {type(self.owner).__name__} on "
            f"{self.kind or 'device'} {self.data.device_id}>"
        )


@lru_cache(maxsize=1024)
def _contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a contiguous array."""
    return tuple(itemsize * step for step in contiguous_strides(shape))


@lru_cache(maxsize=1024)
def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether strides are those of a contiguous array, but for dimensions of size 1."""
    wanted = _contiguous_strides(shape, itemsize)
    steps = zip(shape, strides, wanted, strict=True)
    return 0 in shape or all(size == 1 or stride == step for size, stride, step in steps)


def device_array(
    name: str,
    value: Any,
    kind: str | None = None,
    *,
    strided: bool = False,
    host_is_accepted: bool = False,
) -> DeviceArray:
    """``value`` as a `DeviceArray`: an object with DLPack or ``__cuda_array_interface__``.

    ``kind`` is what to take memory for whose owner does not tell. The array must be contiguous, or
    with ``strided`` have strides from 0. The current stream waits for what the owner has queued,
    as far as the protocols say so. Raises ``TypeError`` or ``ValueError`` naming the argument;
    ``host_is_accepted`` says in the message that the caller accepts arrays on the host, too.
    """
    if isinstance(value, DeviceArray):
        if not (strided or value._c_contiguous):
            address = value.data.ptr
            check_memory(name, address, address, value.shape, value.strides, value.dtype)
        return value
    known = read_known(value, current_stream())
    if known is None:
        value = detached(name, value)
        known = read_known(value, current_stream())
    if known is not None:
        return DeviceArray(value, *known)
    found = dlpack_device(name, value)
    if found is not None:
        device_type, device = found
        if device_type in (*DLPACK_CUDA, DLPACK_ROCM):
            platform = "rocm" if device_type == DLPACK_ROCM else "cuda"
            return from_dlpack(name, value, platform, device, strided)
        if device_type in DLPACK_HOST:
            raise TypeError(
                f"{name} must be in device memory; this {type(value).__name__} is on the host: "
                "copy it to the device, or pass all arrays on the host, for backend='reference'"
            )
        raise TypeError(
            f"{name} must be in device memory; this {type(value).__name__} is elsewhere (DLPack "
            f"device type {device_type})"
        )
    if hasattr(value, "__cuda_array_interface__"):
        return _from_interface(name, value, kind, strided)
    or_host = ", or on the host, with DLPack or __array_interface__" * host_is_accepted
    raise TypeError(
        f"{name} must be an array in device memory, with DLPack or __cuda_array_interface__"
        f"{or_host}; got {type(value).__name__}"
    )


def known_array(value: Any) -> DeviceArray | None:
    """Return a `DeviceArray` of what `device_array` reads without a protocol; None for others."""
    if value.__class__ is DeviceArray:
        return value if value._c_contiguous else None
    known = read_known(value, current_stream())
    return None if known is None else DeviceArray(value, *known)


def allocated(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    kind: str | None,
    strides: tuple[int, ...] | None = None,
) -> DeviceArray:
    """Return a new array of the allocator in use. That of a user's allocator is checked.

    Contiguous, or with ``strides`` (in bytes), of which the allocator is told in elements.
    """
    allocator, stream = thread.use
    if isinstance(allocator, TrustedAllocator):
        return allocator.empty(shape, dtype, strides)
    if allocator is None:
        raise RuntimeError("there is no allocator: give options['allocator'], or call within using")
    what = "what the allocator returned"
    if strides is not None and _is_contiguous(shape, strides, dtype.itemsize):
        strides = None
    made = allocate(allocator, shape, dtype, strides)
    known = None if strides is not None else read_known(made, stream)
    if known is not None and (known[3], known[4], known[0]) == (shape, dtype, kind or known[0]):
        array = DeviceArray(made, *known)
    else:
        array = device_array(what, made, kind, strided=strides is not None)
        # A DeviceArray says itself whether it is writable, and a tensor always is.
        protocol = None if array is made or is_tensor(made) else "__cuda_array_interface__"
        check_allocated(what, array, shape, dtype, strides, protocol)
        if kind is not None and array.kind not in (None, kind):
            raise TypeError(f"{what} must be in memory of {kind}; it is in that of {array.kind}")
    if kind is not None:
        runtime: Any = device_runtime(kind)
        device = array.data.device_id
        current = 0 if _has_one_device(runtime) else runtime.current_device()
        if device != current:
            raise ValueError(f"{what} must be on the current device, {current}; it is on {device}")
    address = array.data.ptr
    if address % ALIGNMENT and array.size:
        raise ValueError(
            f"{what} must begin at a multiple of {ALIGNMENT} bytes; it is at {address:#x}"
        )
    return array


@cache
def _has_one_device(runtime: Any) -> bool:
    """Whether a runtime has one device, so that it need not be asked which is the current one."""
    return runtime.device_count() == 1


def check_allocated(
    what: str,
    array: DeviceArray,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    strides: tuple[int, ...] | None,
    protocol: str | None,
) -> None:
    """Raise unless an array of the allocator is as it was asked for, and writable.

    ``protocol`` is the attribute by which its owner may say that it is read-only, which DLPack
    cannot; None if the owner is not asked.
    """
    if array.shape != shape:
        raise ValueError(f"{what} must have shape {shape}; it has {array.shape}")
    if strides is not None:
        steps = zip(shape, array.strides, strides, strict=True)
        if any(size > 1 and one != other for size, one, other in steps):
            raise ValueError(f"{what} must have strides {strides} bytes; it has {array.strides}")
    if array.dtype is not dtype and array.dtype != dtype:
        raise TypeError(f"{what} must have dtype {dtype}; it has {array.dtype}")
    interface = None if protocol is None else getattr(array.owner, protocol, None)
    if not array.flags.writeable or (interface is not None and interface["data"][1]):
        raise ValueError(f"{what} must be writable; it says that it is read-only")


def allocate(
    allocator: Callable[..., object],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    strides: tuple[int, ...] | None,
) -> object:
    """Call the allocator, with strides in bytes for an array that is not contiguous."""
    if strides is None:
        return allocator(shape, _name_of(dtype))
    steps = tuple(stride // dtype.itemsize for stride in strides)
    try:
        return allocator(shape, _name_of(dtype), strides=steps)
    except TypeError as error:
        error.add_note(
            "options['allocator'] was called with strides=..., in elements, because the channels "
            "of the result are last in memory, as those of the first array. An allocator without "
            "this keyword is for arrays with channels first"
        )
        raise


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, which NumPy puts together in Python each time."""
    return dtype.name


class _Tensor(ctypes.Structure):
    """``DLTensor`` of dlpack.h, which a ``DLManagedTensor`` begins with."""

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
    )


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def dlpack_device(name: str, value: Any) -> tuple[int, int] | None:
    """Return the device type and number of an array with DLPack; None for other objects."""
    device_of = getattr(value, "__dlpack_device__", None)
    if device_of is None:
        return None
    try:
        device_type, device = device_of()
    except REFUSALS as error:
        raise _not_shown(name, error) from error
    return int(device_type), int(device)


def _not_shown(name: str, error: Exception) -> TypeError:
    return TypeError(f"{name} does not show its memory by DLPack: {error}")


def from_dlpack(
    name: str, value: Any, kind: str, device: int, strided: bool = False
) -> DeviceArray:
    """Return an array by DLPack, which is of a known dtype, and contiguous if not ``strided``."""
    stream = None
    if kind != "host":
        # 1 is CUDA's name of the default stream in this protocol; ROCm's is 0.
        stream = current_stream() or (1 if kind == "cuda" else 0)
    try:
        capsule = value.__dlpack__(stream=stream)
    except REFUSALS as error:
        raise _not_shown(name, error) from error
    try:
        # Not consumed: dropping the capsule releases the tensor, and the owner has the memory.
        tensor = _Tensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} gave no DLPack capsule that was asked for: {error}") from None
    # JAX numbers its devices on the host in the capsule alone; their memory is one.
    if kind != "host" and tensor.device_id != device:
        raise ValueError(
            f"{name} is on device {device} by __dlpack_device__, and on {tensor.device_id} by its "
            "DLPack capsule"
        )
    ndim = tensor.ndim
    if ndim < 0 or (ndim and not tensor.shape):
        raise ValueError(f"{name} has a DLPack capsule of {ndim} dimensions without a shape")
    shape = tuple(tensor.shape[:ndim]) if ndim else ()
    strides = tuple(tensor.strides[:ndim]) if ndim and tensor.strides else None
    known = _DLPACK_CODES.get(tensor.code)
    dtype = None
    if known is not None and tensor.lanes == 1:
        with suppress(TypeError):
            dtype = dtype_object(f"{known}{tensor.bits}".replace("bool8", "bool"))
    if dtype is None:
        raise TypeError(
            f"{name} has a dtype that DLPack numbers {tensor.code}, of {tensor.bits} bits and "
            f"{tensor.lanes} lanes; it is not known"
        )
    address = (tensor.data or 0) + tensor.byte_offset
    in_bytes = None if strides is None else tuple(step * dtype.itemsize for step in strides)
    check_memory(name, tensor.data, address, shape, in_bytes, dtype, strided)
    kept = in_bytes if strided else None
    return DeviceArray(value, kind, device, address, shape, dtype, strides=kept)


class ArrayInterface(NamedTuple):
    """Checked entries of ``__cuda_array_interface__`` or ``__array_interface__``."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # bytes; None: contiguous
    dtype: np.dtype[Any]
    is_read_only: bool


def read_interface(
    name: str, interface: Any, protocol: str, strided: bool = False
) -> ArrayInterface:
    """Return the entries for an array, which is contiguous if not ``strided``.

    ``interface`` is what the attribute ``protocol`` holds: `__cuda_array_interface__`, or
    ``__array_interface__``, which has the same entries but for a stream.
    """
    version = interface.get("version", 0)
    if version not in range(_INTERFACE_VERSION + 1):
        raise ValueError(
            f"{name} must have a {protocol} of version 0 to {_INTERFACE_VERSION}; got {version!r}"
        )
    if interface.get("mask") is not None:
        raise TypeError(f"{name} must be a plain array; its {protocol} has a mask")
    missing = [entry for entry in ("shape", "typestr", "data") if interface.get(entry) is None]
    if missing:
        raise ValueError(f"{name} must have {', '.join(missing)} in its {protocol}")
    typestr = interface["typestr"]
    try:
        dtype = np.dtype(typestr)
    except TypeError:
        raise TypeError(f"{name} has the unknown type {typestr!r}") from None
    if not dtype.isnative:
        raise TypeError(f"{name} must have the native byte order; got {dtype.str}")
    descr = interface.get("descr")
    if descr is not None and list(map(tuple, descr)) != [("", typestr)]:
        raise TypeError(f"{name} must have elements without fields; its descr is {descr!r}")
    # ctypes and CUDA's driver take Python's integers alone, and NumPy's overflow.
    shape, strides = _integers(f"the shape of {name}", interface["shape"]), interface.get("strides")
    address, read_only = interface["data"]
    address = check_integer(f"the address of {name}", address or 0)
    in_bytes = None if strides is None else _integers(f"the strides of {name}", strides)
    check_memory(name, address, address, shape, in_bytes, dtype, strided)
    return ArrayInterface(address, shape, in_bytes if strided else None, dtype, bool(read_only))


def _integers(what: str, values: Any) -> tuple[int, ...]:
    return tuple(v if v.__class__ is int else check_integer(what, v) for v in values)


def _from_interface(name: str, value: Any, kind: str | None, strided: bool) -> DeviceArray:
    """Return an array by ``__cuda_array_interface__``, whose device is taken to be the current."""
    interface = value.__cuda_array_interface__
    address, shape, strides, dtype, is_read_only = read_interface(
        name, interface, "__cuda_array_interface__", strided
    )
    producer = interface.get("stream")
    if producer is not None and check_integer(f"the stream of {name}", producer) < 1:
        raise ValueError(
            f"the stream of {name} must be None or from 1; its __cuda_array_interface__ has "
            f"{producer}"
        )
    found = device_runtime(kind or kind_in_process())
    _wait_for(found, producer)
    device = found.current_device()
    at = kind, device, address
    return DeviceArray(value, *at, shape, dtype, writeable=not is_read_only, strides=strides)


def _wait_for(found: DeviceRuntime, producer: int | None) -> None:
    """Let the current stream wait for what the producer named as its own."""
    stream = current_stream()
    if producer is None or producer == stream or (producer == 1 and stream == 0):
        return
    event = found.new_event()
    found.record(event, 0 if producer == 1 else producer)
    found.wait(stream, event)


def check_memory(
    name: str,
    data: int | None,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dtype: np.dtype[Any],
    strided: bool = False,
) -> None:
    """Raise unless the shape, strides (in bytes) and address are those of a contiguous array.

    With ``strided``, of one whose strides are whole elements, from 0.
    """
    if any(check_integer(f"the shape of {name}", size) < 0 for size in shape):
        raise ValueError(f"{name} must have sizes from 0; its shape is {shape}")
    if strides is not None and len(strides) != len(shape):
        raise ValueError(f"{name} has strides {strides} for shape {shape}")
    if 0 in shape:
        return
    if strides is not None and strided:
        if any(stride < 0 or stride % dtype.itemsize for stride in strides):
            raise ValueError(
                f"{name} must have strides from 0, in whole elements; its strides are {strides} "
                f"bytes for shape {shape} of {dtype}"
            )
    elif strides is not None:
        step = dtype.itemsize
        for size, stride in zip(reversed(shape), reversed(strides), strict=True):
            if size > 1 and stride != step:
                raise ValueError(
                    f"{name} must be contiguous; its strides are {strides} bytes for shape {shape} "
                    f"of {dtype}"
                )
            step *= size
    steps = () if strides is None else zip(shape, strides, strict=True)
    span = dtype.itemsize + sum((size - 1) * stride for size, stride in steps)
    if not data or not 0 < address <= 2**64 - max(span, prod(shape) * dtype.itemsize):
        raise ValueError(f"{name} has {prod(shape)} elements and no address of memory")


def array_over(arrays: Any, start: int, size: int) -> DeviceArray:
    """Return a flat array from ``start`` over the memory of ``arrays``, kept alive by it."""
    first = arrays[0]
    owner = tuple(array.owner for array in arrays)
    at = first.data.device_id, start
    writeable = all(array.flags.writeable for array in arrays)
    return DeviceArray(owner, first.kind, *at, (size,), first.dtype, writeable)
