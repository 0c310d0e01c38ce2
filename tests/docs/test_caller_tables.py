"""Tests that the tables of callers show the figures of their record, and no others."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
tables = runpy.run_path(str(DOCS / "caller_tables.py"))
TIMES = {"dnnffi": (0.2, 17.0), "dnnffi torch flat": (0.21, 40.0), "torch eager": (0.9, 90.0)}
RECORD = {
    "shapes": [{"name": "a", "sets": ["callers"]}],
    "rows": [
        {"shape": "a", "model": model, "phase": phase, "ms": ms, "host_us": host}
        for phase in ("inference", "training")
        for model, (ms, host) in TIMES.items()
        if (model, phase) != ("torch eager", "training")
    ],
}


def test_each_entry_has_its_times():
    head = tables["head"](RECORD)
    rows = [dict(zip(head, row, strict=True)) for row in tables["rows"](RECORD)]
    assert [row["Figure"] for row in rows] == [
        *("inference, ms", "inference, host µs"),
        *("forward + backward, ms", "forward + backward, host µs"),
    ]
    assert (rows[0]["dnnffi"], rows[0]["dnnffi torch flat"]) == ("0.200", "0.210")
    assert (rows[1]["torch eager"], rows[3]["torch eager"]) == ("90.0", "not measured")


def test_aims_are_shown_with_and_without_a_record():
    found, without = tables["aim_rows"](RECORD), tables["aim_rows"](None)
    assert [row[:2] for row in found] == [row[:2] for row in without]
    assert {row[2:] for row in without} == {("not measured", "-")}
    by_what = {row[0]: row[2:] for row in found}
    name = "dnnffi torch flat, time of a call, limited by the GPU"
    assert by_what[name] == ("at most 1.05x (a, inference)", "yes")


def test_the_record_in_the_checkout_is_shown_with_its_figures():
    path = DOCS / "verification" / "callers.json"
    if not path.exists():
        pytest.skip("this record was not made yet")
    record = json.loads(path.read_text(encoding="utf-8"))
    head = tables["head"](record)
    rows = {row[:2]: dict(zip(head, row, strict=True)) for row in tables["rows"](record)}
    words = {"inference": "inference", "training": "forward + backward"}
    for row in record["rows"]:
        if "ms" in row:
            cell = rows[row["shape"], f"{words[row['phase']]}, ms"][row["model"]]
            assert float(cell) == pytest.approx(row["ms"], abs=6e-4)
