"""Descriptors of dense arrays: tensors with strides, filters in one of two formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.descriptors.base import Descriptor
from dnnffi.backends.cudnn.library import DATA_TYPES, FORMATS, Library
from dnnffi.backends.vendor.descriptors import tensor
from dnnffi.backends.vendor.descriptors.checks import data_type, integers
from dnnffi.backends.vendor.descriptors.tensor import (
    MAX_DIMS,
    TensorInfo,
    array_layout,
    padded_shape,
)
from dnnffi.backends.vendor.library import name_of
from dnnffi.device.interface import Array
from dnnffi.spec.checks import check_choice
from dnnffi.spec.layouts import is_packed, packed_strides


class TensorDescriptor(Descriptor, tensor.TensorDescriptor):
    """``cudnnTensorDescriptor_t``: data type, shape and strides (in elements).

    ``strides`` default to a contiguous tensor's. With ``min_rank`` the shape gets trailing
    dimensions of 1, as cuDNN's RNN functions want three. 2 dimensions (3 before cuDNN 9) to 8, and
    an int32 range of elements from the first to the last.

    Raises ``ValueError`` or ``TypeError`` naming the argument; `CudnnError` from
    ``cudnnSetTensorNdDescriptor``.
    """

    _data_types = DATA_TYPES
    _min_rank = 2
    _setter = "cudnnSetTensorNdDescriptor"
    _sizer = "cudnnGetTensorSizeInBytes"

    def read(self) -> TensorInfo:
        """Return data type, shape and strides (``cudnnGetTensorNdDescriptor``)."""
        dtype = ffi.new("cudnnDataType_t *")
        rank = ffi.new("int *")
        shape, strides = (ffi.new("int[]", MAX_DIMS) for _ in range(2))
        self._call(
            "cudnnGetTensorNdDescriptor", self.pointer, MAX_DIMS, dtype, rank, shape, strides
        )
        return TensorInfo(
            name_of(DATA_TYPES, dtype[0]), tuple(shape[0 : rank[0]]), tuple(strides[0 : rank[0]])
        )


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
        """Return the descriptor of an array [K, C, ...] without gaps, laid out as ``format``.

        "NCHW" is a C-contiguous array; "NHWC" has the strides that ``numpy.moveaxis(a, -1, 1)``
        gives a C-contiguous ``a`` [K, ..., C].
        """
        dtype, shape, strides = array_layout(array, DATA_TYPES)
        info = _filter(dtype, shape, format, min_rank)
        channels_last = info.format == "NHWC"
        if not is_packed(shape, strides, channels_last):
            wanted = packed_strides(shape, channels_last)
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
        """Return data type, format and shape (``cudnnGetFilterNdDescriptor``)."""
        dtype = ffi.new("cudnnDataType_t *")
        format = ffi.new("cudnnTensorFormat_t *")
        rank = ffi.new("int *")
        shape = ffi.new("int[]", MAX_DIMS)
        self._call("cudnnGetFilterNdDescriptor", self.pointer, MAX_DIMS, dtype, format, rank, shape)
        return FilterInfo(
            name_of(DATA_TYPES, dtype[0]), name_of(FORMATS, format[0]), tuple(shape[0 : rank[0]])
        )


def _filter(dtype: object, shape: object, format: object, min_rank: object) -> FilterInfo:
    return FilterInfo(
        data_type("dtype", dtype, DATA_TYPES),
        check_choice("format", format, FORMATS),
        padded_shape(integers("shape", shape, 1), min_rank, least_rank=3),
    )
