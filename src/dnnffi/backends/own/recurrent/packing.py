"""Kernels that pack rows of unequal length and unpack them, by tables on the device."""

from __future__ import annotations

import numpy as np

from dnnffi.backends.own.recurrent.geometry import WORD_BYTES
from dnnffi.backends.own.recurrent.kernels import row_kernels, table_kernel
from dnnffi.backends.own.recurrent.rows import INDEX_BYTES, RowLayout, Tables
from dnnffi.device.interface import Kernel, Launch, MemoryWithGraphs

_THREADS = 256
_MAX_BLOCKS = 2**16

ENTRIES_PER_LAUNCH = 960
"""Entries of `Tables` that one launch stores: its arguments may have 4096 bytes."""


class Packing:
    """Stores tables, and copies padded rows of elements of ``item_bytes`` bytes to packed ones."""

    def __init__(self, item_bytes: int, memory: MemoryWithGraphs) -> None:
        self._item_bytes = item_bytes
        self._store = memory.kernel(*table_kernel())
        self._kernels: dict[tuple[str, int], Kernel] = {
            copies: memory.kernel(*kernel) for copies, kernel in row_kernels(item_bytes).items()
        }

    def store(self, launch: Launch, tables: Tables, target: int) -> None:
        """Enqueue the storing of ``tables`` at address ``target``."""
        entries = tables.entries
        for first in range(0, entries.size, ENTRIES_PER_LAUNCH):
            part = entries[first : first + ENTRIES_PER_LAUNCH]
            head = np.array((target + INDEX_BYTES * first, part.size), np.int64).tobytes()
            values = part.tobytes().ljust(ENTRIES_PER_LAUNCH * INDEX_BYTES, b"\0")
            self._store((1,), (_THREADS,), (head + values,), stream=launch.stream)

    def gather(
        self,
        launch: Launch,
        layout: RowLayout,
        tables_at: int,
        padded: int,
        packed: int,
        width: int,
    ) -> None:
        """Enqueue the copy of rows of ``width`` elements from the caller's array to packed ones."""
        tables, strides = layout.tables, layout.caller_strides
        assert tables is not None
        assert strides is not None
        step_offsets, _, caller_rows = tables.addresses(tables_at)
        kernel, pieces = self._kernel("gather", padded, packed, width)
        kernel(
            _blocks(layout.steps * layout.batch),
            (_THREADS,),
            (
                padded,
                packed,
                step_offsets,
                caller_rows,
                layout.steps,
                layout.batch,
                *strides,
                pieces,
            ),
            stream=launch.stream,
        )

    def scatter(
        self,
        launch: Launch,
        layout: RowLayout,
        tables_at: int,
        packed: int,
        padded: int,
        width: int,
        steps: int,
    ) -> None:
        """Enqueue the inverse copy, into all ``steps`` of the caller's array.

        Past the ends of rows it writes zeros.
        """
        tables, strides = layout.tables, layout.caller_strides
        assert tables is not None
        assert strides is not None
        kernel, pieces = self._kernel("scatter", packed, padded, width)
        at = tables.addresses(tables_at)
        kernel(
            _blocks(steps * layout.batch),
            (_THREADS,),
            (packed, padded, *at, steps, layout.batch, *strides, pieces),
            stream=launch.stream,
        )

    def _kernel(self, what: str, source: int, target: int, width: int) -> tuple[Kernel, int]:
        """Return the kernel with the widest pieces that fit, and the pieces of a row."""
        row_bytes = width * self._item_bytes
        is_aligned = (source | target | row_bytes) % WORD_BYTES == 0
        piece_bytes = WORD_BYTES if is_aligned else self._item_bytes
        return self._kernels[what, piece_bytes], row_bytes // piece_bytes


def _blocks(rows: int) -> tuple[int]:
    """Return the blocks of a grid with a warp for each row, up to a limit."""
    return (min(-(-rows * 32 // _THREADS), _MAX_BLOCKS),)
