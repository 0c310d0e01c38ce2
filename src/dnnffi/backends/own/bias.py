"""Two kernels that sum the gradient of a convolution's bias, over all dimensions but the channels.

Array code reads dy slowly if the channels are last, and costs the host a launch for each of its
steps. These kernels are two launches, in both layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from math import prod
from typing import Any, NamedTuple, cast

from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.relayout import relayout
from dnnffi.backends.own.source import DTYPES, FOLDER, Constant, KernelSource, kernel_source
from dnnffi.device.arrays import in_layout, is_external
from dnnffi.device.graphs import refuse_in_capture
from dnnffi.device.interface import AnyArray, Launch, MemoryWithGraphs
from dnnffi.execution.workspaces import Workspaces
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.layouts import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    is_packed,
    memory_layout,
    packed_strides,
)

_THREADS = 256
_LANES = 32  # adjacent threads of a block, which read adjacent channels
_AT_ONCE = 8  # reads of a thread that overlap
_BLOCKS_PER_MULTIPROCESSOR = 8
_MAX_PARTS = 256
MAX_POSITIONS = 2**30
"""Positions of one channel. The kernels count by ints, in steps far below that."""


class SumsOfImagesParams(NamedTuple):
    """Parameters of ``sums_of_images`` (``bias_gradient.cu``)."""

    values: int
    sums: int
    batch: int
    channels: int
    size: int


class SumColumnsParams(NamedTuple):
    """Parameters of ``sums_of_rows`` and ``sums_of_parts`` (``bias_gradient.cu``)."""

    values: int
    sums: int
    rows: int
    columns: int


@cache
def bias_kernel(dtype: str, name: str) -> KernelSource:
    """Return a kernel of ``bias_gradient.cu`` for arrays of a dtype."""
    constants: dict[str, Constant] = {
        "DTYPE": DTYPES[dtype],
        "THREADS": _THREADS,
        "LANES": _LANES,
        "AT_ONCE": _AT_ONCE,
    }
    return kernel_source(FOLDER, "bias_gradient.cu", name, constants)


class BiasGradient:
    """The kernels that sum an array [N, K, ...] without gaps, for shapes that they `can_sum`.

    Results have the same bits in every run.
    ``workspace_bytes`` is what `run` needs.
    """

    def __init__(
        self, shape: tuple[int, ...], layout: str, dtype: str, device: int, memory: MemoryWithGraphs
    ) -> None:
        batch, channels, *sizes = shape
        size = prod(sizes)
        multiprocessors = memory.architecture(device).multiprocessors
        by_rows = layout == CHANNELS_LAST or size == 1
        columns = -(-channels // _LANES)
        tiles = columns if by_rows else channels
        readers = _THREADS // _LANES if by_rows else _THREADS
        useful_parts = -(-batch * size // (readers * _AT_ONCE))
        wanted_parts = -(-_BLOCKS_PER_MULTIPROCESSOR * multiprocessors // tiles)
        parts = max(1, min(wanted_parts, useful_parts, _MAX_PARTS))
        name = "sums_of_rows" if by_rows else "sums_of_images"
        self._sum = memory.kernel(*bias_kernel(dtype, name))
        self._sum_parts = memory.kernel(*bias_kernel(dtype, "sums_of_parts"))
        self._grid, self._parts_grid = (tiles, parts), (columns, 1)
        self._params: Callable[..., SumColumnsParams | SumsOfImagesParams]
        if by_rows:
            self._params = partial(SumColumnsParams, rows=batch * size, columns=channels)
        else:
            self._params = partial(SumsOfImagesParams, batch=batch, channels=channels, size=size)
        self._parts_params = partial(SumColumnsParams, rows=parts, columns=channels)
        self.workspace_bytes = parts * channels * max(4, ITEM_SIZES[dtype])

    def run(self, launch: Launch, dy: int, db: int, workspace: int) -> None:
        """Enqueue both launches; ``dy``, ``db`` and ``workspace`` are addresses."""
        stream = launch.stream
        params = self._params(values=dy, sums=workspace)
        self._sum(self._grid, (_THREADS,), (struct_of(params),), stream=stream)
        parts_params = self._parts_params(values=workspace, sums=db)
        self._sum_parts(self._parts_grid, (_THREADS,), (struct_of(parts_params),), stream=stream)


def can_sum(shape: tuple[int, ...]) -> bool:
    """Whether `BiasGradient` can sum an array [N, K, ...]."""
    batch, channels, *sizes = shape
    return channels > 0 and 0 < batch * prod(sizes) <= MAX_POSITIONS


def bias_gradient(
    dy: AnyArray, device: int, memory: MemoryWithGraphs, workspaces: Workspaces | None = None
) -> AnyArray:
    """Return the sum [K] of dy [N, K, ...] over all dimensions but the channels.

    `can_sum` holds for its shape. ``memory`` has dy, on ``device``, which is current; dy begins at
    a multiple of its elements' size. An array with gaps is copied. With ``workspaces`` the
    workspace is that of the stream, which saves an allocation.
    """
    gradient = _gradient(dy.shape, dy.strides, dy.dtype, device, cast("Any", memory))
    stream = memory.current_stream()
    launch = Launch(stream, device)
    if gradient is None:
        last = memory_layout(dy.shape, dy.strides) == CHANNELS_LAST
        if not is_external(dy.__class__):
            return bias_gradient(in_layout(dy, channels_last=last), device, memory, workspaces)
        strides = tuple(step * dy.dtype.itemsize for step in packed_strides(dy.shape, last))
        packed = memory.empty_strided(dy.shape, dy.dtype, strides, dy.nbytes)
        relayout(dy, packed, launch, memory)
        return bias_gradient(packed, device, memory, workspaces)
    refuse_in_capture(stream.ptr)  # before anything is allocated there
    db = memory.empty((dy.shape[1],), dy.dtype)
    nbytes = gradient.workspace_bytes
    if workspaces is None or (stream.ptr and memory.is_capturing(stream)):
        # A new workspace: the graph of a user's capture has to own it.
        workspace = memory.empty((nbytes,), memory.dtype("uint8"))
        gradient.run(launch, dy.data.ptr, db.data.ptr, workspace.data.ptr)
        return db
    workspace = workspaces.take(device, stream.ptr, nbytes)
    try:
        gradient.run(launch, dy.data.ptr, db.data.ptr, workspace.data.ptr)
    finally:
        workspaces.give_back(device, stream.ptr, workspace)
    return db


@lru_cache(maxsize=1024)
def _gradient(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: Any,
    device: int,
    memory: Any,
) -> BiasGradient | None:
    """Return the kernels for an array, or None if there are gaps in it."""
    for layout in (CHANNELS_FIRST, CHANNELS_LAST):
        if is_packed(shape, strides, layout == CHANNELS_LAST, dtype.itemsize):
            return BiasGradient(shape, layout, dtype.name, device, memory)
    return None
