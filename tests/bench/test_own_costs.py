"""Tests of the cost model's fit: `benchmarks/own_costs.py` without a device."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bench.scripts import run_script
from chips import H200

from dnnffi.backends.own.recurrent import cost_model

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "verification" / "own_costs.json"


@pytest.fixture(scope="module")
def tool():
    return run_script("own_costs.py")


@pytest.fixture(scope="module")
def record():
    return json.loads(RECORD.read_text(encoding="utf-8"))


def test_the_costs_are_those_that_fit_the_record(tool, record):
    found = tool["fit"](tool["read"](record), tool["chip_of"](record))
    kept = json.loads(tool["FIT"].read_text(encoding="utf-8"))
    for name, costs in found.items():
        assert kept[name] == pytest.approx(costs, abs=2e-4)
    assert kept.keys() == found.keys()


def test_the_model_predicts_the_record(tool, record):
    """Measuring the five configurations predicted fastest loses less than two percent of speed."""
    *_, last = tool["report"](tool["read"](record), tool["chip_of"](record))
    assert last.startswith("the first 5: 1.0")
    assert float(last.split()[3]) < 1.02


@pytest.mark.parametrize("seed", range(5))
def test_costs_that_are_known_are_found(tool, seed):
    rng = np.random.default_rng(seed)
    matrix, costs = rng.random((40, 6)), np.array([0, 1, 0.5, 0, 2, 0.1])
    assert tool["nonnegative_least_squares"](matrix, matrix @ costs) == pytest.approx(costs)


@pytest.mark.parametrize("seed", range(5))
def test_no_cost_is_negative_and_none_can_be_better(tool, seed):
    rng = np.random.default_rng(seed)
    matrix, target = rng.normal(size=(30, 5)), rng.normal(size=30)
    found = tool["nonnegative_least_squares"](matrix, target)
    gradient = matrix.T @ (matrix @ found - target)
    assert (found >= 0).all()
    assert (gradient > -1e-8).all()
    assert np.abs(gradient * found).max() < 1e-8


def test_a_record_is_read_as_it_was_written(tool):
    steps = [
        tool["Step"](number, config, 1.5)
        for number, config in list(tool["configurations"](H200, 1))[:20]
    ]
    record = json.loads(tool["text_of"]({"chip": H200._asdict()}, steps))
    assert tool["read"](record) == steps
    assert tool["chip_of"](record) == H200


def test_steps_are_divided_by_a_property_of_their_kernels(tool, record):
    steps = tool["read"](record)
    for name in tool["PROPERTIES"]:
        without, with_it = tool["divided"](steps, name)
        assert sorted(map(str, without + with_it)) == sorted(map(str, steps))
        assert all(getattr(step.config, name) for step in with_it)
        assert not any(getattr(step.config, name) for step in without)


def test_each_network_has_configurations_of_each_pass(tool):
    found = {
        (number, one.kind.training, one.kind.backward)
        for number, one in tool["configurations"](H200, 1)
    }
    assert len(found) == len(tool["PASSES"]) * len(tool["NETWORKS"])
    assert {cost_model.family_of(one).name for _, one in tool["configurations"](H200, 2)} == {
        family.name for family in cost_model.FAMILIES
    }
