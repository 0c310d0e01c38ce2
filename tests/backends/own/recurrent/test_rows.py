"""Row layouts: tables and strides, compared with lists of positions."""

from __future__ import annotations

import conformance
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi.backends.own.recurrent import kernels, packing
from dnnffi.backends.own.recurrent.packing import Packing
from dnnffi.backends.own.recurrent.rows import row_layout
from dnnffi.device.interface import Launch
from dnnffi.spec.problem import BATCH_MAJOR, RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import lengths_to_batch_sizes
from simulators.cuda.emulator import EmulatedMemory
from simulators.cuda.memory import POISON

SPEC = RNNSpec(mode="gru", input_size=1, hidden_size=1)

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def positions(lengths):
    """Return (row, step) of each packed position, and the order of rows, the longest first."""
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    return [
        (row, step) for step in range(max(lengths)) for row in order if step < lengths[row]
    ], order


@pytest.mark.parametrize("batch_first", [False, True])
@given(lengths=LENGTHS, more=st.integers(0, 3))
def test_rows_of_unequal_length_are_packed_by_tables(batch_first, lengths, more):
    steps, batch = max(lengths) + more, len(lengths)
    problem = RNNProblem.dense(
        SPEC, steps=steps, batch=batch, batch_first=batch_first, lengths=lengths
    )
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
    assert (found.steps, found.batch, found.caller_steps) == (max(lengths), batch, steps)


def split(tables):
    """Return the three tables as lists: offsets of steps, lengths of rows, caller's rows."""
    entries, steps, batch = tables.entries().tolist(), tables.steps, tables.batch
    starts = [(address - 1000) // 4 for address in tables.addresses(1000)]
    assert starts == [0, steps + 1, steps + 1 + batch]
    assert 4 * len(entries) == tables.nbytes
    return entries[: starts[1]], entries[starts[1] : starts[2]], entries[starts[2] :]


@given(lengths=LENGTHS)
def test_packed_rows_stay_where_they_are(lengths):
    problem = RNNProblem.packed(SPEC, lengths_to_batch_sizes(lengths))
    found = row_layout(problem)
    falling = sorted(lengths, reverse=True)
    assert (found.steps, found.batch, found.positions) == (falling[0], len(lengths), sum(lengths))
    assert (found.caller_strides, found.caller_steps) == (None, 0)
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
    found = row_layout(RNNProblem.dense(SPEC, steps=steps, batch=batch, batch_first=batch_first))
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


class Padded:
    """Padded arrays of a ragged batch on the emulated device: x, space for its packed form, and y.

    Rows of y have ``y_width`` elements.
    """

    def __init__(self, problem, width, offset=0, seed=0, y_width=5):
        self.problem, self.layout, self.width = problem, row_layout(problem), width
        self.memory = EmulatedMemory(offset=offset)
        self.launch = Launch(self.memory.current_stream(), 0)
        self.packing = Packing(2, 2 * width, 2 * y_width, self.memory)
        rng = np.random.default_rng(seed)
        shape = (*problem.x_shape[:-1], width)
        self.padded = self.memory.array(rng.integers(0, 2**16, shape, np.uint16))
        self.packed = self.memory.empty((self.layout.positions, width), np.uint16)
        self.y = self.memory.empty((*problem.x_shape[:-1], y_width), np.uint16)
        self.aligned = EmulatedMemory()
        self.tables = self.aligned.empty((self.layout.tables.nbytes // 4,), np.int32)
        self.cleared = [self.aligned.empty((16 * words,), np.uint8) for words in (40, 3000)]

    def begin(self):
        """Run `Packing.begin` on the arrays."""
        self.packing.begin(
            *(self.launch, self.layout),
            self.layout.tables.addresses(self.tables.data.ptr),
            *(self.padded.data.ptr, self.packed.data.ptr, self.y.data.ptr),
            *((cleared.data.ptr, cleared.nbytes) for cleared in self.cleared),
        )
        self.check()

    def check(self):
        """Check the tables against the host's, the packed rows, and the cleared memory."""
        self.memory.check_margins()
        self.aligned.check_margins()
        assert np.array_equal(self.tables, self.layout.tables.entries())
        assert not any(cleared.any() for cleared in self.cleared)
        if self.layout.caller_strides is None:
            return
        step_stride, row_stride = self.layout.caller_strides
        rows = np.asarray(self.padded).reshape(-1, self.width)
        places, _ = positions(self.problem.lengths)
        expected = [rows[step * step_stride + row * row_stride] for row, step in places]
        assert np.array_equal(self.packed, expected)

    def check_ends(self):
        """Check that rows of y are zeros past their ends, and not written before them."""
        conformance.assert_padding_is_zero(self.problem, self.y)
        assert not np.isin(self.y[self.live()], 0).any()

    def live(self):
        """Return a mask of the rows of y that the recurrence writes."""
        steps = np.arange(self.problem.steps)
        found = steps < np.array(self.problem.lengths)[:, None]
        return found if self.problem.layout == BATCH_MAJOR else found.T


@pytest.mark.parametrize(
    ("width", "y_width", "offset"), [(8, 16, 0), (40, 5, 0), (3, 8, 0), (8, 8, 2), (3, 6, 4)]
)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", [(3, 1), (2, 5, 2, 5, 1), (1,) * 70 + (4, 2) * 3])
def test_a_forward_begins_with_tables_packed_rows_and_cleared_memory(
    lengths, batch_first, width, y_width, offset
):
    steps = max(lengths) + 1
    problem = RNNProblem.dense(
        SPEC, steps=steps, batch=len(lengths), batch_first=batch_first, lengths=lengths
    )
    padded = Padded(problem, width, offset, y_width=y_width)
    padded.begin()
    padded.check_ends()


def test_rows_that_are_packed_already_are_not_copied():
    padded = Padded(RNNProblem.packed(SPEC, [4, 2, 1]), 8)
    padded.begin()
    for untouched in (padded.packed, padded.y):
        assert (np.asarray(untouched).view(np.uint8) == POISON).all()


@pytest.mark.parametrize("max_rows", [(2, 6), (2, 4)])
def test_the_lengths_of_a_large_batch_fit_into_one_launch_or_not(monkeypatch, max_rows):
    for module in (packing, kernels):
        monkeypatch.setattr(module, "MAX_ROWS", max_rows)
    padded = Padded(RNNProblem.dense(SPEC, steps=5, batch=6, lengths=[1, 4, 2, 4, 1, 3]), 8)
    padded.begin()
    conformance.assert_padding_is_zero(padded.problem, padded.y)


@pytest.mark.parametrize("batch", [128, 129, 960, 961])
def test_batches_at_the_limits_of_the_arguments_of_a_launch(batch):
    lengths = [1 + row % 2 for row in range(batch)]
    padded = Padded(RNNProblem.dense(SPEC, steps=2, batch=batch, lengths=lengths), 8)
    padded.begin()
    conformance.assert_padding_is_zero(padded.problem, padded.y)


def test_a_large_batch_that_is_packed_already(monkeypatch):
    for module in (packing, kernels):
        monkeypatch.setattr(module, "MAX_ROWS", (2, 3))
    padded = Padded(RNNProblem.packed(SPEC, [4, 2, 1]), 8)
    padded.begin()


def test_tables_have_the_integers_that_kernels_read():
    tables = row_layout(RNNProblem.dense(SPEC, steps=3, batch=2, lengths=[1, 3])).tables
    assert tables.entries().dtype == np.dtype(np.int32)
