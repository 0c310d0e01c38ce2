"""The whole matrix of problems on the stand-in, against the reference."""

from __future__ import annotations

import conformance
import pytest


@pytest.mark.parametrize("case", conformance.matrix(), ids=str)
def test_matrix(shared_host, case):
    conformance.check(case, shared_host.asarray, "cudnn")
    assert shared_host.violation == ""
