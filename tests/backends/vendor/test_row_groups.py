"""Tests of groups of rows: their rows, and the parts of arrays that are copied."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi import testing
from dnnffi.backends.vendor.row_groups import (
    row_groups,
    sequence_rectangles,
    state_rectangles,
)
from dnnffi.spec.problem import PACKED, RNNProblem
from dnnffi.spec.rnn import RNNSpec

SPEC = RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=2, bidirectional=True)
PROBLEMS = testing.problems(st.just(SPEC), shortest=0, max_batch=9)


def groups_of(problem, max_positions):
    found = row_groups(problem, max_positions)
    return [] if found is None else found


def copied(rectangles, size):
    """Return the index in the caller's array from which each element of a group is copied."""
    found = np.full(size, -1)
    for start, pitch, group_start, group_pitch, width, rows in rectangles:
        for row in range(rows):
            begin = group_start + row * group_pitch
            assert (found[begin : begin + width] == -1).all(), "copied twice"
            found[begin : begin + width] = start + row * pitch + np.arange(width)
    return found


def positions(problem):
    """Return the position [T, B] of each row and step in an array, -1 past the end of a row."""
    steps, batch = problem.steps, problem.batch
    active = np.arange(steps)[:, None] < np.array(problem.row_lengths)
    found = np.arange(steps * batch).reshape(steps, batch)
    if problem.layout == PACKED:
        found = active.cumsum().reshape(steps, batch) - 1
    elif problem.layout == "batch_major":
        found = np.arange(steps * batch).reshape(batch, steps).T
    return np.where(active, found, -1)


@given(PROBLEMS, st.integers(1, 30))
def test_each_row_with_a_step_is_in_one_group(problem, max_positions):
    groups = row_groups(problem, max_positions)
    if groups is None:
        assert min(problem.row_lengths) > 0
        assert np.prod(problem.leading_shape) <= max_positions
        return
    rows = [row for group in groups for row in group.rows]
    assert rows == [row for row, length in enumerate(problem.row_lengths) if length]
    for group in groups:
        lengths = tuple(problem.row_lengths[row] for row in group.rows)
        assert group.problem.row_lengths == lengths
        assert group.problem.steps == max(lengths)
        is_small = np.prod(group.problem.leading_shape) <= max_positions
        assert is_small or len(lengths) == 1


@given(PROBLEMS, st.integers(1, 30))
def test_a_group_has_the_sequences_of_its_rows(problem, max_positions):
    of_problem = positions(problem)
    for group in groups_of(problem, max_positions):
        of_group = positions(group.problem)
        rectangles = sequence_rectangles(problem, group)
        found = copied(rectangles, np.prod(group.problem.leading_shape))
        steps = np.arange(group.problem.steps)[:, None]
        expected = of_problem[steps, np.array(group.rows)]
        is_stored = of_group >= 0
        np.testing.assert_array_equal(found[of_group[is_stored]], expected[is_stored])


@given(PROBLEMS, st.integers(1, 30))
def test_a_group_has_the_states_of_its_rows(problem, max_positions):
    layers = problem.h_shape[0]
    for group in groups_of(problem, max_positions):
        batch = group.problem.batch
        found = copied(state_rectangles(problem, group), layers * batch)
        expected = np.arange(layers * problem.batch).reshape(layers, problem.batch)
        np.testing.assert_array_equal(
            found.reshape(layers, batch), expected[:, np.array(group.rows)]
        )


@pytest.mark.parametrize("max_positions", [None, 20])
def test_a_problem_that_the_library_takes_is_not_divided(max_positions):
    for lengths in (None, (5, 1, 3, 4)):
        problem = RNNProblem.dense(SPEC, steps=5, batch=4, lengths=lengths)
        assert row_groups(problem, max_positions) is None
