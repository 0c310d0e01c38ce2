"""Arrays at raw addresses, for callers who allocate device memory without an array library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnnffi.device.dtypes import dtype_object
from dnnffi.device.external.array import DeviceArray, check_memory
from dnnffi.spec.checks import check_choice, check_integer, check_range

_KINDS = ("cuda", "rocm")


def array_at(
    address: int,
    shape: Sequence[int],
    dtype: str | np.dtype[Any],
    *,
    kind: str = "cuda",
    device: int = 0,
    owner: object = None,
) -> DeviceArray:
    """Return a contiguous array of ``shape`` and ``dtype`` at ``address``, without a copy.

    Nothing can check that the memory is there: the caller keeps it until all work that was queued
    on it is done.

    Parameters
    ----------
    address : the first byte in device memory, as ``cudaMalloc`` or ``cuMemAlloc`` returns it; 0
        only for an array without elements
    shape : sizes from 0
    dtype : its name, such as "float32", "float16", "bfloat16" or "uint8"; or NumPy's dtype
    kind : "cuda" or "rocm"
    device : number of the device whose memory it is
    owner : an object that keeps the memory, and that the array keeps; None if the caller keeps it

    Raises
    ------
    TypeError, ValueError
        The error names the argument, the value received and the value expected.

    Examples
    --------
    >>> import dnnffi.foreign
    >>> dnnffi.foreign.array_at(0x7F0000000000, (5, 2, 3), "float32").nbytes
    120
    """
    address = check_integer("address", address)
    sizes = tuple(check_integer("shape", size) for size in shape)
    try:
        found = dtype_object(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    except TypeError:
        raise TypeError(f"dtype must be the name of a dtype; got {dtype!r}") from None
    if found.hasobject or not found.isnative:
        raise TypeError(f"dtype must be of numbers in the byte order of this machine; got {dtype}")
    check_choice("kind", kind, _KINDS)
    device = check_range("device", device, 0)
    check_memory("the array", address, address, sizes, None, found)
    return DeviceArray(owner, kind, device, address, sizes, found)
