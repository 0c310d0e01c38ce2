"""Tests of the comparison of two sources: `benchmarks/own_compare.py` without a device."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from chips import H200

from dnnffi.backends.own.recurrent.config import Kind

FILE = Path(__file__).parents[2] / "benchmarks" / "own_compare.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("own_compare", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_mean_is_geometric_and_slow_kernels_are_listed(tool):
    old = tool.Times({"a": 2.0, "b": 1.0, "c": 1.0, "gone": 1.0}, {})
    new = tool.Times({"a": 1.0, "b": 2.0, "c": 1.0, "added": 9.0}, {})
    found = tool.compare(old, new)
    assert found.mean == pytest.approx(1.0)
    assert list(found.lines()) == [
        "3 kernels: 1.000 times the old speed in the mean",
        " 0.500  b",
        "results that differ: none",
    ]


def test_results_that_differ_are_named(tool):
    old = tool.Times({"a": 1.0}, {"same": "1", "other": "1", "gone": "1"})
    new = tool.Times({"a": 1.0}, {"same": "1", "other": "2"})
    assert tool.compare(old, new).different == ["other"]


def test_the_least_time_of_several_turns_counts(tool):
    first, second = tool.Times({"a": 2.0, "b": 1.0}, {}), tool.Times({"a": 1.0, "b": 3.0}, {})
    assert first.least(second).ms == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize("number", range(28))
def test_each_network_has_configurations_and_a_problem(tool, number):
    network = tool.NETWORKS[number]
    training = network.training
    kind = Kind(network.mode, network.hidden, network.dtype, training, ragged=network.ragged)
    for backward in (False, True)[: 1 + training]:
        assert tool.configs(kind._replace(backward=backward), network, H200)
    problem = tool.problem_of(network)
    expected = network.steps, network.batch, training
    assert (problem.steps, problem.batch, problem.training) == expected


@pytest.mark.parametrize("part", ["config", "kind"])
def test_a_configuration_of_which_a_source_lacks_a_field_is_left_out(tool, part):
    config = tool.pairs(H200)[0].forward
    made, fields = tool.config_of(config), config if part == "config" else config["kind"]
    assert tool.fields_of(made) == config
    fields["later"] = False
    assert tool.config_of(config) == made
    fields["later"] = True
    assert tool.config_of(config) is None


def test_a_backward_kernel_is_one_of_training(tool):
    found = tool.pairs(H200)
    assert {pair.network for pair in found} == set(range(len(tool.NETWORKS)))
    for pair in found:
        assert (pair.backward is not None) == tool.NETWORKS[pair.network].training


def test_a_folder_without_the_package_is_refused(tool, tmp_path, capsys):
    with pytest.raises(SystemExit):
        tool.main([str(tmp_path)])
    assert "is not a folder with the package dnnffi" in capsys.readouterr().err
