"""The figures of the pages show what the records hold."""

from __future__ import annotations

import json
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from dnnffi.bench.shapes import FASTRNNS

DOCS = Path(__file__).parents[2] / "docs"
figures = runpy.run_path(str(DOCS / "figures.py"))
MACHINE = {"device": "Some GPU", "cudnn": "9.19.0", "torch": "2.11", "date": "2026-01-02"}


def record(rows, machine=MACHINE):
    """Of milliseconds by model, for the inference of the first shape of fastrnns."""
    name = FASTRNNS[0].name
    return {
        "machine": machine,
        "shapes": [{"name": name}],
        "rows": [
            {"shape": name, "model": model, "phase": "inference", "ms": time}
            for model, time in rows.items()
        ],
    }


def texts(svg):
    return [one.text for one in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def widths(svg):
    bars = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect")
    return [float(bar.get("width")) for bar in bars if bar.get("x") == f"{figures['LEFT']:.1f}"]


def test_the_figure_in_the_checkout_is_that_of_the_record():
    path = DOCS / "verification" / "bench_rnn.json"
    if not path.exists():
        pytest.skip("this checkout holds no such record")
    drawn = figures["speed"](json.loads(path.read_text(encoding="utf-8")))
    assert (DOCS / "speed.svg").read_text(encoding="utf-8") == drawn, "make docs draws it"


def test_bars_are_as_long_as_the_times():
    svg = figures["speed"](record({"dnnffi": 1.0, "torch eager": 2.5}))
    one, two = widths(svg)
    assert two == pytest.approx(2.5 * one, rel=1e-3)
    assert {"1.00", "2.50", "dnnffi", "PyTorch"} <= set(texts(svg))


def test_the_summary_says_the_ratio_and_the_machine():
    said = texts(figures["speed"](record({"dnnffi": 1.0, "torch eager": 2.5})))
    assert said[-1] == "Some GPU, cuDNN 9.19.0, PyTorch 2.11, 2026-01-02"
    assert said[-2].startswith("All 1 shape, inference: 2.50 times as fast as PyTorch")


def test_jax_is_shown_once_it_was_measured():
    without = {"dnnffi": 1.0, "torch eager": 2.5}
    assert "JAX" not in texts(figures["speed"](record(without)))
    svg = figures["speed"](record(without | {"jax": 1.5}, MACHINE | {"jax": "0.7"}))
    assert "JAX" in texts(svg)
    assert len(widths(svg)) == 3
    assert "JAX 0.7" in texts(svg)[-1]


def test_where_nothing_was_measured_there_is_no_figure():
    assert figures["speed"](record({"torch eager": 2.5})) is None


def test_a_curve_is_logarithmic():
    svg = figures["curve"]([1.0, 0.1, 0.01], "a title")
    line = [one.get("points") for one in ET.fromstring(svg).iter() if one.tag.endswith("polyline")]
    heights = [float(point.split(",")[1]) for point in line[-1].split()]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], rel=0.01)
    assert heights == sorted(heights)
    assert "a title" in texts(svg)
