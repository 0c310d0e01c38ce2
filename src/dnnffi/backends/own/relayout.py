"""Copy of an array with any strides into one without gaps, for arrays without an array library."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from dnnffi.device.interface import Array, Launch, MemoryWithGraphs

MAX_DIMENSIONS = 5
_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 8
_TYPES = {2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}

_SOURCE = """
#define THREADS {threads}

/* target[i] is the element of source at index i in the order of target's memory; size_n and step_n
   are of its dimensions, outermost first, steps in elements of source. */
extern "C" __global__ void relayout(
    const {type} *source, {type} *target, long long count,
    long long size_1, long long size_2, long long size_3, long long size_4,
    long long step_0, long long step_1, long long step_2, long long step_3, long long step_4)
{{
    const long long stride = (long long)gridDim.x * THREADS;
    for (long long at = (long long)blockIdx.x * THREADS + threadIdx.x; at < count; at += stride) {{
        long long rest = at, from = 0;
        from += rest % size_4 * step_4;
        rest /= size_4;
        from += rest % size_3 * step_3;
        rest /= size_3;
        from += rest % size_2 * step_2;
        rest /= size_2;
        from += rest % size_1 * step_1;
        target[at] = source[from + rest / size_1 * step_0];
    }}
}}
"""


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
    kernel = memory.kernel(_source(itemsize), "relayout")
    blocks = min(-(-count // _THREADS), most)
    arguments = (source.data.ptr, target.data.ptr, count, *sizes[1:], *steps)
    kernel((blocks,), (_THREADS,), arguments, stream=launch.stream)


@lru_cache
def _source(itemsize: int) -> str:
    return _SOURCE.format(threads=_THREADS, type=_TYPES[itemsize])
