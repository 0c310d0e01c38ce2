"""Networks on JAX arrays one step at a time: the carry of a scan, gradients, one row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dnnffi
from dnnffi import jax as djax

MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def drawn(mode, **rest):
    """Weights, x [T, B, I] and states of zeros."""
    sizes = {"input_size": 3, "hidden_size": 4, "num_layers": 2}
    spec = dnnffi.RNNSpec(mode=mode, dtype="float64", **sizes, **rest)
    weights = djax.init(jax.random.key(0), spec)
    x = jax.random.normal(jax.random.key(1), (5, 2, 3), "float64")
    zeros = jnp.zeros(spec.h_shape(2), "float64")
    return weights, x, (zeros, zeros) if mode == "lstm" else zeros


def loss_of_steps(mode, weights, x, hx):
    def step(hx, x):
        y, hx = getattr(djax, f"{mode}_step")(x, hx, weights)
        return hx, y

    return (jax.lax.scan(step, hx, x)[1] ** 2).sum()


def loss_of_sequence(mode, weights, x, hx):
    return (getattr(djax, mode)(x, hx, weights)[0] ** 2).sum()


@pytest.mark.parametrize("mode", MODES)
def test_a_scan_of_steps_is_the_sequence_with_its_gradients(mode):
    arguments = drawn(mode)
    found, expected = (
        jax.jit(jax.value_and_grad(loss, argnums=(1, 2, 3)), static_argnums=0)(mode, *arguments)
        for loss in (loss_of_steps, loss_of_sequence)
    )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_one_row_and_the_state_of_one_row(mode):
    weights, x, hx = drawn(mode)
    step = getattr(djax, f"{mode}_step")
    y, _ = step(x[0], jax.tree.map(lambda one: one[:, :1], hx), weights)
    of_row, after = step(x[0, 1], jax.tree.map(lambda one: one[:, 0], hx), weights)
    np.testing.assert_allclose(of_row, y[1], rtol=1e-12)
    assert {one.shape for one in jax.tree.leaves(after)} == {(2, 4)}


def test_rows_of_a_batch_by_vmap():
    weights, x, h_0 = drawn("gru")
    by_rows = jax.vmap(lambda x, h: djax.gru_step(x, h, weights)[0], in_axes=(0, 1))(x[0], h_0)
    np.testing.assert_allclose(by_rows, djax.gru_step(x[0], h_0, weights)[0], rtol=1e-12)


def test_flat_weights_with_a_spec():
    weights, x, h_0 = drawn("gru")
    flat = {"spec": weights.spec, "layout": "cudnn"}
    found = djax.gru_step(x[0], h_0, weights.flat, **flat)[0]
    np.testing.assert_allclose(found, djax.gru_step(x[0], h_0, weights)[0], rtol=1e-12)


def test_a_spec_of_another_type_is_named():
    weights, x, h_0 = drawn("gru")
    with pytest.raises(TypeError, match=r"^spec must be an RNNSpec; got str$"):
        djax.gru_step(x[0], h_0, weights, spec="x")


def test_two_directions_are_refused():
    weights, x, h_0 = drawn("gru", bidirectional=True)
    with pytest.raises(ValueError, match="one direction"):
        djax.gru_step(x[0], h_0, weights)
    with pytest.raises(ValueError, match="one direction"):
        djax.gru_step(x[0], h_0, weights.flat, spec=weights.spec, layout="cudnn")
