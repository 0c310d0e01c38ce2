"""Weights on disk: files that `save` wrote, and those of other programs.

A reader for each format gives the shapes and dtypes of named arrays before their data. A network is
found by names, checked by its shapes, and only then are its arrays read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from reprlib import repr as brief
from typing import BinaryIO, Protocol

import numpy as np

from dnnffi import files
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import NDArray
from dnnffi.formats import keras_names, torch
from dnnffi.formats.hdf5 import HDF5Reader, KerasReader
from dnnffi.formats.network import Network
from dnnffi.formats.npz import NpzReader, to_npz
from dnnffi.formats.outline import Description
from dnnffi.formats.prefixes import rename_arrays, select_prefixes, stack_layers
from dnnffi.formats.safetensors import SafetensorsReader, to_safetensors
from dnnffi.formats.torch_file import TorchReader
from dnnffi.spec.checks import clipped
from dnnffi.spec.rnn import RNNSpec

KEY = "dnnffi.RNNSpec"
"""The name of the spec, as JSON: in the metadata of safetensors, an entry of an npz."""


class Reader(Protocol):
    """The arrays of an open file, and what it says about them."""

    @property
    def outlines(self) -> Mapping[str, NDArray]:
        """By name, an array of the shape and dtype that takes no memory."""
        ...

    description: Description
    """Settings of Keras's layers, as far as the file has them."""

    def array(self, name: str) -> NDArray:
        """Read an array."""
        ...

    def text(self, name: str) -> str | None:
        """Return a text; None if there is none of this name."""
        ...

    def close(self) -> None:
        """Release what the reader has opened; the file itself stays open."""
        ...


class _ReaderClass(Protocol):
    def __call__(self, file: BinaryIO, /) -> Reader: ...


_SAVED_SUFFIXES = (".npz", ".safetensors")

_READERS: dict[str, _ReaderClass] = {
    ".npz": NpzReader,
    ".safetensors": SafetensorsReader,
    ".pt": TorchReader,
    ".pth": TorchReader,
    ".h5": HDF5Reader,
    ".hdf5": HDF5Reader,
    ".keras": KerasReader,
}


def save(path: object, spec: RNNSpec, arrays: Mapping[str, NDArray]) -> None:
    """Write arrays on the host under PyTorch's names, in the format that the suffix names.

    The file is written as a whole or not at all, as `dnnffi.files.write` describes. If ``path`` is
    a link, the file that it leads to is replaced.
    """
    target = _path(path, _SAVED_SUFFIXES)
    text = json.dumps(asdict(spec))
    if target.suffix == ".npz":
        # NumPy's files have no bfloat16: its bits are stored, and the spec has the dtype.
        bits = {
            name: array.view(np.uint16) if array.dtype.name == "bfloat16" else array
            for name, array in arrays.items()
        }
        files.write(target, to_npz({KEY: np.array(text)} | bits), follow_link=True)
    else:
        files.write(target, to_safetensors(arrays, {KEY: text}), follow_link=True)


def load(path: object, mode: object = None, prefix: object = None, names: object = None) -> Network:
    """Read a network from a file, as `RNNWeights.load` describes.

    Raises ``ValueError`` naming the file if it is damaged or does not have the network that is
    asked for, ``OSError`` naming what is not a regular file, ``ImportError`` with the command that
    installs the package which reads it.
    """
    source = _path(path, tuple(_READERS))
    with files.open_regular(source) as file:
        with _damage_of(source):
            reader = _READERS[source.suffix](file)
        with closing(reader):
            return _read(source, reader, mode, prefix, names)


