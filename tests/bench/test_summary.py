from __future__ import annotations

import pytest

from dnnffi.bench import show
from dnnffi.bench.summary import compare, comparisons, ratios, targets


def row(shape, model, phase="inference", ms=1.0, host_us=10.0, **more):
    return {"shape": shape, "model": model, "phase": phase, "ms": ms, "host_us": host_us, **more}


def shape(name, lengths=None, sets=("performance",)):
    return {"name": name, "lengths": lengths, "sets": list(sets)}


RECORD = {
    "shapes": [shape("one"), shape("two"), shape("rows", [1, 2]), shape("other", sets=("tiny",))],
    "rows": [
        row("one", "dnnffi", ms=1.0, host_us=9.0),
        row("two", "dnnffi", ms=2.0, host_us=20.0),
        row("rows", "dnnffi", ms=1.0, host_us=99.0),
        row("other", "dnnffi", ms=1.0, host_us=99.0),
        row("one", "torch eager", ms=4.0),
        row("two", "torch eager", ms=2.0),
        row("rows", "torch eager", ms=3.5),
        row("other", "torch eager", ms=0.001),
        row("one", "torch graph", ms=1.5),
        {"shape": "two", "model": "torch graph", "phase": "inference", "failed": "out of memory"},
        {"shape": "rows", "model": "torch graph", "phase": "inference", "skipped": "no lengths"},
        row("one", "dnnffi", "training", ms=2.0, peak_bytes=110),
        row("one", "torch eager", "training", ms=5.0, peak_bytes=100),
        row("two", "dnnffi", "training", ms=1.0, peak_bytes=50),
        row("two", "torch eager", "training", ms=2.5, peak_bytes=100),
        row("one", "dnnffi plan captured", ms=1.2, host_us=3.0),
        row("one", "cudnn raw", ms=1.25, host_us=2.0),
    ],
}


def beside(record=RECORD):
    """The aims by what and against whom, without these two."""
    return {(one.what, one.against): one[2:] for one in targets(record)}


def test_ratios_are_of_shapes_that_both_have():
    assert ratios(RECORD, "dnnffi", "torch graph", "inference") == {"one": 1.5}
    assert ratios(RECORD, "dnnffi", "torch eager", "inference", ["one", "two"]) == {
        "one": 4.0, "two": 1.0
    }  # fmt: skip


def test_a_comparison_has_geometric_mean_and_worst():
    found = compare(RECORD, "dnnffi", "torch eager", "inference", ["one", "two"])
    assert found.mean == pytest.approx(2.0)
    assert (found.worst, found.worst_shape, found.shapes) == (1.0, "two", 2)
    assert str(found) == (
        "dnnffi compared with torch eager, inference: 2.00 times as fast (geometric mean over 2 "
        "shapes), at least 1.00 times (two)"
    )


def test_nothing_in_common_is_no_comparison():
    assert compare(RECORD, "dnnffi", "jax", "inference") is None
    assert {(one.model, one.peer, one.phase) for one in comparisons(RECORD)} == {
        *(("dnnffi", "torch eager", phase) for phase in ("inference", "training")),
        *(
            (model, peer, "inference")
            for model in ("dnnffi plan captured", "cudnn raw")
            for peer in ("torch eager", "torch graph")
        ),
        ("dnnffi", "torch graph", "inference"),
    }


def test_image_cnns_are_compared_with_pytorch_before_and_after_its_search():
    ours = ("dnnffi", "dnnffi tuned", "dnnffi captured")
    peers = ("torch eager", "torch benchmark", "torch graph")
    record = {"rows": [row("one", model) for model in (*ours, *peers)]}
    assert [(one.model, one.peer) for one in comparisons(record)] == [
        (model, peer) for model in ours for peer in peers
    ]


