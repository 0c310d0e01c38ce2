"""Every creator that computes on NumPy, against the reference or finite differences."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from bench.bench_models import ONE, SHAPES, TWO, check, check_against_the_reference, fitting, run

import dnnffi
from dnnffi.bench import array_models, layer_norm
from dnnffi.bench.creator import Creator, Limits
from dnnffi.bench.shapes import Shape

OTHERWISE = {"array simple", "array layer norm", "array dropout"}  # have tests of their own
CASES = [
    (creator, name)
    for creator in array_models.CREATORS
    for name in fitting(creator)
    if creator.name not in OTHERWISE and "plan" not in creator.name
]


@pytest.mark.parametrize(
    ("creator", "name"), CASES, ids=lambda value: getattr(value, "name", value)
)
def test_against_the_reference(creator, name):
    check_against_the_reference(creator.create, SHAPES[name])


def test_every_creator_is_tested():
    tested = {creator.name for creator, _ in CASES} | OTHERWISE
    assert tested | {"dnnffi plan", "dnnffi plan captured"} == {
        creator.name for creator in array_models.CREATORS
    }


def test_given_lengths_replace_those_of_the_shape():
    shape = Shape("gru", "float32", 5, 3, 4, 6)
    data, lengths = shape.draw(), (2, 5, 0)
    given, _ = array_models.functional(shape, data, "cpu", False, lengths=lengths).forward()
    ragged = replace(shape, lengths=lengths)
    expected, _ = array_models.functional(ragged, data, "cpu", False).forward()
    np.testing.assert_array_equal(given, expected)
    assert not given[2:, 0].any()


def test_a_plan_for_the_largest_batch_takes_lengths():
    shape = Shape("gru", "float32", 5, 3, 4, 6)
    data, lengths = shape.draw(), np.array([2, 5, 0], "int32")
    plan, inputs = array_models._held(shape, data, "cpu", False, is_largest=True)
    found, _ = plan.forward(*inputs, lengths=lengths)
    expected, _ = array_models.functional(shape, data, "cpu", False, lengths=lengths).forward()
    np.testing.assert_array_equal(found, expected)


def test_simple_gives_the_last_state_and_its_gradient():
    data = ONE.draw(seed=1)
    (h, c, _), found = run(array_models.simple, ONE)
    _, (h_n, c_n), ctx = dnnffi.lstm_forward(data.x, (data.h_0, data.c_0), data.weights)
    expected = ctx.backward(dhx=(data.dy[-1:], None))
    check([h[None], c[None]], [h_n, c_n])
    check(
        [found.x, *(d[None] for d in found.hx), *found.weights],
        [expected.x, *expected.hx, *expected.weights],
    )


def test_dropout_by_given_masks(monkeypatch):
    data = TWO.draw(seed=1)
    drawn = np.random.default_rng(2).random((2, 4, 3, 5))
    masks, draws = (drawn >= 0.4) / 0.6, iter(drawn)
    monkeypatch.setattr(np.random, "random_sample", lambda shape: next(draws).reshape(shape))
    outputs, found = run(array_models.stacked, TWO, dropout=0.4)

    y, contexts, states = data.x, [], []
    for n in range(3):
        if n:
            y = y * masks[n - 1]
        hx = (data.h_0[n : n + 1], data.c_0[n : n + 1])
        y, state, ctx = dnnffi.lstm_forward(y, hx, data.weights[4 * n : 4 * n + 4])
        contexts.append(ctx)
        states.append(state)
    d_y, gradients = data.dy, []
    for n in reversed(range(3)):
        gradients.insert(0, contexts[n].backward(d_y))
        d_y = gradients[0].x * (masks[n - 1] if n else 1)
    check(outputs[0], y)
    check(list(outputs[1]), [np.concatenate([s[k] for s in states]) for k in (0, 1)])
    check(found.x, d_y)
    check(list(found.hx), [np.concatenate([g.hx[k] for g in gradients]) for k in (0, 1)])
    check(found.weights, [array for g in gradients for array in g.weights])


def test_dropout_draws_new_masks_and_none_in_inference():
    shape = Shape("lstm", "float64", 40, 10, 5, 5, layers=2)
    create = partial(array_models.stacked, dropout=0.4)
    model = create(shape, shape.draw(), "cpu", True)
    (one,), (other,) = (model.forward()[2][1] for _ in range(2))
    assert not np.array_equal(one, other)
    assert set(np.unique(one)) == {0, 1 / 0.6}
    assert 0.35 < (one == 0).mean() < 0.45  # of 2,000 draws
    check(run(create, TWO, training=False)[0][:2], run(array_models.functional, TWO)[0][:2])


def test_layer_norm_by_finite_differences():
    data = ONE.draw(seed=1)
    rng = np.random.default_rng(3)
    rows, hidden = data.weights[1].shape
    scale_shift = [
        about + rng.uniform(-0.3, 0.3, size) for size in (rows, rows, hidden) for about in (1, 0)
    ]
    weights = layer_norm.Weights(*data.weights[:2], *scale_shift)
    x, h_0, c_0 = data.x, data.h_0[0], data.c_0[0]

    def forward():
        return layer_norm.forward(np, x, h_0, c_0, weights, True)

    def loss():
        return float((forward().h[1:] * data.dy).sum())

    found = layer_norm.backward(np, forward(), data.dy)
    arrays = [x, h_0, c_0, *weights]
    gradients = [found.x, found.h_0, found.c_0, *found.weights]
    step = 1e-6
    for array, gradient in zip(arrays, gradients, strict=True):
        assert array.shape == gradient.shape
        flat = array.reshape(-1)
        assert np.shares_memory(flat, array)
        for place in rng.choice(flat.size, min(flat.size, 12), replace=False):
            kept = flat[place]
            flat[place] = kept + step
            above = loss()
            flat[place] = kept - step
            slope = (above - loss()) / (2 * step)
            flat[place] = kept
            assert slope == pytest.approx(gradient.reshape(-1)[place], rel=1e-5, abs=1e-7)


def test_layer_norm_is_the_same_without_what_backward_needs():
    trained, _ = run(array_models.normalised, ONE)
    inferred, _ = run(array_models.normalised, ONE, training=False)
    check(trained[:2], inferred[:2])


@pytest.mark.parametrize(
    ("limits", "shape", "why"),
    [
        (Limits(modes=("lstm",)), "gru", "lstm only"),
        (Limits(dtypes=("float16",)), "one layer", "float16 only"),
        (Limits(layers=1), "layers", "at most 1 layer"),
        (Limits(layers=2), "layers", "at most 2 layers"),
        (Limits(both_directions=False), "gru", "one direction only"),
        (Limits(lengths="refuses"), "lengths", "rows of equal length only"),
        (Limits(lengths="needs"), "one layer", "rows of different length only"),
        (Limits(), "lengths", ""),
    ],
)
def test_limits_say_why_a_shape_does_not_fit(limits, shape, why):
    assert limits.why_not(SHAPES[shape]) == why


@pytest.mark.parametrize(
    ("places", "place", "why"),
    [
        (("gpu",), "cpu", "needs a GPU"),
        (("cpu",), "gpu", "its library sees no GPU"),
        (("cpu",), "cpu", "float16 only"),
    ],
)
def test_a_creator_says_why_it_does_not_run_here_before_its_limits(places, place, why):
    creator = Creator("a", "array", run, Limits(dtypes=("float16",)), places)
    assert creator.why_not(ONE, place) == why


def test_drawn_arrays_are_the_same_for_a_seed_and_repeat_only_when_large():
    small = Shape("lstm", "float32", 3, 2, 4, 5)
    one, other = small.draw(seed=7), small.draw(seed=7)
    assert np.array_equal(one.x, other.x)
    assert len(np.unique(one.x)) == one.x.size
    assert abs(one.weights[0]).max() <= 5**-0.5
    large = Shape("rnn_tanh", "float16", 3, 700, 512, 4).draw()
    flat = large.x.reshape(-1)
    assert flat.size > 1 << 20
    assert np.array_equal(flat[1 << 20 :], flat[: flat.size - (1 << 20)])
