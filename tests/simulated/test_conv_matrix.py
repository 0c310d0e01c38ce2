"""The whole matrix of convolutions on the stand-in, against the reference."""

from __future__ import annotations

import conformance_conv
import pytest


@pytest.mark.parametrize("case", conformance_conv.matrix(), ids=str)
def test_matrix(shared_simulator, case):
    conformance_conv.check(case, shared_simulator.asarray, "cudnn")
    assert shared_simulator.violation == ""


@pytest.mark.parametrize(
    ("problem", "cell"), conformance_conv.can_be_run(conformance_conv.cells("cudnn"))
)
def test_what_the_documentation_says(shared_simulator, problem, cell):
    conformance_conv.check_cell(problem, cell, shared_simulator.asarray, "cudnn")
