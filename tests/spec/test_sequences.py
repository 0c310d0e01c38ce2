"""lengths and batch_sizes: inverse of each other, and refusal of wrong ones."""

from __future__ import annotations

import warnings
from array import array
from collections import Counter, deque
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi import testing
from dnnffi.spec import sequences
from dnnffi.spec.sequences import (
    as_integers,
    batch_sizes_to_lengths,
    check_batch_sizes,
    check_lengths,
    lengths_to_batch_sizes,
)

some_lengths = st.lists(st.integers(1, 30), min_size=1, max_size=30)


@given(some_lengths)
def test_batch_sizes_count_the_rows_that_still_run(lengths):
    sizes = lengths_to_batch_sizes(lengths)
    assert sizes == tuple(sum(n > step for n in lengths) for step in range(max(lengths)))


@given(some_lengths)
def test_lengths_come_back_sorted(lengths):
    assert batch_sizes_to_lengths(lengths_to_batch_sizes(lengths)) == tuple(
        sorted(lengths, reverse=True)
    )


@given(testing.batch_sizes(max_steps=30, max_batch=30))
def test_batch_sizes_come_back(sizes):
    assert lengths_to_batch_sizes(batch_sizes_to_lengths(sizes)) == sizes


def test_an_example():
    assert lengths_to_batch_sizes([2, 5, 1, 2]) == (4, 3, 1, 1, 1)
    assert batch_sizes_to_lengths([4, 3, 1, 1, 1]) == (5, 2, 2, 1)


@pytest.mark.parametrize("lengths", [[], [0], [3, 0], [2, -1]])
def test_no_batch_sizes_of_lengths_below_one(lengths):
    with pytest.raises(ValueError, match=r"^lengths must be one or more integers from 1 to 16777"):
        lengths_to_batch_sizes(lengths)


def test_the_longest_lengths_and_largest_batches_are_taken(monkeypatch):
    monkeypatch.setattr(sequences, "MAX_ENTRIES", 3)
    assert lengths_to_batch_sizes([3, 1]) == (2, 1, 1)
    assert batch_sizes_to_lengths([3, 1]) == (2, 1, 1)
    with pytest.raises(ValueError, match=r"^lengths must be .* from 1 to 3; they go from 1 to 4$"):
        lengths_to_batch_sizes([4, 1])
    with pytest.raises(ValueError, match=r"^batch_sizes must be at most 3; got 4$"):
        batch_sizes_to_lengths([4, 1])


# Integers


@pytest.mark.parametrize(
    "values",
    [
        (3, 1),
        [3, 1],
        range(3, 0, -2),
        array("i", [3, 1]),
        deque([3, 1]),
        np.array([3, 1]),
        np.array([3, 1], np.uint8),
        iter([3, 1]),
        (n for n in (3, 1)),
    ],
    ids=["tuple", "list", "range", "array", "deque", "int64", "uint8", "iterator", "generator"],
)
def test_integers_of_the_host_in_any_form(values):
    integers = as_integers("lengths", values)
    assert integers == (3, 1)
    assert [type(value) for value in integers] == [int, int]


@pytest.mark.parametrize(
    "values", [[2, 1.0], [2, True], [2, "1"], [2, None], (2, np.float32(1)), (2, np.True_)], ids=str
)
def test_other_things_are_no_integers(values):
    with pytest.raises(TypeError, match=r"^lengths\[1\] must be an integer; got "):
        as_integers("lengths", values)


@pytest.mark.parametrize("values", [np.ones(2), np.ones(2, bool), np.array(["a", "b"])], ids=repr)
def test_arrays_of_other_things_are_no_integers(values):
    with pytest.raises(TypeError, match=r"^batch_sizes\[0\] must be an integer; got "):
        as_integers("batch_sizes", values)


class BoolTensor:
    """A boolean of PyTorch, which has ``__index__``, in contrast to NumPy's."""

    dtype = "torch.bool"

    def __index__(self):
        return 1


def test_booleans_of_pytorch_are_no_integers():
    with pytest.raises(TypeError, match=r"^lengths\[1\] must be an integer; got torch\.bool$"):
        as_integers("lengths", [2, BoolTensor()])


def test_an_array_of_two_dimensions_is_no_sequence_of_integers():
    with pytest.raises(TypeError, match=r"^lengths\[0\] must be a host integer; got ndarray"):
        as_integers("lengths", np.ones((2, 2), int))


