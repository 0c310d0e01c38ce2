"""The kernel that copies an image into a larger one with zeros around it, or out of one."""

from __future__ import annotations

from functools import lru_cache, partial
from math import prod
from typing import NamedTuple

from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.source import BIT_TYPES, FOLDER, Constant, KernelSource, kernel_source
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.spec.checks import INT32_MAX, ITEM_SIZES
from dnnffi.spec.conv_padding import PaddedImage

WORKSPACE_ALIGNMENT = 256
"""Alignment of the padded image in bytes, counted from the start of the workspace."""

_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 8


class CopyImageParams(NamedTuple):
    """Parameters of ``copy_image`` (``copy_image.cu``)."""

    source: int
    target: int
    num_elements: int
    inner: int
    t0: int
    t1: int
    t2: int
    s0: int
    s1: int
    s2: int
    o0: int
    o1: int
    o2: int


class ImageCopyByKernel:
    """Copies between the image of a problem and the padded image, which is in the workspace.

    The workspace of the convolution is at the start of the workspace, ``convolution_bytes`` long;
    the padded image follows. ``workspace_bytes`` is the sum.
    """

    def __init__(
        self, image: PaddedImage, device: int, memory: MemoryWithGraphs, convolution_bytes: int
    ) -> None:
        problem = image.problem
        itemsize = ITEM_SIZES[problem.spec.dtype]
        self._image = image
        self._start = -(-convolution_bytes // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
        self.workspace_bytes = self._start + image.padded_bytes
        batch, channels, *sizes = image.shape
        inner = channels if problem.channels_last else 1
        missing = 3 - len(sizes)
        small = (1,) * missing + tuple(sizes)
        large = (1,) * missing + image.padded_shape[2:]
        offset = (0,) * missing + image.offset
        source, target = (large, small) if image.is_result else (small, large)
        if image.is_result:
            offset = tuple(-one for one in offset)
        count = batch * channels * prod(target)
        is_small = batch * channels * prod(large) <= INT32_MAX
        self._kernel = memory.kernel(*copy_kernel(itemsize, is_small=is_small))
        most = _BLOCKS_PER_MULTIPROCESSOR * memory.architecture(device).multiprocessors
        self._grid = (min(-(-count // _THREADS), most),)
        numbers = count, inner, *target, *source, *offset
        named = zip(CopyImageParams._fields[2:], numbers, strict=True)
        self._params = partial(CopyImageParams, **dict(named))

    def before(self, launch: Launch, at: ConvAddresses) -> ConvAddresses:
        """Enqueue the copy of an image that is read; return the addresses of the convolution."""
        padded = at.workspace + self._start
        if not self._image.is_result:
            self._copy(launch, getattr(at, self._image.operand), padded)
        return at._replace(**{self._image.operand: padded})

    def after(self, launch: Launch, at: ConvAddresses) -> None:
        """Enqueue the copy of an image that was written."""
        if self._image.is_result:
            self._copy(launch, at.workspace + self._start, at.result)

    def _copy(self, launch: Launch, source: int, target: int) -> None:
        params = self._params(source=source, target=target)
        self._kernel(self._grid, (_THREADS,), (struct_of(params),), stream=launch.stream)


@lru_cache
def copy_kernel(itemsize: int, *, is_small: bool) -> KernelSource:
    """Return the kernel for elements of ``itemsize`` bytes; ``is_small``: indices of 32 bits."""
    constants: dict[str, Constant] = {
        "Bits": BIT_TYPES[itemsize],
        "Index": BIT_TYPES[4 if is_small else 8],
        "THREADS": _THREADS,
    }
    return kernel_source(FOLDER, "copy_image.cu", "copy_image", constants)
