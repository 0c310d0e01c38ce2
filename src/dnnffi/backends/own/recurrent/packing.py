"""Kernels that order rows of unequal length, and copy them to and from arrays of the kernels."""

from __future__ import annotations

from array import array
from struct import Struct

import numpy as np

from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.recurrent.config import WORD_BYTES
from dnnffi.backends.own.recurrent.kernels import (
    MAX_ARRAYS,
    MAX_ROWS,
    ROWS_PER_BLOCK,
    STEPS_PER_BLOCK,
    begin_kernels,
    device_length_kernels,
    row_kernels,
    table_kernel,
)
from dnnffi.backends.own.recurrent.params import BeginParams, GatherParams, TableParams
from dnnffi.backends.own.recurrent.rows import (
    INDEX_BYTES,
    RowLayout,
    TableAddresses,
    Tables,
)
from dnnffi.device.interface import Kernel, Launch, MemoryWithGraphs

_THREADS = 32 * ROWS_PER_BLOCK
_MAX_BLOCKS = 2**16
_PADDED_COPY = Struct("<10q")
"""The struct ``PaddedCopy`` of ``ragged_rows.cuh``."""

_CLEAR_PARAMS = Struct(f"<{8 + 2 * MAX_ARRAYS}q")
"""The struct ``ClearParams`` of ``rows.cu``."""

_DEVICE_LENGTHS = Struct("<2q")
"""The struct ``DeviceLengths`` of ``rows.cu``."""

_CLEARING_BLOCKS = 1024
"""About how many blocks clear arrays past the ends of rows, each in some steps of one row; at least
one for each row."""

_MAX_RANKED = 1024
"""Rows among which each block of the kernel that begins a forward pass ranks its own, if lengths
are in device memory. The tables of more rows are made by a kernel before it."""

Cleared = tuple[int, int]
"""Address and bytes of memory that is cleared before a kernel, in whole words."""


class Packing:
    """The kernels that make tables, and copy x of padded rows, and dx back.

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
            key: memory.kernel(*kernel)
            for key, kernel in row_kernels(
                item_bytes, has_device_lengths=has_device_lengths
            ).items()
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
        copied_x: int,
        y: int,
        of_forward: Cleared,
        of_backward: Cleared,
        lengths: int = 0,
    ) -> None:
        """Enqueue what a forward pass begins with: make the tables at ``at``, and copy x.

        ``x`` and ``y`` are addresses of the caller's arrays; if ``copied_x`` is 0, x is not copied.
        Past the ends of rows y is filled with zeros, and so is a copy of x that is padded, too; the
        kernel of the last layer writes the rest of y. Rows that are packed already are neither
        copied nor filled. What the groups of both kernels exchange is cleared. ``lengths`` is the
        address of lengths in device memory, 0 if the host has them.
        """
        tables = layout.tables
        assert tables is not None
        batch, strides = layout.batch, layout.caller_strides
        few, many = MAX_ROWS
        if batch > (_MAX_RANKED if lengths else many):
            if lengths:
                self._make_all(launch, layout, at, lengths)
            else:
                self._store_all(launch, tables, at.lengths)
            if strides is not None:
                if copied_x:
                    self._gather(launch, layout, at, x, copied_x)
                y_bytes = layout.caller_steps * batch * self._y_bytes
                self._memory.clear(y, y_bytes, launch.stream)
            for address, nbytes in (of_forward, of_backward):
                if nbytes:
                    self._memory.clear(address, nbytes, launch.stream)
            return
        max_rows = few if batch <= few else many
        parts = -(-batch // ROWS_PER_BLOCK)
        steps = layout.steps if strides is None else layout.caller_steps
        piece_bytes = self._piece_bytes(x, copied_x)
        params = BeginParams(
            x if copied_x else 0,
            copied_x,
            *at,
            tables.places,
            of_forward=of_forward[0],
            forward_count=of_forward[1] // WORD_BYTES,
            of_backward=of_backward[0],
            backward_count=of_backward[1] // WORD_BYTES,
            steps=steps,
            parts=parts,
            step_stride=strides[0] if strides else 0,
            row_stride=strides[1] if strides else 0,
            pieces=self._x_bytes // piece_bytes,
            y=y if strides else 0,
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
            ((steps // STEPS_PER_BLOCK + 1) * parts,),
            (_THREADS,),
            (struct_of(params), rows),
            stream=launch.stream,
            shared_mem=INDEX_BYTES * (batch + ROWS_PER_BLOCK),
        )

    def clear_ended(
        self, launch: Launch, layout: RowLayout, at: TableAddresses, arrays: list[tuple[int, int]]
    ) -> None:
        """Enqueue the clearing of ``arrays``, laid out `Places.AS_PADDED`, past the ends of rows.

        Each is the address of the first position, and the bytes of a position.
        """
        steps, batch = layout.steps, layout.batch
        part_steps = max(1, steps * batch // _CLEARING_BLOCKS)
        sizes = batch, steps, layout.step_stride, layout.row_stride, part_steps
        for piece_bytes in (WORD_BYTES, self._item_bytes):
            of_pieces = [
                one for one in arrays if (one[1] % WORD_BYTES == 0) == (piece_bytes == WORD_BYTES)
            ]
            kernel = self._of_device["clear_ended", piece_bytes]
            for first in range(0, len(of_pieces), MAX_ARRAYS):
                some = of_pieces[first : first + MAX_ARRAYS]
                addresses, row_bytes = zip(*some, strict=True)
                unused = (0,) * (MAX_ARRAYS - len(some))
                params = _CLEAR_PARAMS.pack(
                    *(at.lengths, at.caller_rows, *sizes, len(some)),
                    *(*addresses, *unused, *row_bytes, *unused),
                )
                blocks = batch * -(-steps // part_steps)
                kernel((blocks,), (_THREADS,), (params,), stream=launch.stream)

    def _gather(
        self, launch: Launch, layout: RowLayout, at: TableAddresses, x: int, copied_x: int
    ) -> None:
        """Enqueue the copy of x by tables that are stored."""
        strides = layout.caller_strides
        assert strides is not None
        piece_bytes = self._piece_bytes(x, copied_x)
        params = GatherParams(
            x=x,
            copy=copied_x,
            lengths=at.lengths,
            caller_rows=at.caller_rows,
            first_positions=at.first_positions if layout.is_row_after_row else 0,
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
        self, launch: Launch, layout: RowLayout, at: TableAddresses, source: int, target: int
    ) -> None:
        """Enqueue the copy of dx to the caller's array, with zeros past the ends of rows."""
        blocks, copy = self.padded_copy(layout, at, source, target)
        self._kernels["scatter_rows", self._piece_bytes(source, target)](
            (blocks,), (_THREADS,), (copy,), stream=launch.stream
        )

    def padded_copy(
        self, layout: RowLayout, at: TableAddresses, source: int, target: int
    ) -> tuple[int, bytes]:
        """Return the blocks for the copy of `scatter`, and the struct ``PaddedCopy``."""
        steps, strides = layout.caller_steps, layout.caller_strides
        assert strides is not None
        sizes = steps, layout.batch, *strides, self._x_bytes
        return _blocks(steps * layout.batch), _PADDED_COPY.pack(source, target, *at[:3], *sizes)

    def _make_all(
        self, launch: Launch, layout: RowLayout, at: TableAddresses, lengths: int
    ) -> None:
        """Enqueue the making of the tables at ``at`` from lengths in device memory."""
        params = TableParams(lengths, layout.batch, layout.steps, layout.row_stride, *at[:3])
        blocks = -(-layout.batch // _THREADS)
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
