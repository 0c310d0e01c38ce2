"""The functions for one step: a sequence in steps, one row, states of one row, bad input."""

from __future__ import annotations

import numpy as np
import pytest

import dnnffi
from dnnffi import RNNSpec, RNNWeights
from dnnffi.rnn.steps import Step

MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
SIZES = {"input_size": 3, "hidden_size": 4, "num_layers": 2}


def functions_of(mode):
    return getattr(dnnffi, mode), getattr(dnnffi, f"{mode}_step")


def drawn(mode, dtype="float64", **rest):
    """Weights, x [T, B, I] and states [L, B, ...] of all rows."""
    spec, rng = RNNSpec(mode=mode, dtype=dtype, **SIZES, **rest), np.random.default_rng(0)
    weights = RNNWeights.random(spec, rng)
    x = rng.standard_normal((5, 3, 3)).astype(dtype)
    h_0 = rng.standard_normal(spec.h_shape(3)).astype(dtype)
    if mode != "lstm":
        return weights, x, h_0
    return weights, x, (h_0, rng.standard_normal(spec.c_shape(3)).astype(dtype))


def each(function, states):
    return tuple(map(function, states)) if isinstance(states, tuple) else function(states)


def assert_equal(found, expected):
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize(
    ("mode", "rest"), [*((mode, {}) for mode in MODES), ("lstm", {"proj_size": 2})]
)
def test_steps_one_after_another_are_the_sequence(mode, rest):
    run, step = functions_of(mode)
    weights, x, states = drawn(mode, **rest)
    expected, after = run(x, states, weights)
    for one, output in zip(x, expected, strict=True):
        y, states = step(one, states, weights)
        np.testing.assert_allclose(y, output, rtol=1e-12)
    assert_equal(states, after)


@pytest.mark.parametrize("mode", MODES)
def test_one_row_without_a_batch(mode):
    run, step = functions_of(mode)
    weights, x, states = drawn(mode)
    expected, after = run(x[:1, :1], each(lambda one: one[:, :1], states), weights)
    y, of_row = step(x[0, 0], each(lambda one: one[:, 0], states), weights)
    np.testing.assert_array_equal(y, expected[0, 0])
    assert_equal(of_row, each(lambda one: one[:, 0], after))


@pytest.mark.parametrize("mode", MODES)
def test_a_state_of_one_row_serves_all_rows(mode):
    _, step = functions_of(mode)
    weights, x, states = drawn(mode)
    of_one = each(lambda one: one[:, :1], states)
    found = step(x[0], of_one, weights)
    expected = step(x[0], each(lambda one: np.repeat(one, 3, axis=1), of_one), weights)
    np.testing.assert_array_equal(found[0], expected[0])
    assert_equal(found[1], expected[1])


def test_a_state_of_one_row_is_expanded_where_the_library_calls_it_so():
    class Tensor:
        shape = (2, 1, 4)

        def expand(self, *sizes):
            self.shape = tuple(
                old if new == -1 else new for old, new in zip(self.shape, sizes, strict=True)
            )
            return self

        def contiguous(self):
            return self

    assert Step.of(np.ones((3, 5)), Tensor(), None).states.shape == (2, 3, 4)


@pytest.mark.parametrize("mode", MODES)
def test_without_states_they_are_zero(mode):
    _, step = functions_of(mode)
    weights, x, states = drawn(mode)
    np.testing.assert_array_equal(
        step(x[0], None, weights)[0], step(x[0], each(np.zeros_like, states), weights)[0]
    )


def test_weights_in_a_list_have_a_number_of_layers():
    weights, x, h_0 = drawn("gru")
    found = dnnffi.gru_step(x[0], h_0, weights.arrays(), num_layers=2, backend="reference")
    np.testing.assert_array_equal(found[0], dnnffi.gru_step(x[0], h_0, weights)[0])


@pytest.mark.parametrize(
    ("x", "h_0", "said"),
    [
        (np.ones((5, 3, 3)), None, r"x must be \[B, I\], or \[I\].*\(5, 3, 3\).*dnnffi.lstm"),
        (np.float64(1), None, r"x must be \[B, I\]"),
        (np.ones((3, 3)), np.ones((2, 4)), r"h_0 must be \[L, B, H\].*\(2, 4\)"),
        (np.ones(3), np.ones((2, 1, 4)), r"h_0 must be \[L, H\], for x \[I\].*\(2, 1, 4\)"),
        (np.ones((3, 3)), np.ones((2, 2, 4)), r"h_0 .*\(2, 2, 4\)"),
    ],
)
def test_wrong_shapes_are_named(x, h_0, said):
    weights, *_ = drawn("gru")
    with pytest.raises(ValueError, match=said):
        dnnffi.gru_step(x, h_0, weights)


@pytest.mark.parametrize("state", ["zeros", ([[0]], [[0]])], ids=["text", "lists"])
def test_a_state_that_is_no_array_is_named(state):
    weights, x, _ = drawn("lstm")
    with pytest.raises(TypeError, match=r"h_0 must be an array \[L, B, H\].*got (str|list)$"):
        dnnffi.lstm_step(x[0], state, weights)


def test_the_cell_state_is_named():
    weights, x, (h_0, c_0) = drawn("lstm")
    with pytest.raises(ValueError, match=r"c_0 must be \[L, B, H\]"):
        dnnffi.lstm_step(x[0], (h_0, c_0[0]), weights)


def test_a_list_is_not_an_array():
    weights, *_ = drawn("gru")
    with pytest.raises(TypeError, match=r"x must be an array \[B, I\] or \[I\]; got list"):
        dnnffi.gru_step([1.0, 2.0, 3.0], None, weights)


@pytest.mark.parametrize("mode", MODES)
def test_two_directions_are_refused(mode):
    weights, x, _ = drawn(mode, bidirectional=True)
    with pytest.raises(ValueError, match=f"one direction.*dnnffi.{mode}"):
        functions_of(mode)[1](x[0], None, weights)
