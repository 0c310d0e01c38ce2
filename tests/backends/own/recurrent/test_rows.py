"""Tests of the row tables against the positions that they describe."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi.backends.own.recurrent.rows import rows_of
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import lengths_to_batch_sizes

SPEC = RNNSpec(mode="gru", input_size=1, hidden_size=1)

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def positions(lengths):
    """(row, step) of each packed position: all rows of a step, the longest first."""
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    return [
        (row, step) for step in range(max(lengths)) for row in order if step < lengths[row]
    ], order


@pytest.mark.parametrize("batch_first", [False, True])
@given(lengths=LENGTHS, more=st.integers(0, 3))
def test_rows_of_unequal_length_are_packed_by_a_table(batch_first, lengths, more):
    steps, batch = max(lengths) + more, len(lengths)
    problem = RNNProblem.dense(SPEC, steps, batch, batch_first=batch_first, lengths=lengths)
    found = rows_of(problem)
    if problem.lengths is None:
        assert found.tables is None
        return
    expected, order = positions(lengths)
    # The number of each element of the caller's array [T, B] or [B, T].
    numbers = np.arange(steps * batch).reshape(batch, steps) if batch_first else None
    if numbers is None:
        numbers = np.arange(steps * batch).reshape(steps, batch).T
    assert found.tables.where.tolist() == [numbers[row, step] for row, step in expected]
    assert found.tables.order.tolist() == order
    assert found.tables.lengths.tolist() == [lengths[row] for row in order]
    assert found.positions == sum(lengths)
    # A row's position in a step is the step's offset and its place in the order.
    offsets = found.tables.offsets.tolist()
    assert [offsets[step] + order.index(row) for row, step in expected] == list(
        range(len(expected))
    )
    assert offsets[-1] == len(expected)
    assert (found.steps, found.batch) == (max(lengths), batch)


@given(lengths=LENGTHS)
def test_packed_rows_stay_where_they_are(lengths):
    problem = RNNProblem.packed(SPEC, lengths_to_batch_sizes(lengths))
    found = rows_of(problem)
    falling = sorted(lengths, reverse=True)
    assert (found.steps, found.batch, found.positions) == (falling[0], len(lengths), sum(lengths))
    if falling[-1] == falling[0]:
        assert found.tables is None
        assert (found.step_stride, found.row_stride) == (len(lengths), 1)
        return
    assert found.tables.where is None
    assert found.tables.order.tolist() == list(range(len(lengths)))
    assert found.tables.lengths.tolist() == falling
    sizes = lengths_to_batch_sizes(falling)
    assert np.diff(found.tables.offsets).tolist() == list(sizes)


@given(steps=st.integers(1, 20), batch=st.integers(1, 20), batch_first=st.booleans())
def test_rows_of_equal_length_lie_at_constant_distances(steps, batch, batch_first):
    found = rows_of(RNNProblem.dense(SPEC, steps, batch, batch_first=batch_first))
    assert found.tables is None
    shape = (batch, steps) if batch_first else (steps, batch)
    numbers = np.arange(steps * batch).reshape(shape)
    if batch_first:
        numbers = numbers.T
    expected = [
        [step * found.step_stride + row * found.row_stride for row in range(batch)]
        for step in range(steps)
    ]
    assert numbers.tolist() == expected
    assert found.positions == steps * batch


def test_tables_are_of_the_integers_that_kernels_read():
    tables = rows_of(RNNProblem.dense(SPEC, 3, 2, lengths=[1, 3])).tables
    assert {table.dtype for table in tables} == {np.dtype(np.int32)}
