"""Files of safetensors: a header of JSON, then the data of all tensors without gaps.

Writing uses the package safetensors. Reading does not need it: the header is compared with the
size of the file, and a network is checked by its header, before any data is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from dnnffi import files
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import NDArray
from dnnffi.formats.outline import UNDESCRIBED, outline, read_bytes
from dnnffi.importing import import_lock
from dnnffi.installing import install_extra

MAX_HEADER_BYTES = 100_000_000
"""Upper bound on the header in bytes, as in the package safetensors."""

_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
# A model has other tensors too. Weights have none of these dtypes.
_OTHER_DTYPES = {
    **{"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16"},
    **{"U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64"},
    **{"F8_E4M3": "V1", "F8_E5M2": "V1", "F8_E8M0": "V1"},
    **{"F8_E4M3FNUZ": "V1", "F8_E5M2FNUZ": "V1", "C64": "complex64"},
}
_METADATA = "__metadata__"
_LENGTH_BYTES = 8  # the file begins with the length of the header, little-endian


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    """In bytes, from the beginning of the data."""

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class SafetensorsReader:
    """The tensors of an open file.

    Raises ``ValueError`` if the file is not a whole file of safetensors, a name occurs twice, or
    a dtype is not known; the constructor reads only the header.

    Attributes
    ----------
    outlines : by name, an array of the tensor's shape and dtype that takes no memory
    description : empty, as these files say nothing about layers
    """

    description = UNDESCRIBED

    def __init__(self, file: BinaryIO) -> None:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        self._file = file
        self._data_offset = _LENGTH_BYTES + length
        if self._data_offset > size or length > MAX_HEADER_BYTES:
            raise ValueError(f"its header has {length:,} bytes, the file {size:,}")
        header = files.parse_json(file.read(length).decode())
        if not isinstance(header, dict):
            raise ValueError("its header is not a JSON object")
        self._metadata = header.pop(_METADATA, {})
        self._tensors = {name: _tensor(name, entry) for name, entry in header.items()}
        end = 0
        # An empty tensor begins where the next one does.
        in_order = sorted(
            self._tensors.items(), key=lambda item: (item[1].offset, item[1].num_bytes)
        )
        for name, tensor in in_order:
            if tensor.offset != end:
                raise ValueError(f"{name} begins at byte {tensor.offset:,} instead of {end:,}")
            end += tensor.num_bytes
        if end != size - self._data_offset:
            raise ValueError(
                f"its tensors have {end:,} bytes, its data {size - self._data_offset:,}"
            )
        self.outlines = {
            name: outline(tensor.shape, tensor.dtype) for name, tensor in self._tensors.items()
        }

    def array(self, name: str) -> NDArray:
        """Read a tensor."""
        tensor = self._tensors[name]
        self._file.seek(self._data_offset + tensor.offset)
        found = read_bytes(self._file, tensor.num_bytes)
        return found.view(tensor.dtype).reshape(tensor.shape)

    def text(self, name: str) -> str | None:
        """Return a text of the metadata; None if there is none of this name."""
        if not isinstance(self._metadata, dict):
            raise ValueError(f"its {_METADATA} is not a JSON object")
        found = self._metadata.get(name)
        if found is not None and not isinstance(found, str):
            raise ValueError(f"{name} is not a text")
        return found

    def close(self) -> None:
        """Do nothing: the file itself stays open."""


def to_safetensors(arrays: Mapping[str, NDArray], metadata: dict[str, str]) -> bytes:
    """Return the bytes of a file with these arrays and texts.

    ``ImportError`` with the command that installs the package safetensors if it is missing.
    """
    try:
        with import_lock:
            import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "Writing files .safetensors needs the package safetensors. Install: "
            f"{install_extra('weights')}; .npz needs NumPy alone"
        ) from error
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    saved: bytes = safetensors.numpy.save(contiguous, metadata=metadata)
    return saved


def _tensor(name: str, entry: object) -> _Tensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"the header of {name} must have dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    dtypes = _DTYPES | _OTHER_DTYPES
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise ValueError(f"{name} has dtype {dtype}")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{name} has shape {shape} and data_offsets {offsets}")
    found = _Tensor(tuple(shape), dtype_object(dtypes[dtype]), offsets[0])
    if offsets[1] - offsets[0] != found.num_bytes:
        raise ValueError(
            f"{name} has {offsets[1] - offsets[0]:,} bytes; {dtype} of shape {shape} has "
            f"{found.num_bytes:,}"
        )
    return found


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)
