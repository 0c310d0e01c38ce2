"""The matrix of convolutions on the reference, against float64, and that by the definition."""

from __future__ import annotations

import conformance_conv
import numpy as np
import pytest

from dnnffi import testing

MATRIX = conformance_conv.matrix()


@pytest.mark.parametrize("case", MATRIX, ids=str)
def test_matrix(case):
    conformance_conv.check(case)


@pytest.mark.parametrize(
    "case", [case for case in MATRIX if case.problem.spec.dtype == "float64"], ids=str
)
def test_the_oracle_of_the_matrix_is_the_definition(case):
    arrays = testing.conv_inputs(case.problem, case.seed)
    found = conformance_conv.expected(case.problem, arrays)
    expected = conformance_conv.by_definition(case.problem, arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
