"""Tests of the parts of `benchmarks/device_lengths.py` that need no device."""

from __future__ import annotations

import pytest
from bench.scripts import run_script

from dnnffi.bench.clocks import Clock


@pytest.fixture(scope="module")
def tool():
    return run_script("device_lengths.py")


class Steady(Clock):
    """A clock for which a call takes as many milliseconds as it returns."""

    def time(self, call, count):
        return call(), 0.0


def test_the_times_of_a_pair_are_in_its_order(tool):
    assert tool["times"](Steady(), (lambda: 2.0, lambda: 3.0), rounds=3, seconds=0.01) == [2.0, 3.0]


def test_a_row_names_what_was_compared(tool, monkeypatch):
    pair = tool["Pair"]("plan", "full", lambda: 2.0, lambda: 3.0)
    monkeypatch.setitem(tool["rows"].__globals__, "pairs", lambda shape, training: [pair])
    shape = tool["SHAPES"][0]
    found = list(tool["rows"](shape, Steady(), 1, 0.01))
    assert [row["phase"] for row in found] == ["inference", "training"]
    assert {row["shape"] for row in found} == {shape.name}
    assert all((row["known_ms"], row["device_ms"]) == (2.0, 3.0) for row in found)
