"""Tests that the tables and the figure of streams show the figures of their records."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import figures
import pytest
import record_tables
from records import Record

from dnnffi.bench.streams.problems import EVERYDAY

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SVG = "{http://www.w3.org/2000/svg}"
TIMES = {
    "dnnffi": 1.0,
    "tuned plan": 0.8,
    "torch padded": 8.0,
    "torch packed": 16.0,
}
MACHINE = {"device": "Some GPU", "cudnn": "9.19.0", "torch": "2.11", "date": "2026-01-02"}


def record(times=TIMES, streams=EVERYDAY):
    """Return a record with the times of each model, multiplied by the number of the stream."""
    rows = [
        {
            "shape": stream.name,
            "model": model,
            "phase": stream.phase,
            "ms": number * ms,
            "turns_ms": [number * ms, 1.1 * number * ms, number * ms],
            "first_epoch_s": 0.3,
            "cold_epoch_s": 0.9,
            "first_ms": 2 * ms,
            "host_us": 10.0,
        }
        for number, stream in enumerate(streams, 1)
        for model, ms in times.items()
        if stream.ragged or model != "torch packed"
    ]
    return {
        "machine": MACHINE,
        "settings": {"rounds": 3, "batches": 80},
        "shapes": [{**stream.as_json(), "sets": ["everyday"]} for stream in streams],
        "rows": rows,
    }


def shown(found):
    """Return the rows of the tables of streams, and the text between them."""
    rows, text, *known = record_tables.stream_bench(Record("stream.json", found))
    return rows, text, known


def test_epochs_that_are_run_once_more_have_a_table_of_their_own():
    found = record()
    rows, _, known = shown(found)
    assert known == []
    for row in found["rows"]:
        row["known_ms"] = row["ms"] / 2
    _, _, (words, (first, *_)) = shown(found)
    assert words.endswith("all sizes known:")
    assert list(first) == list(rows[0])[:-1]
    assert (first["dnnffi, ms"], first["tuned plan, ms"]) == ("0.500", "0.400")
    assert first["dnnffi / tuned plan"] == "1.25"


def texts(figure):
    return [one.text for one in ET.fromstring(figures.svg(figure)).iter(f"{SVG}text")]


def test_each_stream_has_its_times_and_ratios():
    rows, *_ = shown(record())
    second = rows[1]
    assert second["Stream"] == EVERYDAY[1].name
    assert (second["dnnffi, ms"], second["torch packed, ms"]) == ("2.000", "32.000")
    assert second["dnnffi / tuned plan"] == "1.25"
    assert second["better of PyTorch / dnnffi"] == "8.00"
    assert second["first epoch, s"] == "0.30"
    (first, *_), *_ = shown(record({"dnnffi": 1.0, "torch x": 2.0}))
    assert "dnnffi / tuned plan" not in first
    equal = next(row for row in rows if " equal " in row["Stream"])
    assert equal["torch packed, ms"] == "not measured"
    assert rows[-1]["Stream"] == "geometric mean, everyday"
    assert rows[-1]["better of PyTorch / dnnffi"] == "8.00"


def test_resets_have_their_ratio_to_a_batch_without_them():
    times = {"dnnffi": 1.0, "dnnffi resets 1%": 1.5, "dnnffi resets 10%": 2.0}
    (first, *_), *_ = shown(record(times))
    assert first["dnnffi resets 1% / dnnffi"] == "1.50"
    assert first["dnnffi resets 10% / dnnffi"] == "2.00"


def test_aims_are_shown_with_and_without_figures():
    found, without = (
        [tuple(row.values()) for row in next(record_tables.stream_aims(one))]
        for one in (record(), {"shapes": [], "rows": [], "settings": {}})
    )
    assert len(found) == len(without) == 9
    assert [row[:3] for row in found] == [row[:3] for row in without]
    assert {row[3:] for row in without} == {("not measured", "-")}
    assert found[0][3:] == (f"at most 1.25x ({EVERYDAY[0].name})", "yes")
    assert [row[3] for row in found[1:3]] == ["8.00x", "16.00x"]
    assert found[2][4] == "yes"


def test_the_conditions_name_turns_noise_and_seed():
    _, said, _ = shown(record() | {"seed": 38})
    assert said.startswith("80 batches an epoch, 3 turns of each model.")
    assert "differs by at most 10% of its median" in said
    assert "The seed of the set random: 38. A record of " in said


def test_bars_of_a_stream_are_scaled_to_its_longest():
    figure = figures.streams(record())
    (axes,) = figure.axes
    widths = {bars.get_label(): [bar.get_width() for bar in bars] for bars in axes.containers}
    ragged = [stream for stream in EVERYDAY if stream.ragged]
    assert widths["PyTorch, packed"] == [1.0] * len(ragged)
    by_stream = [0.5 if stream.ragged else 1.0 for stream in EVERYDAY]
    assert widths["PyTorch, padded"] == pytest.approx(by_stream)
    assert widths["dnnffi"] == pytest.approx([1 / 16 if s.ragged else 1 / 8 for s in EVERYDAY])


def test_the_figure_says_times_means_and_the_machine():
    said = texts(figures.streams(record()))
    assert {"1", "8", "16", "LSTM, 2 layers, H 512, f16, dropout 0.2"} <= set(said)
    assert "64 rows, each of 5 to 60 steps, training" in said
    assert "1 row, all of 5 to 100 steps, inference" in said
    assert (
        "dnnffi's functions are 8.00 times as fast as PyTorch, padded, geometric mean over "
        "6 streams (lowest 8.00)"
    ) in said
    assert "Some GPU, cuDNN 9.19.0, PyTorch 2.11, 2026-01-02" in said


def test_without_the_everyday_streams_there_is_no_figure():
    found = record()
    for shape in found["shapes"]:
        shape["sets"] = ["random"]
    assert figures.streams(found) is None
    assert figures.streams(record({"torch padded": 1.0})) is None


def test_the_figure_in_the_checkout_is_that_of_the_record_and_on_the_front_page():
    shown = re.search(r"^!\[[^]]+\]\(docs/stream\.svg\)$", (ROOT / "README.md").read_text(), re.M)
    assert shown
    kept = ET.fromstring((DOCS / "stream.svg").read_text(encoding="utf-8"))
    drawn = texts(figures.streams(Record.read("stream.json")))
    assert [one.text for one in kept.iter(f"{SVG}text")] == drawn, "make docs draws it"
