"""Weights on disk: npz and safetensors, with PyTorch's names and the spec as metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from reprlib import repr as brief

import numpy as np

from dnnffi import files
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import NDArray
from dnnffi.formats import torch
from dnnffi.formats.network import Network
from dnnffi.formats.npz import NpzReader, to_npz
from dnnffi.formats.safetensors import SafetensorsReader, to_safetensors
from dnnffi.spec.rnn import RNNSpec

KEY = "dnnffi.RNNSpec"
"""The name of the spec, as JSON: in the metadata of safetensors, an entry of an npz."""

_READERS: dict[str, type[NpzReader] | type[SafetensorsReader]] = {
    ".npz": NpzReader,
    ".safetensors": SafetensorsReader,
}


def save(path: object, spec: RNNSpec, arrays: Mapping[str, NDArray]) -> None:
    """Write arrays on the host under PyTorch's names, in the format that the suffix names.

    The file is written as a whole or not at all, as `dnnffi.files.write` describes. If ``path`` is
    a link, the file that it leads to is replaced.
    """
    target, suffix = _path(path)
    text = json.dumps(asdict(spec))
    if suffix == ".npz":
        # NumPy's files have no bfloat16: its bits are stored, and the spec has the dtype.
        bits = {
            name: array.view(np.uint16) if array.dtype.name == "bfloat16" else array
            for name, array in arrays.items()
        }
        files.write(target, to_npz({KEY: np.array(text)} | bits), follow_link=True)
    else:
        files.write(target, to_safetensors(arrays, {KEY: text}), follow_link=True)


def load(path: object) -> Network:
    """Read the network in a file that `save` wrote.

    The network is checked by the headers of its arrays before their data is read. Raises
    ``ValueError`` naming any other file, ``OSError`` naming what is not a regular file.
    """
    source, suffix = _path(path)
    with files.open_regular(source) as file:
        with _damage_of(source):
            reader = _READERS[suffix](file)
            text = reader.text(KEY)
        if text is None:
            raise ValueError(
                f"{source} was not written by RNNWeights.save: it has no entry {KEY!r}. For "
                f"weights under PyTorch's names read it with its own library, and give what it "
                f"returns to RNNWeights.from_torch"
            )
        try:
            spec = _spec(text)
            outlines = {
                name: _restored(outline, spec)
                for name, outline in reader.outlines.items()
                if name != KEY
            }
            outlined = torch.read(outlines, spec.mode)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{source}: {error}") from error
        if outlined.spec != spec:
            raise ValueError(f"{source}: its arrays are those of {outlined.spec}; it says {spec}")
        names = torch.write(spec, outlined.arrays)
        with _damage_of(source):
            return Network(spec, [_restored(reader.array(name), spec) for name in names])


@contextmanager
def _damage_of(source: Path) -> Iterator[None]:
    """Turn errors of reading a damaged file into a ``ValueError`` that names the file."""
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        # zipfile, zlib, json and NumPy have a dozen kinds of errors for damaged files.
        raise ValueError(
            f"{source} is not a whole {source.suffix[1:]} file of plain arrays: {error}"
        ) from error


def _restored(array: NDArray, spec: RNNSpec) -> NDArray:
    """Return an array of a file with the dtype of the spec: bfloat16 of its bits in an npz."""
    if spec.dtype == "bfloat16" and array.dtype == np.uint16:
        return array.view(dtype_object("bfloat16"))
    return array


def _spec(text: str) -> RNNSpec:
    try:
        entries = files.parse_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{KEY} is not JSON: {error}") from error
    names = {field.name for field in fields(RNNSpec)}
    if not isinstance(entries, dict) or set(entries) != names:
        raise ValueError(
            f"{KEY} must have the entries {', '.join(sorted(names))}; got {brief(entries)}"
        )
    return RNNSpec(**entries)


def _path(path: object) -> tuple[Path, str]:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a str or a path; got {type(path).__name__}")
    found = Path(os.fsdecode(path))
    if found.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"path must end in .npz or .safetensors; got {str(found)!r}")
    return found, found.suffix
