"""Memory layouts of arrays: strides, in elements unless stated otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import get_args

from dnnffi.spec.names import MemoryLayout

CHANNELS_FIRST: MemoryLayout = "channels_first"
CHANNELS_LAST: MemoryLayout = "channels_last"
LAYOUTS: tuple[MemoryLayout, ...] = get_args(MemoryLayout)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a C-contiguous array."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


@lru_cache(maxsize=4096)  # asked several times for each problem
def packed_strides(shape: tuple[int, ...], channels_last: bool) -> tuple[int, ...]:
    """Strides of an array [N, C, ...] without gaps; a vector has but one."""
    if not channels_last or len(shape) < 2:
        return contiguous_strides(shape)
    n, c, *spatial = shape
    n_stride, *spatial_strides, c_stride = contiguous_strides((n, *spatial, c))
    return (n_stride, c_stride, *spatial_strides)


def is_packed(
    shape: tuple[int, ...], strides: tuple[int, ...], channels_last: bool, itemsize: int = 1
) -> bool:
    """Whether there are no gaps. Strides of dimensions of size 1 do not matter.

    ``strides`` are in elements, or in bytes where ``itemsize`` is the bytes of an element.
    """
    packed = packed_strides(shape, channels_last)
    if itemsize == 1 and strides == packed:
        return True
    return all(
        size == 1 or stride == wanted * itemsize
        for size, stride, wanted in zip(shape, strides, packed, strict=True)
    )


def memory_layout(shape: Sequence[int], strides: Sequence[int]) -> MemoryLayout | None:
    """Return the memory layout of an array [N, C, ...] by its strides, in any unit.

    None if it counts as either: one channel, or one element for each channel.
    """
    pairs = zip(shape[2:], strides[2:], strict=True)
    spatial = [abs(stride) for size, stride in pairs if size > 1]
    if shape[1] == 1 or not spatial:
        return None
    return CHANNELS_LAST if abs(strides[1]) < min(spatial) else CHANNELS_FIRST
