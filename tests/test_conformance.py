"""The problems that every backend is tested with."""

from __future__ import annotations

import itertools

import conformance
import pytest
from conformance import CUDNN, MIOPEN


@pytest.mark.parametrize("backend", [CUDNN, MIOPEN], ids=["cudnn", "miopen"])
def test_the_matrix_has_every_combination(backend):
    cases = conformance.matrix(backend)
    found = {tuple(conformance.capability(case.problem).split()[:6]) for case in cases}
    assert found == set(
        itertools.product(
            conformance.MODES,
            backend.dtypes,
            conformance.LAYOUTS,
            ("L1", "L2", "L3"),
            ("uni", "bi"),
            ("bias", "nobias"),
        )
    )
    asked = {(case.problem.options.algorithm, case.problem.options.math) for case in cases}
    assert asked == set(itertools.product(backend.algorithms, backend.maths))
