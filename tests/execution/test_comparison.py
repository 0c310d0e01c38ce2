"""Tests of the comparison of results: which deviations count as rounding."""

from __future__ import annotations

import numpy as np
import pytest

from dnnffi import RNNProblem, RNNSpec, ValidationError
from dnnffi.device.dtypes import dtype_object
from dnnffi.execution import comparison
from dnnffi.execution.comparison import compare

TOLERANCES = {"float16": 2e-2, "bfloat16": 1e-1}
DTYPES = list(TOLERANCES)


def problem_of(dtype):
    return RNNProblem.dense(
        RNNSpec(mode="gru", input_size=1, hidden_size=1, dtype=dtype), steps=1, batch=1
    )


def run(dtype, found, compute, *inputs):
    """Run `compare` on one result, which is rounded to ``dtype``."""
    rounded = {"y": np.array(found).astype(dtype_object(dtype))}
    arrays = [np.array(one).astype(dtype_object(dtype)) for one in inputs]
    compare(problem_of(dtype), rounded, lambda *up: {"y": compute(*up)}, arrays)


def refused(dtype, found, compute, *inputs):
    """Return the deviation of a refused result, and the allowed one."""
    with pytest.raises(ValidationError) as caught:
        run(dtype, found, compute, *inputs)
    return caught.value.deviations["y"]


def difference(a, b):
    """Return the difference of two products, which is only rounding if they are nearly equal."""
    return a * 1.5 - b * 1.5


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_that_cancels_may_be_off_by_the_rounding_of_its_terms(dtype):
    roundoff = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    a, b = [1.0], [1 - 2 * roundoff]  # both are numbers of the dtype
    exact = 3 * roundoff
    run(dtype, [exact], difference, a, b)
    run(dtype, [exact + 2 * roundoff], difference, a, b)
    run(dtype, [exact - 2 * roundoff], difference, a, b)
    deviation, allowed = refused(dtype, [exact + 30 * roundoff], difference, a, b)
    assert deviation == pytest.approx(10, rel=0.05)
    assert TOLERANCES[dtype] < allowed < 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_that_does_not_cancel_may_not(dtype):
    run(dtype, [0.75], difference, [1.0], [0.5])
    off = 1.1 * TOLERANCES[dtype]
    _, allowed = refused(dtype, [0.75 * (1 + off)], difference, [1.0], [0.5])
    assert allowed == TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_large_element_is_what_the_others_are_measured_by(dtype):
    a, b = [1.0, 4.0], [1 - 2.0**-7, 0.0]
    exact = difference(np.array(a), np.array(b))
    error = np.array([4.0 * TOLERANCES[dtype], 0.0])
    run(dtype, exact + error, difference, a, b)
    _, allowed = refused(dtype, exact + 2 * error, difference, a, b)
    assert allowed == TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_of_a_saturated_unit_may_be_anything_up_to_twice_what_it_is(dtype):
    def gradient(x):
        return 1 - np.tanh(x) ** 2

    x = {"float16": 4.25, "bfloat16": 3.25}[dtype]
    exact = gradient(np.array([x]))
    run(dtype, [0.0], gradient, [x])  # that of tanh(x) rounded to 1
    run(dtype, 1.9 * exact, gradient, [x])
    refused(dtype, 9 * exact, gradient, [x])
    refused(dtype, 2 * gradient(np.array([0.5])), gradient, [0.5])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_unit_at_its_corner_may_be_on_or_off(dtype):
    def gradient(a, b):
        return np.where(a * 1.5 - b * 1.5 > 0, 3.0, 1.0)

    step = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    near, far = [1 - step], [0.75]
    for found in ([1.0], [3.0]):
        run(dtype, found, gradient, [1.0], near)
    run(dtype, [3.0], gradient, [1.0], far)
    refused(dtype, [1.0], gradient, [1.0], far)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("found", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_no_rounding(dtype, found):
    deviation, allowed = refused(dtype, [found], difference, [1.0], [1.0])
    assert deviation == float("inf")
    assert allowed < float("inf")


def test_errors_that_overflow_explain_nothing():
    # 65504 is the largest of float16; half of the draws of its square are beyond.
    def square(x):
        return x * x

    deviation, allowed = refused("float16", [np.inf], square, [2.0**8 - 2.0**-4])
    assert (deviation, allowed) == (float("inf"), pytest.approx(2e-2))


def test_the_reference_is_computed_once_where_nothing_is_wrong():
    count = []

    def compute(a, b):
        count.append(None)
        return difference(a, b)

    run("float16", [0.75], compute, [1.0], [0.5])
    assert len(count) == 1
    refused("float16", [1.5], compute, [1.0], [0.5])
    assert len(count) == 2 + comparison._DRAWS


def test_only_what_is_wrong_is_told():
    arrays = [np.array([1.0], "f2"), np.array([0.5], "f2")]
    found = {name: np.array([value], "f2") for name, value in (("y", 0.75), ("h_n", 0.5))}
    found["c_n"] = None
    with pytest.raises(ValidationError) as caught:
        compare(
            problem_of("float16"),
            found,
            lambda a, b: dict.fromkeys(("y", "h_n", "c_n"), difference(a, b)),
            arrays,
        )
    assert list(caught.value.deviations) == ["h_n"]
