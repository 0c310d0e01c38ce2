"""The kernel that adds bias, residual and ReLU to a convolution computed without them."""

from __future__ import annotations

import struct
from math import prod

from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.backends.own.numbers import conversions
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.spec.conv_problem import ConvProblem

_THREADS = 256
_BLOCKS = 8  # for each multiprocessor

_SOURCE = """
#define THREADS {threads}

/* y = relu(y + alpha * residual + bias), of what there is. */
extern "C" __global__ void epilogue(
    STORED *y, const STORED *residual, const STORED *bias, long long alpha, long long relu,
    long long count, long long channels, long long inner)
{{
    union {{ long long bits; double value; }} factor;
    factor.bits = alpha;
    const REAL scale = (REAL)factor.value;
    const long long step = (long long)gridDim.x * THREADS;
    const int small = count <= 0x7fffffff; /* divisions of 64 bits are slow */
    for (long long at = (long long)blockIdx.x * THREADS + threadIdx.x; at < count; at += step) {{
        REAL value = real(y[at]);
        if (residual) value += scale * real(residual[at]);
        if (bias)
            value += real(bias[small ? (unsigned)at / (unsigned)inner % (unsigned)channels
                                     : at / inner % channels]);
        /* NaN stays. */
        y[at] = rounded(relu && value < 0 ? (REAL)0 : value);
    }}
}}
"""


def bits_of(number: float) -> int:
    """A float64 as the integer that a kernel takes for it."""
    (bits,) = struct.unpack("q", struct.pack("d", number))
    return int(bits)


class EpilogueKernel:
    """What follows the convolution of a forward, over a result that is there."""

    def __init__(self, problem: ConvProblem, device: int, memory: MemoryWithGraphs) -> None:
        source = conversions(problem.spec.dtype) + _SOURCE.format(threads=_THREADS)
        self._kernel = memory.kernel(source, "epilogue")
        _, channels, *sizes = problem.y_shape
        count = prod(problem.y_shape)
        most = _BLOCKS * memory.architecture(device).multiprocessors
        self._grid = (min(-(-count // _THREADS), most),)
        inner = 1 if problem.channels_last else prod(sizes)
        alpha = bits_of(problem.alpha)
        self._rest = alpha, int(problem.activation is not None), count, channels, inner

    def run(self, launch: Launch, at: ConvAddresses) -> None:
        """Enqueue it."""
        arguments = (at.result, at.residual, at.bias, *self._rest)
        self._kernel(self._grid, (_THREADS,), arguments, stream=launch.stream)
