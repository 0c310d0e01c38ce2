"""Kernels that pack rows of unequal length and unpack them, by tables on the device."""

from __future__ import annotations

from array import array
from struct import Struct

import numpy as np

from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.recurrent.config import WORD_BYTES
from dnnffi.backends.own.recurrent.kernels import (
    MAX_ARRAYS,
    MAX_ROWS,
    ROW_WARPS,
    ROWS_PER_BLOCK,
    begin_kernels,
    device_length_kernels,
    row_kernels,
    table_kernel,
)
from dnnffi.backends.own.recurrent.params import BeginParams, GatherParams, TableParams
from dnnffi.backends.own.recurrent.rows import INDEX_BYTES, RowLayout, Tables
from dnnffi.device.interface import Kernel, Launch, MemoryWithGraphs

_THREADS = 32 * ROW_WARPS
_MAX_BLOCKS = 2**16
_PACKED_COPY = Struct("<10q")
"""The struct ``PackedCopy`` of ``packed_rows.cuh``."""

_CLEAR_PARAMS = Struct(f"<{4 + 2 * MAX_ARRAYS}q")
"""The struct ``ClearParams`` of ``rows.cu``."""

_DEVICE_LENGTHS = Struct("<2q")
"""The struct ``DeviceLengths`` of ``rows.cu``."""

_MAX_RANKED = 1024
"""Rows among which each block of the kernel that begins a forward pass ranks its own, if lengths
are in device memory. The tables of more rows are made by a kernel before it."""

_PART_BYTES = INDEX_BYTES * (ROWS_PER_BLOCK + 2 * ROW_WARPS)
"""Bytes of the struct ``PartOfStep`` of ``rows.cu``."""

_CLEARING_BLOCKS = 64
"""Blocks that clear the unused positions of an array."""

Cleared = tuple[int, int]
"""Address and bytes of memory that is cleared before a kernel, in whole words."""

TableAddresses = tuple[int, int, int]
"""Addresses of step offsets, lengths and caller rows (`Tables`)."""


