"""Resets within a sequence: a batch of rows of episodes is each episode on its own."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

import dnnffi
from dnnffi import jax as djax
from dnnffi.errors import UnsupportedError

FUNCTIONS = {
    "lstm": djax.lstm,
    "gru": djax.gru,
    "rnn_tanh": djax.rnn_tanh,
    "rnn_relu": djax.rnn_relu,
}
STEPS, BATCH, INPUTS, HIDDEN = 6, 3, 2, 3


def network(mode, seed=0, *, layers=1, both=False, proj_size=0, dtype="float32"):
    """Return a spec, its weights, and drawn x, states and states of resets with a row each."""
    spec = dnnffi.RNNSpec(
        mode=mode,
        input_size=INPUTS,
        hidden_size=HIDDEN,
        num_layers=layers,
        bidirectional=both,
        proj_size=proj_size,
        dtype=dtype,
    )
    keys = iter(jax.random.split(jax.random.key(seed), 6))
    weights = djax.init(next(keys), spec)
    x = jax.random.normal(next(keys), (STEPS, BATCH, INPUTS), dtype)
    shapes = (spec.h_shape(BATCH), spec.c_shape(BATCH))[: 1 + spec.has_cell]
    states = [
        tuple(jax.random.normal(next(keys), shape, dtype) for shape in shapes) for _ in range(2)
    ]
    return spec, weights, x, *states


def hx_of(states):
    """Return states as the argument of a function."""
    return states if len(states) == 2 else states[0]


def states_of(hx):
    """Return an argument or a result as a tuple of states."""
    return hx if isinstance(hx, tuple) else (hx,)


def run_apart(function, weights, x, states, reset_to, resets, lengths):
    """Return y [T, B, .] and the last states of a batch, by a call for each episode of a row."""
    directions = weights.spec.num_directions
    ys, ends = [], []
    for row, length in enumerate(lengths):
        cuts = [t for t in range(length) if resets[t, row]]
        edges = [0, *(t for t in cuts if t > 0), length]
        first, later = ([one[:, row : row + 1] for one in some] for some in (states, reset_to))
        parts, of_row = [], [jnp.zeros_like(one) for one in first]
        for begin, end in pairwise(edges):
            is_first = begin == 0 and 0 not in cuts
            given = []
            for begun, reset in zip(first, later, strict=True):
                hx = [
                    begun[k] if (end == length if k % directions else is_first) else reset[k]
                    for k in range(len(begun))
                ]
                given.append(jnp.stack(hx))
            y, ended = function(x[begin:end, row : row + 1], hx_of(tuple(given)), weights)
            parts.append(y)
            for number, state in enumerate(states_of(ended)):
                for k in range(len(state)):
                    if begin == 0 if k % directions else end == length:
                        of_row[number] = of_row[number].at[k].set(state[k])
        padding = jnp.zeros((len(x) - length, 1, parts[0].shape[-1]), x.dtype)
        ys.append(jnp.concatenate([*parts, padding]))
        ends.append(of_row)
    return jnp.concatenate(ys, 1), [jnp.concatenate(some, 1) for some in zip(*ends, strict=True)]


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_rows_of_episodes_are_the_episodes_on_their_own(data):
    mode = data.draw(st.sampled_from([*FUNCTIONS]))
    layers, both = data.draw(st.sampled_from([1, 2])), data.draw(st.booleans())
    proj_size = data.draw(st.sampled_from([0, 2])) if mode == "lstm" else 0
    _, weights, x, states, reset_to = network(
        mode, data.draw(st.integers(0, 99)), layers=layers, both=both, proj_size=proj_size
    )
    row = st.lists(st.booleans(), min_size=STEPS, max_size=STEPS)
    resets = np.array(data.draw(st.lists(row, min_size=BATCH, max_size=BATCH))).T
    lengths = data.draw(st.lists(st.integers(1, STEPS), min_size=BATCH, max_size=BATCH))
    batch_first = data.draw(st.booleans())
    given_x, given_resets = (x.swapaxes(0, 1), resets.T) if batch_first else (x, resets)
    y, ended = FUNCTIONS[mode](
        given_x,
        hx_of(states),
        weights,
        lengths=lengths,
        resets=given_resets,
        reset_to=hx_of(reset_to),
        batch_first=batch_first,
    )
    y = y.swapaxes(0, 1) if batch_first else y
    expected, ends = run_apart(FUNCTIONS[mode], weights, x, states, reset_to, resets, lengths)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    for found, end in zip(states_of(ended), ends, strict=True):
        np.testing.assert_allclose(found, end, atol=1e-5)


@pytest.mark.parametrize("mode", FUNCTIONS)
def test_a_reset_is_to_zeros_unless_a_state_is_given(mode):
    _, weights, x, states, _ = network(mode, both=True)
    resets = np.zeros((STEPS, BATCH), bool)
    resets[[0, 2, STEPS - 1], 1] = True
    zeros = tuple(jnp.zeros((len(one), 1, one.shape[2])) for one in states)
    y, ended = FUNCTIONS[mode](x, hx_of(states), weights, resets=resets)
    given = FUNCTIONS[mode](x, hx_of(states), weights, resets=resets, reset_to=hx_of(zeros))
    np.testing.assert_array_equal(y, given[0])
    jax.tree.map(np.testing.assert_array_equal, ended, given[1])


@pytest.mark.parametrize("mode", FUNCTIONS)
def test_no_reset_changes_nothing(mode):
    _, weights, x, states, reset_to = network(mode, layers=2)
    plain = FUNCTIONS[mode](x, hx_of(states), weights)
    found = FUNCTIONS[mode](
        *(x, hx_of(states), weights),
        resets=np.zeros((STEPS, BATCH), np.int8),
        reset_to=hx_of(reset_to),
    )
    jax.tree.map(np.testing.assert_array_equal, plain, found)


def test_a_state_of_one_row_is_that_of_all_rows():
    _, weights, x, states, reset_to = network("lstm", both=True)
    one = tuple(state[:, :1] for state in reset_to)
    each = tuple(jnp.repeat(state, BATCH, 1) for state in one)
    resets = np.ones((STEPS, BATCH), bool)
    found, expected = (
        djax.lstm(x, states, weights, resets=resets, reset_to=some)[0] for some in (one, each)
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", FUNCTIONS)
@pytest.mark.parametrize("both", [False, True])
def test_gradients_are_those_of_finite_differences(mode, both):
    with jax.enable_x64(True):
        _, weights, x, states, reset_to = network(mode, layers=2, both=both, dtype="float64")
        resets = np.array([[0, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0]])
        lengths = [STEPS, STEPS - 1, STEPS - 2]

        def loss(x, states, reset_to, weights):
            y, ended = FUNCTIONS[mode](
                *(x, hx_of(states), weights),
                lengths=lengths,
                resets=resets,
                reset_to=hx_of(reset_to),
            )
            return jnp.sin(y).sum() + sum(jnp.cos(one).sum() for one in states_of(ended))

        check_grads(loss, (x, states, reset_to, weights), order=1, modes=("fwd", "rev"))


def test_no_gradient_passes_a_border():
    _, weights, x, states, _ = network("gru", both=True)
    resets = np.zeros((STEPS, BATCH), bool)
    resets[3] = True

    def loss(steps, x, h_0):
        return djax.gru(x, h_0, weights, resets=resets)[0][steps].sum()

    before, _ = jax.grad(partial(loss, slice(0, 3)), (0, 1))(x, states[0])
    after, d_h_0 = jax.grad(partial(loss, slice(3, STEPS)), (0, 1))(x, states[0])
    assert np.all(np.asarray(before[3:]) == 0)
    assert np.all(np.asarray(before[:3]) != 0)
    assert np.all(np.asarray(after[:3]) == 0)
    assert np.all(np.asarray(after[3:]) != 0)
    assert np.all(np.asarray(d_h_0[0]) == 0)  # that direction begins anew at step 3
    assert np.all(np.asarray(d_h_0[1]) != 0)


def test_nan_before_a_border_does_not_pass_it():
    _, weights, x, states, _ = network("lstm")
    resets = np.zeros((STEPS, BATCH), bool)
    resets[2] = True
    y, _ = djax.lstm(x.at[1].set(jnp.nan), states, weights, resets=resets)
    assert np.isnan(np.asarray(y[1])).all()
    assert np.isfinite(np.asarray(y[2:])).all()


def test_resets_past_the_end_of_a_row_are_ignored():
    _, weights, x, states, reset_to = network("lstm", both=True)
    lengths = [2, STEPS, 3]
    resets = np.zeros((STEPS, BATCH), bool)
    resets[2, 0] = resets[4, 2] = True
    plain = djax.lstm(x, states, weights, lengths=lengths)
    found = djax.lstm(x, states, weights, lengths=lengths, resets=resets, reset_to=reset_to)
    jax.tree.map(np.testing.assert_array_equal, plain, found)


def test_one_program_serves_all_resets_and_rows_of_a_map():
    _, weights, x, states, _ = network("gru")
    traced = []

    @jax.jit
    def run(x, resets):
        traced.append(1)
        return djax.gru(x, states[0], weights, resets=resets)[0]

    some = [np.eye(STEPS, BATCH, k, dtype=bool) for k in (0, -2)]
    apart = [run(x, resets) for resets in some]
    assert len(traced) == 1
    mapped = jax.vmap(run, (None, 0))(x, np.stack(some))
    np.testing.assert_allclose(mapped, np.stack(apart), atol=1e-6)


def test_dropout_masks_are_those_without_resets():
    _, weights, x, states, _ = network("rnn_tanh", layers=2)
    resets = np.zeros((STEPS, BATCH), bool)
    resets[STEPS - 1] = True
    options = {"dropout": 0.5, "key": jax.random.key(1)}
    plain, _ = djax.rnn_tanh(x, states[0], weights, **options)
    found, _ = djax.rnn_tanh(x, states[0], weights, resets=resets, **options)
    np.testing.assert_array_equal(plain[:-1], found[:-1])
    assert np.any(np.asarray(plain[-1]) != np.asarray(found[-1]))


def test_an_empty_batch_has_no_resets():
    _, weights, *_ = network("gru")
    y, h_n = djax.gru(jnp.ones((STEPS, 0, INPUTS)), None, weights, resets=np.ones((STEPS, 0), bool))
    assert (y.shape, h_n.shape) == ((STEPS, 0, HIDDEN), (1, 0, HIDDEN))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"resets": np.ones((STEPS, BATCH), "f4")}, TypeError, "bool or integers; got float32"),
        (
            {"resets": np.ones((BATCH, STEPS), bool)},
            ValueError,
            r"without its last dimension, \(6, 3\); got \(3, 6\)",
        ),
        ({"reset_to": np.ones((1, 1, HIDDEN), "f4")}, ValueError, "give resets, too"),
        (
            {"resets": np.ones((STEPS, BATCH), bool), "reset_to": np.ones((1, 2, HIDDEN), "f4")},
            ValueError,
            r"reset_to must have shape \(1, 3, 3\) or \(1, 1, 3\); got \(1, 2, 3\)",
        ),
        (
            {"resets": np.ones((STEPS, BATCH), bool), "reset_to": np.ones((1, 1, HIDDEN), "f2")},
            TypeError,
            "reset_to must have the dtype of x, float32; got float16",
        ),
        (
            {"resets": np.ones((STEPS, BATCH), bool), "implementation": "miopen"},
            UnsupportedError,
            "implementation 'miopen': cannot reset states .* implementation 'scan' can",
        ),
    ],
)
def test_bad_resets_are_refused_by_name(arguments, error, message):
    _, weights, x, _, _ = network("gru")
    with pytest.raises(error, match=message):
        djax.gru(x, None, weights, **arguments)


def test_a_state_of_resets_has_the_structure_of_hx():
    _, weights, x, _, reset_to = network("lstm")
    resets = np.ones((STEPS, BATCH), bool)
    with pytest.raises(TypeError, match=r"reset_to must be \(h_0, c_0\) or None; got ArrayImpl"):
        djax.lstm(x, None, weights, resets=resets, reset_to=reset_to[0])
    with pytest.raises(ValueError, match=r"reset_to\[1\] must have shape"):
        djax.lstm(x, None, weights, resets=resets, reset_to=(reset_to[0], reset_to[1][:, :2]))
    with pytest.raises(ValueError, match=r"^reset_to must have one row for all in both parts"):
        djax.lstm(x, None, weights, resets=resets, reset_to=(reset_to[0], reset_to[1][:, :1]))
