"""Tests of candidates' measurements: arrays of any length, parts of them, times."""

from __future__ import annotations

import numpy as np
import pytest

from dnnffi.execution import measure
from dnnffi.execution.measure import Filler, median_time, sample


class Settable(np.ndarray):
    """A NumPy array with the method ``set`` of CuPy arrays."""

    def set(self, values):
        self[...] = values


class FakeMemory:
    """Memory whose new arrays are NaN."""

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


@pytest.mark.parametrize(
    ("size", "compared"),
    [
        (6, [0, 1, 2, 3, 4, 5]),
        (7, [0, 1, 2, 3, 5, 6]),
        (100, [0, 1, 49, 50, 98, 99]),
    ],
)
def test_of_a_long_array_parts_from_all_over_it_are_compared(monkeypatch, size, compared):
    monkeypatch.setattr(measure, "_PARTS", 3)
    monkeypatch.setattr(measure, "_PART", 2)
    found = sample(np.arange(size, dtype="f2").reshape(1, size))
    np.testing.assert_array_equal(found, compared)


@pytest.mark.parametrize(("dtype", "widened"), [("f2", "f4"), ("f4", "f4"), ("f8", "f8")])
def test_what_is_compared_has_a_dtype_whose_squares_do_not_overflow(dtype, widened):
    assert sample(np.ones(3, dtype)).dtype == widened


class Clock:
    """A memory on which successive measurements give ``times`` in milliseconds."""

    def __init__(self, *times):
        self.times = list(times)

    def elapsed(self, calls):
        calls()
        return self.times.pop(0)


@pytest.mark.parametrize(
    ("times", "taken"),
    [
        ([2.0, 1.5, 1.0, 1.1], 1.1),  # the first call, then batches of one
        ([25.0, 26.0], 25.0),  # the first one once more
    ],
)
def test_a_long_call_is_measured_in_two_runs(times, taken):
    clock = Clock(*times)
    assert median_time(lambda: None, clock, best=np.inf) == taken
    assert clock.times == []


@pytest.mark.parametrize(
    ("times", "best", "taken"),
    [
        ([4.0, 2.2, 2.0, 2.1, 1.9], 1.0, 2.0),  # batches after a run that was disturbed
        ([4.0, 3.5, 3.6], 1.0, 3.5),
        ([8.0, 2.2, 2.0, 2.1, 1.9], 1.0, 2.0),
        ([8.0, 7.0], 1.0, 7.0),
        ([8.0, 2.2, 2.0, 2.1, 1.9], np.inf, 2.0),
    ],
)
def test_a_run_that_is_far_from_the_best_is_repeated(times, best, taken):
    clock = Clock(*times)
    found = median_time(lambda: None, clock, best)
    assert found == taken
    assert clock.times == []