class Packing:
    """The kernels that make tables, and copy padded rows to packed ones and back.

    Elements have ``item_bytes`` bytes; rows of x and of y, of one step, have ``x_bytes`` and
    ``y_bytes``.
    """

    def __init__(
        self,
        item_bytes: int,
        x_bytes: int,
        y_bytes: int,
        memory: MemoryWithGraphs,
        *,
        has_device_lengths: bool = False,
    ) -> None:
        self._item_bytes, self._x_bytes, self._y_bytes = item_bytes, x_bytes, y_bytes
        self._memory = memory
        self._table_kernel = memory.kernel(*table_kernel(has_device_lengths=has_device_lengths))
        self._kernels: dict[tuple[str, int], Kernel] = {
            key: memory.kernel(*kernel) for key, kernel in row_kernels(item_bytes).items()
        }
        self._begin: dict[tuple[int, int], Kernel] = {}
        self._of_device: dict[tuple[str, int], Kernel] = {}
        if has_device_lengths:
            for name, kernel in device_length_kernels(item_bytes).items():
                self._of_device[name] = memory.kernel(*kernel)
        else:
            for key, kernel in begin_kernels(item_bytes).items():
                self._begin[key] = memory.kernel(*kernel)

    def begin(
        self,
        launch: Launch,
        layout: RowLayout,
        at: TableAddresses,
        x: int,
        packed_x: int,
        y: int,
        of_forward: Cleared,
        of_backward: Cleared,
        lengths: int = 0,
    ) -> None:
        """Enqueue what a forward pass begins with: make the tables at ``at``, and pack x.

        ``x`` and ``y`` are addresses of the caller's arrays; if ``packed_x`` is 0, x is not copied.
        Past the ends of rows y is filled with zeros; the kernel of the last layer writes the rest.
        Rows that are packed already are neither copied nor filled. What the groups of both kernels
        exchange is cleared. ``lengths`` is the address of lengths in device memory, 0 if the host
        has them.
        """
        tables = layout.tables
        assert tables is not None
        batch, steps, strides = layout.batch, layout.steps, layout.caller_strides
        few, many = MAX_ROWS
        if batch > (_MAX_RANKED if lengths else many):
            if lengths:
                self._make_all(launch, layout, at, lengths)
            else:
                self._store_all(launch, tables, at[0])
            if strides is not None:
                if packed_x:
                    self._gather(launch, layout, at, x, packed_x)
                y_bytes = layout.caller_steps * batch * self._y_bytes
                self._memory.clear(y, y_bytes, launch.stream)
            for address, nbytes in (of_forward, of_backward):
                if nbytes:
                    self._memory.clear(address, nbytes, launch.stream)
            return
        max_rows = few if batch <= few else many
        parts = -(-batch // ROWS_PER_BLOCK)
        if strides is None:
            packed_x = y = 0
        else:
            steps = layout.caller_steps
        piece_bytes = self._piece_bytes(x, packed_x)
        params = BeginParams(
            padded=x if packed_x else 0,
            packed=packed_x,
            step_offsets=at[0],
            lengths=at[1],
            caller_rows=at[2],
            of_forward=of_forward[0],
            forward_count=of_forward[1] // WORD_BYTES,
            of_backward=of_backward[0],
            backward_count=of_backward[1] // WORD_BYTES,
            parts=parts,
            step_stride=strides[0] if strides else 0,
            row_stride=strides[1] if strides else 0,
            pieces=self._x_bytes // piece_bytes,
            y=y,
            y_row_bytes=self._y_bytes,
        )
        if lengths:
            kernel = self._of_device["begin_rows_of_device", piece_bytes]
            rows = _DEVICE_LENGTHS.pack(batch, lengths)
        else:
            assert tables.caller_lengths is not None
            kernel = self._begin[max_rows, piece_bytes]
            of_rows = array("i", tables.caller_lengths).tobytes()
            rows = batch.to_bytes(8, "little") + of_rows.ljust(max_rows * INDEX_BYTES, b"\0")
        kernel(
            (steps * parts,),
            (_THREADS,),
            (struct_of(params), rows),
            stream=launch.stream,
            shared_mem=INDEX_BYTES * batch + _PART_BYTES,
        )

    def clear_unused(
        self, launch: Launch, layout: RowLayout, at: TableAddresses, arrays: list[tuple[int, int]]
    ) -> None:
        """Enqueue the clearing of the positions of arrays that no row has.

        ``arrays`` have the address of the first position, and the bytes of a position.
        """
        for piece_bytes in (WORD_BYTES, self._item_bytes):
            of_pieces = [
                one for one in arrays if (one[1] % WORD_BYTES == 0) == (piece_bytes == WORD_BYTES)
            ]
            kernel = self._of_device["clear_unused", piece_bytes]
            for first in range(0, len(of_pieces), MAX_ARRAYS):
                some = of_pieces[first : first + MAX_ARRAYS]
                addresses, row_bytes = zip(*some, strict=True)
                params = _CLEAR_PARAMS.pack(
                    *(at[0], layout.steps, layout.positions, _CLEARING_BLOCKS),
                    *(*addresses, *(0,) * (MAX_ARRAYS - len(some))),
                    *(*row_bytes, *(0,) * (MAX_ARRAYS - len(some))),
                )
                blocks = _CLEARING_BLOCKS * len(some)
                kernel((blocks,), (_THREADS,), (params,), stream=launch.stream)

    def _gather(
        self, launch: Launch, layout: RowLayout, at: TableAddresses, padded: int, packed: int
    ) -> None:
        """Enqueue the copy of rows of x from the caller's array to packed ones."""
        strides = layout.caller_strides
        assert strides is not None
        step_offsets, _, caller_rows = at
        piece_bytes = self._piece_bytes(padded, packed)
        params = GatherParams(
            padded=padded,
            packed=packed,
            step_offsets=step_offsets,
            caller_rows=caller_rows,
            steps=layout.steps,
            batch=layout.batch,
            step_stride=strides[0],
            row_stride=strides[1],
            pieces=self._x_bytes // piece_bytes,
        )
        blocks = _blocks(layout.steps * layout.batch)
        kernel = self._kernels["gather_rows", piece_bytes]
        kernel((blocks,), (_THREADS,), (struct_of(params),), stream=launch.stream)

    def scatter(
        self, launch: Launch, layout: RowLayout, at: TableAddresses, packed: int, padded: int
    ) -> None:
        """Enqueue the copy of packed dx to the caller's, with zeros past the ends of rows."""
        blocks, copy = self.packed_copy(layout, at, packed, padded)
        self._kernels["scatter_rows", self._piece_bytes(packed, padded)](
            (blocks,), (_THREADS,), (copy,), stream=launch.stream
        )

    def packed_copy(
        self, layout: RowLayout, at: TableAddresses, packed: int, padded: int
    ) -> tuple[int, bytes]:
        """Return the blocks for the copy of `scatter`, and the struct ``PackedCopy``."""
        steps, strides = layout.caller_steps, layout.caller_strides
        assert strides is not None
        sizes = steps, layout.batch, *strides, self._x_bytes
        return _blocks(steps * layout.batch), _PACKED_COPY.pack(packed, padded, *at, *sizes)

    def _make_all(
        self, launch: Launch, layout: RowLayout, at: TableAddresses, lengths: int
    ) -> None:
        """Enqueue the making of the tables at ``at`` from lengths in device memory."""
        params = TableParams(lengths, layout.batch, layout.steps, *at)
        blocks = -(-max(layout.batch, layout.steps + 1) // _THREADS)
        shared = INDEX_BYTES * _THREADS
        self._table_kernel(
            (blocks,), (_THREADS,), (struct_of(params),), stream=launch.stream, shared_mem=shared
        )

    def _store_all(self, launch: Launch, tables: Tables, target: int) -> None:
        """Enqueue the storing of ``tables`` at address ``target``, as the host has made them."""
        entries, at_once = tables.entries(), MAX_ROWS[-1]
        for first in range(0, entries.size, at_once):
            part = entries[first : first + at_once]
            head = np.array((target + INDEX_BYTES * first, part.size), np.int64).tobytes()
            values = part.tobytes().ljust(at_once * INDEX_BYTES, b"\0")
            self._table_kernel((1,), (_THREADS,), (head + values,), stream=launch.stream)

    def _piece_bytes(self, source: int, target: int) -> int:
        """Return the bytes of the widest pieces of which rows of x consist at two addresses."""
        is_aligned = (source | target | self._x_bytes) % WORD_BYTES == 0
        return WORD_BYTES if is_aligned else self._item_bytes


def _blocks(rows: int) -> int:
    """Return the blocks of a grid with a warp for each row, up to a limit."""
    return min(-(-rows * 32 // _THREADS), _MAX_BLOCKS)
