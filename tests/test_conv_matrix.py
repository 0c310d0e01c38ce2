"""The matrix of convolutions on the reference, against float64, and that by the definition."""

from __future__ import annotations

import conformance_conv
import numpy as np
import pytest

from dnnffi import testing
from dnnffi.spec.conv_options import ConvOptions

MATRIX = conformance_conv.matrix()


@pytest.mark.parametrize("case", MATRIX, ids=str)
def test_matrix(case):
    conformance_conv.check(case)


@pytest.mark.parametrize(
    ("problem", "cell"), conformance_conv.can_be_run(conformance_conv.cells("reference"))
)
def test_what_the_documentation_says(problem, cell):
    conformance_conv.check_cell(problem, cell)
    if cell == "ignored":
        arrays = testing.conv_inputs(problem, 0)
        found, plain = (
            conformance_conv.run(one, arrays)
            for one in (problem, problem._replace(options=ConvOptions()))
        )
        np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize(
    "case", [case for case in MATRIX if case.problem.spec.dtype == "float64"], ids=str
)
def test_the_oracle_of_the_matrix_is_the_definition(case):
    arrays = testing.conv_inputs(case.problem, case.seed)
    found = conformance_conv.expected(case.problem, arrays)
    expected = conformance_conv.by_definition(case.problem, arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
