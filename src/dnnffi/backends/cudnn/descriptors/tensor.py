"""Descriptors of dense arrays: tensors with strides, filters in one of two formats."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from dnnffi.arrays import Array
from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.descriptors.base import Descriptor
from dnnffi.backends.cudnn.descriptors.checks import INT32_MAX, choice, data_type, integer, sizes
from dnnffi.backends.cudnn.library import Library
from dnnffi.backends.cudnn.types import DATA_TYPES, FORMATS, name_of
from dnnffi.spec.sequences import as_integers

MAX_DIMS: int = ffi.integer_const("CUDNN_DIM_MAX")
"""The most dimensions of a tensor or filter, 8."""


class TensorInfo(NamedTuple):
    """A tensor descriptor read back; strides count elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class TensorDescriptor(Descriptor):
    """``cudnnTensorDescriptor_t``: data type, shape and strides (in elements).

    ``strides`` default to a contiguous tensor's. With ``min_rank`` the shape gets trailing
    dimensions of 1, as cuDNN's RNN functions want three. 2 dimensions (3 before cuDNN 9) to 8, and
    an int32 range of elements from the first to the last.

    Raises ``ValueError`` or ``TypeError`` naming the argument; `CudnnError` from
    ``cudnnSetTensorNdDescriptor``.
    """

    _kind = "Tensor"

    def __init__(
        self,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        *,
        min_rank: int = 0,
        library: Library | None = None,
    ) -> None:
        super().__init__(library, _tensor(dtype, shape, strides, min_rank))

    @classmethod
    def of(
        cls, array: Array, *, min_rank: int = 0, library: Library | None = None
    ) -> TensorDescriptor:
        """The descriptor of a NumPy or CuPy array with positive strides."""
        dtype, shape, strides = _array(array)
        return cls(dtype, shape, strides, min_rank=min_rank, library=library)

    def set(
        self,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        *,
        min_rank: int = 0,
    ) -> None:
        """Describe another tensor (``cudnnSetTensorNdDescriptor``)."""
        self._set(_tensor(dtype, shape, strides, min_rank))

    def _set(self, info: TensorInfo) -> None:
        self._call(
            "cudnnSetTensorNdDescriptor",
            self.pointer,
            DATA_TYPES[info.dtype],
            len(info.shape),
            info.shape,
            info.strides,
            problem=info,
        )

    def read(self) -> TensorInfo:
        """Data type, shape and strides (``cudnnGetTensorNdDescriptor``)."""
        dtype = ffi.new("cudnnDataType_t *")
        rank = ffi.new("int *")
        shape, strides = (ffi.new("int[]", MAX_DIMS) for _ in range(2))
        self._call(
            "cudnnGetTensorNdDescriptor", self.pointer, MAX_DIMS, dtype, rank, shape, strides
        )
        return TensorInfo(
            name_of(DATA_TYPES, dtype[0]), tuple(shape[0 : rank[0]]), tuple(strides[0 : rank[0]])
        )

    @property
    def size_in_bytes(self) -> int:
        """Bytes from the first to the last element (``cudnnGetTensorSizeInBytes``)."""
        size = ffi.new("size_t *")
        self._call("cudnnGetTensorSizeInBytes", self.pointer, size)
        return int(size[0])


class FilterInfo(NamedTuple):
    """A filter descriptor read back."""

    dtype: str
    format: str
    shape: tuple[int, ...]


