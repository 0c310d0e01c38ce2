"""The kernels of a network: their sources with constants, compiled kernels, and their launches."""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.recurrent import small_products
from dnnffi.backends.own.recurrent.config import (
    CELLS,
    CLIPS,
    DTYPES,
    WORD_BYTES,
    KernelConfig,
    Kind,
)
from dnnffi.backends.own.recurrent.params import BackwardParams, ForwardParams
from dnnffi.backends.own.recurrent.source import kernel_source
from dnnffi.backends.own.source import Constant, KernelSource
from dnnffi.device.interface import Kernel, Launch, MemoryWithGraphs
from dnnffi.errors import UnsupportedError

_PIECES = {WORD_BYTES: "uint4", 4: "unsigned int", 2: "unsigned short"}

MAX_ROWS = 128, 960
"""Rows of a batch whose lengths are arguments of one launch: few, which cost the host less to pass,
and as many as fit into the 4096 bytes that arguments may have."""

MAX_ARRAYS = 64
"""Arrays that a launch clears past the ends of rows."""

ROWS_PER_BLOCK = 8
"""Rows that a block of the kernel that begins a forward pass copies: one for each of its warps."""

STEPS_PER_BLOCK = 4
"""Steps that such a block copies of each of its rows."""


def layer_kernel(config: KernelConfig, timeline: int = 0) -> KernelSource:
    """Return the kernel of a configuration: all steps of a layer, forward or backward.

    With the address of a ``timeline`` it records when warps begin the phases of a step
    (``timeline.cuh``).
    """
    name = "backward" if config.kind.backward else "forward"
    product = "_fma" if config.parts else ""
    exchange = "_cluster" if config.cluster else "_scatter" if config.scatter else ""
    file = f"{name}{product}{exchange}.cu"
    constants = config.constants() | {"TIMELINE": timeline}
    return kernel_source(file, f"recurrent_{name}", constants)


def one_step_kernel(constants: dict[str, Constant]) -> KernelSource:
    """Return the kernel of a layer whose sequences have one step."""
    return kernel_source("one_step.cu", "one_step", constants)


def one_step_gradients_kernel(kind: Kind, division: dict[str, Constant]) -> KernelSource:
    """Return the kernel of the gradients of the gates of a single step."""
    constants = division | {
        "CELL": CELLS[kind.mode],
        "DTYPE": DTYPES[kind.dtype],
        "FACTORS": DTYPES[kind.dtype],
        "STRICT": kind.strict,
        "CLIP": CLIPS[kind.clip],
    }
    return kernel_source("one_step_gradients.cu", "one_step_gradients", constants)


def bias_kernel(dtype: str) -> KernelSource:
    """Return the kernel that adds up the sums that the backward kernels of all layers leave."""
    return kernel_source("bias.cu", "bias_gradients", _of_arrays(dtype))


def finish_kernel(dtype: str) -> KernelSource:
    """Return the kernel that ends a backward pass on ragged rows: biases, and the copy of dx."""
    return kernel_source("finish.cu", "finish_backward", _of_arrays(dtype))


def narrow_kernel() -> KernelSource:
    """Return the kernel that converts matrices from float32 to float16."""
    constants = _of_arrays("float32") | {"FACTORS": DTYPES["float16"]}
    return kernel_source("narrow.cu", "narrow_rows", constants)


def small_products_kernel(dtype: str, *, is_strict: bool) -> KernelSource:
    """Return the kernel of several matrix products; ``is_strict``: float32 without TF32."""
    constants = _of_arrays(dtype) | small_products.CONSTANTS | {"STRICT": is_strict}
    return kernel_source("small_products.cu", "small_products", constants)


def row_kernels(
    item_bytes: int, *, has_device_lengths: bool = False
) -> dict[tuple[str, int], KernelSource]:
    """Return the kernels that copy rows of elements of ``item_bytes`` bytes, by stored tables.

    With lengths in device memory dx is not copied. The keys are the name and the bytes of the
    pieces that are copied.
    """
    names = ("gather_rows",) if has_device_lengths else ("gather_rows", "scatter_rows")
    return {
        (name, nbytes): _row_kernel(name, nbytes, MAX_ROWS[-1])
        for nbytes in (WORD_BYTES, item_bytes)
        for name in names
    }


