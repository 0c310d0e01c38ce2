"""Tests that the table of aims for dnnffi's own kernels shows the figures of the records."""

from __future__ import annotations

import own_aims
import pytest

from dnnffi.bench.shapes import OWN, PERFORMANCE, draw_shapes, shapes_of

LSTM = "lstm f16 100 64 512 512 1 uni"


def record(shapes, times, sets=("performance",)):
    """Return a record of inference times; ``times`` has the milliseconds by model."""
    return {
        "shapes": [shape.as_json() | {"sets": list(sets)} for shape in shapes],
        "rows": [
            {"shape": shape.name, "model": model, "phase": "inference", "ms": ms}
            for shape in shapes
            for model, ms in times.items()
        ],
    }


def rows(records, jax=None, steps=None):
    """Return the cells of each line by its words."""
    found = (tuple(row.values()) for row in own_aims.aim_rows(records, jax or {}, steps or {}))
    return {words: cells for words, *cells in found}


def test_the_fastest_peer_counts():
    (shape,) = (shape for shape in PERFORMANCE if shape.name == LSTM)
    times = {"dnnffi plan captured": 1.0, "cudnn raw": 4.0, "torch graph": 5.0, "jax": 0.1}
    found = rows([record([shape], times)])
    assert found["LSTM f16, T 100, B 64, H 512"][:4] == ["3.5", "4.00", "not measured", "yes; -"]
    times["torch graph"] = 3.0
    found = rows([record([shape], times)])
    assert found["LSTM f16, T 100, B 64, H 512"][:4] == ["3.5", "3.00", "not measured", "no; -"]


def test_a_scan_of_jax_counts_where_it_was_measured():
    (shape,) = (shape for shape in PERFORMANCE if shape.name == LSTM)
    times = {"dnnffi plan captured": 1.0, "cudnn raw": 4.0}
    scans = {"scan 1": 9.0, "scan 10": 3.25, "scan 20": "RuntimeError: no", "plan": 0.1}
    jax = {"rows": [{"shape": LSTM, "inference": scans, "training": {"scan 1": "no"}}]}
    found = rows([record([shape], times)], jax)
    assert found["LSTM f16, T 100, B 64, H 512"][1] == "3.25"
    (row,) = own_aims.jax_rows([record([shape], times)], jax)
    assert [*row.values()] == [LSTM, "3.250", "1.000", "3.25", *["not measured"] * 3]
    assert own_aims.jax_rows([record([shape], times)], {}) == []


def test_shapes_without_cudnn_are_not_compared():
    (shape,) = (shape for shape in PERFORMANCE if shape.name == LSTM)
    times = {"dnnffi plan captured": 1.0, "torch graph": 5.0}
    assert own_aims.speedups([record([shape], times)], "inference", {}) == {}


def test_the_parts_of_a_step_are_those_of_the_shape_that_gains_least():
    names = "lstm f16 50 8 1024 1024 1 uni", "lstm f16 25 64 2816 2816 1 uni"
    shapes = [shape for shape in OWN if shape.name in names]
    steps = {"rows": [], "device": {"l2_rate": 1e6}}
    parts = []
    for lowest in shapes:
        made = record(shapes, {"dnnffi plan captured": 1.0, "cudnn raw": 2.0}, ["own"])
        (row,) = (r for r in made["rows"] if (r["shape"], r["model"]) == (lowest.name, "cudnn raw"))
        row["ms"] = 1.5
        found = rows([made], None, steps)["any of these"][5]
        parts.append([float(part) for part in found.split(", ")])
        assert rows([made])["any of these"][5] == "-"
    (l2_of_small, shared_of_small), (l2_of_large, shared_of_large) = parts
    assert 0 < l2_of_small < l2_of_large
    assert shared_of_small < shared_of_large


def test_the_limit_is_of_lines_whose_steps_were_all_measured():
    steps = {
        "rows": [
            {"hidden_size": h, "batch": 1, "dtype": d, "cudnn": {"us": us}, "limit_us": 0.25}
            for h, d, us in (
                (128, "float16", 1.0),
                (256, "float16", 1.0),
                (128, "float32", 0.25),
                (256, "float32", 1.0),
            )
        ]
    }
    single = record([shape for shape in OWN if shape.batch == 1], {}, ["own"])
    words = "B 1, T 1000, H 128 and 256"
    by_words = rows([single], None, steps)
    assert by_words[words][4] == f"{64**0.25:.1f}"
    assert by_words["any of these"][4] == by_words[words][4]
    del steps["rows"][0]
    assert rows([single], None, steps)[words][4] == "-"


