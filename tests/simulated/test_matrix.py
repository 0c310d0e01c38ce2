"""The whole matrix of problems on the stand-in, against the reference."""

from __future__ import annotations

import conformance
import pytest


@pytest.mark.parametrize("case", conformance.matrix(), ids=str)
def test_matrix(shared_simulator, case):
    conformance.check(case, shared_simulator.asarray, "cudnn")
    assert shared_simulator.violation == ""
