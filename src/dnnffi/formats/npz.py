"""NumPy's .npz archives: headers are read before data, and data is never decompressed.

``numpy.load`` takes the last of two members of one name, expands compressed members whatever their
size, and its messages recommend unpickling. `NpzReader` reads the archives that ``numpy.savez``
writes: the memory that an archive takes is at most the size of its file.
"""

from __future__ import annotations

# zipfile imports this codec when it opens a file, NumPy ast when it reads a header. Here they are
# imported under the lock that fork waits for (dnnffi.importing).
import ast  # noqa: F401
import encodings.cp437  # noqa: F401
import os
from collections import Counter
from collections.abc import Mapping
from io import BytesIO
from math import prod
from typing import IO, Any, BinaryIO, NamedTuple
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np

from dnnffi.device.interface import NDArray
from dnnffi.formats.outline import UNDESCRIBED, outline, read_bytes
from dnnffi.spec.checks import clipped

MAX_TEXT_BYTES = 2**16
"""Upper bound on a text in an archive, which NumPy stores with 4 bytes per character."""

_SUFFIX = ".npy"

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""By version of the format. Version 3.0 is for structured dtypes, which weights do not have."""


class _Header(NamedTuple):
    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]


class NpzReader:
    """The arrays of an open archive.

    Raises ``ValueError`` or ``zipfile.BadZipFile`` if the file is not a whole archive of plain
    arrays, if a name occurs twice, or if members are compressed or claim more bytes than the file
    has; the constructor reads only headers.

    Attributes
    ----------
    outlines : by name, an array of the member's shape and dtype that takes no memory
    description : empty, as these files say nothing about layers
    """

    description = UNDESCRIBED

    def __init__(self, file: BinaryIO) -> None:
        if file.read(2) != b"PK":
            raise ValueError("it is no zip archive")
        members = stored_members(file)
        for member in members:
            if not member.filename.endswith(_SUFFIX):
                raise ValueError(f"its member {clipped(member.filename)} is not an array")
        self._archive = ZipFile(file)
        self._headers = {}
        for member in members:
            name = member.filename
            with self._archive.open(member) as content:
                header = _header(name, content)
                if header.dtype.hasobject:
                    raise ValueError(f"{clipped(name)} has Python objects, not numbers")
                expected = content.tell() + prod(header.shape) * header.dtype.itemsize
            if member.file_size != expected:
                raise ValueError(
                    f"{clipped(name)} has {member.file_size:,} bytes; its header describes "
                    f"{expected:,}"
                )
            self._headers[name.removesuffix(_SUFFIX)] = header
        self.outlines = {
            name: outline(header.shape, header.dtype) for name, header in self._headers.items()
        }

    def array(self, name: str) -> NDArray:
        """Read an array, and check its checksum."""
        header = self._headers[name]
        with self._archive.open(name + _SUFFIX) as content:
            _header(name, content)
            found = read_bytes(content, prod(header.shape) * header.dtype.itemsize)
        array = found.view(header.dtype)
        return array.reshape(header.shape, order="F" if header.is_fortran else "C")

    def text(self, name: str) -> str | None:
        """Read a text; None if there is no member of this name."""
        if name not in self._headers:
            return None
        shape, _, dtype = self._headers[name]
        if dtype.kind != "U" or shape != () or dtype.itemsize > MAX_TEXT_BYTES:
            raise ValueError(f"{name} is not a text of at most {MAX_TEXT_BYTES:,} bytes")
        return str(self.array(name))

    def close(self) -> None:
        """Close the archive; the file itself stays open."""
        self._archive.close()


def stored_members(file: BinaryIO) -> list[ZipInfo]:
    """Return the members of a zip archive: together they are at most as large as the file.

    ``ValueError`` or ``zipfile.BadZipFile`` if it is damaged, if a name occurs twice, or if members
    are compressed or overlap.
    """
    size = os.fstat(file.fileno()).st_size
    members = ZipFile(file).infolist()
    for name, count in Counter(member.filename for member in members).items():
        if count > 1:
            raise ValueError(f"it has {count} members of the name {clipped(name)}")
    for member in members:
        if member.compress_type != ZIP_STORED or member.compress_size != member.file_size:
            raise ValueError(
                f"{clipped(member.filename)} is compressed, and nothing is decompressed here; "
                f"numpy.savez, torch.save and Keras store arrays as they are"
            )
    # Members may overlap, so that together they are larger than the file.
    if sum(member.file_size for member in members) > size:
        raise ValueError(f"its members claim more bytes than the {size:,} of the file")
    return members


def to_npz(arrays: Mapping[str, Any]) -> memoryview:
    """Return the bytes of an archive with these arrays and texts."""
    file = BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getbuffer()


def _header(name: str, content: IO[bytes]) -> _Header:
    """Read the header of a member; the data comes next in ``content``."""
    try:
        return _Header(*_HEADERS[np.lib.format.read_magic(content)](content))
    except Exception:
        # Without NumPy's message, which may recommend unpickling.
        raise ValueError(f"the header of {clipped(name)} is not that of an array") from None
