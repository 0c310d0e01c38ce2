"""A kernel for the weight gradient of a depthwise convolution, an alternative to the vendor's.

It is one more candidate if candidates are measured. On an H200 it was the fastest for the layers
of MobileNetV2 with a stride (`docs/convolution.md`).
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import NamedTuple

from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.backends.own.depthwise.axis import plane
from dnnffi.backends.own.depthwise.source import FOLDER
from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.source import DTYPES, Constant, KernelSource, kernel_source
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.conv_problem import BACKWARD_WEIGHTS, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST

_DTYPES = ("float32", "float64")
_THREADS = 128
_SHARED_BYTES = 48 * 1024
_BLOCKS_PER_MULTIPROCESSOR = 8
_MAX_POSITIONS = 2**30  # of one channel: the kernel counts them by ints, in steps far below this


class DepthwiseWeightsParams(NamedTuple):
    """Parameters of ``depthwise_weights`` (``weights.cu``)."""

    dy: int
    x: int
    sums: int
    batch: int
    channels: int
    for_each_input: int
    height: int
    width: int
    rows: int
    columns: int
    stride_h: int
    stride_w: int
    padding_h: int
    padding_w: int
    dilation_h: int
    dilation_w: int


class SumPartsParams(NamedTuple):
    """Parameters of ``sum_parts`` (``weights.cu``)."""

    sums: int
    dw: int
    num_elements: int
    parts: int


def weights_kernels(dtype: str, taps: tuple[int, int]) -> tuple[KernelSource, KernelSource]:
    """Return the kernels of ``weights.cu`` for a kernel of ``taps``, down and across."""
    constants: dict[str, Constant] = {
        "DTYPE": DTYPES[dtype],
        "HIGH": taps[0],
        "WIDE": taps[1],
        "THREADS": _THREADS,
    }
    source = kernel_source(FOLDER, "weights.cu", "depthwise_weights", constants)
    return source, source._replace(name="sum_parts")


class DepthwiseWeights:
    """The kernels for a problem that `has_kernel`.

    Results have the same bits in every run.
    ``workspace_bytes`` is what `run` needs.
    """

    def __init__(self, problem: ConvProblem, device: int, memory: MemoryWithGraphs) -> None:
        spec = problem.spec
        high, wide = plane(spec.kernel, 1)
        kernels = weights_kernels(spec.dtype, (high, wide))
        self._sum, self._sum_parts = (memory.kernel(*one) for one in kernels)
        n, channels, *output = problem.y_shape
        height, width = plane(problem.sizes, 1)
        rows, columns = plane(tuple(output), 1)
        stride_h, stride_w = plane(spec.stride, 1)
        padding_h, padding_w = plane(spec.padding_before, 0)
        dilation_h, dilation_w = plane(spec.dilation, 1)
        self._params = partial(
            DepthwiseWeightsParams,
            batch=n,
            channels=channels,
            for_each_input=channels // spec.groups,
            height=height,
            width=width,
            rows=rows,
            columns=columns,
            stride_h=stride_h,
            stride_w=stride_w,
            padding_h=padding_h,
            padding_w=padding_w,
            dilation_h=dilation_h,
            dilation_w=dilation_w,
        )
        self._channels = channels
        self._count = channels * high * wide
        wanted = _BLOCKS_PER_MULTIPROCESSOR * memory.architecture(device).multiprocessors
        useful_parts = -(-n * prod(output) // _THREADS)
        self._parts = max(1, min(-(-wanted // channels), useful_parts))
        limit, size = problem.options.workspace_limit, self._count * ITEM_SIZES[spec.dtype]
        if limit is not None and self._parts * size > limit:
            self._parts = 1
        self.workspace_bytes = self._parts * size if self._parts > 1 else 0

    def run(self, launch: Launch, at: ConvAddresses) -> None:
        """Enqueue the kernels."""
        parts, stream = self._parts, launch.stream
        sums = at.workspace if parts > 1 else at.result
        params = self._params(dy=at.first, x=at.second, sums=sums)
        self._sum((self._channels, parts), (_THREADS,), (struct_of(params),), stream=stream)
        if parts > 1:
            blocks = -(-self._count // _THREADS)
            of_parts = SumPartsParams(
                sums=sums, dw=at.result, num_elements=self._count, parts=parts
            )
            self._sum_parts((blocks,), (_THREADS,), (struct_of(of_parts),), stream=stream)

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def __str__(self) -> str:
        return f"a kernel of dnnffi's; workspace {self.workspace_bytes} bytes"


def has_kernel(problem: ConvProblem) -> bool:
    """Return whether `DepthwiseWeights` can run a problem."""
    spec = problem.spec
    taps = prod(spec.kernel)
    return (
        problem.operation == BACKWARD_WEIGHTS
        and problem.layout == CHANNELS_FIRST
        and not spec.transposed
        and spec.groups == spec.in_channels
        and spec.dtype in _DTYPES
        and len(spec.kernel) <= 2
        and taps * _THREADS * ITEM_SIZES[spec.dtype] <= _SHARED_BYTES
        and max(problem.batch * prod(problem.y_shape[2:]), prod(problem.sizes)) <= _MAX_POSITIONS
    )