class FilterDescriptor(Descriptor):
    """``cudnnFilterDescriptor_t``: data type, format ("NCHW" or "NHWC") and 3 to 8 dimensions.

    The shape is [K, C, ...] in either format; in "NHWC" C is the fastest in memory. With
    ``min_rank`` the shape gets trailing dimensions of 1.

    Raises ``ValueError`` or ``TypeError`` naming the argument; `CudnnError` from
    ``cudnnSetFilterNdDescriptor``.
    """

    _kind = "Filter"

    def __init__(
        self,
        dtype: str,
        shape: Sequence[int],
        *,
        format: str = "NCHW",
        min_rank: int = 0,
        library: Library | None = None,
    ) -> None:
        super().__init__(library, _filter(dtype, shape, format, min_rank))

    @classmethod
    def of(
        cls,
        array: Array,
        *,
        format: str = "NCHW",
        min_rank: int = 0,
        library: Library | None = None,
    ) -> FilterDescriptor:
        """The descriptor of a NumPy or CuPy array [K, C, ...] without gaps, laid out as ``format``.

        "NCHW" is a C-contiguous array; "NHWC" has the strides that ``numpy.moveaxis(a, -1, 1)``
        gives a C-contiguous ``a`` [K, ..., C].
        """
        dtype, shape, strides = _array(array)
        info = _filter(dtype, shape, format, min_rank)
        wanted = _format_strides(shape, info.format)
        if any(n > 1 and a != b for n, a, b in zip(shape, strides, wanted, strict=True)):
            raise ValueError(
                f"array: a filter {list(shape)} in {format} has strides {list(wanted)}; "
                f"got {list(strides)}"
            )
        return cls(dtype, shape, format=format, min_rank=min_rank, library=library)

    def set(
        self, dtype: str, shape: Sequence[int], *, format: str = "NCHW", min_rank: int = 0
    ) -> None:
        """Describe another filter (``cudnnSetFilterNdDescriptor``)."""
        self._set(_filter(dtype, shape, format, min_rank))

    def _set(self, info: FilterInfo) -> None:
        self._call(
            "cudnnSetFilterNdDescriptor",
            self.pointer,
            DATA_TYPES[info.dtype],
            FORMATS[info.format],
            len(info.shape),
            info.shape,
            problem=info,
        )

    def read(self) -> FilterInfo:
        """Data type, format and shape (``cudnnGetFilterNdDescriptor``)."""
        dtype = ffi.new("cudnnDataType_t *")
        format = ffi.new("cudnnTensorFormat_t *")
        rank = ffi.new("int *")
        shape = ffi.new("int[]", MAX_DIMS)
        self._call("cudnnGetFilterNdDescriptor", self.pointer, MAX_DIMS, dtype, format, rank, shape)
        return FilterInfo(
            name_of(DATA_TYPES, dtype[0]), name_of(FORMATS, format[0]), tuple(shape[0 : rank[0]])
        )


def _tensor(dtype: object, shape: object, strides: object, min_rank: object) -> TensorInfo:
    dtype = data_type("dtype", dtype)
    given = sizes("shape", shape)
    padded = _padded(given, min_rank, least=2)
    contiguous = _contiguous(padded)
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


def _filter(dtype: object, shape: object, format: object, min_rank: object) -> FilterInfo:
    return FilterInfo(
        data_type("dtype", dtype),
        choice("format", format, FORMATS),
        _padded(sizes("shape", shape), min_rank, least=3),
    )


def _padded(shape: tuple[int, ...], min_rank: object, least: int) -> tuple[int, ...]:
    padded = shape + (1,) * (integer("min_rank", min_rank, 0, MAX_DIMS) - len(shape))
    if not least <= len(padded) <= MAX_DIMS:
        raise ValueError(
            f"shape must have {least} to {MAX_DIMS} dimensions, after padding to min_rank; "
            f"got {list(shape)}"
        )
    return padded


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _format_strides(shape: tuple[int, ...], format: str) -> tuple[int, ...]:
    """Strides of a filter [K, C, ...] without gaps."""
    if format == "NCHW" or len(shape) < 2:
        return _contiguous(shape)
    k, c, *spatial = shape
    k_stride, *spatial_strides, c_stride = _contiguous((k, *spatial, c))
    return (k_stride, c_stride, *spatial_strides)


def _spanned(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """``strides``, unless an int32 cannot count the elements from the first to the last."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if span > INT32_MAX:
        raise ValueError(
            f"shape: at most {INT32_MAX} elements from the first to the last; {list(shape)} with "
            f"strides {list(strides)} has {span}"
        )
    return strides


def _array(array: Array) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Data type, shape and strides in elements of an array."""
    dtype, itemsize = array.dtype, array.dtype.itemsize
    name = data_type("the array's dtype", dtype)
    if not dtype.isnative:
        raise ValueError(f"the array's dtype {dtype.str} has the byte order of other machines")
    if any(stride % itemsize for stride in array.strides):
        raise ValueError(
            f"the array's strides {array.strides} are no multiples of {itemsize} bytes"
        )
    return name, array.shape, tuple(stride // itemsize for stride in array.strides)
