"""Row layout of a batch: where each row of each step is stored.

The caller's arrays are padded, or packed step after step. The kernels' own arrays have one of four
layouts:

- Rows of the same length have the strides of the caller's padded arrays.
- Rows of unequal length are sorted by decreasing length, so that a group of rows stops after its
  longest one. They lie one after the other without padding: no product is computed for padding, and
  a kernel finds a row's steps at a constant distance. x is copied into such an array.
- Rows that the caller has packed stay where they are, step after step.
- If lengths are in device memory, the host does not know how many positions the rows have, and
  products are computed for padding, too. Each row then stays where the caller's arrays have it;
  only the order in which groups take the rows is by length.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from dnnffi.spec.problem import BATCH_MAJOR, PACKED, RNNProblem
from dnnffi.spec.rnn_size_class import RowKind

INDEX_BYTES = 4
"""Bytes of an entry of `Tables`, an int32."""


class Places(IntEnum):
    """Layouts of the kernels' own arrays for rows of unequal length, as in ``rows.cu``."""

    ROW_AFTER_ROW = 0
    STEP_AFTER_STEP = 1
    AS_PADDED = 2


class TableAddresses(NamedTuple):
    """Addresses of `Tables` in device memory; zeros for those that a layout does not have."""

    lengths: int
    caller_rows: int
    first_positions: int
    step_offsets: int


NO_TABLES = TableAddresses(0, 0, 0, 0)
"""The tables of rows of the same length."""


def table_bytes(steps: int, batch: int) -> int:
    """Return the bytes of the `Tables` of a batch, in any layout."""
    return INDEX_BYTES * (3 * batch + steps + 1)


class Tables(NamedTuple):
    """Index tables of rows of unequal length: int32 entries, one table after the other.

    lengths [batch] : steps of each row, in decreasing order
    caller_rows [batch] : index of each row in the caller's batch
    first_positions [batch] : position of each row's first step
    step_offsets [steps + 1] : what is added to that for each step, of rows that are stored step
        after step; the last entry is the number of positions

    Kernels, or for many rows the host (`entries`), make them of ``caller_lengths``, the lengths in
    the caller's order; None if the caller has these in device memory.
    """

    caller_lengths: tuple[int, ...] | None
    steps: int
    batch: int
    places: Places

    @property
    def nbytes(self) -> int:
        """Bytes that are reserved for all tables."""
        return table_bytes(self.steps, self.batch)

    def addresses(self, start: int) -> TableAddresses:
        """Return the address of each table if the first is stored at ``start``."""
        each = INDEX_BYTES * self.batch
        of_steps = start + 3 * each if self.places == Places.STEP_AFTER_STEP else 0
        return TableAddresses(start, start + each, start + 2 * each, of_steps)

    def entries(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return the tables of lengths of the host, as they are in device memory.

        Examples
        --------
        >>> Tables((1, 3), 3, 2, Places.ROW_AFTER_ROW).entries().tolist()
        [3, 1, 1, 0, 0, 3]
        >>> Tables((3, 1), 3, 2, Places.STEP_AFTER_STEP).entries().tolist()
        [3, 1, 0, 1, 0, 1, 0, 2, 3, 4]
        """
        in_order = np.array(self.caller_lengths, np.int32)
        caller_rows = (-in_order).argsort(kind="stable")  # packed rows stay where they are
        lengths = in_order[caller_rows]
        found: list[np.ndarray[Any, Any]] = [lengths, caller_rows]
        if self.places == Places.ROW_AFTER_ROW:
            found.append(lengths.cumsum() - lengths)
        else:
            # A step has the rows that have not ended before it.
            ended = np.bincount(in_order, minlength=self.steps + 1).cumsum()
            found += [np.arange(self.batch), np.zeros(1), (self.batch - ended[:-1]).cumsum()]
        return np.concatenate(found).astype(np.int32)


class RowLayout(NamedTuple):
    """Sizes and strides of a batch, as kernels see it; strides and positions count rows of a step.

    ``steps`` are those of the longest row, ``positions`` the rows of all steps together.
    ``step_stride`` and ``row_stride`` are those of the kernels' own arrays; the former is 0 if
    ``tables`` have an offset for each step, the latter if only these say where a row begins.
    ``tables`` is None for rows of the same length. ``caller_strides`` are the strides of a
    step and of a row in the caller's padded arrays, and ``caller_steps`` their steps; None and 0 if
    the caller's arrays are packed or all rows have the same length.
    """

    steps: int
    batch: int
    positions: int
    step_stride: int
    row_stride: int
    tables: Tables | None = None
    caller_strides: tuple[int, int] | None = None
    caller_steps: int = 0

    @property
    def row_kind(self) -> RowKind:
        """The kind of rows that kernels have to be compiled for (`RNNSizeClass`)."""
        if self.tables is None:
            return "full"
        return "packed" if self.tables.places == Places.STEP_AFTER_STEP else "ragged"

    @property
    def is_row_after_row(self) -> bool:
        """Whether rows are elsewhere in the kernels' own arrays than in the caller's."""
        return self.tables is not None and self.tables.places == Places.ROW_AFTER_ROW


def row_layout(problem: RNNProblem) -> RowLayout:
    """Return the layout of a problem with at least one row.

    Examples
    --------
    >>> from dnnffi.spec.rnn import RNNSpec
    >>> spec = RNNSpec(mode="gru", input_size=1, hidden_size=1)
    >>> layout = row_layout(RNNProblem.dense(spec, steps=4, batch=2, lengths=[1, 3]))
    >>> layout.positions, layout.step_stride, layout.caller_strides
    (4, 1, (2, 1))
    """
    steps, batch, lengths = problem.steps, problem.batch, problem.lengths
    is_packed = problem.layout == PACKED
    strides = (1, steps) if problem.layout == BATCH_MAJOR else (batch, 1)
    if problem.has_device_lengths:
        tables = Tables(None, steps, batch, Places.AS_PADDED)
        return RowLayout(steps, batch, steps * batch, *strides, tables, strides, steps)
    if lengths is None or (is_packed and lengths[0] == lengths[-1]):
        return RowLayout(steps, batch, steps * batch, *strides)
    longest, positions = max(lengths), sum(lengths)
    if is_packed:
        tables = Tables(lengths, longest, batch, Places.STEP_AFTER_STEP)
        return RowLayout(longest, batch, positions, 0, 0, tables)
    tables = Tables(lengths, longest, batch, Places.ROW_AFTER_ROW)
    return RowLayout(longest, batch, positions, 1, 0, tables, strides, steps)
