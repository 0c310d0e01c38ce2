"""JAX's transformations of calls through handlers, with the reference in them."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xla.jax_programs import TOLERANCES, assert_close, network

import dnnffi
from dnnffi.testing import rnn as strategies

SPEC = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=2)
ONE = network(dnnffi.RNNProblem.dense(SPEC, steps=5, batch=4), "reference")
PADDED = network(dnnffi.RNNProblem.dense(SPEC, steps=5, batch=4, lengths=(1, 5, 2, 3)), "reference")
BATCH_MAJOR = network(
    dnnffi.RNNProblem.dense(SPEC, steps=5, batch=4, batch_first=True), "reference"
)
ROWS = 3
MAPPED = [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (0, None, 0)]


def rows_of(one, axes):
    """The arrays of a network, some of them by row of a map."""

    def rows(array):
        return jnp.stack([array * n for n in range(1, ROWS + 1)])

    return tuple(
        arrays if axis is None else jax.tree.map(rows, arrays)
        for arrays, axis in zip(one.arrays, axes, strict=True)
    )


def each_row(function, arrays, axes):
    """Compute the expected result of `jax.vmap`, row by row."""
    done = [
        function(*(a if axis is None else a[n] for a, axis in zip(arrays, axes, strict=True)))
        for n in range(ROWS)
    ]
    return jax.tree.map(lambda *found: jnp.stack(found), *done)


def in_a_loop(one):
    x, hx, weights = one.arrays

    def summed(xs, hx, weights):
        def step(total, x):
            return total + one.loss(x, hx, weights), None

        return jax.lax.scan(step, 0.0, xs)[0]

    return jax.jit(jax.grad(summed, (0, 1, 2)))(jnp.stack([x, 2 * x]), hx, weights)


def mapped(derive, axes):
    return lambda one: derive(one.loss, axes)(*rows_of(one, axes))


def each_gradient(loss, axes):
    return jax.jit(jax.vmap(jax.grad(loss, (0, 1, 2)), axes))


def gradient_of_all(loss, axes):
    return jax.grad(lambda *arrays: jax.vmap(loss, axes)(*arrays).sum(), (0, 1, 2))


TRANSFORMATIONS = {
    "jit": lambda one: jax.jit(jax.value_and_grad(one.loss, (0, 1, 2)))(*one.arrays),
    "checkpoint": lambda one: jax.grad(jax.checkpoint(one.loss), (0, 1, 2))(*one.arrays),
    "jacrev": lambda one: jax.jacrev(lambda x: one.function(x, *one.arrays[1:])[0].sum(1))(one.x),
    "loop": in_a_loop,
    "each of x": mapped(each_gradient, (0, None, None)),
    "each of the weights": mapped(each_gradient, (None, None, 0)),
    "all of x": mapped(gradient_of_all, (0, None, None)),
    "all of the weights": mapped(gradient_of_all, (None, 0, 0)),
}


@settings(max_examples=10)
@given(
    strategies.problems(
        strategies.specs(dtypes=("float64",), max_size=4, max_layers=2),
        layouts=("sequence_major", "batch_major"),
        training=False,
    ),
    st.sampled_from(sorted(TRANSFORMATIONS)),
)
def test_every_transformation_of_any_network_is_that_of_the_scan(problem, name):
    with jax.enable_x64(True):
        found, expected = (
            TRANSFORMATIONS[name](network(problem, way)) for way in ("reference", "scan")
        )
        assert_close(found, expected, TOLERANCES["float64"])


def test_gradients_are_those_of_the_scan():
    scan = network(ONE.problem, "scan")
    expected = jax.value_and_grad(scan.loss, (0, 1, 2))(*scan.arrays)
    assert_close(jax.value_and_grad(ONE.loss, (0, 1, 2))(*ONE.arrays), expected)
    assert_close(jax.jit(jax.value_and_grad(ONE.loss, (0, 1, 2)))(*ONE.arrays), expected)


@pytest.mark.parametrize("axes", MAPPED)
@pytest.mark.parametrize("one", [ONE, PADDED, BATCH_MAJOR], ids=["full", "padded", "batch_first"])
def test_a_map_is_a_loop(one, axes):
    arrays = rows_of(one, axes)
    assert_close(jax.vmap(one.function, axes)(*arrays), each_row(one.function, arrays, axes))


@pytest.mark.parametrize("axes", MAPPED)
def test_gradients_for_each_row_of_a_map(axes):
    arrays, gradient = rows_of(PADDED, axes), jax.grad(PADDED.loss, (0, 1, 2))
    assert_close(jax.vmap(gradient, axes)(*arrays), each_row(gradient, arrays, axes))
    assert_close(jax.jit(jax.vmap(gradient, axes))(*arrays), each_row(gradient, arrays, axes))


@pytest.mark.parametrize("axes", MAPPED)
def test_gradients_of_a_map(axes):
    arrays = rows_of(PADDED, axes)

    def mapped(*arrays):
        return jax.vmap(PADDED.loss, axes)(*arrays).sum()

    def looped(*arrays):
        return each_row(PADDED.loss, arrays, axes).sum()

    found, expected = (jax.grad(f, (0, 1, 2))(*arrays) for f in (mapped, looped))
    assert_close(found, expected)


@pytest.mark.parametrize("axes", MAPPED)
def test_a_map_over_nothing_is_empty(axes):
    def derived(one):
        arrays = tuple(
            a if axis is None else jax.tree.map(lambda b: b[:0], a)
            for a, axis in zip(rows_of(one, axes), axes, strict=True)
        )
        each = jax.vmap(one.function, axes)(*arrays)
        return (
            each,
            each_gradient(one.loss, axes)(*arrays),
            gradient_of_all(one.loss, axes)(*arrays),
        )

    assert_close(derived(ONE), derived(network(ONE.problem, "scan")), 0)


def test_other_axes_in_and_out():
    x, h_0, weights = rows_of(ONE, (0, 0, None))
    moved = jnp.moveaxis(x, 0, 2), jnp.moveaxis(h_0, 0, 3), weights
    mapped = jax.vmap(ONE.function, (2, 3, None), (1, 0))(*moved)
    y, h_n = each_row(ONE.function, (x, h_0, weights), (0, 0, None))
    assert_close(mapped, (jnp.moveaxis(y, 0, 1), h_n))


@pytest.mark.parametrize("inner", [(0, None, None), (None, None, 0)])
@pytest.mark.parametrize("outer", [(None, 0, None), (None, None, 0)])
def test_a_map_in_a_map(inner, outer):
    axes = [(a, b) for a, b in zip(inner, outer, strict=True)]
    arrays = list(ONE.arrays)
    for n, (a, b) in enumerate(axes):
        for axis in (a, b):
            if axis == 0:
                arrays[n] = jnp.stack([arrays[n] * k for k in (1, 2, -1)])
    for function in (ONE.function, jax.grad(ONE.loss, (0, 1, 2))):
        found = jax.vmap(jax.vmap(function, inner), outer)(*arrays)

        def looped(*arrays, function=function):
            return each_row(function, arrays, inner)

        assert_close(found, each_row(looped, arrays, outer))


def test_a_jacobian_by_rows():
    def last(weights):
        return ONE.function(*ONE.arrays[:2], weights)[1].sum((0, 1))

    found = jax.jacrev(last)(ONE.arrays[2])
    each = [jax.grad(lambda w, n=n: last(w)[n])(ONE.arrays[2]) for n in range(4)]
    assert_close(found, jnp.stack(each))


def test_a_pull_does_not_spoil_the_next():
    # A backward pass makes the reference's reserve space unusable, as it does cuDNN's.
    _, pull = jax.vjp(ONE.loss, *ONE.arrays)
    first = pull(1.0)
    assert_close(pull(2.0), jax.tree.map(lambda a: 2 * a, first))
    assert_close(pull(1.0), first, 0)


@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.jit, lambda f: jax.checkpoint(jax.jit(f))])
def test_recomputed_and_compiled(wrap):
    expected = jax.grad(ONE.loss, (0, 1, 2))(*ONE.arrays)
    assert_close(jax.grad(wrap(ONE.loss), (0, 1, 2))(*ONE.arrays), expected)


def test_inside_a_loop():
    def chained(x, h, weights):
        def step(h, _):
            y, h = ONE.function(x, h, weights)
            return h, y

        return jax.lax.scan(step, h, None, length=3)[1].sum()

    def unrolled(x, h, weights):
        total = 0
        for _ in range(3):
            y, h = ONE.function(x, h, weights)
            total += y.sum()
        return total

    found, expected = (jax.grad(f, (0, 1, 2))(*ONE.arrays) for f in (chained, unrolled))
    assert_close(found, expected)


def test_donated_buffers():
    step = jax.jit(lambda x, h, w: w - 0.1 * jax.grad(ONE.loss, 2)(x, h, w), donate_argnums=2)
    x, h, weights = ONE.arrays
    expected = weights - 0.1 * jax.grad(ONE.loss, 2)(x, h, weights)
    assert_close(step(x, h, jnp.array(weights)), expected, 1e-5)


def test_the_last_state_alone():
    def last(x, h, weights):
        return ONE.function(x, h, weights)[1].sum()

    scan = network(ONE.problem, "scan")
    expected = jax.grad(lambda *a: scan.function(*a)[1].sum(), (0, 1, 2))(*scan.arrays)
    assert_close(jax.grad(last, (0, 1, 2))(*ONE.arrays), expected)


@pytest.mark.parametrize(
    ("words", "derive"),
    [
        ("forward-mode", lambda loss, arrays: jax.jvp(loss, arrays, arrays)),
        ("forward-mode", lambda loss, arrays: jax.jit(lambda *a: jax.jvp(loss, a, a))(*arrays)),
        ("forward-mode", lambda loss, arrays: jax.linearize(loss, *arrays)[1](*arrays)),
        ("second derivatives", lambda loss, arrays: jax.hessian(loss)(*arrays)),
        ("second derivatives", lambda loss, arrays: jax.jacrev(jax.jacrev(loss))(*arrays)),
        (
            "second derivatives",
            lambda loss, arrays: jax.grad(lambda x: jax.grad(loss)(x, *arrays[1:]).sum())(
                arrays[0]
            ),
        ),
    ],
)
def test_derivatives_that_there_are_not_are_refused_in_words(words, derive):
    with pytest.raises(NotImplementedError, match=f"'reference' has no {words}.*'scan' has"):
        derive(ONE.loss, ONE.arrays)


def test_the_gradient_of_a_branch_that_a_map_does_not_take_is_dropped():
    def loss(one, x):
        return jax.lax.cond(
            x.sum() > 0, lambda x: one.loss(x, *one.arrays[1:]), lambda x: (x**2).sum(), x
        )

    xs = jnp.stack([jnp.ones(ONE.x.shape), -jnp.ones(ONE.x.shape)])
    found, expected = (
        jax.vmap(jax.grad(partial(loss, one)))(xs) for one in (ONE, network(ONE.problem, "scan"))
    )
    assert_close(found, expected)
