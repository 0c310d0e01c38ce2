"""The comparisons of tests fail for results that are zeroed, negated or 10 % off."""

from __future__ import annotations

import conformance
import numpy as np
import pytest
from comparison import MAX_TOLERANCE, TOLERANCES, assert_near

import dnnffi
from dnnffi.device.dtypes import dtype_object
from dnnffi.spec.options import rnn_options

FAULTS = {
    "zeroed": lambda array: array * 0,
    "negated": lambda array: -array,
    "10 % smaller": lambda array: array * 0.9,
    "10 % larger": lambda array: array * 1.1,
    "one element wrong": lambda array: np.where(array == abs(array).max(), 0, array),
    "NaN": lambda array: array * np.nan,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", [1e-4, 1e-2, 1, 1e3])
def test_a_wrong_array_is_not_near(size, dtype, fault):
    expected = np.random.default_rng(0).uniform(0.5, 1, (3, 4)) * size
    found = expected.astype(dtype_object(dtype)).astype("float64")
    assert_near(found, expected, TOLERANCES[dtype])
    with pytest.raises(AssertionError):
        assert_near(FAULTS[fault](found), expected, TOLERANCES[dtype])


def test_zeros_are_near_zeros_alone():
    assert_near(np.zeros(3), np.zeros(3), 1e-2)
    with pytest.raises(AssertionError):
        assert_near(np.full(3, 1e-30), np.zeros(3), 1e-2)


def test_shapes_are_compared():
    with pytest.raises(AssertionError, match=r"\(1,\) is not \(3,\)"):
        assert_near(np.ones(1), np.ones(3), 1e-2)


def test_a_tolerance_that_takes_ten_percent_is_refused():
    assert max(TOLERANCES.values()) <= MAX_TOLERANCE < 0.1
    with pytest.raises(ValueError, match="tolerance must be from 0 to"):
        assert_near(np.ones(1), np.ones(1), 0.1)


@pytest.mark.parametrize("fault", list(FAULTS)[:4])
@pytest.mark.parametrize("dtype", conformance.DTYPES)
@pytest.mark.parametrize("mode", conformance.MODES)
def test_a_training_step_with_one_wrong_result_is_not_close_to_the_reference(mode, dtype, fault):
    spec = dnnffi.RNNSpec(
        mode=mode, input_size=16, hidden_size=32, num_layers=2, bidirectional=True, dtype=dtype
    )
    problem = dnnffi.RNNProblem.dense(
        spec, steps=7, batch=4, training=True, options=rnn_options(None, mode)
    )
    case = conformance.Case(problem, True, 0)
    right = conformance.expected(case, conformance.arrays_of(case))
    conformance.assert_close(case, right, right)
    for name, value in right._asdict().items():
        if value is None:
            continue
        wrong = [*map(FAULTS[fault], value)] if name == "dweights" else FAULTS[fault](value)
        with pytest.raises(AssertionError, match=f"{name}: relative error"):
            conformance.assert_close(case, right._replace(**{name: wrong}), right)
