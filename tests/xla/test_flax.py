"""Layers of Flax NNX as objects, where Flax is installed: their weights give their results."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import dnnffi
from dnnffi import RNNWeights

nnx = pytest.importorskip("flax.nnx")

X = np.random.default_rng(0).standard_normal((4, 2, 3)).astype("float32")
CELLS = ("LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell")


def rnn(cell, seed):
    made = getattr(nnx, cell)(3, 5, bias_init=nnx.initializers.normal(), rngs=nnx.Rngs(seed))
    return nnx.RNN(made, time_major=True)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("directions", [1, 2])
def test_a_layer_and_its_state(directions, cell):
    layer = rnn(cell, 0)
    if directions == 2:
        layer = nnx.Bidirectional(layer, rnn(cell, 1), time_major=True)
    expected = layer(jnp.asarray(X))
    for given in (layer, nnx.state(layer), nnx.state(layer, nnx.Param)):
        weights = RNNWeights.from_flax(given)
        y, _ = getattr(dnnffi, weights.spec.mode)(X, None, weights)
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6)


def test_another_merge_of_directions_is_refused():
    layer = nnx.Bidirectional(rnn("GRUCell", 0), rnn("GRUCell", 1), merge_fn=jnp.add)
    with pytest.raises(ValueError, match=r"^params.merge_fn must be Flax's default, .*; got"):
        RNNWeights.from_flax(layer)