def test_aims_beside_what_was_measured():
    found = beside()
    assert found["inference, geometric mean", "torch eager"] == (
        ">= 1.8x", "2.00x over 2 shapes", True, "3.20x over 1 shape", ""
    )  # fmt: skip
    assert found["forward + backward, geometric mean", "torch eager"] == (
        ">= 2.2x", "2.50x over 2 shapes", True, "not measured", ""
    )  # fmt: skip
    assert found["any single shape", "torch eager"][:3] == (
        ">= 1.0x", "1.00x (two, inference)", True
    )  # fmt: skip
    assert found["rows of different length, PyTorch's packing counted", "torch eager"] == (
        ">= 3.0x", "3.50x (rows, inference)", True, "not measured", ""
    )  # fmt: skip
    assert found["host cost of a call, tuned, same arrays", ""] == (
        "<= 15 µs", "14.5 µs (median over 2 shapes; most 20.0 µs)", True,
        "2.0 µs (median over 1 shape; most 2.0 µs)", "",
    )  # fmt: skip
    assert found["host cost of a plan's replay", ""][:3] == (
        "<= 8 µs", "3.0 µs (median over 1 shape; most 3.0 µs)", True
    )  # fmt: skip
    assert found["peak device memory, forward + backward", "torch eager"] == (
        "<= 1.1x", "at most 1.10x (one)", True, "not measured", ""
    )  # fmt: skip


def test_a_graph_is_compared_with_a_captured_plan_and_the_library_and_the_functions_are_beside():
    found = beside()
    assert found["inference, geometric mean", "torch graph"] == (
        ">= 1.15x", "1.25x over 1 shape", True, "1.20x over 1 shape", "1.50x over 1 shape"
    )  # fmt: skip
    assert found["any single shape", "torch graph"] == (
        ">= 0.97x", "1.25x (one, inference)", True,
        "1.20x (one, inference)", "1.50x (one, inference)",
    )  # fmt: skip
    assert found["forward + backward, geometric mean", "torch graph"] == (
        ">= 1.07x", "not measured", None, "not measured", "not measured"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "held", "words"),
    [
        ("standard", 1 << 20, "workspace and reserve space of standard: 1.5 MiB"),
        (
            "persist_static",
            2 << 20,
            "workspace and reserve space of persist_static: 2.5 MiB; of standard: 1.5 MiB",
        ),
    ],
)
def test_memory_says_the_buffers_of_the_algorithm(algorithm, held, words):
    half = 1 << 19
    own = {"algorithm": algorithm, "workspace_bytes": half, "reserve_bytes": held}
    standard = {"ms": 1.0, "workspace_bytes": half, "reserve_bytes": 1 << 20}
    rows = [
        row("one", "dnnffi", "training", peak_bytes=2, about=own),
        row("one", "torch eager", "training", peak_bytes=1),
        row("one", "cudnn raw", "training", about={"algorithms": {"standard": standard}}),
    ]
    found = beside({"shapes": [shape("one")], "rows": rows})
    assert found["peak device memory, forward + backward", "torch eager"] == (
        "<= 1.1x", "at most 2.00x (one)", False, words, ""
    )  # fmt: skip


def test_an_aim_that_is_missed_says_so():
    rows = [row("one", "dnnffi", ms=2.0, host_us=15.1), row("one", "torch eager", ms=1.99)]
    found = {one.what: one.reached for one in targets({"shapes": [shape("one")], "rows": rows})}
    assert found["any single shape"] is not True
    assert found["host cost of a call, tuned, same arrays"] is False
    assert found["inference, geometric mean"] is not True


def test_a_table_has_a_column_for_each_peer_that_ran():
    head, rows = show.table(RECORD, "inference")
    assert head == [
        "shape", "model", "ms", "x torch eager", "x torch graph", "host µs", "peak MiB"
    ]  # fmt: skip
    assert ["one", "dnnffi", "1.000", "4.00", "1.50", "9.0", ""] in rows
    assert ["two", "dnnffi", "2.000", "1.00", "", "20.0", ""] in rows
    head, rows = show.table(RECORD, "training")
    assert head[3:-2] == ["x torch eager"]
    assert rows[0][-1] == "0.0"
    record = {"rows": [row("one", "dnnffi", "training", peak_bytes=5 << 19)]}
    assert show.table(record, "training")[1][0][-1] == "2.5"


