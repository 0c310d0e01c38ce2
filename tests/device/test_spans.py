"""Memory that is written: whether two elements of an array, or of two arrays, share it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from dnnffi.device import spans
from dnnffi.device.spans import Span, check_apart, span_of, written_span

DIMENSIONS = st.lists(st.tuples(st.integers(0, 4), st.integers(-40, 40)), max_size=3)


def strided(memory, start, dimensions):
    """Return an array of float32 with these sizes and strides, from byte ``start`` on."""
    shape, strides = [size for size, _ in dimensions], [step for _, step in dimensions]
    return as_strided(memory[start : start + 4].view("f4"), shape, strides)


def bytes_of(array, memory):
    """Return how many elements of an array of float32 have each byte of ``memory``."""
    used = np.zeros(memory.size, int)
    first = array.ctypes.data - memory.ctypes.data
    for place in np.ndindex(*array.shape):
        start = first + sum(at * step for at, step in zip(place, array.strides, strict=True))
        used[start : start + 4] += 1
    return used


@given(DIMENSIONS)
def test_an_array_is_refused_exactly_where_two_elements_share_a_byte(dimensions):
    memory = np.zeros(1024, "u1")
    array = strided(memory, 480, dimensions)
    used = bytes_of(array, memory)
    if used.max(initial=0) > 1:
        with pytest.raises(ValueError, match=r"^y must not overlap itself: "):
            written_span("y", array)
    else:
        (bytes_used,) = np.nonzero(used)
        span = written_span("y", array)
        assert span.nbytes == (np.ptp(bytes_used) + 1 if array.size else 0)
        if array.size:
            assert span.address == memory.ctypes.data + bytes_used[0]


def test_a_huge_array_of_one_element_is_refused():
    huge = as_strided(np.zeros(1), (2**40, 2**10), (0, 0))
    with pytest.raises(ValueError, match="must not overlap itself"):
        written_span("y", huge)


def test_a_read_only_array_is_refused():
    array = np.zeros(3)
    assert written_span("y", array) == Span("y", array.ctypes.data, 24)
    array.flags.writeable = False
    with pytest.raises(ValueError, match=r"^y must be writable; it is read-only$"):
        written_span("y", array)


@given(DIMENSIONS, DIMENSIONS, st.integers(-60, 60))
def test_two_arrays_are_refused_exactly_where_they_share_a_byte(first, second, offset):
    memory = np.zeros(2048, "u1")
    one, two = strided(memory, 1000, first), strided(memory, 1000 + offset, second)
    written, read = [span_of("y", one)], [span_of("x", two)]
    if (bytes_of(one, memory) * bytes_of(two, memory)).any():
        with pytest.raises(ValueError, match=r"^(y and x|x and y) must not share memory: one is"):
            check_apart(written, read)
    else:
        check_apart(written, read)


def test_an_array_in_a_gap_of_one_that_is_read_shares_memory_with_a_third():
    memory = np.zeros((4, 8), "f4")
    left, right, last = memory[:, :4], memory[:, 4:], memory[3]
    read = [span_of("left", left), span_of("last", last)]
    with pytest.raises(ValueError, match=r"^last and right must not share memory: one is written$"):
        check_apart([span_of("right", right)], read)


def test_strides_that_take_too_long_to_compare_are_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(spans, "MAX_OVERLAP_CANDIDATES", 1)
    memory = np.zeros(200_000, "u1")
    one = as_strided(memory, (3, 3, 5, 8), (5746, 5040, 878, 2630))
    two = as_strided(memory[22_686:], (6, 8, 8, 6), (4770, 1824, 5582, 3086))
    with pytest.raises(ValueError, match=r"^x and y must be in separate memory: .* copy one of"):
        check_apart([span_of("y", one)], [span_of("x", two)])
