"""Tests of the parts of `benchmarks/own_kinds.py` that need no device."""

from __future__ import annotations

import pytest
from bench.scripts import run_script
from chips import H200

from dnnffi.backends.own.recurrent.candidates import kind_of


@pytest.fixture(scope="module")
def tool():
    return run_script("own_kinds.py")


@pytest.mark.parametrize("name", ["resets", "ragged", "packed"])
def test_a_kernel_of_a_kind_differs_in_that_alone_and_runs_its_problem(tool, name):
    networks = [one for one in tool["NETWORKS"] if name == "resets" or not one.ragged]
    assert networks
    for network in networks:
        for one, _ in tool["paired"](network, H200):
            other = tool["of_kind"](one, name)
            fields = tool["KINDS"][name]
            assert other._replace(kind=other.kind._replace(**dict.fromkeys(fields, False))) == one
            problem = tool["problem_for"](network, 5, other.kind)
            assert kind_of(problem) == other.kind._replace(layers=1, narrow=False)
            assert tool["problem_for"](network, 5, one.kind) == tool["problem_of"](network, 5)


def test_a_line_has_both_times_and_their_quotient(tool):
    without, found = {"forward": 2.0, "backward": 4.0}, {"forward": 3.0, "backward": 4.0}
    assert tool["line"]("one", without, found) == (
        "one: forward 2.000 -> 3.000 (1.500), backward 4.000 -> 4.000 (1.000)"
    )
