"""Descriptors of dense arrays with strides, and the checks of shapes, strides and arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Self

from dnnffi.backends.vendor.descriptors.base import Descriptor
from dnnffi.backends.vendor.descriptors.checks import data_type, integers
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.device.interface import Array
from dnnffi.spec.checks import INT32_MAX, check_range
from dnnffi.spec.layouts import contiguous_strides
from dnnffi.spec.sequences import as_integers

MAX_DIMS = 8
"""The largest number of dimensions of a tensor or filter."""


class TensorInfo(NamedTuple):
    """A tensor descriptor read back; strides count elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class TensorDescriptor(Descriptor):
    """Base of the vendors' tensor descriptors: arguments, their checks, reading back."""

    _kind = "Tensor"
    _data_types: ClassVar[Mapping[str, int]]
    _min_rank: ClassVar[int]
    _setter: ClassVar[str]
    _sizer: ClassVar[str]

    def __init__(
        self,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        *,
        min_rank: int = 0,
        library: VendorLibrary | None = None,
    ) -> None:
        super().__init__(library, self._checked(dtype, shape, strides, min_rank))

    @classmethod
    def of(cls, array: Array, *, min_rank: int = 0, library: VendorLibrary | None = None) -> Self:
        """Return the descriptor of a NumPy or CuPy array with positive strides."""
        dtype, shape, strides = array_layout(array, cls._data_types)
        return cls(dtype, shape, strides, min_rank=min_rank, library=library)

    def set(
        self,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        *,
        min_rank: int = 0,
    ) -> None:
        """Describe another tensor."""
        self._set(self._checked(dtype, shape, strides, min_rank))

    def _set(self, info: TensorInfo) -> None:
        self._call(
            self._setter,
            self.pointer,
            self._data_types[info.dtype],
            len(info.shape),
            info.shape,
            info.strides,
            problem=info,
        )

    @abstractmethod
    def read(self) -> TensorInfo:
        """Return data type, shape and strides."""

    @property
    def size_in_bytes(self) -> int:
        """Bytes from the first to the last element, as the library counts them."""
        size = self.library.ffi.new("size_t *")
        self._call(self._sizer, self.pointer, size)
        return int(size[0])

    @classmethod
    def _checked(
        cls, dtype: object, shape: object, strides: object, min_rank: object
    ) -> TensorInfo:
        dtype = data_type("dtype", dtype, cls._data_types)
        given = integers("shape", shape, 1)
        padded = padded_shape(given, min_rank, cls._min_rank)
        contiguous = contiguous_strides(padded)
        if strides is None:
            return TensorInfo(dtype, padded, _spanned(padded, contiguous))
        checked = as_integers("strides", strides)
        if len(checked) != len(given):
            raise ValueError(
                f"strides must have one entry for each of the {len(given)} dimensions; "
                f"got {len(checked)}"
            )
        taken = []
        for index, (size, stride) in enumerate(zip(given, checked, strict=True)):
            if 1 <= stride <= INT32_MAX:
                taken.append(stride)
            elif size == 1:
                # Never stepped over, so that arrays have anything there: 0, negative, beyond int32.
                taken.append(min(contiguous[index], INT32_MAX))
            else:
                raise ValueError(f"strides[{index}] must be from 1 to {INT32_MAX}; got {stride}")
        return TensorInfo(dtype, padded, _spanned(padded, (*taken, *contiguous[len(given) :])))


def padded_shape(shape: tuple[int, ...], min_rank: object, least_rank: int) -> tuple[int, ...]:
    """Return ``shape`` with dimensions of 1 up to ``min_rank``; ``least_rank`` to 8 in all."""
    padded = shape + (1,) * (check_range("min_rank", min_rank, 0, MAX_DIMS) - len(shape))
    if not least_rank <= len(padded) <= MAX_DIMS:
        raise ValueError(
            f"shape must have {least_rank} to {MAX_DIMS} dimensions, after padding to min_rank; "
            f"got {list(shape)}"
        )
    return padded


def _spanned(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``strides``; ``ValueError`` if the elements that they span exceed an int32."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if span > INT32_MAX:
        raise ValueError(
            f"shape: at most {INT32_MAX} elements from the first to the last; {list(shape)} with "
            f"strides {list(strides)} has {span}"
        )
    return strides


def array_layout(
    array: Array, known: Mapping[str, int]
) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Return the data type, the shape and the strides in elements of an array."""
    dtype, itemsize = array.dtype, array.dtype.itemsize
    name = data_type("the array's dtype", dtype, known)
    if not dtype.isnative:
        raise ValueError(f"the array must have the native byte order; got {dtype.str}")
    if any(stride % itemsize for stride in array.strides):
        raise ValueError(
            f"the array's strides {array.strides} are no multiples of {itemsize} bytes"
        )
    return name, array.shape, tuple(stride // itemsize for stride in array.strides)
