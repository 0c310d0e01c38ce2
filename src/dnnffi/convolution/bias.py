"""Sum the gradient of a bias on CuPy arrays on CUDA, by kernels that are kept."""

from __future__ import annotations

from dnnffi.backends.own.bias import bias_gradient, can_sum
from dnnffi.device.arrays import aligned
from dnnffi.device.cupy import cupy_memory
from dnnffi.device.interface import AnyArray
from dnnffi.reference import conv as reference


def backward_bias(dy: AnyArray) -> AnyArray:
    """Return the sum [K] of dy [N, K, ...] over all but its channels."""
    memory = cupy_memory()
    device = dy.data.device_id
    if memory.current_device() != device:
        with memory.use(device):
            return backward_bias(dy)
    dy = aligned("dy", dy)
    if not can_sum(dy.shape):
        return reference.backward_bias(dy)
    return bias_gradient(dy, device, memory)
