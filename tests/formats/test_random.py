"""Weights to begin with: their distributions, and that a seed gives the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi import RNNSpec, RNNWeights, testing

SPEC = RNNSpec(mode="lstm", input_size=30, hidden_size=40, num_layers=2, bidirectional=True)


def draw(spec=SPEC, seed=0, **keywords):
    return RNNWeights.random(spec, np.random.default_rng(seed), **keywords)


def by_name(weights):
    return zip(weights.spec.parameter_shapes(), weights.arrays(), strict=True)


@given(testing.specs(), st.sampled_from(["torch", "keras"]), st.integers(0, 99))
def test_a_seed_gives_the_same_in_every_layout(spec, like, seed):
    if spec.proj_size:
        like = "torch"
    one = draw(spec, seed, like=like)
    assert (one.spec, one.backend) == (spec, "cudnn")
    other = draw(spec, seed, like=like, backend="torch")
    np.testing.assert_array_equal(one.to("torch").flat, other.flat)


def test_pytorchs_are_uniform_up_to_the_root_of_h():
    bound = 40**-0.5
    for _, array in by_name(draw()):
        assert 0.9 * bound < np.abs(array).max() <= np.float32(bound)
        assert abs(array.mean()) < 0.1 * bound * (4 if array.ndim == 1 else 1)


def test_kerass_kernels_are_glorots():
    for parameter, array in by_name(draw(like="keras")):
        if parameter.name == "w_ih":
            bound = (6 / sum(parameter.shape)) ** 0.5
            assert 0.99 * bound < np.abs(array).max() <= bound * 1.0001
            assert abs(array.std() - bound / 3**0.5) < 0.01 * bound


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_relu"])
def test_kerass_recurrent_kernels_are_orthogonal(mode):
    spec = RNNSpec(mode=mode, input_size=3, hidden_size=8, dtype="float64")
    w_hh = draw(spec, like="keras").arrays()[1]
    np.testing.assert_allclose(w_hh.T @ w_hh, np.eye(8), atol=1e-12)


def test_the_sign_of_an_orthogonal_matrix_is_drawn_too():
    # What QR returns has a sign of its own convention, which must not remain.
    spec = RNNSpec(mode="rnn_tanh", input_size=1, hidden_size=1)
    signs = {float(np.sign(draw(spec, seed, like="keras").arrays()[1][0, 0])) for seed in range(20)}
    assert signs == {-1.0, 1.0}


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_kerass_biases_are_zero_but_the_forget_gates(mode):
    spec = RNNSpec(mode=mode, input_size=3, hidden_size=5)
    for parameter, array in by_name(draw(spec, like="keras")):
        expected = np.zeros(parameter.shape)
        if parameter.name == "b_ih" and mode == "lstm":
            expected[5:10] = 1
        if array.ndim == 1:
            np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: draw("lstm"), TypeError, "spec must be an RNNSpec; got str"),
        (
            lambda: RNNWeights.random(SPEC, 0),
            TypeError,
            "rng must be a random generator.*; got int",
        ),
        (lambda: draw(like="jax"), ValueError, "like must be one of torch, keras; got 'jax'"),
        (
            lambda: draw(
                RNNSpec(mode="lstm", input_size=3, hidden_size=5, proj_size=2), like="keras"
            ),
            ValueError,
            "Keras has no LSTM with a projection",
        ),
    ],
)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=f"^{message}"):
        call()
