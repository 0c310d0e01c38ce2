"""Row layouts of a problem: steps of equal size, or packed rows, the longest first.

Kernels take two layouts: every row has all steps, at constant distances; or rows are packed, the
longest first, by tables. Rows of unequal length that are not packed are copied into packed ones:
then no product computes what is not there, a group of rows ends with its longest, and what lies
past a row's end is not read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dnnffi.spec.problem import BATCH_MAJOR, PACKED, RNNProblem
from dnnffi.spec.sequences import lengths_to_batch_sizes

Table = np.ndarray[Any, np.dtype[np.int32]]


class Tables(NamedTuple):
    """Of packed rows: the first position of each step, the steps of each row, its number.

    The number is the caller's. ``where`` is each packed row's place in the caller's array, or None
    where that is packed already.
    """

    offsets: Table
    lengths: Table
    order: Table
    where: Table | None


class Rows(NamedTuple):
    """``positions`` are all rows of all steps. The strides count positions."""

    steps: int
    batch: int
    positions: int
    step_stride: int
    row_stride: int
    tables: Tables | None


def rows_of(problem: RNNProblem) -> Rows:
    """The rows of a problem, as kernels see them."""
    batch = problem.batch
    lengths = problem.row_lengths
    steps = max(lengths)
    if min(lengths) == steps and (problem.lengths is None or problem.layout == PACKED):
        strides = (1, steps) if problem.layout == BATCH_MAJOR else (batch, 1)
        return Rows(steps, batch, steps * batch, *strides, None)
    order = sorted(range(batch), key=lambda row: -lengths[row])  # stable: packed rows stay
    sizes = lengths_to_batch_sizes(sorted(lengths, reverse=True))
    offsets = np.zeros(steps + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    where = None
    if problem.layout != PACKED:
        row = np.concatenate([np.array(order[:size], np.int32) for size in sizes])
        step = np.repeat(np.arange(steps, dtype=np.int32), sizes)
        where = row * problem.steps + step if problem.layout == BATCH_MAJOR else step * batch + row
    tables = Tables(
        offsets,
        np.array([lengths[row] for row in order], np.int32),
        np.array(order, np.int32),
        where,
    )
    return Rows(steps, batch, sum(lengths), 0, 0, tables)
