"""Memory that is written: whether two elements of one array share it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from dnnffi.device.spans import Span, written_span


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-40, 40)), max_size=3))
def test_an_array_is_refused_exactly_where_two_elements_share_a_byte(dimensions):
    shape, strides = [size for size, _ in dimensions], [step for _, step in dimensions]
    memory = np.zeros(1024, "u1")
    array = as_strided(memory[480:484].view("f4"), shape, strides)
    used = np.zeros(1024, int)
    for place in np.ndindex(*shape):
        start = 480 + sum(at * step for at, step in zip(place, strides, strict=True))
        used[start : start + 4] += 1
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
