"""Arrays that the backward pass reads again: validation notices a change of them."""

from __future__ import annotations

import numpy as np
import pytest

import dnnffi

SPEC = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)


def forward(weights, **keywords):
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.standard_normal((5, 2, 3)).astype("float32"),
        "h_0": rng.standard_normal((1, 2, 4)).astype("float32"),
        "c_0": rng.standard_normal((1, 2, 4)).astype("float32"),
        "resets": np.zeros((5, 2), "uint8"),
    }
    hx, keywords["resets"] = (arrays["h_0"], arrays["c_0"]), arrays["resets"]
    arrays["y"], _, ctx = dnnffi.lstm_forward(arrays["x"], hx, weights, **keywords)
    return arrays, ctx


def random_weights():
    return dnnffi.RNNWeights.random(SPEC, np.random.default_rng(1))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("written", ["x", "h_0", "c_0", "resets", "y", "weights[1]"])
def test_validation_names_an_array_that_was_written_to(written, packed):
    weights = random_weights()
    given = weights if packed else weights.arrays()
    arrays, ctx = forward(given, options={"validate": True})
    arrays["weights[1]"] = weights.arrays()[1]
    arrays[written].flat[0] += 1
    name = written.replace("[", r"\[")
    with pytest.raises(dnnffi.ContextError, match=f"^{name} was written to after the forward pass"):
        ctx.backward(np.ones((5, 2, 4), "float32"))


def test_validation_lets_unchanged_arrays_pass():
    arrays, ctx = forward(random_weights(), options={"validate": True})
    assert ctx.backward(arrays["y"]).x.shape == (5, 2, 3)


def test_x_may_change_where_the_gradient_of_the_weights_is_not_needed():
    _, expected = forward(random_weights())
    arrays, ctx = forward(random_weights())
    arrays["x"][:] = 0
    dy = np.ones((5, 2, 4), "float32")
    for one, other in zip(
        ctx.backward(dy, need=("x", "hx")), expected.backward(dy, need=("x", "hx")), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("name", "first"), [("lengths", [5, 5]), ("batch_sizes", [2, 2, 2, 2, 2])])
def test_lengths_and_last_states_may_change_before_backward(name, first):
    found = []
    for changes in (False, True):
        sizes = np.array(first)
        x = np.random.default_rng(0).standard_normal((5, 2, 3)).astype("float32")
        if name == "batch_sizes":
            x = x.reshape(10, 3)
        y, (h_n, c_n), ctx = dnnffi.lstm_forward(x, None, random_weights(), **{name: sizes})
        if changes:
            sizes[:] = 1
            h_n[:], c_n[:] = 7, 7
        grads = ctx.backward(np.ones_like(y))
        found.append((grads.x, grads.weights.flat))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
