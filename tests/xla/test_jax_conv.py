"""The benchmark of convolutions in JAX: all sides compute the same, here on the host."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    """The module of the benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import jax_conv

        yield jax_conv
    for name in ("jax_conv", "conv_layers"):
        sys.modules.pop(name, None)


LAYERS = {
    "3x3 /2": ("3x3", 2, 4, 7, 6, 8, 3, 2, 1),
    "1x1 out": ("1x1 out", 2, 4, 5, 5, 8, 1),
    "depthwise": ("depthwise", 2, 4, 6, 6, 4, 3, 1, 1, 4),
}


PLAIN = ("forward", "backward_data", "backward_weights")
CASES = [(name, operation) for name in LAYERS for operation in PLAIN] + [("1x1 out", "fused")]


@pytest.mark.parametrize("implementation", [None, "reference"])
@pytest.mark.parametrize("config", ["tf32 first", "tf32 last"])
@pytest.mark.parametrize(("layer", "operation"), CASES)
def test_all_sides_compute_the_same(benchmark, config, layer, operation, implementation):
    problem = benchmark.Problem(benchmark.Layer(*LAYERS[layer]), config, calls=2)
    arrays = problem.draw()
    given = [arrays[name] for name in problem.reads(operation)]
    found = problem.in_jax(operation, implementation)(*given)
    assert len(found) == 2
    plan = problem.plan(operation, backend="reference")
    for number in range(2):
        picked = [one[number] if isinstance(one, list) else one for one in given]
        expected = plan.run(*(problem.logical(np.array(array)) for array in picked))
        np.testing.assert_allclose(
            problem.logical(np.asarray(found[number])), expected, rtol=1e-4, atol=1e-4
        )
    assert not np.allclose(found[0], found[1])


@pytest.mark.parametrize("device", ["same", "other"])
def test_a_record_keeps_what_was_measured_on_the_same_machine(
    benchmark, monkeypatch, tmp_path, device
):
    kept, anew = {"config": "tf32 first"}, {"config": "f16 last"}
    path = tmp_path / "record.json"
    record = {"machine": {"device": "same"}, "calls": benchmark.CALLS}
    path.write_text(json.dumps(record | {"left_out": {"tf32 first": 2}, "rows": [kept, anew]}))
    monkeypatch.setattr(benchmark, "machine", lambda place, peers: {"device": device})
    found = benchmark.begun(path, ["f16 last"])
    same = device == "same"
    assert found["rows"] == ([kept] if same else [])
    assert found["left_out"] == ({"tf32 first": 2} if same else {})


def test_the_layers_with_a_residual_are_those_that_end_a_block(benchmark):
    layers = benchmark.SETS["resnet50"]
    fused = [one for one in layers if "fused" in benchmark.Problem(one, "f16 last").operations]
    assert [one.name for one in fused] == [f"{stage} 1x1 out" for stage in (1, 2, 3, 4)]
