"""Forward and backward data of a depthwise convolution: a kernel for each layout.

All that a layer fixes is a constant of the source. The number and size of the images are constants
of a **specialized** kernel, which is compiled for one problem, and parameters of a **general** one,
which serves all sizes of the layer. What follows the convolution of a forward pass is in the
kernel.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from struct import pack
from typing import NamedTuple

from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.backends.own.depthwise.axis import axes_of
from dnnffi.backends.own.depthwise.pixels import Pixels
from dnnffi.backends.own.depthwise.planes import ENOUGH_BYTES, SHARED_BYTES, Planes
from dnnffi.backends.own.depthwise.source import FOLDER
from dnnffi.backends.own.depthwise.tile import Tile
from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.source import DTYPES, Constant, KernelSource, kernel_source
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.conv_problem import BACKWARD_WEIGHTS, ConvProblem

_DTYPES = ("float32", "float16", "bfloat16")
_MAX_TAPS = 49
_MAX_SPAN = 14  # from the first tap to the last: what lies between is in registers too
_MAX_STRIDE = 4
_MAX_TILE = 8  # outputs of a thread in a dimension; for backward data, times the stride
_MAX_PLANES = 256  # of a block; a power of two
_MAX_BANDS = 2**16 - 1  # blocks of a grid in the second dimension
_MAX_ELEMENTS = 2**30  # of an image; also positions and planes of a batch: counted by ints


class DepthwiseParams(NamedTuple):
    """Parameters of ``depthwise`` (``params.cuh``), which those of a general kernel begin with."""

    x: int
    w: int
    bias: int
    residual: int
    y: int
    alpha: float


class DepthwiseGather:
    """The kernel for a problem that `has_kernel`, with one tile.

    Results have the same bits in every run.
    ``workspace_bytes`` is what `run` needs. Without ``specialized`` the kernel is a general one.
    """

    workspace_bytes = 0

    def __init__(
        self,
        problem: ConvProblem,
        memory: MemoryWithGraphs,
        tile: Tile | None = None,
        *,
        specialized: bool = True,
    ) -> None:
        self.tile = tiles(problem)[0] if tile is None else tile
        self.specialized = specialized
        made = _made(problem, self.tile, specialized=specialized)
        self._kernel = memory.kernel(*_source(problem, made, specialized=specialized))
        self._grid, self._threads = made.grid, (made.threads,)
        self._alpha = float(problem.alpha)
        self._sizes = b"" if specialized else pack_sizes(made.sizes)

    def run(self, launch: Launch, at: ConvAddresses) -> None:
        """Enqueue the kernel."""
        params = DepthwiseParams(
            x=at.first,
            w=at.second,
            bias=at.bias,
            residual=at.residual,
            y=at.result,
            alpha=self._alpha,
        )
        arguments = (struct_of(params) + self._sizes,)
        self._kernel(self._grid, self._threads, arguments, stream=launch.stream)

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def __str__(self) -> str:
        down, across, many = self.tile
        sizes = "" if self.specialized else " for all sizes of the layer"
        tiles = f"tiles of {down} by {across}, {many} together"
        return f"a kernel of dnnffi's{sizes}, {tiles}; no workspace"


def pack_sizes(sizes: dict[str, int]) -> bytes:
    """Return what follows `DepthwiseParams` in the struct of a general kernel, 8 bytes each."""
    return pack(f"<{len(sizes)}q", *sizes.values())


def gather_kernel(problem: ConvProblem, tile: Tile, *, specialized: bool) -> KernelSource:
    """Return the kernel for a problem, or without ``specialized`` for its layer."""
    made = _made(problem, tile, specialized=specialized)
    return _source(problem, made, specialized=specialized)


def _source(problem: ConvProblem, made: Planes | Pixels, *, specialized: bool) -> KernelSource:
    constants: dict[str, Constant] = {
        "DTYPE": DTYPES[problem.spec.dtype],
        "BIAS": problem.bias,
        "RESIDUAL": problem.residual,
        "RELU": problem.activation is not None,
        **made.constants,
    }
    if specialized:
        constants |= made.sizes
    return kernel_source(FOLDER, made.file, "depthwise", constants)


def _made(problem: ConvProblem, tile: Tile, *, specialized: bool = True) -> Planes | Pixels:
    channels, item = problem.spec.in_channels, ITEM_SIZES[problem.spec.dtype]
    y, x = axes_of(problem)
    if problem.channels_last:
        return Pixels(y, x, problem.batch, channels, item, tile, specialized=specialized)
    count = problem.batch * channels
    return Planes(y, x, count, channels, item, tile, specialized=specialized)


@lru_cache(maxsize=256)
def tiles(problem: ConvProblem) -> tuple[Tile, ...]:
    """Return the tiles worth measuring for a problem that `has_kernel`, the likely best first."""
    channels, item = problem.spec.in_channels, ITEM_SIZES[problem.spec.dtype]
    y, x = axes_of(problem)
    if problem.channels_last:
        return tuple(Pixels.tiles(y, x, problem.batch, channels, item))
    return tuple(Planes.tiles(y, x, problem.batch * channels, channels, item))


def tile_for(problem: ConvProblem, tile: Tile) -> Tile | None:
    """Return a tile for a problem that `has_kernel`, given the one of another size of its layer.

    It is ``tile``, or the nearest of `tiles` if ``tile`` needs too much shared memory or too many
    bands of rows. None if ``tile`` cannot be one of the layer.
    """
    axes = axes_of(problem)
    most = tuple(_MAX_TILE if axis.forward else _MAX_TILE * axis.stride for axis in axes)
    channels = problem.spec.in_channels
    whole = channels if problem.channels_last else _MAX_PLANES
    if not (
        1 <= tile.down <= most[0]
        and 1 <= tile.across <= most[1]
        and 1 <= tile.many <= _MAX_PLANES
        and whole % tile.many == 0
        and all(axis.fits(size) for axis, size in zip(axes, tile, strict=False))
    ):
        return None
    offered = tiles(problem)
    # A block of one plane takes bands of its rows; several planes are taken whole.
    one_plane = problem.channels_last or tile.many == 1
    limit = SHARED_BYTES if one_plane else ENOUGH_BYTES
    if tile in offered or _can_launch(_made(problem, tile), limit):
        return tile
    return min(offered, key=lambda one: [abs(a - b) for a, b in zip(one, tile, strict=True)])


@lru_cache(maxsize=256)
def has_kernel(problem: ConvProblem) -> bool:
    """Return whether `DepthwiseGather` can run a problem."""
    spec = problem.spec
    if not (
        problem.operation != BACKWARD_WEIGHTS
        and spec.groups == spec.in_channels == spec.out_channels
        and spec.dtype in _DTYPES
        and len(spec.kernel) <= 2
        and prod(spec.kernel) <= _MAX_TAPS
        and max(spec.stride) <= _MAX_STRIDE
        and all(axis.padding <= axis.span <= _MAX_SPAN for axis in axes_of(problem))
        and all(after < span for after, span in zip(spec.padding_after, spec.span, strict=True))
    ):
        return False
    for shape in (problem.x_shape, problem.y_shape):
        batch, channels, *sizes = shape
        if max(channels * prod(sizes), batch * max(channels, prod(sizes))) > _MAX_ELEMENTS:
            return False
    return all(_can_launch(_made(problem, tile), SHARED_BYTES) for tile in tiles(problem))


def _can_launch(made: Planes | Pixels, max_shared_bytes: int) -> bool:
    """Return whether a kernel's blocks have the shared memory, and its grid the bands."""
    return made.shared_bytes <= max_shared_bytes and made.grid[1] <= _MAX_BANDS
