"""The functions on the real libMIOpen, without CuPy, against the reference in float64."""

from __future__ import annotations

import conformance
import pytest
from conformance import MIOPEN, Sizes

OTHER_SIZES = conformance.matrix(MIOPEN._replace(sizes=Sizes()))[::19]


@pytest.mark.parametrize("case", conformance.matrix(MIOPEN), ids=str)
def test_matrix(miopen, case):
    conformance.check(case, miopen.asarray, MIOPEN, miopen.options)


@pytest.mark.parametrize("case", OTHER_SIZES, ids=str)
def test_other_sizes(miopen, case):
    conformance.check(case, miopen.asarray, MIOPEN, miopen.options)
