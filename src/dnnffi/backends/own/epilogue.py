"""The launch of ``epilogue.cu``: bias, residual and ReLU for a convolution without them."""

from __future__ import annotations

from functools import cache, partial
from math import prod
from typing import NamedTuple

from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.source import DTYPES, FOLDER, Constant, KernelSource, kernel_source
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.spec.conv_problem import ConvProblem

_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 8


class EpilogueParams(NamedTuple):
    """Parameters of ``epilogue`` (``epilogue.cu``)."""

    y: int
    residual: int
    bias: int
    alpha: float
    relu: int
    num_elements: int
    channels: int
    inner: int


@cache
def epilogue_kernel(dtype: str) -> KernelSource:
    """Return the kernel for arrays of a dtype."""
    constants: dict[str, Constant] = {"DTYPE": DTYPES[dtype], "THREADS": _THREADS}
    return kernel_source(FOLDER, "epilogue.cu", "epilogue", constants)


class EpilogueKernel:
    """The kernel that adds residual and bias to a convolution's result, and applies ReLU."""

    def __init__(self, problem: ConvProblem, device: int, memory: MemoryWithGraphs) -> None:
        self._kernel = memory.kernel(*epilogue_kernel(problem.spec.dtype))
        _, channels, *sizes = problem.y_shape
        count = prod(problem.y_shape)
        max_blocks = _BLOCKS_PER_MULTIPROCESSOR * memory.architecture(device).multiprocessors
        self._grid = (min(-(-count // _THREADS), max_blocks),)
        self._params = partial(
            EpilogueParams,
            alpha=float(problem.alpha),
            relu=int(problem.activation is not None),
            num_elements=count,
            channels=channels,
            inner=1 if problem.channels_last else prod(sizes),
        )

    def run(self, launch: Launch, at: ConvAddresses) -> None:
        """Enqueue the kernel on the result of a convolution."""
        params = self._params(y=at.result, residual=at.residual, bias=at.bias)
        self._kernel(self._grid, (_THREADS,), (struct_of(params),), stream=launch.stream)
