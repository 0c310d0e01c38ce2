"""The random numbers of dnnffi's dropout in NumPy: known answers, and masks made of them."""

from __future__ import annotations

import numpy as np
import pytest

from dnnffi.reference.dropout import dropped_below, own_masks, philox4x32
from dnnffi.spec.rnn import RNNSpec

SPEC = RNNSpec(mode="gru", input_size=3, hidden_size=33, num_layers=3, bidirectional=True)
T, B = 21, 17

KNOWN = (  # counter, key, answer: kat_vectors of Random123, by the authors of Philox
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
)  # fmt: skip


def words(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer):
    found = philox4x32(np.array([words(counter)] * 2, np.uint32), tuple(words(key)))
    assert found.tolist() == [words(answer)] * 2


def masks(dropout=0.3, seed=5, drawn=0, spec=SPEC):
    return own_masks(spec, T, B, dropout, seed, drawn)


@pytest.mark.parametrize("dropout", [0.01, 0.3, 0.5, 0.97])
def test_elements_are_dropped_with_the_probability_and_the_rest_scaled(dropout):
    for mask in masks(dropout):
        assert mask.shape == SPEC.y_shape(T, B)
        assert set(np.unique(mask)) == {0.0, 1 / (1 - dropout)}
        slack = 5 * (dropout * (1 - dropout) / mask.size) ** 0.5
        assert abs((mask == 0).mean() - dropout) < slack


def test_a_dropout_of_one_drops_all_and_one_of_zero_none():
    assert dropped_below(1.0) == 2**32
    assert dropped_below(0.0) == 0
    assert not any(mask.any() for mask in masks(1.0))
    assert all((mask == 1).all() for mask in masks(0.0))


def test_masks_that_are_not_the_same_have_nothing_in_common():
    of_seed, of_next = masks(), masks(drawn=SPEC.num_layers - 1)
    of_others = masks(seed=6) + masks(seed=5 + 2**32) + masks(drawn=2**32)
    kept = [(mask != 0).ravel() for mask in of_seed + of_next + of_others]
    correlations = np.corrcoef(kept)[np.triu_indices(len(kept), 1)]
    assert abs(correlations).max() < 5 * kept[0].size ** -0.5


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("distance", [1, 2, 4])
def test_neighbours_have_nothing_in_common(axis, distance):
    mask = masks()[0] != 0
    count = mask.shape[axis] - distance
    one, other = (np.take(mask, range(at, at + count), axis) for at in (0, distance))
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5 * one.size**-0.5


def test_a_mask_follows_from_the_seed_and_how_many_were_drawn():
    first, second = masks()
    again = masks(drawn=1)
    np.testing.assert_array_equal(again[0], second)
    assert (first != second).any()
    np.testing.assert_array_equal(masks()[0], first)
