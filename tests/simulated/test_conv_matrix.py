"""The whole matrix of convolutions on the stand-in, against the reference."""

from __future__ import annotations

import conformance_conv
import pytest


@pytest.mark.parametrize("case", conformance_conv.matrix(), ids=str)
def test_matrix(shared_host, case):
    conformance_conv.check(case, shared_host.asarray, "cudnn")
    assert shared_host.violation == ""


@pytest.mark.parametrize(
    ("problem", "cell"), conformance_conv.can_be_run(conformance_conv.cells("cudnn"))
)
def test_what_the_documentation_says(shared_host, problem, cell):
    conformance_conv.check_cell(problem, cell, shared_host.asarray, "cudnn")
