"""Pack weights for the device, as [K/4][columns][4] with K padded by zeros, and unpack them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnffi.device.interface import NDArray


def vectors(length: int) -> int:
    """Return the number of vectors of four that hold ``length`` elements."""
    return -(-length // 4)


def pack_matrix(matrix: NDArray) -> NDArray:
    """Return [columns, K] as [K/4, columns, 4], of the same dtype in the machine's byte order."""
    columns, k = matrix.shape
    filled = np.zeros((columns, 4 * vectors(k)), matrix.dtype.newbyteorder("="))
    filled[:, :k] = matrix
    return np.ascontiguousarray(filled.reshape(columns, -1, 4).swapaxes(0, 1))


def unpack_matrix(data: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray:
    """Return the matrix [columns, K] from the bytes of a result of `pack_matrix`."""
    columns, k = shape
    packed = np.frombuffer(data, dtype).reshape(-1, columns, 4)
    return np.ascontiguousarray(packed.swapaxes(0, 1).reshape(columns, -1)[:, :k])


def pack_rows(array: NDArray) -> NDArray:
    """Return [..., K] in float32, as rows that are filled up to a multiple of four."""
    width = array.shape[-1]
    if width % 4 == 0:
        return np.ascontiguousarray(array, np.float32)
    filled = np.zeros((*array.shape[:-1], 4 * vectors(width)), np.float32)
    filled[..., :width] = array
    return filled
