"""Calls that look like an earlier one with the same weights: found again, and still checked."""

from __future__ import annotations

import copy
import gc
from functools import partial
from weakref import ref

import numpy as np
import pytest

import dnnffi
from dnnffi.spec.rnn import RNNSpec

SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=4)
STEPS, BATCH = 5, 2
lstm = partial(dnnffi.lstm, backend="cudnn")


def random(simulator, shape, seed=0, dtype="float32"):
    return simulator.asarray(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def weights_of(simulator, seed=0):
    return dnnffi.RNNWeights(
        random(simulator, dnnffi.weight_layout(SPEC, "cudnn").size, seed), SPEC
    )


def arrays_of(simulator):
    """x, hx and weights whose call is known."""
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    hx = random(simulator, SPEC.h_shape(BATCH), 2), random(simulator, SPEC.c_shape(BATCH), 3)
    weights = weights_of(simulator)
    lstm(x, hx, weights)
    assert len(weights._networks) == 1
    return x, hx, weights


def computed(simulator):
    return simulator.calls("cudnnRNNForward")


def test_a_known_call_gives_what_the_first_gave(simulator, monkeypatch):
    x, hx, weights = arrays_of(simulator)
    expected = lstm(x, hx, weights)
    monkeypatch.setattr("dnnffi.rnn.call_path.weights_of", None)  # what is known does without
    y, (h_n, c_n) = lstm(x, hx, weights)
    np.testing.assert_array_equal(y, expected[0])
    np.testing.assert_array_equal(h_n, expected[1][0])
    np.testing.assert_array_equal(c_n, expected[1][1])


def test_a_known_call_for_training_gives_gradients(simulator, monkeypatch):
    x, hx, weights = arrays_of(simulator)
    train = partial(dnnffi.lstm_forward, x, hx, weights, backend="cudnn")
    dy = random(simulator, (STEPS, BATCH, SPEC.hidden_size), 5)
    expected = train()[2].backward(dy)
    monkeypatch.setattr("dnnffi.rnn.call_path.weights_of", None)
    found = train()[2].backward(dy)
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.weights.flat, expected.weights.flat)


def test_calls_of_several_shapes_are_known_beside_each_other(simulator, monkeypatch):
    x, hx, weights = arrays_of(simulator)
    longer = random(simulator, SPEC.x_shape(STEPS + 1, BATCH), 4)
    expected = lstm(longer, hx, weights)[0]
    monkeypatch.setattr("dnnffi.rnn.call_path.weights_of", None)
    np.testing.assert_array_equal(lstm(longer, hx, weights)[0], expected)
    assert lstm(x, hx, weights)[0].shape == (STEPS, BATCH, SPEC.hidden_size)


@pytest.mark.parametrize(
    ("keywords", "error", "match"),
    [
        ({"num_layers": 1.0}, TypeError, "^num_layers must be an integer"),
        ({"num_layers": True}, TypeError, "^num_layers must be an integer"),
        ({"bidirectional": 0}, TypeError, "^bidirectional must be"),
        ({"batch_first": 0}, TypeError, "^batch_first must be"),
        ({"batch_first": 0.0}, TypeError, "^batch_first must be"),
        ({"num_layers": 2}, ValueError, "^num_layers is 2; the weights have 1"),
        ({"bidirectional": True}, ValueError, "^bidirectional is True"),
        ({"backend": ["cudnn"]}, TypeError, "^backend must be one of"),
        ({"lengths": [STEPS, -1]}, ValueError, "^lengths"),
        ({"options": {"math": "exact"}}, ValueError, r"^options\['math'\]"),
    ],
)
def test_what_equals_or_nearly_equals_a_known_call_is_still_looked_at(
    simulator, keywords, error, match
):
    x, hx, weights = arrays_of(simulator)
    before = computed(simulator)
    with pytest.raises(error, match=match):
        dnnffi.lstm(x, hx, weights, **{"backend": "cudnn", **keywords})
    assert computed(simulator) == before


