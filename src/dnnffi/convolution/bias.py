"""Sum the gradient of a bias on CuPy arrays on CUDA, by own kernels that are kept."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dnnffi.backends.own.bias import BiasGradient, can_sum
from dnnffi.device.arrays import aligned, in_layout
from dnnffi.device.cupy import cupy_memory
from dnnffi.device.graphs import refuse_in_capture
from dnnffi.device.interface import AnyArray, Launch
from dnnffi.reference import conv as reference
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST, is_packed, memory_layout


def backward_bias(dy: AnyArray) -> AnyArray:
    """The sum [K] of dy [N, K, ...] over all but its channels."""
    memory = cupy_memory()
    device = dy.data.device_id
    if memory.current_device() != device:
        with memory.use(device):
            return backward_bias(dy)
    dy = aligned("dy", dy)
    if not can_sum(dy.shape):
        return reference.backward_bias(dy)
    gradient = _gradient(dy.shape, dy.strides, dy.dtype, device)
    if gradient is None:
        layout = memory_layout(dy.shape, dy.strides)
        return backward_bias(in_layout(dy, channels_last=layout == CHANNELS_LAST))
    stream = memory.current_stream()
    refuse_in_capture(stream.ptr)  # before anything is allocated there
    db = memory.empty((dy.shape[1],), dy.dtype)
    workspace = memory.empty((gradient.workspace_bytes,), "b")
    launch = Launch(stream, device)
    gradient.run(launch, dy.data.ptr, db.data.ptr, workspace.data.ptr)
    return db


@lru_cache(maxsize=1024)
def _gradient(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: int
) -> BiasGradient | None:
    """The kernels for an array, or None if there are gaps in it."""
    for layout in (CHANNELS_FIRST, CHANNELS_LAST):
        if is_packed(shape, strides, layout == CHANNELS_LAST, dtype.itemsize):
            return BiasGradient(shape, layout, dtype.name, device, cupy_memory())
    return None