def begin_kernels(item_bytes: int) -> dict[tuple[int, int], KernelSource]:
    """Return the kernels that begin a forward pass on rows of unequal length.

    The keys are the most rows of a batch and the bytes of the pieces that are copied.
    """
    return {
        (max_rows, nbytes): _row_kernel("begin_rows", nbytes, max_rows)
        for nbytes in (WORD_BYTES, item_bytes)
        for max_rows in MAX_ROWS
    }


def device_length_kernels(item_bytes: int) -> dict[tuple[str, int], KernelSource]:
    """Return the kernels for lengths in device memory.

    They begin a forward pass, and clear what is past the ends of rows. The keys are the name and
    the bytes of the pieces that are copied or cleared.
    """
    return {
        (name, nbytes): _row_kernel(name, nbytes, MAX_ROWS[0])
        for nbytes in (WORD_BYTES, item_bytes)
        for name in ("begin_rows_of_device", "clear_ended")
    }


def table_kernel(*, has_device_lengths: bool) -> KernelSource:
    """Return the kernel that makes tables of many rows, or stores those that the host has made."""
    name = "make_tables" if has_device_lengths else "store_entries"
    return _row_kernel(name, WORD_BYTES, MAX_ROWS[-1])


def dropout_kernels(dtype: str) -> tuple[KernelSource, KernelSource]:
    """Return the kernels that begin a forward pass with dropout, and that drop elements."""
    constants = _of_arrays(dtype)
    take = kernel_source("dropout.cu", "take_masks", constants)
    return take, take._replace(name="drop_elements")


def _row_kernel(name: str, piece_bytes: int, max_rows: int) -> KernelSource:
    constants: dict[str, Constant] = {
        "Piece": _PIECES[piece_bytes],
        "MAX_ROWS": max_rows,
        "MAX_ARRAYS": MAX_ARRAYS,
        "ROWS_PER_BLOCK": ROWS_PER_BLOCK,
        "STEPS_PER_BLOCK": STEPS_PER_BLOCK,
    }
    return kernel_source("rows.cu", name, constants)


def _of_arrays(dtype: str) -> dict[str, Constant]:
    """Return the constants of a kernel that depends on the dtype of arrays alone."""
    return {"DTYPE": DTYPES[dtype], "FACTORS": DTYPES[dtype], "STRICT": False}


def compile_kernel(config: KernelConfig, memory: MemoryWithGraphs) -> Kernel:
    """Return the kernel of a configuration; it is compiled once for all callers on a device.

    Raises `UnsupportedError` if there is no compiler, or if it fails.
    """
    try:
        return memory.kernel(
            *layer_kernel(config),
            cooperative=not config.cluster,
            shared_bytes=config.shared_bytes,
        )
    except Exception as error:  # from NVRTC, the driver or the search for them
        raise UnsupportedError(
            "dnnffi", "", f"our own kernels cannot be compiled: {type(error).__name__}: {error}"
        ) from error


class LayerKernel:
    """A compiled configuration, ready for any number of rows and steps.

    ``max_blocks`` is how many of its blocks the device runs at the same time. Raises
    `UnsupportedError` if there is no compiler, or if not even one group fits on the device.
    """

    def __init__(self, config: KernelConfig, memory: MemoryWithGraphs) -> None:
        self.config = config
        self.kernel = compile_kernel(config, memory)
        self.threads = (config.threads,)
        self.shared_bytes = config.shared_bytes
        self.group_rows, self.group_blocks = config.group_rows, config.group_blocks
        self.bias_parts = config.bias_parts  # of a group
        self.layers = config.kind.layers
        self._exchange_bytes = None if self.layers > 1 else config.exchange_bytes(1)
        self._streamed_bytes = self.group_blocks * config.streamed_bytes
        self.max_blocks = memory.blocks_at_once(self.kernel, config.threads, self.shared_bytes)
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
            exchange_bytes = self.config.exchange_bytes(steps)
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
                f"our own kernels need {needed} blocks of {self.config.threads} threads and "
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

    def run(self, launch: Launch, params: ForwardParams | BackwardParams) -> None:
        """Enqueue all groups with ``params``, whose groups are set here."""
        kernel, params.groups = self.kernel, self.groups
        for blocks, first in self.launches:
            params.first_group = first
            kernel.kernel(
                blocks,
                kernel.threads,
                (struct_of(params),),
                stream=launch.stream,
                shared_mem=kernel.shared_bytes,
            )
