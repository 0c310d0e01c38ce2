"""Row layout of a batch: where each row of each step is stored.

Kernels accept two layouts. In the dense layout every row has all steps, at constant strides. In the
packed layout rows are sorted by decreasing length and stored step by step without padding. Rows of
unequal length that are not packed yet are copied into packed ones: no product is then computed for
padding, a group of rows stops after its longest row, and what is stored past a row's end is not
read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dnnffi.spec.problem import BATCH_MAJOR, PACKED, RNNProblem

INDEX_BYTES = 4
"""Bytes of an entry of `Tables`, an int32."""


class Tables(NamedTuple):
    """Index tables of packed rows, as kernels read them: int32 entries, one table after the other.

    step_offsets [steps + 1] : first position of each step; the last entry is the number of
        positions
    lengths [batch] : steps of each packed row, in decreasing order
    caller_rows [batch] : index of each packed row in the caller's batch
    """

    entries: np.ndarray[Any, np.dtype[np.int32]]
    steps: int
    batch: int

    def addresses(self, start: int) -> tuple[int, int, int]:
        """Return the address of each table if the first is stored at ``start``."""
        lengths = start + INDEX_BYTES * (self.steps + 1)
        return start, lengths, lengths + INDEX_BYTES * self.batch


class RowLayout(NamedTuple):
    """Sizes and strides of a batch, as kernels see it; strides and positions count rows of a step.

    ``steps`` are those of the longest row, ``positions`` the rows of all steps together.
    ``caller_strides`` are the strides of a step and of a row in the caller's padded array, None if
    kernels read that array itself. ``tables`` is None for the dense layout.
    """

    steps: int
    batch: int
    positions: int
    step_stride: int
    row_stride: int
    tables: Tables | None = None
    caller_strides: tuple[int, int] | None = None


def row_layout(problem: RNNProblem) -> RowLayout:
    """Return the layout of a problem with at least one row.

    Examples
    --------
    >>> from dnnffi.spec.rnn import RNNSpec
    >>> spec = RNNSpec(mode="gru", input_size=1, hidden_size=1)
    >>> layout = row_layout(RNNProblem.dense(spec, steps=4, batch=2, lengths=[1, 3]))
    >>> layout.positions, layout.tables.entries.tolist()
    (4, [0, 2, 3, 4, 3, 1, 1, 0])
    """
    steps, batch, lengths = problem.steps, problem.batch, problem.lengths
    is_packed = problem.layout == PACKED
    strides = (1, steps) if problem.layout == BATCH_MAJOR else (batch, 1)
    if lengths is None or (is_packed and lengths[0] == lengths[-1]):
        return RowLayout(steps, batch, steps * batch, *strides)
    longest, positions = max(lengths), sum(lengths)
    entries = np.zeros(longest + 1 + 2 * batch, np.int32)
    step_offsets = entries[: longest + 1]
    of_rows, caller_rows = entries[longest + 1 :].reshape(2, batch)
    row_lengths = np.array(lengths, np.int32)
    caller_rows[:] = (-row_lengths).argsort(kind="stable")  # packed rows stay where they are
    row_lengths.take(caller_rows, out=of_rows)
    # A step has the rows that have not ended before it.
    np.bincount(row_lengths).cumsum(out=step_offsets)
    np.subtract(batch, step_offsets, out=step_offsets)
    step_offsets[1:] = step_offsets[:-1].cumsum()
    step_offsets[0] = 0
    tables = Tables(entries, longest, batch)
    return RowLayout(longest, batch, positions, 0, 0, tables, None if is_packed else strides)
