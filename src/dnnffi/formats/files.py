"""Weights on disk: npz and safetensors, with PyTorch's names and the spec as metadata."""

from __future__ import annotations

import io
import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import NDArray
from dnnffi.formats import torch
from dnnffi.formats.network import Network
from dnnffi.spec.rnn import RNNSpec

KEY = "dnnffi.RNNSpec"
"""The name of the spec, as JSON: in the metadata of safetensors, an entry of an npz."""

# What safetensors calls the dtypes.
_SAFETENSORS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


def save(path: object, spec: RNNSpec, arrays: Mapping[str, NDArray]) -> None:
    """Write arrays on the host under PyTorch's names, in the format that the suffix names.

    The file is there whole or not at all. A file that is replaced leaves its permissions to the new
    one; of a link, the file that it names is replaced.
    """
    target, suffix = _path(path)
    target = target.resolve()
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    text = json.dumps(
        {field.name: getattr(spec, field.name) for field in fields(spec) if field.init}
    )
    data = _to_npz(text, arrays) if suffix == ".npz" else _to_safetensors(text, arrays)
    written = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        # Nobody may read it who may not read what was there.
        made = os.open(
            written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode
        )
        with open(made, "wb") as file:
            file.write(data)
        if mode is not None:
            written.chmod(mode)
        written.replace(target)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def load(path: object) -> Network:
    """The network in a file that `save` wrote; ``ValueError`` naming any other file."""
    source, suffix = _path(path)
    data = source.read_bytes()
    safetensors = _safetensors() if suffix == ".safetensors" else None
    try:
        text, arrays = _from_npz(data) if safetensors is None else _from_safetensors(data)
    except ImportError:
        raise
    except Exception as error:
        # zipfile, zlib, NumPy and safetensors have a dozen kinds of errors for damaged files.
        raise ValueError(
            f"{source} is not a whole {suffix[1:]} file of plain arrays: {error}"
        ) from error
    if text is None:
        raise ValueError(
            f"{source} was not written by RNNWeights.save: it has no entry {KEY!r}. For weights "
            f"under PyTorch's names read it with its own library, and give what it returns to "
            f"RNNWeights.from_torch"
        )
    try:
        spec = _spec(text)
        found = torch.read(arrays, spec.mode)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}: {error}") from error
    if found.spec != spec:
        raise ValueError(f"{source}: its arrays are those of {found.spec}; it says {spec}")
    return found


def _spec(text: str) -> RNNSpec:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{KEY} is not JSON: {error}") from error
    names = {field.name for field in fields(RNNSpec) if field.init}
    if not isinstance(entries, dict) or set(entries) != names:
        raise ValueError(f"{KEY} must have the entries {', '.join(sorted(names))}; got {text}")
    return RNNSpec(**entries)


def _path(path: object) -> tuple[Path, str]:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a str or a path; got {type(path).__name__}")
    found = Path(os.fsdecode(path))
    if found.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"path must end in .npz or .safetensors; got {str(found)!r}")
    return found, found.suffix


def _to_npz(text: str, arrays: Mapping[str, NDArray]) -> bytes:
    # NumPy's files know no bfloat16: its bits, and the spec says what they are.
    plain = {
        name: array.view(np.uint16) if array.dtype.name == "bfloat16" else array
        for name, array in arrays.items()
    }
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **{KEY: np.array(text)}, **plain)
    return file.getvalue()


def _from_npz(data: bytes) -> tuple[str | None, dict[str, Any]]:
    if data[:2] != b"PK":
        raise ValueError("it is no zip archive")
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    if KEY not in arrays:
        return None, arrays
    text = str(arrays.pop(KEY))
    if '"bfloat16"' in text:
        bits = dtype_object("bfloat16")
        arrays = {
            name: array.view(bits) if array.dtype == np.uint16 else array
            for name, array in arrays.items()
        }
    return text, arrays


def _safetensors() -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "Files .safetensors need the package safetensors. Install: pip install "
            "'dnnffi[weights]'; .npz needs NumPy alone"
        ) from error
    return safetensors


def _to_safetensors(text: str, arrays: Mapping[str, NDArray]) -> bytes:
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    saved: bytes = _safetensors().numpy.save(contiguous, metadata={KEY: text})
    return saved


def _from_safetensors(data: bytes) -> tuple[str | None, dict[str, Any]]:
    arrays = {}
    for name, tensor in _safetensors().deserialize(data):
        if tensor["dtype"] not in _SAFETENSORS:
            raise ValueError(f"{name} has dtype {tensor['dtype']}")
        dtype = dtype_object(_SAFETENSORS[tensor["dtype"]])
        # A copy: the bytes are read-only, and need not be aligned to their elements.
        arrays[name] = np.frombuffer(bytearray(tensor["data"]), dtype).reshape(tensor["shape"])
    # The header was checked above: 8 bytes that say how long it is, then JSON.
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header.get("__metadata__", {}).get(KEY), arrays
