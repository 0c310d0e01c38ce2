"""Resets of the functions on NumPy arrays: results, gradients, bad input."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnffi
from dnnffi.backends.miopen.limits import RNN_LIMITS
from dnnffi.backends.vendor.limits import check_limits
from dnnffi.errors import UnsupportedError
from dnnffi.spec.sequences import lengths_to_batch_sizes

STEPS, BATCH, INPUTS, HIDDEN = 6, 3, 2, 3
NETWORKS = {
    "lstm": (dnnffi.lstm, dnnffi.lstm_forward),
    "gru": (dnnffi.gru, dnnffi.gru_forward),
    "rnn_tanh": (dnnffi.rnn_tanh, dnnffi.rnn_tanh_forward),
    "rnn_relu": (dnnffi.rnn_relu, dnnffi.rnn_relu_forward),
}


def network(mode: Any, **more: Any) -> dnnffi.RNNWeights:
    spec = dnnffi.RNNSpec(mode=mode, input_size=INPUTS, hidden_size=HIDDEN, dtype="float64", **more)
    return dnnffi.RNNWeights.random(spec, np.random.default_rng(0))


def drawn(*shape: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def state(weights: dnnffi.RNNWeights, rows: int = BATCH, seed: int = 2) -> Any:
    spec = weights.spec
    h = drawn(*spec.h_shape(rows), seed=seed)
    return (h, drawn(*spec.c_shape(rows), seed=seed + 1)) if spec.has_cell else h


@pytest.mark.parametrize("mode", NETWORKS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_row_is_its_episodes_one_after_the_other(mode: str, data: Any) -> None:
    infer, _ = NETWORKS[mode]
    weights = network(mode, num_layers=2)
    flags = data.draw(st.lists(st.booleans(), min_size=STEPS, max_size=STEPS))
    x, h_0, reset_to = drawn(STEPS, 1, INPUTS), state(weights, 1), state(weights, 1, seed=9)
    resets = np.array(flags)[:, None]
    y, end = infer(x, h_0, weights, resets=resets, reset_to=reset_to)
    carried, parts = h_0, []
    for begin, stop in pairwise([0, *(t for t in range(1, STEPS) if flags[t]), STEPS]):
        part, carried = infer(x[begin:stop], reset_to if flags[begin] else carried, weights)
        parts.append(part)
    np.testing.assert_allclose(y, np.concatenate(parts), rtol=1e-13, atol=1e-15)
    for one, other in zip(np.atleast_3d(end), np.atleast_3d(carried), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "uint16"])
def test_every_integer_dtype_says_the_same(dtype: str) -> None:
    weights = network("gru")
    x, resets = drawn(STEPS, BATCH, INPUTS), np.zeros((STEPS, BATCH), dtype)
    resets[2, 1] = 1
    expected, _ = dnnffi.gru(x, None, weights, resets=resets != 0)
    found, _ = dnnffi.gru(x, None, weights, resets=resets)
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(found, dnnffi.gru(x, None, weights)[0])


def test_a_value_whose_low_byte_is_zero_is_not_zero() -> None:
    weights, x = network("gru"), drawn(STEPS, BATCH, INPUTS)
    resets = np.full((STEPS, BATCH), 256)
    found, _ = dnnffi.gru(x, None, weights, resets=resets)
    expected, _ = dnnffi.gru(x, None, weights, resets=np.ones((STEPS, BATCH), bool))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("layout", ["batch_first", "lengths", "batch_sizes"])
def test_resets_have_the_layout_of_x(layout: str) -> None:
    weights, lengths = network("gru", bidirectional=True), (6, 4, 1)
    x, resets = drawn(STEPS, BATCH, INPUTS), drawn(STEPS, BATCH) > 0.5
    y, _ = dnnffi.gru(x, None, weights, resets=resets, lengths=lengths)
    more: dict[str, Any] = {"lengths": lengths}
    if layout == "batch_first":
        more["batch_first"] = True
        found, _ = dnnffi.gru(x.swapaxes(0, 1), None, weights, resets=resets.T, **more)
        found = found.swapaxes(0, 1)
    elif layout == "lengths":
        past = np.arange(STEPS)[:, None] >= np.array(lengths)
        found, _ = dnnffi.gru(x, None, weights, resets=resets ^ past, **more)
    else:
        there = np.arange(STEPS)[:, None] < np.array(lengths)
        sizes = lengths_to_batch_sizes(lengths)
        found, _ = dnnffi.gru(x[there], None, weights, resets=resets[there], batch_sizes=sizes)
        y = y[there]
    np.testing.assert_allclose(found, y, rtol=1e-13)


@pytest.mark.parametrize("rows", [1, BATCH])
@pytest.mark.parametrize("mode", NETWORKS)
def test_gradients_are_finite_differences(mode: str, rows: int) -> None:
    infer, train = NETWORKS[mode]
    weights = network(mode, bidirectional=True)
    x, h_0, reset_to = drawn(STEPS, BATCH, INPUTS), state(weights), state(weights, rows, seed=9)
    if mode == "rnn_relu":
        h_0 = abs(h_0)
    resets = drawn(STEPS, BATCH, seed=5) > 0.4
    dy = drawn(*weights.spec.y_shape(STEPS, BATCH), seed=6)
    *_, context = train(x, h_0, weights, resets=resets, reset_to=reset_to)
    grads = context.backward(dy)
    as_list = [*reset_to] if weights.spec.has_cell else [reset_to]
    found = [*grads.reset_to] if weights.spec.has_cell else [grads.reset_to]

    def loss() -> float:
        y, _ = infer(x, h_0, weights, resets=resets, reset_to=reset_to)
        return float((y * dy).sum())

    pairs = [(x, grads.x), *zip(as_list, found, strict=True)]
    for array, gradient in pairs:
        assert gradient.shape == array.shape
        expected = np.empty_like(array)
        for place in np.ndindex(array.shape):
            kept, both = array[place], []
            for step in (1e-6, -1e-6):
                array[place] = kept + step
                both.append(loss())
            array[place] = kept
            expected[place] = (both[0] - both[1]) / 2e-6
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


def test_gradients_without_a_state_of_resets_have_none_of_it() -> None:
    weights, resets = network("gru"), np.ones((STEPS, BATCH), bool)
    *_, context = dnnffi.gru_forward(drawn(STEPS, BATCH, INPUTS), None, weights, resets=resets)
    assert context.backward(drawn(STEPS, BATCH, HIDDEN)).reset_to is None


def test_only_what_is_needed_is_returned() -> None:
    weights, resets = network("gru"), np.ones((STEPS, BATCH), bool)
    *_, context = dnnffi.gru_forward(
        *(drawn(STEPS, BATCH, INPUTS), None, weights), resets=resets, reset_to=state(weights, 1)
    )
    dy = drawn(STEPS, BATCH, HIDDEN)
    grads = context.backward(dy, need="reset_to", retain=True)
    assert grads.x is grads.hx is grads.weights is None
    assert grads.reset_to.shape == (1, 1, HIDDEN)
    assert context.backward(dy, need="x").reset_to is None


def test_nan_in_a_step_before_a_border_stays_there() -> None:
    weights, resets = network("lstm"), np.zeros((STEPS, BATCH), bool)
    x = drawn(STEPS, BATCH, INPUTS)
    x[2, 1] = np.nan
    resets[3, 1] = True
    y, hx, context = dnnffi.lstm_forward(x, None, weights, resets=resets)
    assert np.isnan(y[2, 1]).all()
    assert not np.isnan(y[3:]).any()
    assert not np.isnan(hx[0]).any()
    dy = np.zeros_like(y)
    dy[3:] = 1
    dx = context.backward(dy, need="x").x
    assert np.isfinite(dx[3:]).all()


@pytest.mark.parametrize("training", [False, True])
def test_results_can_be_validated(training: bool) -> None:
    weights, resets = network("lstm"), drawn(STEPS, BATCH) > 0.3
    x, reset_to = drawn(STEPS, BATCH, INPUTS), state(weights, 1)
    more: Any = {"resets": resets, "reset_to": reset_to, "options": {"validate": True}}
    if training:
        y, _, context = dnnffi.lstm_forward(x, None, weights, **more)
        context.backward(y)
    else:
        dnnffi.lstm(x, None, weights, **more)


def test_an_empty_batch_has_empty_gradients() -> None:
    weights = network("lstm")
    empty = np.zeros((STEPS, 0), bool)
    y, _, context = dnnffi.lstm_forward(
        np.zeros((STEPS, 0, INPUTS)), None, weights, resets=empty, reset_to=state(weights, 1)
    )
    h, c = context.backward(y).reset_to
    assert h.shape == c.shape == (1, 1, HIDDEN)
    assert not h.any()


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ({"resets": np.zeros((STEPS, BATCH + 1), bool)}, ValueError, r"shape of x .*\(6, 3\)"),
        ({"resets": np.zeros((BATCH, STEPS), bool)}, ValueError, r"got \(3, 6\)"),
        ({"resets": np.zeros((STEPS, BATCH))}, TypeError, "bool or integers; got float64"),
        ({"resets": [[True] * BATCH] * STEPS}, TypeError, r"use numpy.asarray\(resets, 'bool'\)"),
        ({"reset_to": np.zeros((1, 1, HIDDEN))}, ValueError, "give resets, too"),
        (
            {"resets": np.ones((STEPS, BATCH), bool), "reset_to": np.zeros((1, 2, HIDDEN))},
            ValueError,
            r"reset_to must have shape \(1, 1, 3\), one row for all, or \(1, 3, 3\)",
        ),
        (
            {"resets": np.ones((STEPS, BATCH), bool), "reset_to": np.zeros((1, 1, HIDDEN), "f4")},
            TypeError,
            "reset_to must have the dtype of the weights",
        ),
        (
            {"resets": np.ones((STEPS, BATCH), bool), "reset_to": (np.zeros((1, 1, HIDDEN)),) * 2},
            TypeError,
            "reset_to must be one array",
        ),
    ],
)
def test_bad_resets_are_refused(more: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        dnnffi.gru(drawn(STEPS, BATCH, INPUTS), None, network("gru"), **more)


@pytest.mark.parametrize("rows", [(1, BATCH), (BATCH, 1)])
def test_both_parts_of_a_state_of_resets_have_as_many_rows(rows: tuple[int, int]) -> None:
    reset_to = tuple(np.zeros((1, count, HIDDEN)) for count in rows)
    with pytest.raises(ValueError, match=rf"^reset_to must have .* got {rows[0]} in reset_to\[0\]"):
        dnnffi.lstm(
            *(drawn(STEPS, BATCH, INPUTS), None, network("lstm")),
            resets=np.ones((STEPS, BATCH), bool),
            reset_to=reset_to,
        )


def test_a_backend_without_resets_names_those_with_resets() -> None:
    spec = dnnffi.RNNSpec(mode="gru", input_size=INPUTS, hidden_size=HIDDEN)
    problem = dnnffi.RNNProblem.dense(spec, steps=STEPS, batch=BATCH)._replace(has_resets=True)
    library = SimpleNamespace(unsupported=partial(UnsupportedError, "MIOpen", ""))
    with pytest.raises(UnsupportedError, match=r"has no resets; dnnffi's own .*'vulkan' have them"):
        check_limits(RNN_LIMITS, problem, library)
