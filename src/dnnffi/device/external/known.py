"""Arrays of PyTorch and CuPy as device arrays, read from their attributes.

A DLPack capsule takes about ten times as long, which an allocator that returns tensors would pay
for each result. Nothing here imports PyTorch or CuPy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dnnffi.device.dtypes import dtype_object

_DTYPE_NAMES = ("float16", "bfloat16", "float32", "float64", "uint8")

KnownArray = tuple[str, int, int, tuple[int, ...], np.dtype[Any]]
"""The memory of a contiguous array: kind, device, address, shape and dtype."""


def is_tensor(value: Any) -> bool:
    """Return whether ``value`` is a tensor of PyTorch itself, not of a subclass."""
    return _reader(value.__class__) is _read_tensor


def read_known(value: Any, stream: int) -> KnownArray | None:
    """Return the memory of a contiguous array of PyTorch or CuPy on a GPU; None for others.

    None also if the current stream of its library is not ``stream``: then DLPack orders the two.
    And None for a tensor that is more than its memory tells: one that requires a gradient or
    carries a tangent, that is negated lazily, or that is traced.
    """
    read = _reader(value.__class__)
    return None if read is None else read(value, stream)


@cache
def _reader(array_class: type) -> Callable[[Any, int], KnownArray | None] | None:
    """Return what reads arrays of a class; None if it is not the one of a known library."""
    for library, name, read in (("torch", "Tensor", _read_tensor), ("cupy", "ndarray", _read_cupy)):
        # An array of a module that was never imported cannot have been passed.
        if array_class is getattr(sys.modules.get(library), name, None):
            return read
    return None


def _read_cupy(array: Any, stream: int) -> KnownArray | None:
    if not (array._c_contiguous and array.size):
        return None
    cuda = sys.modules["cupy"].cuda
    if cuda.get_current_stream().ptr != stream:
        return None
    kind = "rocm" if cuda.runtime.is_hip else "cuda"
    return kind, array.data.device_id, array.data.ptr, array.shape, array.dtype


def _read_tensor(tensor: Any, stream: int) -> KnownArray | None:
    if not tensor.is_cuda:
        return None
    found = _pytorch()
    if (
        tensor.layout is not found.strided
        or tensor.requires_grad
        or tensor.is_neg()
        or not tensor.is_contiguous()
        or found.is_tracing()
        or found.forward_ad._current_level >= 0
    ):
        return None
    device = tensor.get_device()
    name = found.dtype_names.get(tensor.dtype)
    if name is None or found.current_stream(device) != stream:
        return None
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a tensor of torch.func, which has no memory of its own
        return None
    if not address:
        return None
    return found.kind, device, address, tuple(tensor.shape), dtype_object(name)


class _PyTorch(NamedTuple):
    """Attributes of PyTorch that every tensor is read with."""

    kind: str
    strided: object
    current_stream: Callable[[int], int]
    is_tracing: Callable[[], bool]
    forward_ad: Any
    dtype_names: dict[Any, str]


@cache
def _pytorch() -> _PyTorch:
    torch = sys.modules["torch"]
    return _PyTorch(
        "rocm" if torch.version.hip else "cuda",
        torch.strided,
        torch._C._cuda_getCurrentRawStream,
        torch._C._is_tracing,
        torch.autograd.forward_ad,
        {getattr(torch, name): name for name in _DTYPE_NAMES},
    )
