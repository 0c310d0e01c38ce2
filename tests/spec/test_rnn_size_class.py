"""Classes of sizes: bounds, members, and which class serves another one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.rnn_size_class import RNNSizeClass, max_rows, max_steps, size_class

SPEC = RNNSpec(mode="gru", input_size=1, hidden_size=1)
COUNTS = st.integers(1, 2**20)


@given(batch=COUNTS)
def test_rows_of_a_class_differ_by_a_group_of_eight_or_an_eighth(batch):
    bound = max_rows(batch)
    assert batch <= bound
    assert max_rows(bound) == bound
    if batch > 8:
        assert bound % 8 == 0
        assert bound - batch < max(8, batch / 4)


@given(steps=COUNTS)
def test_steps_of_a_class_differ_by_a_factor_of_four(steps):
    bound = max_steps(steps)
    assert steps <= bound
    assert max_steps(bound) == bound
    if steps > 8:
        assert bound < 4 * steps


@given(first=COUNTS, second=COUNTS)
def test_more_rows_or_steps_are_of_no_smaller_class(first, second):
    less, more = sorted((first, second))
    assert max_rows(less) <= max_rows(more)
    assert max_steps(less) <= max_steps(more)


def test_few_classes_serve_all_batches_of_up_to_64_rows():
    assert sorted({max_rows(batch) for batch in range(1, 65)}) == [1, 2, 4, *range(8, 65, 8)]


def test_steps_are_those_of_the_longest_row():
    assert (
        size_class(RNNProblem.dense(SPEC, steps=100, batch=3, lengths=[1, 30, 5])).max_steps == 32
    )
    assert size_class(RNNProblem.dense(SPEC, steps=100, batch=3)).max_steps == 128


def test_rows_that_end_before_the_array_are_ragged_and_packed_rows_of_one_length_are_not():
    dense = [RNNProblem.dense(SPEC, steps=steps, batch=2, lengths=[5, 5]) for steps in (9, 5)]
    assert [size_class(problem).row_kind for problem in dense] == ["ragged", "full"]
    packed = [RNNProblem.packed(SPEC, sizes) for sizes in ([2, 2], [2, 1])]
    assert [size_class(problem).row_kind for problem in packed] == ["full", "packed"]
    on_device = RNNProblem.dense(SPEC, steps=5, batch=2)._replace(has_device_lengths=True)
    assert size_class(on_device).row_kind == "ragged"


def test_the_nearest_class_has_enough_rows_if_any_has():
    mine = RNNSizeClass(24, 128, "ragged")
    others = [RNNSizeClass(rows, 128, "ragged") for rows in (16, 32, 64)]
    assert min(others, key=mine.distance) == RNNSizeClass(32, 128, "ragged")
    shorter = RNNSizeClass(32, 32, "ragged")
    assert min([others[0], shorter], key=mine.distance) == shorter


def test_a_class_is_told_in_words():
    assert str(RNNSizeClass(32, 128, "ragged")) == "up to 32 ragged rows of up to 128 steps"
