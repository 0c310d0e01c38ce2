"""Ratios, means, spreads and aims of a record of streams."""

from __future__ import annotations

from math import sqrt

import pytest

from dnnffi.bench.streams import report

MODELS = {
    "dnnffi": (1.0, 3.0),
    "tuned plan": (0.8, 2.0),
    "torch padded": (9.0, 12.0),
    "torch packed": (18.0, 60.0),
}


def row(stream, model, ms, **more):
    turns = more.pop("turns_ms", [ms, ms, ms])
    return {
        "shape": stream,
        "model": model,
        "phase": "training",
        "ms": ms,
        "turns_ms": turns,
        "first_ms": 2 * ms,
        "first_epoch_s": 0.2,
        "cold_epoch_s": 1.0,
        "host_us": 5.0,
        **more,
    }


def record(models=MODELS, **more):
    rows = [
        row(stream, model, times[number], **more)
        for number, stream in enumerate("ab")
        for model, times in models.items()
    ]
    return {
        "rows": rows,
        "shapes": [{"name": name, "sets": ["everyday"]} for name in "ab"],
        "settings": {"rounds": 3, "batches": 80},
    }


def test_ratios_are_by_stream_and_their_mean_is_geometric():
    found = record()
    assert report.ratios(found, "dnnffi", "tuned plan") == {"a": 1.25, "b": 1.5}
    mean = report.mean_ratio(found, "dnnffi", "tuned plan")
    assert mean == pytest.approx(sqrt(1.25 * 1.5))
    assert report.mean_ratio(found, "dnnffi", "tuned plan", ["b"]) == 1.5
    assert report.mean_ratio(found, "dnnffi", "jax scan buckets") is None


def test_the_better_of_pytorchs_is_chosen_by_stream():
    found = record({"torch padded": (9.0, 12.0), "torch packed": (10.0, 8.0), "x": (1.0, 1.0)})
    assert report.figures(found, report.BEST_TORCH) == {"a": 9.0, "b": 8.0}
    found["rows"].append(row("c", "torch padded", 7.0))
    assert report.figures(found, report.BEST_TORCH)["c"] == 7.0


def test_what_was_not_measured_has_no_ratio():
    found = record()
    found["rows"].append({"shape": "b", "model": "late", "phase": "training", "failed": "odd"})
    assert report.figures(found, "late") == {}
    assert report.ratios(found, "late", "dnnffi") == {}


def test_the_spread_is_of_the_turns_over_their_median():
    assert report.spread(row("a", "m", 2.0, turns_ms=[3.0, 1.5, 2.0])) == 0.75


def by_peer(found):
    return {(one.what.partition(",")[0], one.against): one for one in report.targets(found)}


def test_aims_are_compared_with_the_worst_stream_and_the_means():
    worst, padded, packed, best, *of_random, warm, cold = report.targets(record())
    assert (worst.measured, worst.reached) == ("at most 1.50x (b)", False)
    assert (padded.measured, padded.reached) == (f"{sqrt(9 * 4):.2f}x", False)
    assert (packed.measured, packed.reached) == (f"{sqrt(18 * 20):.2f}x", True)
    assert (best.measured, best.reached) == ("at most 0.25x (b)", True)
    # 0.2 s less 1.2 times 80 batches of 1 ms and of 3 ms; 1 s less 80 of them.
    assert (warm.measured, warm.reached) == ("+0.10 s (a)", True)
    assert (cold.measured, cold.reached) == ("+0.92 s (a)", True)
    assert [one.reached for one in of_random] == [None] * 3


@pytest.mark.parametrize(
    ("more", "reached"),
    [
        ({"first_epoch_s": 0.5}, (False, True)),
        ({"cold_epoch_s": 4.0}, (True, False)),
        ({"first_epoch_s": 0.39}, (True, True)),
    ],
)
def test_a_first_epoch_may_take_so_much_longer(more, reached):
    assert tuple(one.reached for one in report.targets(record(**more))[-2:]) == reached


def test_the_sets_have_aims_of_their_own():
    found = record()
    found["shapes"][1]["sets"] = ["random"]
    everyday, _, _, _, padded, packed, best, warm, _ = report.targets(found)
    assert everyday.measured == "at most 1.25x (a)"
    assert (padded.measured, padded.reached) == ("4.00x", False)
    assert (packed.measured, packed.reached) == ("20.00x", True)
    assert (best.measured, best.reached) == ("at most 0.25x (b)", True)
    assert "(a)" in warm.measured