def test_wrong_arrays_of_a_known_call_are_refused(simulator):
    x, (h, c), weights = arrays_of(simulator)
    before = computed(simulator)
    wide = random(simulator, x.shape, dtype="float64")
    with pytest.raises(TypeError, match=r"^x must have the dtype of the weights, float32"):
        lstm(wide, (h, c), weights)
    with pytest.raises(TypeError, match=r"^x must be a CuPy array"):
        lstm(np.array(x), (h, c), weights)
    with pytest.raises(TypeError, match=r"^x must be a NumPy or CuPy array"):
        lstm(None, (h, c), weights)
    with pytest.raises(ValueError, match=r"^c_0 must have shape \(1, 2, 4\); got \(1, 1, 4\)"):
        lstm(x, (h, c[:, :1]), weights)
    with pytest.raises(TypeError, match=r"^h_0 must have the dtype of the weights"):
        lstm(x, (random(simulator, h.shape, dtype="float64"), c), weights)
    with pytest.raises(TypeError, match=r"^hx of an LSTM must be \(h_0, c_0\) or None"):
        lstm(x, h, weights)
    with pytest.raises(TypeError, match=r"^c_0 must be an array"):
        lstm(x, (h, None), weights)
    with pytest.raises(ValueError, match=r"weights are of mode 'lstm', but gru was called"):
        dnnffi.gru(x, h, weights, backend="cudnn")
    assert computed(simulator) == before


def test_an_array_on_another_device_than_in_a_known_call_is_refused(simulator):
    simulator.memory.devices = 2
    x, hx, weights = arrays_of(simulator)
    simulator.memory.device = 1
    elsewhere = random(simulator, x.shape)
    simulator.memory.device = 0
    before = computed(simulator)
    with pytest.raises(ValueError, match=r"^h_0 must be on the device of x, 1; it is on 0"):
        lstm(elsewhere, hx, weights)
    assert computed(simulator) == before


def test_an_x_that_is_not_contiguous_is_copied_as_in_the_first_call(simulator):
    x, hx, weights = arrays_of(simulator)
    expected = lstm(x, hx, weights)[0]
    strided = random(simulator, (BATCH, STEPS, SPEC.input_size)).transpose(1, 0, 2)
    strided[...] = x
    np.testing.assert_array_equal(lstm(strided, hx, weights)[0], expected)


def test_a_plan_that_was_cleared_is_not_known(simulator, monkeypatch):
    x, hx, weights = arrays_of(simulator)
    plans = simulator.rnn.plans
    (before,) = plans.values()
    dnnffi.clear_plans()
    lstm(x, hx, weights)
    (after,) = plans.values()
    assert after is not before
    monkeypatch.setattr("dnnffi.rnn.call_path.weights_of", None)
    lstm(x, hx, weights)  # by the new one, which is known


def test_what_is_known_keeps_no_plan(simulator):
    _, _, weights = arrays_of(simulator)
    (plan,) = map(ref, simulator.rnn.plans.values())
    simulator.rnn.plans.clear()
    gc.collect()
    assert len(weights._networks) == 1
    assert plan() is None


def test_only_so_many_networks_of_the_same_weights_are_known(simulator, monkeypatch):
    monkeypatch.setattr("dnnffi.rnn.call_path.MAX_NETWORKS", 2)
    x, hx, weights = arrays_of(simulator)
    for high in (1.0, 2.0, 3.0, 4.0):
        lstm(x, hx, weights, options={"clip": (-1.0, high)})
        assert 0 < len(weights._networks) <= 2


@pytest.mark.parametrize(
    "sizes",
    [
        {"shape": (STEPS + 1, BATCH, 3)},
        {"shape": (STEPS, BATCH + 1, 3)},
        {"shape": (STEPS, BATCH, 3), "lengths": [STEPS, 2]},
        {"shape": (STEPS, BATCH, 3), "lengths": np.array([2, 3])},
        {"shape": (3, 3), "batch_sizes": (2, 1)},
    ],
)
def test_new_sizes_of_a_known_network_need_no_checks_of_its_weights(simulator, monkeypatch, sizes):
    _, _, weights = arrays_of(simulator)
    shape, more = sizes["shape"], {name: sizes[name] for name in sizes if name != "shape"}
    x = random(simulator, shape, 7)
    expected = dnnffi.lstm(np.asarray(x), None, on_the_host(weights), backend="reference", **more)
    monkeypatch.setattr("dnnffi.rnn.call_path.weights_of", None)
    found = lstm(x, None, weights, **more)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)


