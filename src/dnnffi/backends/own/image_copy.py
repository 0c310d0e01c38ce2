"""The kernel that copies an image into a larger one with zeros around it, or out of one."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.spec.checks import INT32_MAX, ITEM_SIZES
from dnnffi.spec.conv_padding import PaddedImage

WORKSPACE_ALIGNMENT = 256
"""Alignment of the padded image in bytes, counted from the start of the workspace."""

_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 8
_TYPES = {2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}

_SOURCE = """
#define THREADS {threads}
typedef {type} Element;
typedef {index} Index; /* divisions of 64 bits are slow */

/* target [outer, t0, t1, t2, inner] is source [outer, s0, s1, s2, inner] from position (o0, o1, o2)
   on, and 0 outside of source. Offsets are negative to crop; count has the elements of target. */
extern "C" __global__ void copy_image(
    const Element *source, Element *target, long long count, long long inner,
    long long t0, long long t1, long long t2, long long s0, long long s1, long long s2,
    long long o0, long long o1, long long o2)
{{
    const long long step = (long long)gridDim.x * THREADS;
    for (long long at = (long long)blockIdx.x * THREADS + threadIdx.x; at < count; at += step) {{
        Index rest = (Index)at;
        const long long element = rest % (Index)inner;
        rest /= (Index)inner;
        const long long p2 = (long long)(rest % (Index)t2) - o2;
        rest /= (Index)t2;
        const long long p1 = (long long)(rest % (Index)t1) - o1;
        rest /= (Index)t1;
        const long long p0 = (long long)(rest % (Index)t0) - o0;
        const long long outer = rest / (Index)t0;
        const int inside = p0 >= 0 && p0 < s0 && p1 >= 0 && p1 < s1 && p2 >= 0 && p2 < s2;
        target[at] = inside
            ? source[(((outer * s0 + p0) * s1 + p1) * s2 + p2) * inner + element]
            : (Element)0;
    }}
}}
"""


class ImageCopy:
    """Copies between the image of a problem and the padded image, which is in the workspace.

    The workspace of the convolution is at the start of the workspace, ``convolution_bytes`` long;
    the padded image follows. ``workspace_bytes`` is the sum.
    """

    def __init__(
        self, image: PaddedImage, device: int, memory: MemoryWithGraphs, convolution_bytes: int
    ) -> None:
        problem = image.problem
        itemsize = ITEM_SIZES[problem.spec.dtype]
        self._operand = image.operand
        self._start = -(-convolution_bytes // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
        self.workspace_bytes = self._start + padded_bytes(image)
        self._is_result = image.operand == "result"
        batch, channels, *sizes = image.shape
        inner = channels if problem.channels_last else 1
        missing = 3 - len(sizes)
        small = (1,) * missing + tuple(sizes)
        large = (1,) * missing + image.padded_shape[2:]
        offset = (0,) * missing + image.offset
        source, target = (large, small) if self._is_result else (small, large)
        if self._is_result:
            offset = tuple(-one for one in offset)
        count = batch * channels * prod(target)
        self._kernel = memory.kernel(
            _source(itemsize, batch * channels * prod(large) <= INT32_MAX), "copy_image"
        )
        most = _BLOCKS_PER_MULTIPROCESSOR * memory.architecture(device).multiprocessors
        self._grid = (min(-(-count // _THREADS), most),)
        self._rest = count, inner, *target, *source, *offset

    def before(self, launch: Launch, at: ConvAddresses) -> ConvAddresses:
        """Enqueue the copy of an image that is read; return the addresses of the convolution."""
        padded = at.workspace + self._start
        if not self._is_result:
            self._copy(launch, getattr(at, self._operand), padded)
        return at._replace(**{self._operand: padded})

    def after(self, launch: Launch, at: ConvAddresses) -> None:
        """Enqueue the copy of an image that was written."""
        if self._is_result:
            self._copy(launch, at.workspace + self._start, at.result)

    def _copy(self, launch: Launch, source: int, target: int) -> None:
        arguments = (source, target, *self._rest)
        self._kernel(self._grid, (_THREADS,), arguments, stream=launch.stream)


def padded_bytes(image: PaddedImage) -> int:
    """Return the bytes of the padded image."""
    return prod(image.padded_shape) * ITEM_SIZES[image.problem.spec.dtype]


@lru_cache
def _source(itemsize: int, is_small: bool) -> str:
    index = "unsigned int" if is_small else "unsigned long long"
    return _SOURCE.format(threads=_THREADS, type=_TYPES[itemsize], index=index)
