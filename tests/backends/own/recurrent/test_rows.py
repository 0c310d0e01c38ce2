"""Row layouts: tables and strides, compared with lists of positions."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_cuda import EmulatedMemory
from hypothesis import given
from hypothesis import strategies as st

from dnnffi.backends.own.recurrent.packing import Packing
from dnnffi.backends.own.recurrent.rows import Tables, row_layout
from dnnffi.device.interface import Launch
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
def test_rows_of_unequal_length_are_packed_by_tables(batch_first, lengths, more):
    steps, batch = max(lengths) + more, len(lengths)
    problem = RNNProblem.dense(SPEC, steps, batch, batch_first=batch_first, lengths=lengths)
    found = row_layout(problem)
    if problem.lengths is None:
        assert found.tables is None
        return
    expected, order = positions(lengths)
    step_stride, row_stride = found.caller_strides
    # The number of each element of the caller's array [T, B] or [B, T].
    shape = (batch, steps) if batch_first else (steps, batch)
    for row, step in expected:
        place = (row, step) if batch_first else (step, row)
        assert step * step_stride + row * row_stride == np.ravel_multi_index(place, shape)
    offsets, of_rows, caller_rows = split(found.tables)
    assert caller_rows == order
    assert of_rows == [lengths[row] for row in order]
    assert found.positions == sum(lengths)
    # A row's position in a step is the step's offset and its place in the order.
    assert [offsets[step] + order.index(row) for row, step in expected] == list(
        range(len(expected))
    )
    assert offsets[-1] == len(expected)
    assert (found.steps, found.batch) == (max(lengths), batch)


def split(tables):
    """The three tables as lists."""
    entries, steps = tables.entries.tolist(), tables.steps
    starts = [(address - 1000) // 4 for address in tables.addresses(1000)]
    assert starts == [0, steps + 1, steps + 1 + tables.batch]
    assert len(entries) == steps + 1 + 2 * tables.batch
    return entries[: starts[1]], entries[starts[1] : starts[2]], entries[starts[2] :]


@given(lengths=LENGTHS)
def test_packed_rows_stay_where_they_are(lengths):
    problem = RNNProblem.packed(SPEC, lengths_to_batch_sizes(lengths))
    found = row_layout(problem)
    falling = sorted(lengths, reverse=True)
    assert (found.steps, found.batch, found.positions) == (falling[0], len(lengths), sum(lengths))
    assert found.caller_strides is None
    if falling[-1] == falling[0]:
        assert found.tables is None
        assert (found.step_stride, found.row_stride) == (len(lengths), 1)
        return
    offsets, of_rows, caller_rows = split(found.tables)
    assert caller_rows == list(range(len(lengths)))
    assert of_rows == falling
    assert np.diff(offsets).tolist() == list(lengths_to_batch_sizes(falling))


@given(steps=st.integers(1, 20), batch=st.integers(1, 20), batch_first=st.booleans())
def test_rows_of_equal_length_are_stored_at_constant_strides(steps, batch, batch_first):
    found = row_layout(RNNProblem.dense(SPEC, steps, batch, batch_first=batch_first))
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


def test_tables_have_the_integers_that_kernels_read():
    tables = row_layout(RNNProblem.dense(SPEC, 3, 2, lengths=[1, 3])).tables
    assert tables.entries.dtype == np.dtype(np.int32)


@pytest.mark.parametrize("entries", [1, 959, 960, 961, 2000])
def test_tables_of_any_size_are_stored_by_launches(entries):
    memory = EmulatedMemory()
    packing = Packing(2, memory)
    tables = Tables(np.arange(7, entries + 7, dtype=np.int32), 0, 0)
    target = memory.zeros((entries,), np.int32)
    packing.store(Launch(memory.current_stream(), 0), tables, target.data.ptr)
    assert np.array_equal(np.asarray(target), tables.entries)
    memory.check_margins()
