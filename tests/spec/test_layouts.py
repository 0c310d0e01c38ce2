"""Tests of memory layouts and strides, compared with NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi.spec.layouts import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    contiguous_strides,
    is_packed,
    memory_layout,
    packed_strides,
)

shapes = st.lists(st.integers(1, 5), min_size=2, max_size=5).map(tuple)


def last(shape):
    """An array of that shape [N, C, ...] with its channels innermost."""
    return np.moveaxis(np.zeros((shape[0], *shape[2:], shape[1]), "int8"), -1, 1)


def layout(array):
    return memory_layout(array.shape, array.strides)


def strides(make, shape):
    """Return the strides of an array in elements."""
    array = make(shape)
    return tuple(stride // array.itemsize for stride in array.strides)


@given(shapes)
def test_strides_without_gaps_are_those_of_numpy(shape):
    assert contiguous_strides(shape) == packed_strides(shape, False) == strides(np.zeros, shape)
    assert packed_strides(shape, True) == strides(last, shape)


def test_a_vector_is_the_same_in_both_layouts():
    assert packed_strides((5,), True) == packed_strides((5,), False) == (1,)


def test_strides_in_bytes_that_are_no_whole_elements_leave_gaps():
    assert is_packed((2, 2, 3), (24, 12, 4), False, itemsize=4)
    assert not is_packed((2, 2, 3), (24, 12, 5), False, itemsize=4)
    assert not is_packed((2, 2, 3), (27, 12, 4), False, itemsize=4)


@given(shapes, st.booleans(), st.data())
def test_strides_of_dimensions_of_one_count_for_nothing(shape, channels_last, data):
    packed = packed_strides(shape, channels_last)
    any_stride = [data.draw(st.integers(0, 99)) for _ in shape]
    given = (b if n == 1 else a for n, a, b in zip(shape, packed, any_stride, strict=True))
    assert is_packed(shape, tuple(given), channels_last)


@given(shapes, st.booleans(), st.integers(0, 4))
def test_a_gap_in_any_dimension_that_is_stepped_is_seen(shape, channels_last, dimension):
    dimension %= len(shape)
    given = list(packed_strides(shape, channels_last))
    given[dimension] += 1
    assert is_packed(shape, tuple(given), channels_last) == (shape[dimension] == 1)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 6), (1, 3, 1, 5)], ids=str)
def test_layouts_are_told_by_the_strides(shape):
    assert layout(np.zeros(shape)) == CHANNELS_FIRST
    assert layout(last(shape)) == CHANNELS_LAST


@pytest.mark.parametrize("make", [np.zeros, last])
@pytest.mark.parametrize("shape", [(2, 1, 4, 5), (2, 3, 1, 1)], ids=str)
def test_one_channel_or_one_element_tells_no_layout(make, shape):
    assert layout(make(shape)) is None


@given(st.integers(0, 3), st.integers(1, 3), st.booleans())
def test_views_keep_the_layout_of_what_they_show(dimension, step, reverse):
    index = [slice(None)] * 4
    index[dimension] = slice(None, None, -step if reverse else step)
    for make, expected in ((np.zeros, CHANNELS_FIRST), (last, CHANNELS_LAST)):
        assert layout(make((7, 7, 7, 7))[tuple(index)]) == expected


def test_a_broadcast_array_counts_as_channels_first():
    assert layout(np.broadcast_to(np.zeros(1), (2, 3, 4, 5))) == CHANNELS_FIRST
