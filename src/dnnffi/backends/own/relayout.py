"""Copy of an array with any strides into one without gaps, for arrays without an array library."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from dnnffi.backends.own.source import BIT_TYPES, FOLDER, Constant, KernelSource, kernel_source
from dnnffi.device.interface import Array, Launch, MemoryWithGraphs

MAX_DIMENSIONS = 5
_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 8


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
    arguments = (source.data.ptr, target.data.ptr, count, *sizes[1:], *steps)
    kernel((blocks,), (_THREADS,), arguments, stream=launch.stream)


@lru_cache
def relayout_kernel(itemsize: int) -> KernelSource:
    """Return the kernel for elements of ``itemsize`` bytes."""
    constants: dict[str, Constant] = {"Bits": BIT_TYPES[itemsize], "THREADS": _THREADS}
    return kernel_source(FOLDER, "relayout.cu", "relayout", constants)
