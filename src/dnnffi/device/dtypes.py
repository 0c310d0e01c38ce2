"""Element types of NumPy and ml_dtypes, and device types of DLPack."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dnnffi.importing import import_lock

# DLPack device types (dlpack.h): kDLCPU, pinned memory (kDLCUDAHost, kDLROCMHost), kDLCUDA and
# kDLCUDAManaged, kDLROCM
DLPACK_CPU = 1
DLPACK_HOST = (DLPACK_CPU, 3, 11)
DLPACK_CUDA = (2, 13)
DLPACK_ROCM = 10


@cache
def dtype_object(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype called ``name``; bfloat16 comes from the package ml_dtypes."""
    if name == "bfloat16":
        try:
            with import_lock:
                import ml_dtypes
        except ImportError as error:
            raise ImportError(
                "bfloat16 needs the package ml_dtypes. Install: pip install ml_dtypes"
            ) from error
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the reference's type of arithmetic: float32 for types of 16 bits, else the dtype."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype
