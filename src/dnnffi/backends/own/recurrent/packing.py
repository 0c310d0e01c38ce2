"""Kernels that pack rows of unequal length and unpack them, by tables on the device."""

from __future__ import annotations

from array import array
from struct import Struct
from typing import NamedTuple

import numpy as np

from dnnffi.backends.own.recurrent.geometry import WORD_BYTES
from dnnffi.backends.own.recurrent.kernels import (
    MAX_ROWS,
    ROWS_PER_BLOCK,
    begin_kernels,
    row_kernels,
    table_kernel,
)
from dnnffi.backends.own.recurrent.rows import INDEX_BYTES, RowLayout, Tables
from dnnffi.device.interface import Kernel, Launch, MemoryWithGraphs

_THREADS = 256
_MAX_BLOCKS = 2**16
_PACKED_COPY = Struct("<10q")
"""The struct ``PackedCopy`` of ``rows.cuh``."""


class Cleared(NamedTuple):
    """Memory that is cleared before a kernel: whole words from an address on."""

    address: int
    nbytes: int


class Rows(NamedTuple):
    """Rows of ``width`` elements from an address on, one for each row of the batch and step."""

    address: int
    width: int


class Packing:
    """Makes tables, and copies padded rows of elements of ``item_bytes`` bytes to packed ones."""

    def __init__(self, item_bytes: int, memory: MemoryWithGraphs) -> None:
        self._item_bytes = item_bytes
        self._memory = memory
        self._store = memory.kernel(*table_kernel())
        self._kernels: dict[tuple[str, int], Kernel] = {
            key: memory.kernel(*kernel) for key, kernel in row_kernels(item_bytes).items()
        }
        self._begin: dict[tuple[int, int], Kernel] = {
            key: memory.kernel(*kernel) for key, kernel in begin_kernels(item_bytes).items()
        }

    def begin(
        self,
        launch: Launch,
        layout: RowLayout,
        tables_at: int,
        x: Rows,
        packed_x: int,
        y: Rows,
        of_forward: Cleared,
        of_backward: Cleared,
    ) -> None:
        """Enqueue what a forward pass begins with: make the tables at ``tables_at``, and pack x.

        ``x`` and ``y`` are the caller's. Past the ends of rows y is filled with zeros; the kernel
        of the last layer writes the rest. Rows that are packed already are neither copied nor
        filled. What the groups of both kernels exchange is cleared.
        """
        tables = layout.tables
        assert tables is not None
        batch, steps, is_padded = layout.batch, layout.steps, layout.caller_strides is not None
        y_row_bytes = y.width * self._item_bytes
        few, many = MAX_ROWS
        if batch > many:
            self._store_all(launch, tables, tables_at)
            if is_padded:
                self._gather(launch, layout, tables_at, x, packed_x)
                y_bytes = layout.caller_steps * batch * y_row_bytes
                self._memory.clear(y.address, y_bytes, launch.stream)
            for cleared in (of_forward, of_backward):
                if cleared.nbytes:
                    self._memory.clear(*cleared, launch.stream)
            return
        max_rows = few if batch <= few else many
        padded = packed = y_address = 0
        parts = 1
        if is_padded:
            padded, packed, y_address = x.address, packed_x, y.address
            parts, steps = -(-batch // ROWS_PER_BLOCK), layout.caller_steps
        piece_bytes, pieces = self._pieces(padded, packed, x.width)
        lengths = array("i", tables.caller_lengths).tobytes()
        self._begin[max_rows, piece_bytes](
            (steps * parts,),
            (_THREADS,),
            (
                padded,
                packed,
                *tables.addresses(tables_at),
                *(of_forward.address, of_forward.nbytes // WORD_BYTES),
                *(of_backward.address, of_backward.nbytes // WORD_BYTES),
                parts,
                *(layout.caller_strides or (0, 0)),
                pieces,
                y_address,
                y_row_bytes,
                batch.to_bytes(8, "little") + lengths.ljust(max_rows * INDEX_BYTES, b"\0"),
            ),
            stream=launch.stream,
            shared_mem=2 * INDEX_BYTES * batch,
        )

    def _gather(
        self, launch: Launch, layout: RowLayout, tables_at: int, padded: Rows, packed: int
    ) -> None:
        """Enqueue the copy of rows from the caller's array to packed ones."""
        tables, strides = layout.tables, layout.caller_strides
        assert tables is not None
        assert strides is not None
        step_offsets, _, caller_rows = tables.addresses(tables_at)
        piece_bytes, pieces = self._pieces(padded.address, packed, padded.width)
        self._kernels["gather_rows", piece_bytes](
            (_blocks(layout.steps * layout.batch),),
            (_THREADS,),
            (
                *(padded.address, packed, step_offsets, caller_rows),
                *(layout.steps, layout.batch, *strides, pieces),
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
    ) -> None:
        """Enqueue the copy of packed rows to the caller's array, with zeros past their ends."""
        blocks, copy = self.packed_copy(layout, tables_at, packed, padded, width)
        piece_bytes, _ = self._pieces(packed, padded, width)
        self._kernels["scatter_rows", piece_bytes](
            (blocks,), (_THREADS,), (copy,), stream=launch.stream
        )

    def packed_copy(
        self, layout: RowLayout, tables_at: int, packed: int, padded: int, width: int
    ) -> tuple[int, bytes]:
        """Return the blocks for the copy of `scatter`, and the struct ``PackedCopy``."""
        tables, strides = layout.tables, layout.caller_strides
        assert tables is not None
        assert strides is not None
        at, steps = tables.addresses(tables_at), layout.caller_steps
        row_bytes = width * self._item_bytes
        copy = _PACKED_COPY.pack(packed, padded, *at, steps, layout.batch, *strides, row_bytes)
        return _blocks(steps * layout.batch), copy

    def _store_all(self, launch: Launch, tables: Tables, target: int) -> None:
        """Enqueue the storing of ``tables`` at address ``target``, as the host has made them."""
        entries, at_once = tables.entries(), MAX_ROWS[-1]
        for first in range(0, entries.size, at_once):
            part = entries[first : first + at_once]
            head = np.array((target + INDEX_BYTES * first, part.size), np.int64).tobytes()
            values = part.tobytes().ljust(at_once * INDEX_BYTES, b"\0")
            self._store((1,), (_THREADS,), (head + values,), stream=launch.stream)

    def _pieces(self, source: int, target: int, width: int) -> tuple[int, int]:
        """Return the bytes of the widest pieces that fit, and how many a row has."""
        row_bytes = width * self._item_bytes
        is_aligned = (source | target | row_bytes) % WORD_BYTES == 0
        piece_bytes = WORD_BYTES if is_aligned else self._item_bytes
        return piece_bytes, row_bytes // piece_bytes


def _blocks(rows: int) -> int:
    """Return the blocks of a grid with a warp for each row, up to a limit."""
    return min(-(-rows * 32 // _THREADS), _MAX_BLOCKS)
