"""Tests of the arithmetic of `benchmarks/own_timeline.py`, and of its phases."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from bench.scripts import run_script

from dnnffi.backends.own.recurrent import source
from dnnffi.backends.own.recurrent.config import Chip, Kind, Layer
from dnnffi.backends.own.recurrent.search import select_configs
from dnnffi.backends.own.source import text_of

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def tool():
    return run_script("own_timeline.py")


def test_a_phase_lasts_until_the_next_one_or_the_next_step(tool):
    begins = np.array([[0, 1, 3, 6, 10], [15, 21, 28, 36, 45], [55, 0, 0, 0, 0]])
    assert tool["durations"](begins).tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


def test_the_phases_of_a_step_add_up_to_its_time(tool):
    lines = list(tool["table"](np.tile([1, 2, 3, 4, 10], (9, 3, 1)), us=2.0))
    assert [float(re.search(r"([\d.]+) us", line)[1]) for line in lines] == [
        0.1,
        0.2,
        0.3,
        0.4,
        1.0,
    ]


def test_a_warp_of_each_block_has_counts(tool):
    kind = Kind("lstm", 1024, "float16", training=True)
    layer = Layer(64, 2, Chip(132, 232_448))
    one = next(one for one in select_configs(kind, layer) if one.waves(layer) == 1)
    blocks = 2 * one.groups(64) * one.blocks
    network = tool["Network"]("lstm", "float16", 1024, 64, 2)
    assert tool["shape_of"](one, network) == (16, blocks, one.threads // 32, 5)


def test_the_phases_are_those_of_the_kernels(tool):
    text = text_of(source.FOLDER, "timeline.cuh")
    (names,) = re.findall(r"enum Phase \{ (.*), PHASES \};", text)
    words = [name.lower().replace("_", " ") for name in names.split(", ")]
    assert tuple(words) == tool["PHASES"]
    assert f"TIMELINE_STEPS = {tool['STEPS']};" in text