@pytest.mark.parametrize("value", [3, 2.5, None, np.array(3)], ids=repr)
def test_one_number_is_no_sequence(value):
    with pytest.raises(TypeError, match=r"^lengths must be a sequence of integers; got "):
        as_integers("lengths", value)


NO_SEQUENCES = {
    "set": {3, 1},
    "empty set": set(),
    "frozenset": frozenset((3, 1)),
    "dict": {3: 1, 1: 1},
    "Counter": Counter([3, 1]),
    "mappingproxy": MappingProxyType({3: 1}),
    "dict_keys": {3: 1}.keys(),
    "bytes": b"\3\1",
    "empty bytes": b"",
    "bytearray": bytearray(b"\3\1"),
    "str": "31",
    "empty str": "",
    "MaskedArray": np.ma.masked_array([3, 1], mask=[False, True]),
}


@pytest.mark.parametrize(("name", "value"), NO_SEQUENCES.items(), ids=list(NO_SEQUENCES))
@pytest.mark.parametrize("check", [check_batch_sizes, lengths_to_batch_sizes])
def test_what_has_no_order_or_no_integers_is_no_sequence(check, name, value):
    name = name.removeprefix("empty ")
    with pytest.raises(TypeError, match=rf"^\w+ must be a sequence of integers; got {name}$"):
        check(value)


@given(st.sets(st.integers(1, 9), min_size=2) | st.dictionaries(st.integers(1, 9), st.none()))
def test_lengths_in_a_set_or_dict_are_refused_whatever_they_are(lengths):
    with pytest.raises(TypeError, match=r"^lengths must be a sequence of integers; got (set|dict)"):
        check_lengths(lengths, 9, len(lengths))


def test_a_matrix_of_one_row_is_no_sequence():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        row = np.asmatrix([[3]])
    with pytest.raises(TypeError, match=r"^lengths must be a sequence of integers; got matrix$"):
        as_integers("lengths", row)


# lengths


@given(st.data(), st.integers(1, 9), st.integers(1, 9))
def test_lengths_in_any_order_are_right(data, steps, batch):
    lengths = data.draw(testing.lengths(steps, batch, shortest=0))
    assert check_lengths(list(lengths), steps, batch) == lengths


@pytest.mark.parametrize("length", [-1, 5])
def test_a_length_is_from_0_to_t(length):
    with pytest.raises(
        ValueError, match=rf"^lengths\[1\] must be from 0 to 4 \(T\); got {length}$"
    ):
        check_lengths([4, length, 1], 4, 3)


def test_a_length_of_0_is_refused_where_a_row_must_have_a_step():
    with pytest.raises(ValueError, match=r"^lengths\[1\] must be from 1 to 4 \(T\); got 0$"):
        check_lengths([4, 0, 1], 4, 3, shortest=1)


@pytest.mark.parametrize("lengths", [(), (1, 2), (1, 2, 3, 4)])
def test_one_length_for_each_row(lengths):
    message = rf"^lengths must have one entry for each of the 3 rows .*got {len(lengths)}$"
    with pytest.raises(ValueError, match=message):
        check_lengths(lengths, 4, 3)


# batch_sizes


@given(testing.batch_sizes())
def test_batch_sizes_that_never_rise_are_right(sizes):
    assert check_batch_sizes(list(sizes), sum(sizes)) == sizes


def test_batch_sizes_never_rise():
    message = r"^batch_sizes must never rise; batch_sizes\[2\] is 3 after 2$"
    with pytest.raises(ValueError, match=message):
        check_batch_sizes([3, 2, 3])


@pytest.mark.parametrize("sizes", [(-1,), (0, -1), (2, 0), (2, -1), (2, 0, 0)])
def test_batch_sizes_are_positive(sizes):
    with pytest.raises(ValueError, match=r"^batch_sizes must be 1 or more, or all of them 0; got"):
        check_batch_sizes(sizes)


@pytest.mark.parametrize("sizes", [(0,), (0, 0, 0)])
def test_batch_sizes_of_an_empty_batch_are_zeros(sizes):
    assert check_batch_sizes(sizes, 0) == sizes
    assert batch_sizes_to_lengths(sizes) == ()


def test_there_is_a_batch_size():
    with pytest.raises(ValueError, match=r"^batch_sizes must have at least one entry"):
        check_batch_sizes([])


@pytest.mark.parametrize("total", [0, 5, 7])
def test_batch_sizes_sum_to_the_rows_of_x(total):
    message = rf"^batch_sizes must sum to the first dimension of x \({total}\); they sum to 6$"
    with pytest.raises(ValueError, match=message):
        check_batch_sizes([3, 2, 1], total)
