"""HDF5 files: weights that Keras saved, and other named arrays.

The package h5py reads them. A dataset is read only if its data is in the file as it is: no
filters, no other files, nothing left out. So the arrays are never larger than the file. Datasets
that are not read may be stored in any way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BytesIO
from math import prod
from typing import Any, BinaryIO
from zipfile import ZipFile

import numpy as np

from dnnffi import files
from dnnffi.device.interface import NDArray
from dnnffi.formats.keras_names import describe
from dnnffi.formats.npz import stored_members
from dnnffi.formats.outline import Description, outline
from dnnffi.importing import import_lock
from dnnffi.spec.checks import clipped

_WEIGHTS_MEMBER = "model.weights.h5"
_CONFIG_MEMBER = "config.json"
_METADATA_MEMBER = "metadata.json"


class HDF5Reader:
    """The numeric datasets of an open file, by their paths.

    Raises ``ImportError`` without h5py, and ``ValueError`` if a dataset that is read is compressed,
    stored elsewhere or not whole, or if all of these together claim more bytes than the file has.
    Links to other places are not followed.

    Attributes
    ----------
    outlines : by path, an array of the dataset's shape and dtype that takes no memory
    description : what Keras wrote about the layers
    """

    def __init__(self, file: BinaryIO, num_bytes: int | None = None) -> None:
        h5py = _imported()
        self._max_bytes = os.fstat(file.fileno()).st_size if num_bytes is None else num_bytes
        self._read_bytes: dict[str, int] = {}  # by the names of the datasets that were read
        self._file = h5py.File(file, "r")
        self._datasets: dict[str, Any] = {}

        def visit(name: str, found: Any) -> None:
            if not isinstance(found, h5py.Dataset) or found.shape is None:
                return
            try:
                kind = found.dtype.kind
            except (TypeError, ValueError):  # NumPy has no such dtype
                return
            if kind in "fiub":
                self._datasets[name] = found

        self._file.visititems(visit)  # hard links only, each object once
        self.outlines = {
            name: outline(dataset.shape, dataset.dtype) for name, dataset in self._datasets.items()
        }
        config = self._attribute("model_config")
        self.description = describe(
            None if config is None else files.parse_json(config), self._attribute("keras_version")
        )

    def array(self, name: str) -> NDArray:
        """Read a dataset."""
        self._read_bytes[name] = _num_stored_bytes(name, self._datasets[name])
        if sum(self._read_bytes.values()) > self._max_bytes:
            raise ValueError(f"its datasets claim more bytes than the {self._max_bytes:,} of it")
        found = np.empty(self.outlines[name].shape, self.outlines[name].dtype)
        if found.size:
            self._datasets[name].read_direct(found)
        return found

    def text(self, name: str) -> str | None:
        """Return None: `RNNWeights.save` does not write these files."""
        return None

    def close(self) -> None:
        """Close the HDF5 file; the file object that was given stays open."""
        self._file.close()

    def _attribute(self, name: str) -> str | None:
        """Return a text that belongs to the whole file; None if there is none."""
        attributes = self._file.attrs
        if name not in attributes or attributes.get_id(name).shape != ():
            return None
        found = attributes[name]
        return found.decode() if isinstance(found, bytes) else str(found)


class KerasReader(HDF5Reader):
    """The weights in an open file .keras: a zip archive with an HDF5 file and the config.

    Raises as `HDF5Reader` does, and ``ValueError`` if the archive has compressed members or no
    weights. The HDF5 file is read into memory at once.
    """

    def __init__(self, file: BinaryIO) -> None:
        if file.read(2) != b"PK":
            raise ValueError("it is no zip archive")
        names = {member.filename for member in stored_members(file)}
        if _WEIGHTS_MEMBER not in names:
            raise ValueError(f"it has no member {_WEIGHTS_MEMBER}")
        with ZipFile(file) as archive:
            content = archive.read(_WEIGHTS_MEMBER)
            texts: dict[str, Any] = {
                name: files.parse_json(archive.read(name)) if name in names else None
                for name in (_CONFIG_MEMBER, _METADATA_MEMBER)
            }
        super().__init__(BytesIO(content), len(content))
        metadata = texts[_METADATA_MEMBER]
        version = metadata.get("keras_version") if isinstance(metadata, Mapping) else None
        self.description: Description = describe(texts[_CONFIG_MEMBER], version)


def _imported() -> Any:
    try:
        with import_lock:
            import h5py
    except ImportError as error:
        raise ImportError(
            "Reading files .h5, .hdf5 and .keras needs the package h5py. Install: pip install h5py"
        ) from error
    return h5py


def _num_stored_bytes(name: str, dataset: Any) -> int:
    """Return the bytes of a dataset; ``ValueError`` unless they are in the file as they are."""
    name = clipped(name)
    properties = dataset.id.get_create_plist()
    if properties.get_nfilters():
        raise ValueError(f"{name} is compressed or filtered, and nothing is decompressed")
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"{name} is stored in another file")
    num_bytes = prod(dataset.shape) * dataset.dtype.itemsize
    if dataset.id.get_storage_size() < num_bytes:
        raise ValueError(f"{name} is not whole: a part of its data is not in the file")
    return num_bytes
