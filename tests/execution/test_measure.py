"""What candidates are measured on and compared by: numbers of any length, and their two ends."""

from __future__ import annotations

import numpy as np
import pytest

from dnnffi.execution import measure
from dnnffi.execution.measure import Filler, ends


class Settable(np.ndarray):
    """An array of NumPy that can be written to as one of CuPy can."""

    def set(self, values):
        self[...] = values


class FakeMemory:
    """Arrays that nobody wrote to."""

    def empty(self, shape, dtype):
        return np.full(shape, np.nan, dtype).view(Settable)


@pytest.mark.parametrize("shape", [(3, 5), (1, 65_521), (3, 100_000)], ids=str)
def test_an_array_is_filled_with_random_numbers_up_to_its_scale(shape):
    array = Filler(FakeMemory(), np.dtype("f4"))(shape, 0.5)
    assert (array.shape, array.dtype) == (shape, np.float32)
    assert np.abs(array).max() <= 0.5
    assert 0.2 < array.std() < 0.4  # 0.29 where they are uniform
    assert len(np.unique(array, axis=0)) == len(array)


def test_each_filler_draws_the_same_numbers():
    one, other = (Filler(FakeMemory(), np.dtype("f8"))((40,)) for _ in range(2))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("size", "compared"), [(8, [0, 8]), (9, [0, 4, 5, 9])])
def test_of_a_long_array_the_two_ends_are_compared(monkeypatch, size, compared):
    monkeypatch.setattr(measure, "_MOST_COMPARED", 4)
    found = ends(np.arange(size, dtype="f2").reshape(1, size))
    expected = [np.arange(*bounds) for bounds in zip(compared[::2], compared[1::2], strict=True)]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("dtype", "widened"), [("f2", "f4"), ("f4", "f4"), ("f8", "f8")])
def test_what_is_compared_has_a_dtype_whose_squares_do_not_overflow(dtype, widened):
    (found,) = ends(np.ones(3, dtype))
    assert found.dtype == widened
