"""Row layout of a batch: where each row of each step is stored.

Kernels accept two layouts. In the dense layout every row has all steps, at constant strides. In the
packed layout rows are sorted by decreasing length and stored step by step without padding. Rows of
unequal length that are not packed yet are copied into packed ones: no product is then computed for
padding, if the host knows the lengths, a group of rows stops after its longest row, and what is
stored past a row's end is not read. x is not copied in inference of one layer whose lengths are in
device memory (`Kind.unpacked_x`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dnnffi.spec.problem import BATCH_MAJOR, PACKED, RNNProblem

INDEX_BYTES = 4
"""Bytes of an entry of `Tables`, an int32."""


def table_bytes(steps: int, batch: int) -> int:
    """Return the bytes of the `Tables` of a batch."""
    return INDEX_BYTES * (steps + 1 + 2 * batch)


class Tables(NamedTuple):
    """Index tables of packed rows: int32 entries, one table after the other in device memory.

    step_offsets [steps + 1] : first position of each step; the last entry is the number of
        positions
    lengths [batch] : steps of each packed row, in decreasing order
    caller_rows [batch] : index of each packed row in the caller's batch

    Kernels make them of ``caller_lengths``, the lengths in the caller's order; None if the caller
    has these in device memory.
    """

    caller_lengths: tuple[int, ...] | None
    steps: int
    batch: int

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return table_bytes(self.steps, self.batch)

    def addresses(self, start: int) -> tuple[int, int, int]:
        """Return the address of each table if the first is stored at ``start``."""
        lengths = start + INDEX_BYTES * (self.steps + 1)
        return start, lengths, lengths + INDEX_BYTES * self.batch

    def entries(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return the tables of lengths of the host, as they are in device memory.

        Examples
        --------
        >>> Tables((1, 3), steps=3, batch=2).entries().tolist()
        [0, 2, 3, 4, 3, 1, 1, 0]
        """
        steps, batch = self.steps, self.batch
        entries = np.zeros(steps + 1 + 2 * batch, np.int32)
        step_offsets = entries[: steps + 1]
        lengths, caller_rows = entries[steps + 1 :].reshape(2, batch)
        in_order = np.array(self.caller_lengths, np.int32)
        caller_rows[:] = (-in_order).argsort(kind="stable")  # packed rows stay where they are
        in_order.take(caller_rows, out=lengths)
        # A step has the rows that have not ended before it.
        rows_of_step = batch - np.bincount(in_order, minlength=steps + 1).cumsum()
        step_offsets[1:] = rows_of_step[:-1].cumsum()
        return entries


class RowLayout(NamedTuple):
    """Sizes and strides of a batch, as kernels see it; strides and positions count rows of a step.

    ``steps`` are those of the longest row, ``positions`` the rows of all steps together.
    ``caller_strides`` are the strides of a step and of a row in the caller's padded arrays, and
    ``caller_steps`` their steps; None and 0 if the caller's arrays have the layout of the kernels.
    ``tables`` is None for the dense layout.
    """

    steps: int
    batch: int
    positions: int
    step_stride: int
    row_stride: int
    tables: Tables | None = None
    caller_strides: tuple[int, int] | None = None
    caller_steps: int = 0


def row_layout(problem: RNNProblem) -> RowLayout:
    """Return the layout of a problem with at least one row.

    Examples
    --------
    >>> from dnnffi.spec.rnn import RNNSpec
    >>> spec = RNNSpec(mode="gru", input_size=1, hidden_size=1)
    >>> layout = row_layout(RNNProblem.dense(spec, steps=4, batch=2, lengths=[1, 3]))
    >>> layout.positions, layout.tables
    (4, Tables(caller_lengths=(1, 3), steps=3, batch=2))
    """
    steps, batch, lengths = problem.steps, problem.batch, problem.lengths
    is_packed = problem.layout == PACKED
    strides = (1, steps) if problem.layout == BATCH_MAJOR else (batch, 1)
    if problem.has_device_lengths:
        tables = Tables(None, steps, batch)
        return RowLayout(steps, batch, steps * batch, 0, 0, tables, strides, steps)
    if lengths is None or (is_packed and lengths[0] == lengths[-1]):
        return RowLayout(steps, batch, steps * batch, *strides)
    longest = max(lengths)
    tables = Tables(lengths, longest, batch)
    in_caller = (None, 0) if is_packed else (strides, steps)
    return RowLayout(longest, batch, sum(lengths), 0, 0, tables, *in_caller)