def test_a_network_with_dropout_is_known_by_its_random_numbers(simulator, monkeypatch):
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2)
    size = dnnffi.weight_layout(spec, "cudnn").size
    weights = dnnffi.RNNWeights(random(simulator, size), spec)
    state, other = dnnffi.DropoutState(seed=7), dnnffi.DropoutState(seed=7)

    def y(steps, state, probability=0.5):
        x = random(simulator, spec.x_shape(steps, BATCH))
        rest = {"dropout": probability, "dropout_state": state, "backend": "cudnn"}
        rest["options"] = {"algorithm": "standard"}
        return np.array(dnnffi.lstm_forward(x, None, weights, **rest)[0])

    y(STEPS, state)
    expected = [y(STEPS, other), y(STEPS + 1, other)][1]
    monkeypatch.setattr("dnnffi.rnn.call_path.weights_of", None)
    np.testing.assert_array_equal(y(STEPS + 1, state), expected)
    with pytest.raises(TypeError):  # looked at closely
        y(STEPS, dnnffi.DropoutState(seed=7))
    with pytest.raises(TypeError):
        y(STEPS, state, 0.25)


def on_the_host(weights):
    return dnnffi.RNNWeights(np.array(weights.flat), SPEC)


@pytest.mark.parametrize(
    ("shape", "more", "words"),
    [
        ((STEPS, BATCH, 4), {}, "last dimension"),
        ((STEPS, BATCH), {}, "3 dimensions"),
        ((STEPS, BATCH, 3), {"lengths": [1]}, "one entry for each"),
        ((STEPS, BATCH, 3), {"lengths": [1, STEPS + 1]}, r"lengths\[1\]"),
        ((STEPS, BATCH, 3), {"lengths": [1, 2], "batch_sizes": [1]}, "exclude each other"),
        ((STEPS, BATCH, 3), {"batch_sizes": [1]}, "2 dimensions"),
    ],
)
def test_new_sizes_of_a_known_network_are_checked(simulator, shape, more, words):
    _, _, weights = arrays_of(simulator)
    with pytest.raises(ValueError, match=words):
        lstm(random(simulator, shape), None, weights, **more)


@pytest.mark.parametrize("algorithm", ["persist_static", "persist_dynamic"])
def test_sizes_that_a_known_network_does_not_have_are_refused_by_name(simulator, algorithm):
    x, _, weights = arrays_of(simulator)
    options = {"algorithm": algorithm}
    lstm(x, None, weights, options=options)
    with pytest.raises(dnnffi.UnsupportedError, match="rows of equal length; use standard"):
        lstm(x, None, weights, lengths=[STEPS, 2], options=options)


def test_lengths_that_can_be_read_once_serve_a_known_network(simulator):
    x, _, weights = arrays_of(simulator)
    expected = lstm(x, None, weights, lengths=(2, 4))[0]
    for hx in (None, [None, None]):  # the second is looked at closely, and refused
        lengths = (length for length in (2, 4))
        if hx is None:
            np.testing.assert_array_equal(lstm(x, hx, weights, lengths=lengths)[0], expected)
        else:
            with pytest.raises(TypeError, match="h_0 must be an array"):
                lstm(x, hx, weights, lengths=lengths)


def test_a_copy_of_weights_knows_nothing(simulator):
    _, _, weights = arrays_of(simulator)
    assert weights.to("cudnn")._networks is weights._networks
    assert len(weights.like(weights.flat)._networks) == 0
    assert len(copy.copy(weights)._networks) == 0
