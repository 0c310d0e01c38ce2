"""The tensor descriptor of the graph API: one operand of an operation."""

from __future__ import annotations

from collections.abc import Sequence

from dnnffi.backends.cudnn.graph.attributes import (
    BOOLEAN,
    DATA_TYPE,
    INT64,
    attribute,
    table,
)
from dnnffi.backends.cudnn.graph.descriptor import BackendDescriptor
from dnnffi.backends.cudnn.library import DATA_TYPES, Library
from dnnffi.backends.vendor.descriptors.checks import data_type, integers
from dnnffi.backends.vendor.descriptors.tensor import MAX_DIMS
from dnnffi.device.interface import ALIGNMENT
from dnnffi.spec.checks import INT64_MAX, check_range


class Tensor(BackendDescriptor):
    """Data type, 1 to 8 dimensions and strides (in elements) of one operand.

    ``uid`` tells the tensors of a graph apart. A ``virtual`` tensor goes from one operation to the
    next and lies in no memory. The address of another is a multiple of 16 bytes.

    Attributes: ``dims`` (the dimensions).

    Raises ``ValueError`` or ``TypeError`` naming the argument; `CudnnError`.
    """

    _kind = "TENSOR"
    attributes = table(
        uid=attribute("TENSOR_UNIQUE_ID", INT64),
        dtype=attribute("TENSOR_DATA_TYPE", DATA_TYPE),
        dims=attribute("TENSOR_DIMENSIONS", INT64, many=True),
        strides=attribute("TENSOR_STRIDES", INT64, many=True),
        alignment=attribute("TENSOR_BYTE_ALIGNMENT", INT64, readable=False),
        virtual=attribute("TENSOR_IS_VIRTUAL", BOOLEAN),
    )

    def __init__(
        self,
        uid: int,
        dtype: str,
        dims: Sequence[int],
        strides: Sequence[int],
        *,
        virtual: bool = False,
        library: Library | None = None,
    ) -> None:
        dtype = data_type("dtype", dtype, DATA_TYPES)
        self.dims = dims = integers("dims", dims, 1)
        if not 1 <= len(dims) <= MAX_DIMS:
            raise ValueError(f"dims must have 1 to {MAX_DIMS} dimensions; got {list(dims)}")
        values = {
            "uid": check_range("uid", uid, -INT64_MAX - 1, INT64_MAX),
            "dtype": dtype,
            "dims": dims,
            "strides": _strides(strides, len(dims)),
            "alignment": ALIGNMENT,
            "virtual": True if virtual else None,
        }
        super().__init__(library, values)


def _strides(given: object, rank: int) -> tuple[int, ...]:
    # cuDNN 9.19 finalizes tensors with a 0 among their strides.
    strides = integers("strides", given, 1, INT64_MAX)
    if len(strides) != rank:
        raise ValueError(
            f"strides must have one entry for each of the {rank} dimensions; got {len(strides)}"
        )
    return strides
