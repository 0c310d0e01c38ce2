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


def order_of(lengths):
    """Return the rows in the order of the tables: the longest first."""
    return sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))


def split(tables):
    """Return the tables by name, as lists; empty if the layout does not have one."""
    entries, batch = tables.entries().tolist(), tables.batch
    found = {}
    for name, address in tables.addresses(1000)._asdict().items():
        start = (address - 1000) // 4
        size = tables.steps + 1 if name == "step_offsets" else batch
        found[name] = entries[start : start + size] if address else []
    assert entries == [entry for table in found.values() for entry in table]
    assert 4 * len(entries) <= tables.nbytes
    return found


@pytest.mark.parametrize("batch_first", [False, True])
@given(lengths=LENGTHS, more=st.integers(0, 3))
def test_rows_of_unequal_length_lie_one_after_the_other(batch_first, lengths, more):
    steps, batch = max(lengths) + more, len(lengths)
    problem = RNNProblem.dense(
        SPEC, steps=steps, batch=batch, batch_first=batch_first, lengths=lengths
    )
    found = row_layout(problem)
    if problem.lengths is None:
        assert found.tables is None
        return
    order = order_of(lengths)
    step_stride, row_stride = found.caller_strides
    # The number of each element of the caller's array [T, B] or [B, T].
    shape = (batch, steps) if batch_first else (steps, batch)
    for row, step in np.ndindex(batch, steps):
        place = (row, step) if batch_first else (step, row)
        assert step * step_stride + row * row_stride == np.ravel_multi_index(place, shape)
    falling = [lengths[row] for row in order]
    assert split(found.tables) == {
        "lengths": falling,
        "caller_rows": order,
        "first_positions": [sum(falling[:rank]) for rank in range(batch)],
        "step_offsets": [],
    }
    assert (found.step_stride, found.row_stride, found.positions) == (1, 0, sum(lengths))
    assert (found.steps, found.batch, found.caller_steps) == (max(lengths), batch, steps)


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
    assert (found.step_stride, found.row_stride) == (0, 0)
    tables = split(found.tables)
    offsets = tables.pop("step_offsets")
    rows = list(range(len(lengths)))
    assert tables == {"lengths": falling, "caller_rows": rows, "first_positions": rows}
    assert offsets[0] == 0
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
    """Padded arrays of a ragged batch on the emulated device: x, space for its copy, and y.

    Rows of y have ``y_width`` elements. ``on_device``: lengths are in device memory, too.
    """

    def __init__(self, problem, width, offset=0, seed=0, y_width=5, *, on_device=False):
        self.problem, self.width = problem, width
        own = problem._replace(lengths=None, has_device_lengths=True) if on_device else problem
        self.layout = row_layout(own)
        self.memory = EmulatedMemory(offset=offset)
        self.launch = Launch(self.memory.current_stream(), 0)
        self.packing = Packing(2, 2 * width, 2 * y_width, self.memory, has_device_lengths=on_device)
        rng = np.random.default_rng(seed)
        shape = (*problem.x_shape[:-1], width)
        self.padded = self.memory.array(rng.integers(0, 2**16, shape, np.uint16))
        self.copied = self.memory.empty((self.layout.positions, width), np.uint16)
        self.y = self.memory.empty((*problem.x_shape[:-1], y_width), np.uint16)
        self.aligned = EmulatedMemory()
        self.tables = self.aligned.empty((self.layout.tables.nbytes // 4,), np.int32)
        self.lengths = (
            self.aligned.array(np.array(problem.lengths, np.int32)) if on_device else None
        )
        self.cleared = [self.aligned.empty((16 * words,), np.uint8) for words in (40, 3000)]

    @property
    def addresses(self):
        """Addresses of the tables."""
        return self.layout.tables.addresses(self.tables.data.ptr)

    def begin(self):
        """Run `Packing.begin` on the arrays, and check the tables and the cleared memory."""
        self.packing.begin(
            *(self.launch, self.layout, self.addresses),
            self.padded.data.ptr,
            0 if self.layout.caller_strides is None else self.copied.data.ptr,
            self.y.data.ptr,
            *((cleared.data.ptr, cleared.nbytes) for cleared in self.cleared),
            0 if self.lengths is None else self.lengths.data.ptr,
        )
        self.memory.check_margins()
        self.aligned.check_margins()
        expected = self.expected_tables()
        assert np.array_equal(self.tables[: len(expected)], expected)
        assert not any(cleared.any() for cleared in self.cleared)

    def expected_tables(self):
        """Return the entries of the tables."""
        if self.lengths is None:
            return self.layout.tables.entries()
        lengths = self.problem.lengths
        order = order_of(lengths)
        firsts = [row * self.layout.row_stride for row in order]
        return [*(lengths[row] for row in order), *order, *firsts]

    def check_copy(self):
        """Check x where the copies of rows are, which lie one after the other or as in x."""
        live = self.live()
        if self.lengths is not None:
            expected = np.where(live[..., None], self.padded, 0).reshape(-1, self.width)
        else:
            rows = self.padded if self.problem.layout == BATCH_MAJOR else self.padded.swapaxes(0, 1)
            lengths = self.problem.lengths
            expected = np.concatenate([rows[row, : lengths[row]] for row in order_of(lengths)])
        assert np.array_equal(self.copied, expected)

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
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", [(3, 1), (2, 5, 2, 5, 1), (1,) * 70 + (4, 2) * 3])
def test_a_forward_begins_with_tables_copied_rows_and_cleared_memory(
    lengths, batch_first, on_device, width, y_width, offset
):
    steps = max(lengths) + 1
    problem = RNNProblem.dense(
        SPEC, steps=steps, batch=len(lengths), batch_first=batch_first, lengths=lengths
    )
    padded = Padded(problem, width, offset, y_width=y_width, on_device=on_device)
    padded.begin()
    padded.check_copy()
    padded.check_ends()


def test_rows_that_are_packed_already_are_not_copied():
    padded = Padded(RNNProblem.packed(SPEC, [4, 2, 1]), 8)
    padded.begin()
    for untouched in (padded.copied, padded.y):
        assert (np.asarray(untouched).view(np.uint8) == POISON).all()


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("max_rows", [(2, 6), (2, 4)])
def test_the_lengths_of_a_large_batch_fit_into_one_launch_or_not(monkeypatch, max_rows, on_device):
    for module in (packing, kernels):
        monkeypatch.setattr(module, "MAX_ROWS", max_rows)
    monkeypatch.setattr(packing, "_MAX_RANKED", max_rows[1])
    problem = RNNProblem.dense(SPEC, steps=5, batch=6, lengths=[1, 4, 2, 4, 1, 3])
    padded = Padded(problem, 8, on_device=on_device)
    padded.begin()
    padded.check_copy()
    conformance.assert_padding_is_zero(padded.problem, padded.y)


@pytest.mark.parametrize("batch", [128, 129, 960, 961])
def test_batches_at_the_limits_of_the_arguments_of_a_launch(batch):
    lengths = [1 + row % 2 for row in range(batch)]
    padded = Padded(RNNProblem.dense(SPEC, steps=2, batch=batch, lengths=lengths), 8)
    padded.begin()
    padded.check_copy()
    conformance.assert_padding_is_zero(padded.problem, padded.y)


def test_a_large_batch_that_is_packed_already(monkeypatch):
    for module in (packing, kernels):
        monkeypatch.setattr(module, "MAX_ROWS", (2, 3))
    padded = Padded(RNNProblem.packed(SPEC, [4, 2, 1]), 8)
    padded.begin()


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("blocks", [1, 8, 1024])
def test_arrays_are_cleared_past_the_ends_of_rows_alone(monkeypatch, batch_first, blocks):
    monkeypatch.setattr(packing, "_CLEARING_BLOCKS", blocks)
    problem = RNNProblem.dense(
        SPEC, steps=5, batch=4, batch_first=batch_first, lengths=[5, 0, 4, 1]
    )
    padded = Padded(problem, 8, on_device=True)
    padded.begin()
    arrays = [padded.memory.array(np.ones((20, width), np.uint16)) for width in (8, 3, 40)]
    padded.packing.clear_ended(
        *(padded.launch, padded.layout, padded.addresses),
        [(array.data.ptr, 2 * array.shape[1]) for array in arrays],
    )
    padded.memory.check_margins()
    for array in arrays:
        assert np.array_equal(array, np.ones_like(array) * padded.live().reshape(-1, 1))


def test_tables_have_the_integers_that_kernels_read():
    tables = row_layout(RNNProblem.dense(SPEC, steps=3, batch=2, lengths=[1, 3])).tables
    assert tables.entries().dtype == np.dtype(np.int32)
