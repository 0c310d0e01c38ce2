"""Files of safetensors: a header of JSON, then the data of all tensors without gaps.

Writing uses the package safetensors. Reading does not need it: the header is compared with the
size of the file, and a network is checked by its header, before any data is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from dnnffi import files
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import NDArray
from dnnffi.formats.outline import UNDESCRIBED, outline, read_bytes
from dnnffi.importing import import_lock
from dnnffi.installing import install_extra
from dnnffi.spec.checks import ITEM_SIZES, brief, clipped, listed

MAX_HEADER_BYTES = 100_000_000
"""Upper bound on the header in bytes, as in the package safetensors."""

MAX_DIMS = 64
"""Upper bound on the dimensions of a tensor, NumPy's."""

_DTYPES = {
    **{"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"},
    **{"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16"},
    **{"U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64", "C64": "complex64"},
}
"""The dtypes that NumPy has. A model may have tensors of others, such as F8_E4M3 and F4."""

_METADATA = "__metadata__"
_LENGTH_BYTES = 8  # the file begins with the length of the header, little-endian


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    dtype: str
    """The dtype as the file names it."""
    offset: int
    """In bytes, from the beginning of the data."""
    num_bytes: int


class _Outlines(Mapping[str, NDArray]):
    """The outlines of tensors by name; looking up one whose dtype NumPy lacks raises."""

    def __init__(self, tensors: Mapping[str, _Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> NDArray:
        tensor = self._tensors[name]
        if tensor.dtype not in _DTYPES:
            raise TypeError(
                f"{clipped(name)} must have one of the dtypes {listed(ITEM_SIZES)}; got "
                f"{clipped(tensor.dtype)}"
            )
        return outline(tensor.shape, dtype_object(_DTYPES[tensor.dtype]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors


class SafetensorsReader:
    """The tensors of an open file.

    Raises ``ValueError`` if the file is not a whole file of safetensors, or a name occurs twice;
    the constructor reads only the header.

    Attributes
    ----------
    outlines : by name, an array of the tensor's shape and dtype that takes no memory; ``TypeError``
        where NumPy does not have the dtype
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
                raise ValueError(
                    f"{clipped(name)} begins at byte {tensor.offset:,} instead of {end:,}"
                )
            end += tensor.num_bytes
        if end != size - self._data_offset:
            raise ValueError(
                f"its tensors have {end:,} bytes, its data {size - self._data_offset:,}"
            )
        self.outlines = _Outlines(self._tensors)

    def array(self, name: str) -> NDArray:
        """Read a tensor."""
        tensor = self._tensors[name]
        self._file.seek(self._data_offset + tensor.offset)
        found = read_bytes(self._file, tensor.num_bytes)
        return found.view(self.outlines[name].dtype).reshape(tensor.shape)

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
    name = clipped(name)
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"the header of {name} must have dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise ValueError(f"{name} has dtype {brief(dtype)}")
    are_sizes = _are_sizes(shape) and _are_sizes(offsets)
    if not are_sizes or len(shape) > MAX_DIMS or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{name} has shape {brief(shape)} and data_offsets {brief(offsets)}")
    found = _Tensor(tuple(shape), dtype, offsets[0], offsets[1] - offsets[0])
    if dtype in _DTYPES:
        # Not by `dtype_object`: other tensors of bfloat16 need no package.
        known = _DTYPES[dtype]
        expected = prod(shape) * (ITEM_SIZES.get(known) or np.dtype(known).itemsize)
        if found.num_bytes != expected:
            raise ValueError(
                f"{name} has {found.num_bytes:,} bytes; {dtype} of shape {brief(shape)} has "
                f"{expected:,}"
            )
    return found


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)
