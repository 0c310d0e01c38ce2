"""The tensor descriptor, which weights use too."""

from __future__ import annotations

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.descriptors.base import Descriptor
from dnnffi.backends.miopen.library import DATA_TYPES
from dnnffi.backends.vendor.descriptors import tensor
from dnnffi.backends.vendor.descriptors.tensor import TensorInfo
from dnnffi.backends.vendor.library import name_of


class TensorDescriptor(Descriptor, tensor.TensorDescriptor):
    """``miopenTensorDescriptor_t``: data type, shape and strides (in elements).

    ``strides`` default to a contiguous tensor's. With ``min_rank`` the shape gets trailing
    dimensions of 1. 1 to 8 dimensions, and an int32 range of elements from the first to the last,
    which MIOpen itself does not check.

    Raises ``ValueError`` or ``TypeError`` naming the argument; `MiopenError` from
    ``miopenSetTensorDescriptor``.
    """

    _data_types = DATA_TYPES
    _min_rank = 1
    _setter = "miopenSetTensorDescriptor"
    _sizer = "miopenGetTensorNumBytes"

    def read(self) -> TensorInfo:
        """Return data type, shape and strides (``miopenGetTensorDescriptor``)."""
        rank = ffi.new("int *")
        self._call("miopenGetTensorDescriptorSize", self.pointer, rank)
        dtype = ffi.new("miopenDataType_t *")
        shape, strides = (ffi.new("int[]", rank[0]) for _ in range(2))
        self._call("miopenGetTensorDescriptor", self.pointer, dtype, shape, strides)
        return TensorInfo(name_of(DATA_TYPES, dtype[0]), tuple(shape), tuple(strides))
