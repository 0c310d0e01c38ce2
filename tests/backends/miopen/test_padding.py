"""Tests of the padding of a batch as rectangles; they need no library."""

from __future__ import annotations

import numpy as np
import pytest

from dnnffi.backends.miopen.padding import rectangles


def covered(lengths, steps):
    mask = np.zeros((len(lengths), steps), bool)
    for first, last, start in rectangles(lengths, steps):
        mask[first:last, start:] = True
    return mask


def test_rectangles_cover_the_padding_and_nothing_else():
    rng = np.random.default_rng(0)
    for _ in range(200):
        steps, batch = (int(n) for n in rng.integers(1, 9, 2))
        lengths = [int(n) for n in rng.integers(1, steps + 1, batch)]
        wanted = np.arange(steps) >= np.array(lengths)[:, None]
        np.testing.assert_array_equal(covered(lengths, steps), wanted)
        assert len(rectangles(lengths, steps)) <= batch


@pytest.mark.parametrize(
    ("lengths", "count"), [([4, 4], 0), ([2, 2, 2], 1), ([3, 2, 3], 2), ([4, 1, 4, 1], 2)]
)
def test_rectangles_are_few(lengths, count):
    assert len(rectangles(lengths, 4)) == count
