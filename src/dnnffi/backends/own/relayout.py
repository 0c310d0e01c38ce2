"""Copy of an array with any strides into one without gaps, for arrays without an array library."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.source import BIT_TYPES, FOLDER, Constant, KernelSource, kernel_source
from dnnffi.device.interface import Array, Launch, MemoryWithGraphs

MAX_DIMENSIONS = 5
_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 8


class RelayoutParams(NamedTuple):
    """Parameters of ``relayout`` (``relayout.cu``)."""

    source: int
    target: int
    num_elements: int
    size_1: int
    size_2: int
    size_3: int
    size_4: int
    step_0: int
    step_1: int
    step_2: int
    step_3: int
    step_4: int


def relayout(source: Array, target: Array, launch: Launch, memory: MemoryWithGraphs) -> None:
    """Enqueue a copy of ``source`` over ``target``, which has its shape and dtype and no gaps.

    Both have at most `MAX_DIMENSIONS` dimensions and begin at a multiple of their elements' size;
    strides of ``source`` are from 0.
    """
    itemsize = source.dtype.itemsize
    of_memory = sorted(range(target.ndim), key=lambda d: (-target.strides[d], target.shape[d] == 1))
    missing = MAX_DIMENSIONS - target.ndim
    sizes = (1,) * missing + tuple(target.shape[d] for d in of_memory)
    steps = (0,) * missing + tuple(source.strides[d] // itemsize for d in of_memory)
    count = prod(sizes)
    most = _BLOCKS_PER_MULTIPROCESSOR * memory.architecture(launch.device).multiprocessors
    kernel = memory.kernel(*relayout_kernel(itemsize))
    blocks = min(-(-count // _THREADS), most)
    params = RelayoutParams(
        source=source.data.ptr,
        target=target.data.ptr,
        num_elements=count,
        size_1=sizes[1],
        size_2=sizes[2],
        size_3=sizes[3],
        size_4=sizes[4],
        step_0=steps[0],
        step_1=steps[1],
        step_2=steps[2],
        step_3=steps[3],
        step_4=steps[4],
    )
    kernel((blocks,), (_THREADS,), (struct_of(params),), stream=launch.stream)


@lru_cache
def relayout_kernel(itemsize: int) -> KernelSource:
    """Return the kernel for elements of ``itemsize`` bytes."""
    constants: dict[str, Constant] = {"Bits": BIT_TYPES[itemsize], "THREADS": _THREADS}
    return kernel_source(FOLDER, "relayout.cu", "relayout", constants)
