"""Tests that each figure of benchmarks/same_graphs.py belongs to the right graph."""

import itertools
import runpy
from functools import partial
from pathlib import Path

import pytest

from dnnffi.bench.creator import Creator
from dnnffi.bench.model import ModelDef
from dnnffi.bench.shapes import SETS
from dnnffi.bench.summary import CAPTURED, RAW

same_graphs = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "same_graphs.py"))
rows_of = same_graphs["rows_of"]
GRAPHS = same_graphs["GRAPHS"]


TURNS = [1000.0] + [-0.5] * 7 + [0.0] + [3.0] * 7  # the first one warms up


class Clock:
    """A clock by which launches take the microseconds of their graph, and more in some turns."""

    def __init__(self):
        self.turns = iter(TURNS)

    def time(self, call, count):
        return (call() + next(self.turns)) / 1e3, 0.0


def test_a_model_has_the_medians_of_its_own_graphs(monkeypatch):
    monkeypatch.setitem(rows_of.__globals__, "clock_for", lambda library, place: Clock())
    numbers = itertools.count(1)

    def create(shape, data, place, training):
        assert training
        return ModelDef(partial(int, next(numbers)))

    creators = [Creator(name, "array", create) for name in ("plan", "raw")]
    assert len(TURNS) == 1 + same_graphs["TURNS"]
    rows = rows_of(SETS["tiny"][0], creators)
    expected = [
        {"model": model, "us": [float(first + 2 * n) for n in range(GRAPHS)]}
        for first, model in ((1, "plan"), (2, "raw"))
    ]
    assert [row | {"us": pytest.approx(row["us"])} for row in rows] == expected


def test_what_is_measured_are_models_of_the_benchmark():
    creator = same_graphs["creator"]
    assert creator("array_models", CAPTURED).name == CAPTURED
    assert creator("raw_models", RAW).name == RAW
