from __future__ import annotations

from math import log

import numpy as np
import pytest

import dnnffi
from dnnffi.cli.charmodel import Alphabet, CharModel, windows
from dnnffi.cli.learning import Adam, clip_by_norm


def make_model(layers: int = 2, characters: int = 5) -> CharModel:
    spec = dnnffi.RNNSpec(
        mode="lstm", input_size=characters, hidden_size=4, num_layers=layers, dtype="float64"
    )
    return CharModel(np, spec, "reference", np.random.default_rng(7))


def test_gradients_by_finite_differences():
    rng = np.random.default_rng(1)
    model = make_model()
    inputs, targets = rng.integers(0, 5, (2, 6, 3))
    _, _, state = model.loss_and_gradients(inputs, targets, None)
    _, gradients, _ = model.loss_and_gradients(inputs, targets, state)

    def nats(parameter, change):
        parameter += change
        loss = float(model.loss_and_gradients(inputs, targets, state)[0]) * log(2)
        parameter -= change
        return loss

    assert len(gradients) == len(model.parameters) == 3
    for parameter, gradient in zip(model.parameters, gradients, strict=True):
        for _ in range(5):
            change = 1e-5 * rng.standard_normal(parameter.shape)
            expected = (nats(parameter, change) - nats(parameter, -change)) / 2
            assert float((gradient * change).sum()) == pytest.approx(expected, rel=1e-6, abs=1e-13)


def test_loss_of_an_untrained_model_is_about_that_of_guessing():
    model = make_model(layers=1, characters=64)
    inputs, targets = np.random.default_rng(0).integers(0, 64, (2, 10, 8))
    loss, _, _ = model.loss_and_gradients(inputs, targets, None)
    assert float(loss) == pytest.approx(6, abs=0.2)


def test_state_carries_over():
    model = make_model()
    inputs, targets = np.random.default_rng(0).integers(0, 5, (2, 8, 3))
    whole, _, end = model.loss_and_gradients(inputs, targets, None)
    first, _, state = model.loss_and_gradients(inputs[:4], targets[:4], None)
    second, _, state = model.loss_and_gradients(inputs[4:], targets[4:], state)
    assert float(first + second) / 2 == pytest.approx(float(whole), rel=1e-12)
    np.testing.assert_allclose(state[0], end[0], rtol=1e-12)


def test_windows_follow_the_text():
    numbers = np.arange(2 * 7 + 1)
    walk = windows(numbers, 2, 3)
    inputs, targets, anew = next(walk)
    assert inputs.T.tolist() == [[0, 1, 2], [7, 8, 9]]
    assert targets.T.tolist() == [[1, 2, 3], [8, 9, 10]]
    assert anew
    inputs, _, anew = next(walk)
    assert inputs.T.tolist() == [[3, 4, 5], [10, 11, 12]]
    assert not anew
    inputs, _, anew = next(walk)
    assert inputs.T.tolist() == [[0, 1, 2], [7, 8, 9]]
    assert anew


def test_windows_of_too_short_a_text():
    with pytest.raises(ValueError, match="need at least 13"):
        next(windows(np.arange(12), 4, 3))


def test_alphabet_keeps_the_frequent_characters():
    alphabet = Alphabet.of("aaabbbcc\N{GREEK SMALL LETTER PI}", limit=4)
    assert alphabet.characters == "\N{REPLACEMENT CHARACTER}abc"
    assert alphabet.encode("cab\N{GREEK SMALL LETTER PI}\N{SNOWMAN}").tolist() == [3, 1, 2, 0, 0]
    assert alphabet.decode([3, 1, 2]) == "cab"


def test_adam_moves_by_its_rate_at_first():
    parameter = np.zeros(3)
    Adam([parameter], rate=0.1).step([np.array([2.0, -3e-3, 0.0])])
    np.testing.assert_allclose(parameter, [-0.1, 0.1, 0.0], rtol=1e-3)


def test_adam_finds_a_minimum():
    parameter = np.array([3.0, -2.0])
    adam = Adam([parameter], rate=0.05)
    for _ in range(400):
        adam.step([2 * (parameter - 1)])
    np.testing.assert_allclose(parameter, 1, atol=1e-2)


@pytest.mark.parametrize(("limit", "norm"), [(1.0, 1.0), (100.0, 13.0)])
def test_clip_by_norm(limit, norm):
    gradients = [np.array([3.0, 4.0]), np.array([12.0])]
    clip_by_norm(gradients, limit)
    np.testing.assert_allclose(np.linalg.norm(np.concatenate(gradients)), norm)
    np.testing.assert_allclose(gradients[0][0] / gradients[1][0], 3 / 12)
