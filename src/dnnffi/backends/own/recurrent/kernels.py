"""Assemble and compile a kernel: the constants of its geometry, then the source files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from dnnffi.backends.own.recurrent.geometry import DTYPES, WORD_BYTES, Geometry
from dnnffi.device.interface import Kernel, Launch, MemoryWithGraphs
from dnnffi.errors import UnsupportedError
from dnnffi.importing import import_lock

_FIRST = "numbers", "cells", "geometry", "exchange", "cluster", "ring", "tasks"
_BY_TENSOR_CORES = "tiles", "weights", "product", "recurrence"
_BY_FMA = ("fma",)
_PIECES = {WORD_BYTES: "uint4", 4: "unsigned int", 2: "unsigned short"}

MAX_ROWS = 128, 960
"""Rows of a batch whose lengths are arguments of one launch: few, which cost the host less to pass,
and as many as fit into the 4096 bytes that arguments may have."""

ROWS_PER_BLOCK = 32
"""Rows of a step that a block packs."""

SourceAndName = tuple[str, str]
"""Of a kernel that has no geometry: what `MemoryWithGraphs.kernel` takes."""


def source(geometry: Geometry) -> str:
    """The source of a geometry's kernel, ``recurrent_forward`` or ``recurrent_backward``."""
    own = _BY_FMA if geometry.parts else _BY_TENSOR_CORES
    last = "backward" if geometry.kind.backward else "forward"
    return _constants(geometry.constants()) + "\n".join(map(_text, (*_FIRST, *own, last)))


def one_step_kernel(constants: dict[str, int]) -> SourceAndName:
    """Runs a layer whose sequences have one step."""
    parts = map(_text, ("numbers", "cells", "tiles", "one_step"))
    return _constants(constants) + "\n".join(parts), "one_step"


def bias_kernel(dtype: str) -> SourceAndName:
    """Return what adds up the sums that the backward kernels of all layers leave."""
    source = _constants({"DTYPE": DTYPES[dtype]}) + "\n".join(map(_text, ("numbers", "bias")))
    return source, "bias_gradients"


def finish_kernel(dtype: str) -> SourceAndName:
    """Return what ends a backward pass on ragged rows: `bias_kernel`, and the copy of dx."""
    constants = _row_constants(WORD_BYTES, MAX_ROWS[-1]) | {"DTYPE": DTYPES[dtype]}
    parts = map(_text, ("numbers", "rows", "bias", "finish"))
    return _constants(constants) + "\n".join(parts), "finish_backward"


def narrow_kernel() -> SourceAndName:
    """Makes matrices in float32 ones of float16."""
    dtypes = {"DTYPE": DTYPES["float32"], "FACTORS": DTYPES["float16"]}
    return _constants(dtypes) + "\n".join(map(_text, ("numbers", "narrow"))), "narrow_rows"


def row_kernels(item_bytes: int) -> dict[tuple[str, int], SourceAndName]:
    """Return what packs and unpacks rows of elements of ``item_bytes`` bytes.

    By name and the bytes of the pieces that it copies.
    """
    return {
        (name, nbytes): (_rows(nbytes, MAX_ROWS[-1]), name)
        for nbytes in (WORD_BYTES, item_bytes)
        for name in ("gather_rows", "scatter_rows")
    }


def begin_kernels(item_bytes: int) -> dict[tuple[int, int], SourceAndName]:
    """Return what begins a forward pass on rows of unequal length.

    By the most rows of a batch and the bytes of the pieces that it copies.
    """
    return {
        (max_rows, nbytes): (_rows(nbytes, max_rows), "begin_rows")
        for nbytes in (WORD_BYTES, item_bytes)
        for max_rows in MAX_ROWS
    }


def table_kernel() -> SourceAndName:
    """Return what stores tables of rows."""
    return _rows(WORD_BYTES, MAX_ROWS[-1]), "store_entries"


def _rows(piece_bytes: int, max_rows: int) -> str:
    return _constants(_row_constants(piece_bytes, max_rows)) + _text("rows")


def _row_constants(piece_bytes: int, max_rows: int) -> dict[str, int | str]:
    piece = _PIECES[piece_bytes]
    return {"PIECE": piece, "MAX_ROWS": max_rows, "ROWS_PER_BLOCK": ROWS_PER_BLOCK}