def test_without_figures_nothing_is_reached_or_missed():
    found = record({"torch padded": (1.0, 1.0)})
    worst, padded, *_, cold = report.targets(found)
    assert [one.reached for one in (worst, padded, cold)] == [None] * 3
    assert worst.measured == "not measured"


def test_the_table_has_each_stream_and_the_means_of_each_set(capsys):
    found = record()
    head, rows = report.table(found)
    assert head[4:6] == ["x tuned plan", "x the better of PyTorch's"]
    first = dict(zip(head, rows[0], strict=True))
    assert (first["stream"], first["model"], first["ms"]) == ("a", "dnnffi", "1.000")
    assert (first["x tuned plan"], first["x the better of PyTorch's"]) == ("1.25", "0.11")
    assert (first["first ms"], first["host µs"]) == ("2.000", "5")
    means = [row for row in rows if row[0].startswith("geometric mean")]
    assert means[0][0] == "geometric mean, everyday"
    assert means[0][4] == f"{sqrt(1.25 * 1.5):.2f}"
    report.print_record(found, "a name")
    out = capsys.readouterr().out
    assert "a batch, each stream of everyday compared with tuned plan, aim <= 1.3x" in out
    assert "at most 1.50x (b), missed" in out


def test_one_turn_has_no_spread():
    head, rows = report.table(record(turns_ms=[1.0]))
    assert {row[head.index("spread")] for row in rows} == {""}


RESETS = {
    "dnnffi": (1.0, 2.0),
    "dnnffi resets 1%": (1.01, 2.04),
    "dnnffi resets 10%": (1.02, 2.08),
    "torch eager": (0.5, 4.0),
    "jax scan resets 10%": (4.0, 8.0),
    "torchrl pad resets 1%": (8.0, 16.0),
}


def reset_record(models=RESETS):
    found = record(models)
    for shape in found["shapes"]:
        shape.update(sets=["episodes"], reset_rates=[0.01, 0.1])
    return found


def test_times_with_resets_are_compared_with_those_without():
    low, high, _ = report.reset_targets(reset_record())
    assert (low.measured, low.reached) == ("at most 1.020x (b)", True)
    assert (high.measured, high.reached) == ("at most 1.040x (b)", False)
    assert low.what == "a batch of dnnffi resets 1%, each stream of episodes"
    assert (low.against, low.aim) == ("dnnffi", "<= 1.03x")


def test_without_a_time_with_resets_their_aim_is_not_measured():
    found = report.reset_targets(reset_record({"dnnffi": (1.0, 1.0)}))
    assert [one.reached for one in found] == [None] * 3


def test_resets_are_compared_with_the_fastest_loop():
    *_, scan = report.reset_targets(reset_record())
    assert (scan.aim, scan.measured, scan.reached) == (">= 4x", "at least 3.85x (b)", False)
    faster = RESETS | {"torchrl triton tf32 resets 10%": (4.5, 12.0)}
    *_, both = report.reset_targets(reset_record(faster))
    assert both.measured == "at least 3.85x (b)"
    faster["torchrl triton bf16 resets 10%"] = (1.02, 10.0)
    *_, all_three = report.reset_targets(reset_record(faster))
    assert all_three.measured == "at least 1.00x (a)"


def test_each_peer_of_resets_has_a_column_of_ratios():
    head, rows = report.table(reset_record())
    assert [name for name in head if name.startswith("x ")] == [
        "x dnnffi",
        "x torch eager",
        "x jax scan resets 10%",
        "x torchrl pad resets 1%",
    ]
    second = dict(zip(head, rows[1], strict=True))
    assert second["model"] == "dnnffi resets 1%"
    assert (second["x dnnffi"], second["x jax scan resets 10%"]) == ("1.01", "0.25")


def test_the_aims_of_resets_are_printed_and_no_others(capsys):
    report.print_record(reset_record(), "a name")
    aims = [line for line in capsys.readouterr().out.splitlines() if ", aim " in line]
    assert [line.rpartition(", ")[2] for line in aims] == ["reached", "missed", "missed"]