def test_a_shape_is_named_once_in_a_run_of_its_rows():
    record = {"rows": [row("one", "a"), row("one", "b"), row("two", "a")]}
    assert [line[0] for line in show.table(record, "inference")[1]] == ["one", "", "two"]


def test_what_was_not_measured_is_said_with_its_reason():
    assert show.unmeasured(RECORD) == [
        "Not measured: torch graph (no lengths: 1 shape)",
        "Failed: torch graph on two, inference: out of memory",
    ]


def test_models_with_the_same_reasons_share_a_line():
    rows = [
        {"shape": name, "model": model, "phase": phase, "skipped": why}
        for name, why in (("one", "needs a GPU"), ("two", "lstm only"))
        for model in ("a", "b")
        for phase in ("inference", "training")
    ]
    rows.append({"shape": "one", "model": "c", "phase": "inference", "skipped": "needs a GPU"})
    assert show.unmeasured({"rows": rows}) == [
        "Not measured: a, b (needs a GPU: 1 shape; lstm only: 1 shape)",
        "Not measured: c (needs a GPU: 1 shape)",
    ]


def test_a_column_without_entries_is_not_shown(capsys):
    head, rows = ["shape", "model", "ms", "peak MiB"], [["a", "m", "1.0", ""], ["", "n", "2.0", ""]]
    made = show.Table.of("Inference", head, rows)
    assert made.head == ["shape", "model", "ms"]
    assert made.rows == [["a", "m", "1.0"], ["", "n", "2.0"]]
    show.print_tables([made], show.COLUMNS)
    out = capsys.readouterr().out
    assert "Columns: ms: milliseconds of a call in a loop\n" in out
    assert "peak" not in out


def test_a_ratio_is_described_once(capsys):
    made = show.Table.of("Inference", ["shape", "model", "x jax", "x torch eager"], [["a"] * 4])
    show.print_tables([made], show.COLUMNS)
    assert capsys.readouterr().out.count("x PEER: the peer's time") == 1


def test_models_are_described_by_the_longest_name():
    assert show.model_lines(["dnnffi plan", "array plain", "array dropout", "mine", "jax"]) == [
        "  dnnffi plan: a plan that the program holds",
        f"  array ...: {show.MODELS['array']}",
        "  jax: functions of JAX",
    ]


def test_a_table_without_rows_is_not_printed(capsys):
    show.print_tables([show.Table.of("Inference", ["shape", "ms"], [])], show.COLUMNS)
    assert capsys.readouterr().out == "\n"


def test_plain_text_is_aligned(monkeypatch, capsys):
    monkeypatch.setattr(show, "find_spec", lambda name: None)
    show.print_record(RECORD, "mode, steps")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Shapes: mode, steps"
    assert lines[1] == "Models (docs/benchmarks.md describes each):"
    assert "  dnnffi: the functions of dnnffi" in lines
    lines = lines[lines.index("") - 1 :]
    assert lines[0].startswith("Columns: ms: ")
    assert lines[2] == "Inference"
    assert lines[3].startswith("shape  model")
    assert lines[4].index("dnnffi") == lines[3].index("model")
    assert lines[-1].startswith("cudnn raw compared with torch graph")


def test_a_table_of_rich_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    show.print_record(RECORD, "mode, steps")
    out = capsys.readouterr().out
    assert "torch eager" in out
    assert "│" in out


def test_progress_without_a_terminal_is_a_line_for_each_shape(capsys):
    with show.progress(2) as begin:
        begin("one")
        begin("two")
    assert capsys.readouterr().err == "[1/2] one\n[2/2] two\n"
