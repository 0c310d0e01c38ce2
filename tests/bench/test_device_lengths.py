"""Tests of the parts of `benchmarks/device_lengths.py` that need no device."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from bench.scripts import run_script

from dnnffi.bench.clocks import Clock
from dnnffi.bench.shapes import Shape


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


class Made:
    """A model that names how it was made."""

    def __init__(self, name, shape, data, place, training, lengths=None):
        self.of = name, shape.steps, None if lengths is None else list(lengths), type(lengths)

    def step(self):
        return self.of


def test_pairs_have_the_same_rows_with_lengths_on_the_device_second(tool, monkeypatch):
    names = tool["pairs"].__globals__
    for name in ("functional", "plan_captured"):
        monkeypatch.setitem(names, name, partial(Made, name))
    monkeypatch.setitem(names, "array_package", lambda place: np)
    shape = Shape("gru", "float32", 6, 5, 2, 3)
    full, ragged, longest, half = tool["pairs"](shape, False)
    for call in (full, ragged):
        assert call.known[:3] == call.on_device[:3]
        assert (call.known[3], call.on_device[3]) == (list, np.ndarray)
    assert full.known[2] == [6] * 5
    assert len(set(ragged.known[2])) > 1
    for plan, steps in ((longest, 6), (half, 3)):
        assert plan.known[:3] == ("plan_captured", steps, None)
        assert plan.on_device[:3] == ("plan_captured", 6, [steps] * 5)
