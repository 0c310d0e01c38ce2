"""Convolutions on the real libMIOpen, without CuPy, against the reference in float64."""

from __future__ import annotations

import conformance_conv
import pytest
from conformance import deviation, tolerance

from dnnffi import testing
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.layouts import CHANNELS_FIRST

DTYPES = ("float32", "float16")


def matrix():
    """Return the conformance problems for contiguous arrays of `DTYPES`."""
    return [
        case._replace(problem=case.problem._replace(options=ConvOptions()))
        for case in conformance_conv.matrix()
        if case.problem.spec.dtype in DTYPES and case.problem.layout == CHANNELS_FIRST
    ]


@pytest.mark.parametrize("case", matrix(), ids=str)
def test_matrix(miopen, case):
    problem = case.problem
    arrays = testing.conv_inputs(problem, case.seed)
    found = conformance_conv.run(problem, arrays, miopen.asarray, "miopen", miopen.options)
    assert type(found) is type(miopen.asarray(arrays.x))
    assert found.shape == problem.result_shape
    assert found.dtype.name == problem.spec.dtype
    error = deviation(found, conformance_conv.expected(problem, arrays))
    allowed = tolerance(problem)
    assert error <= allowed, f"relative error {error:.3g}, allowed {allowed:.3g}"
