"""Weights and results of other frameworks, recorded by `oracle_frameworks.py`, `oracle_flax.py`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from record import decoded

import dnnffi
from dnnffi import RNNWeights

RECORD, OF_FLAX = (
    json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    for name in ("recorded.json", "recorded_flax.json")
)
CASES = [case | {"x": record["x"]} for record in (RECORD, OF_FLAX) for case in record["cases"]]


@pytest.mark.parametrize("backend", ["cudnn", "torch"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["method"])
def test_the_results_are_the_frameworks(case, backend):
    arguments = decoded(case["arguments"])
    keywords = arguments.pop() if case["method"] == "from_onnx" else {}
    weights = getattr(RNNWeights, case["method"])(*arguments, backend=backend, **keywords)
    y, _ = getattr(dnnffi, weights.spec.mode)(decoded(case["x"]), None, weights)
    np.testing.assert_allclose(y, decoded(case["y"]), rtol=0, atol=5e-7)


def test_all_formats_were_recorded():
    methods = {case["method"] for case in RECORD["cases"]}
    assert methods == {f"from_{name}" for name in ("torch", "keras", "onnx", "flax", "equinox")}
