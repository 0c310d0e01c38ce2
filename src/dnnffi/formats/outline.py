"""Arrays in files: their shapes and dtypes before their data, and descriptions of layers."""

from __future__ import annotations

from typing import IO, Any, NamedTuple

import numpy as np

from dnnffi.device.interface import NDArray

_CHUNK_BYTES = 2**20
"""Upper bound on the bytes that are read, and copied, at once."""


class Description(NamedTuple):
    """Settings of Keras's layers, as far as a file has them."""

    layers: dict[str, Any]
    """Configs of layers, by their names, and by their paths in Keras's newer format."""
    version: tuple[int, ...] | None
    """Version of Keras; None if the file does not say it."""


UNDESCRIBED = Description({}, None)
"""The description in a file of another format."""


def outline(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray:
    """Return an array of this shape and dtype that takes no memory: all elements are one.

    Weights are checked in outline before they are read. ``ValueError`` if NumPy has no array of
    this size.
    """
    return np.broadcast_to(np.zeros((), dtype), shape)


def read_bytes(file: IO[bytes], count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Read ``count`` bytes into an array; ``ValueError`` if the file ends before."""
    found = np.empty(count, np.uint8)
    done = 0
    while done < count:
        chunk = file.read(min(_CHUNK_BYTES, count - done))
        if not chunk:
            raise ValueError(f"it ends {count - done:,} bytes too early")
        found[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
        done += len(chunk)
    return found
