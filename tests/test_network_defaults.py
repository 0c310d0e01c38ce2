"""Default values of the functions and plans of networks, on the reference."""

from __future__ import annotations

import numpy as np
import pytest

import dnnffi
from dnnffi import RNNPlan, RNNProblem, RNNSpec, testing

DEFAULTS = {
    "num_layers": 1,
    "bidirectional": False,
    "batch_first": False,
    "lengths": None,
    "batch_sizes": None,
    "backend": None,
    "options": None,
}
MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def flattened(results):
    y, state, *_ = results
    return [y, *(state if isinstance(state, tuple) else (state,))]


@pytest.mark.parametrize("suffix", ["", "_forward"])
@pytest.mark.parametrize("mode", MODES)
def test_defaults_of_functions_are_those_of_one_plain_layer(mode, suffix):
    spec = RNNSpec(mode=mode, input_size=3, hidden_size=3)
    given = testing.inputs(RNNProblem.dense(spec, steps=3, batch=5), 0)
    x, hx, weights = given.x, given.hx, given.weights
    function = getattr(dnnffi, mode + suffix)
    more = {"dropout": 0.0, "dropout_state": None} if suffix else {}
    found = flattened(function(x, hx, weights))
    expected = flattened(function(x, hx, weights, **DEFAULTS, **more))
    assert found[0].shape == (3, 5, 3)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_defaults_of_a_plan_are_those_of_inference_in_order_of_time():
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=3)
    with RNNPlan(spec, batch=5, steps=3, backend="reference") as plan:
        assert plan.problem == RNNProblem.dense(spec, steps=3, batch=5)