def _read(source: Path, reader: Reader, mode: object, prefix: object, names: object) -> Network:
    with _damage_of(source):
        text = reader.text(KEY)
    try:
        spec = None if text is None else _spec(text, mode)
        found_mode = mode if spec is None else spec.mode

        def network(arrays: Mapping[str, NDArray]) -> Network:
            return _network(arrays, found_mode, prefix, names, reader.description)

        stored = dict.fromkeys(name for name in reader.outlines if name != KEY)
        outlined = network(_Arrays(stored, reader.outlines.__getitem__, spec))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}: {error}") from error
    if spec not in (None, outlined.spec):
        raise ValueError(f"{source}: its arrays are those of {outlined.spec}; it says {spec}")
    with _damage_of(source):
        return network(_Arrays(stored, reader.array, spec))


class _Arrays(Mapping[str, NDArray]):
    """Arrays that are made when they are looked up."""

    def __init__(
        self, names: Collection[str], make: Callable[[str], NDArray], spec: RNNSpec | None
    ) -> None:
        self._names, self._make = names, make
        # An npz that `save` wrote has the bits of bfloat16.
        self._has_bits = spec is not None and spec.dtype == "bfloat16"

    def __getitem__(self, name: str) -> NDArray:
        array = self._make(name)
        if self._has_bits and array.dtype == np.uint16:
            return array.view(dtype_object("bfloat16"))
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


def _network(
    arrays: Mapping[str, NDArray],
    mode: object,
    prefix: object,
    names: object,
    description: Description,
) -> Network:
    """Return the network under names of PyTorch or Keras."""
    arrays = rename_arrays("", arrays, prefix, names)
    keras_layers = keras_names.find(arrays)
    prefixes = select_prefixes("", arrays, [*torch.find(arrays), *keras_layers], prefix)
    return stack_layers(
        [
            keras_names.read_layers(arrays, keras_layers[one], mode, None if names else description)
            if one in keras_layers
            else torch.read_layers("", arrays, one, mode)
            for one in prefixes
        ]
    )


@contextmanager
def _damage_of(source: Path) -> Iterator[None]:
    """Turn errors of reading a damaged file into a ``ValueError`` that names the file."""
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        # zipfile, zlib, json, NumPy, h5py and PyTorch have many kinds of errors for damaged files.
        reason = str(error)
        if not isinstance(error, ValueError):
            reason = f"{type(error).__name__}: {clipped(reason)}"
        raise ValueError(
            f"{source} is not a readable {source.suffix[1:]} file of plain arrays: {reason}"
        ) from error


def spec_of_entries(name: str, entries: object) -> RNNSpec:
    """Return the spec with the fields ``entries``, which a file says.

    Raises ``ValueError`` naming ``name`` for other fields, and ``TypeError`` or ``ValueError``
    naming the field that has a wrong value.
    """
    names = {field.name for field in fields(RNNSpec)}
    if not isinstance(entries, dict) or set(entries) != names:
        raise ValueError(
            f"{name} must have the entries {', '.join(sorted(names))}; got {brief(entries)}"
        )
    return RNNSpec(**entries)


def _spec(text: str, mode: object) -> RNNSpec:
    """Return the spec that a file says; ``ValueError`` if it has another mode than asked for."""
    try:
        entries = files.parse_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{KEY} is not JSON: {error}") from error
    spec = spec_of_entries(KEY, entries)
    if mode not in (None, spec.mode):
        raise ValueError(f"mode is {brief(mode)}; the file has weights of {spec.mode!r}")
    return spec


_OTHER_READERS = {
    ".onnx": ". RNNWeights.all_from_onnx reads ONNX models",
    ".jit": ". If you trust it, pass torch.jit.load(path).state_dict() to RNNWeights.from_torch",
}


def _path(path: object, suffixes: tuple[str, ...]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a str or a path; got {type(path).__name__}")
    found = Path(os.fsdecode(path))
    if found.suffix not in suffixes:
        *first, last = suffixes
        advice = "" if suffixes == _SAVED_SUFFIXES else _OTHER_READERS.get(found.suffix, "")
        raise ValueError(
            f"path must end in {', '.join(first)} or {last}; got {str(found)!r}{advice}"
        )
    return found
