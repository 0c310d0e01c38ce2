"""Tests of the parts of `benchmarks/own_resets.py` that need no device."""

from __future__ import annotations

import pytest
from bench.scripts import run_script

from dnnffi.backends.own.recurrent.config import Chip

CHIP = Chip(132, 232_448, clusters=True)


@pytest.fixture(scope="module")
def tool():
    return run_script("own_resets.py")


def test_a_kernel_with_resets_differs_in_that_alone(tool):
    for network in tool["NETWORKS"]:
        for one, _ in tool["paired"](network, CHIP):
            other = tool["with_resets"](one)
            assert other.kind.resets
            assert other._replace(kind=other.kind._replace(resets=False)) == one


def test_a_line_has_both_times_and_their_quotient(tool):
    without, found = {"forward": 2.0, "backward": 4.0}, {"forward": 3.0, "backward": 4.0}
    assert tool["line"]("one", without, found) == (
        "one: forward 2.000 -> 3.000 (1.500), backward 4.000 -> 4.000 (1.000)"
    )
