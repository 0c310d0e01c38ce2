"""Tests of arrays with rounding errors: bounds of the errors, and results as NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi import testing
from dnnffi.convolution.reference_plan import ReferenceConvPlan
from dnnffi.execution.comparison import inexact
from dnnffi.rnn.reference_plan import ReferenceRNNPlan

seeds = st.integers(0, 2**32 - 1)
roundoffs = st.sampled_from([2.0**-53, 2.0**-11, 2.0**-8])


def erring(roundoff, seed=0):
    return inexact(roundoff, np.random.default_rng(seed))


def normal(shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape)


def doubled(array):
    return None if array is None else array.astype(np.float64)


def assert_within(found, exact, bound):
    assert (abs(np.asarray(found) - exact) <= bound * (1 + 1e-6) * abs(exact)).all()


@given(roundoffs, seeds)
def test_an_operation_errs_by_the_roundoff_at_most(roundoff, seed):
    err = erring(roundoff, seed)
    a, b = err(normal((7, 5))), err(normal((5, 3), 2))
    assert_within(a, normal((7, 5)), roundoff + 2.0**-52)
    for operate in (
        lambda x, y: x @ y,
        lambda x, y: x[:, :3] * y[0],
        lambda x, y: np.tanh(x),
        lambda x, y: x.sum(axis=0),
        lambda x, y: 1 / (1 + abs(y)),  # three operations
    ):
        exact = operate(a.view(np.ndarray), b.view(np.ndarray))
        assert_within(operate(a, b), exact, 3 * roundoff + 2.0**-50)


@pytest.mark.parametrize(
    "operate",
    [
        lambda a: a + 0.0,
        lambda a: a @ np.eye(100),
        lambda a: np.exp(np.log(abs(a))) * np.sign(a),
        lambda a: np.split(a, 2)[1] * 1.0,
        lambda a: a.T.reshape(-1)[3:] * 1.0,
    ],
)
def test_every_operation_errs_and_so_do_those_on_its_result(operate):
    a = erring(2.0**-8)(normal((100, 100)))
    found = operate(a)
    exact = operate(a.view(np.ndarray))
    deviation = abs(np.asarray(found) - exact) / abs(exact)
    # Mean of a uniform error is half of the largest; operations that come after each other add up.
    assert 0.4 * 2.0**-8 < deviation.mean() < 2 * 2.0**-8
    assert type(found) is type(a)


def test_what_is_put_into_a_new_array_keeps_its_errors_and_gets_no_more():
    a = erring(2.0**-8)(normal((5, 5)))
    exact = a.view(np.ndarray)
    np.testing.assert_array_equal(np.stack([a, a]), np.stack([exact, exact]))
    np.testing.assert_array_equal(np.where(exact > 0, a, 0), np.where(exact > 0, exact, 0))


def test_adding_to_an_array_errs_too():
    # As the reference of the convolutions does.
    total = np.zeros((3, 4))
    total[1:] += erring(2.0**-8)(np.ones((2, 4)))
    assert (total[0] == 0).all()
    assert (total[1:] != 1).all()


def test_what_is_written_into_an_array_errs_too():
    # As the reference of the networks does.
    a = erring(2.0**-8)(np.ones(4))
    plain, same, exact = np.zeros(4), a, np.asarray(a) + 1
    a += 1
    assert np.shares_memory(a, same)
    assert (np.asarray(same) != exact).all()
    assert_within(same, exact, 2.0**-8)
    np.exp(a, out=plain)
    exact = np.exp(np.asarray(a))
    assert (plain != exact).all()
    assert_within(plain, exact, 2.0**-8)


def test_what_is_no_float_is_exact():
    a = erring(2.0**-8)(normal((7, 5)))
    assert (a > 0).dtype == bool
    assert np.isfinite(a).all()
    assert np.argmax(a) == np.argmax(a.view(np.ndarray))


def test_infinity_and_nan_and_zero_stay():
    found = erring(2.0**-8)(np.array([np.inf, -np.inf, np.nan, 0.0])) * 2.0
    np.testing.assert_array_equal(found, [np.inf, -np.inf, np.nan, 0.0])


def test_the_same_seed_gives_the_same_errors():
    a, b, c = (np.exp(erring(2.0**-8, seed)(normal(9))) for seed in (3, 3, 4))
    np.testing.assert_array_equal(a, b)
    assert (a != c).all()


# Without errors they are NumPy's: no function of the reference treats them otherwise.


@given(testing.problems(with_options=True, training=True), seeds)
def test_a_network_without_errors_is_the_references(problem, seed):
    a, plan, err = testing.inputs(problem, seed), ReferenceRNNPlan(problem), erring(0.0)

    def results(up):
        x, h_0, c_0, dy, dh_n, dc_n = (
            None if array is None else up(doubled(array))
            for array in (a.x, a.h_0, a.c_0, a.dy, a.dh_n, a.dc_n)
        )
        *forward, tape = plan.forward(x, h_0, c_0, [up(doubled(w)) for w in a.weights])
        *data, weights, _ = plan.backward(tape, dy, dh_n, dc_n, weights_needed=True, retain=False)
        return [*forward, *data, *weights]

    for one, other in zip(results(err), results(lambda array: array), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            # Products of arrays that lie otherwise in memory may be summed in another order.
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


@given(testing.conv_problems(), seeds)
def test_a_convolution_without_errors_is_the_references(problem, seed):
    a, plan, err = testing.conv_inputs(problem, seed), ReferenceConvPlan(problem), erring(0.0)
    arrays = {
        "forward": (a.x, a.w, a.bias, a.residual),
        "backward_data": (a.dy, a.w),
        "backward_weights": (a.dy, a.x),
    }[problem.operation]
    doubles = [doubled(array) for array in arrays]
    found = plan.run(*(None if array is None else err(array) for array in doubles))
    np.testing.assert_allclose(found, plan.run(*doubles), rtol=1e-11, atol=1e-12)