def test_means_are_over_both_records_and_the_lowest_is_named():
    drawn = draw_shapes(3)
    one = record(PERFORMANCE[:2], {"dnnffi plan captured": 1.0, "cudnn raw": 2.0})
    other = record(drawn[:2], {"dnnffi plan captured": 1.0, "cudnn raw": 8.0}, ["random"])
    other["rows"][0]["ms"] = 4.0  # the first of them by dnnffi
    found = rows([one, other])
    drawn_at_random = found["20 networks drawn at random"]
    assert drawn_at_random[1] == f"4.00 over 2, lowest 2.00 ({drawn[0].name})"
    assert found["the set performance, rows of equal length"][1].startswith("2.00 over 2")
    assert found["any of these"][1:4] == [
        f"lowest 2.00 ({PERFORMANCE[0].name})",
        "not measured",
        "yes; -",
    ]


def test_a_ratio_just_below_an_aim_is_told_from_it():
    made = record(PERFORMANCE[:2], {"dnnffi plan captured": 1.0, "cudnn raw": 0.9691})
    name = PERFORMANCE[0].name
    assert rows([made])["any of these"][1:4] == [f"lowest 0.969 ({name})", "not measured", "no; -"]


@pytest.mark.parametrize("least", [1.29, 1.31])
def test_both_the_mean_and_the_lowest_are_to_be_reached(least):
    large = [shape for shape in OWN if shape.hidden_size >= 1024]
    made = record(large, {"dnnffi plan captured": 1.0, "cudnn raw": 4.0}, ["own"])
    (row,) = (r for r in made["rows"] if r["shape"] == large[0].name and r["model"] == "cudnn raw")
    row["ms"] = least
    found = rows([made])["f16, H from 1024 to 2816, B from 8 to 64"]
    assert found[0] == "2, none below 1.3"
    assert found[3] == ("yes; -" if least > 1.3 else "no; -")


def test_each_line_has_shapes_in_the_sets_that_make_bench_measures():
    asked = shapes_of(
        ["performance", "own", "random"],
        {"performance": PERFORMANCE, "own": OWN, "random": draw_shapes()},
    )
    shapes = [shape.as_json() | {"sets": sets} for shape, sets in asked.items()]
    counts = {line.words: sum(line.takes(shape) for shape in shapes) for line in own_aims.LINES}
    assert all(counts.values()), counts
    assert counts["B 1, T 1000, H 128 and 256"] == 4
    assert counts["20 networks drawn at random"] == 20
    equal = [shape for shape in PERFORMANCE if not shape.lengths]
    assert counts["the set performance, rows of equal length"] == len(equal)
    assert all(counts.values())
    assert [words for words, count in counts.items() if count == 1] == list(counts)[:4]


def test_the_memory_of_our_own_kernels_in_words():
    def row(shape, model, about):
        return {"shape": shape, "model": model, "phase": "inference", "about": about, "ms": 1.0}

    def buffers(workspace, reserve):
        return {"workspace_bytes": workspace, "reserve_bytes": reserve}

    standard = {"algorithms": {"standard": buffers(60, 40)}}
    shapes = {"a": ("own", 25), "b": ("own", 75), "c": ("own", 85), "d": ("standard", 500)}
    rows = [row(name, "cudnn raw", standard) for name in shapes]
    for name, (algorithm, nbytes) in shapes.items():
        rows.append(row(name, "dnnffi", buffers(nbytes, 5) | {"algorithm": algorithm}))
    found = own_aims.memory_of_own_kernels([{"rows": rows[:3]}, {"rows": rows}])
    assert "are 0.30 to 0.90 times those" in found
    assert "(most for c, inference)" in found
    assert "0.80 times in the median of 3 cases" in found
    assert own_aims.memory_of_own_kernels([{"rows": []}]).startswith("No shape")