def dropout_kernels(dtype: str) -> tuple[SourceAndName, SourceAndName]:
    """What a forward begins with, and what drops elements."""
    source = _constants({"DTYPE": DTYPES[dtype]}) + "\n".join(map(_text, ("numbers", "dropout")))
    return (source, "take_masks"), (source, "drop_elements")


def _constants(values: Mapping[str, int | str]) -> str:
    lines = [f"#define {name} {value}" for name, value in values.items()]
    return "\n".join([*lines, "#define DEVICE __device__ __forceinline__", ""])


@cache
def _text(name: str) -> str:
    with import_lock:  # for importlib.readers, which files() imports
        return files(__package__).joinpath(f"{name}.cuh").read_text(encoding="utf-8")


def compile_kernel(geometry: Geometry, memory: MemoryWithGraphs) -> Kernel:
    """The kernel of a geometry on the current device; compiled once for all callers.

    `UnsupportedError` where there is no compiler, or it fails.
    """
    name = "recurrent_backward" if geometry.kind.backward else "recurrent_forward"
    shared_bytes = geometry.shared_bytes
    try:
        return memory.kernel(
            source(geometry), name, cooperative=not geometry.cluster, shared_bytes=shared_bytes
        )
    except Exception as error:  # CuPy's have no class in common
        raise UnsupportedError(
            "dnnffi", "", f"our own kernels cannot be compiled: {type(error).__name__}: {error}"
        ) from error


class LayerKernel:
    """A compiled geometry, ready for any number of rows and steps.

    ``max_blocks`` is how many of its blocks the device runs at the same time. Raises
    `UnsupportedError` if there is no compiler, or if not even one group fits on the device.
    """

    def __init__(self, geometry: Geometry, memory: MemoryWithGraphs) -> None:
        self.geometry = geometry
        self.kernel = compile_kernel(geometry, memory)
        self.threads = (geometry.threads,)
        self.shared_bytes = geometry.shared_bytes
        self.group_rows, self.group_blocks = geometry.group_rows, geometry.group_blocks
        self.bias_parts = geometry.bias_parts  # of a group
        self.layers = geometry.kind.layers
        self._exchange_bytes = None if self.layers > 1 else geometry.exchange_bytes(1)
        self._streamed_bytes = self.group_blocks * geometry.streamed_bytes
        self.max_blocks = memory.blocks_at_once(self.kernel, geometry.threads, self.shared_bytes)
        self._check_room(self.group_blocks)

    def bind(self, batch: int, directions: int, steps: int) -> LayerLaunches:
        """Return the launches for a number of rows and steps.

        Raises `UnsupportedError` if the kernel has several layers and not all groups fit on the
        device at the same time: what layers exchange is cleared once, for one launch.
        """
        groups = -(-batch // self.group_rows)
        in_all = groups * directions
        if self.layers > 1:
            self._check_room(in_all * self.group_blocks)
        most = min(in_all, self.max_blocks // self.group_blocks)
        exchange_bytes = self._exchange_bytes
        if exchange_bytes is None:
            exchange_bytes = self.geometry.exchange_bytes(steps)
        launches = [
            ((min(most, in_all - first) * self.group_blocks,), first)
            for first in range(0, in_all, most)
        ]
        return LayerLaunches(
            self, groups, launches, most * exchange_bytes, most * self._streamed_bytes
        )

    def _check_room(self, needed: int) -> None:
        if self.max_blocks < needed:
            raise UnsupportedError(
                "dnnffi",
                "",
                f"our own kernels need {needed} blocks of {self.geometry.threads} threads and "
                f"{self.shared_bytes} bytes of shared memory at once, which this device has no "
                f"room for",
            )


class LayerLaunches(NamedTuple):
    """The launches of a `LayerKernel` for a number of rows: as many groups at once as fit.

    groups : of one direction
    launches : blocks of the grid, and the first group of each launch
    exchange_bytes : of device memory through which the groups of a launch exchange
    streamed_bytes : of device memory for weights that they read in every step
    """

    kernel: LayerKernel
    groups: int
    launches: list[tuple[tuple[int], int]]
    exchange_bytes: int
    streamed_bytes: int

    def run(self, launch: Launch, arguments: tuple[int, ...], clip: tuple[float, float]) -> None:
        """Enqueue all groups."""
        kernel = self.kernel
        for blocks, first in self.launches:
            kernel.kernel(
                blocks,
                kernel.threads,
                (*arguments, self.groups, first, *clip),
                stream=launch.stream,
                shared_mem=kernel.shared_bytes,
            )
