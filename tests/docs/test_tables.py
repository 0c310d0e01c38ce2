"""Tests that the tables of the pages show the figures of the records in docs/verification."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from statistics import geometric_mean, median

import own_aims
import pytest
import record_tables
from records import CONTENTS, Record, blocks
from support_table import support_table

from dnnffi.bench.images import SETS as IMAGE_SETS
from dnnffi.bench.shapes import SETS, draw_shapes, shapes_of
from dnnffi.cli.sources import RECORDS

PHASES = ("inference", "training")
RUNS_OF_TESTS = ("gpu.json", "miopen.json", "vulkan.json", "vulkan_gpu.json")

read = Record.read


def shown(make, *records):
    """Return the cells of the first table of a content, by row."""
    return [tuple(row.values()) for row in next(make(*records))]


def head(make, *records):
    """Return the words of the head of the first table of a content."""
    return list(next(make(*records))[0])


def numbers(*cells):
    """Return the numbers in the cells, in order; they may have commas for thousands."""
    found = (re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-\d+)?", cell) for cell in cells)
    return [float(number.replace(",", "")) for one in found for number in one]


def nearly(values, digits):
    """Return a comparison with values that are printed with ``digits`` decimals."""
    return pytest.approx(values, rel=0, abs=0.5001 * 10**-digits)


def milliseconds(record, model, phase, key="ms"):
    rows = record["rows"]
    asked = (row for row in rows if (row["model"], row["phase"]) == (model, phase))
    return {row["shape"]: row[key] for row in asked if key in row}


@pytest.mark.parametrize("name", RUNS_OF_TESTS)
def test_a_run_of_tests_is_shown_with_its_counts(name):
    record = read(name)
    make = record_tables.gpu_record if name == "gpu.json" else record_tables.checked_record
    rows = dict(next(make(record)))
    counts = [record[kind] for kind in ("passed", "failed", "error", "skipped")]
    assert numbers(rows["Tests"]) == counts
    assert counts[0] == sum(record["tests"].values())
    assert record["date"] in rows["Run on"]
    if name == "gpu.json":
        assert record["device"] in rows["Device"]
        assert (record["driver"] in rows["Driver"], rows["cuDNN"]) == (True, record["cudnn"])
    else:
        assert numbers(rows["Problems"]) == [sum(record["problems"].values())]
        assert rows["Verified on"] == record["verified"]


def test_runs_under_the_sanitizer_are_shown_with_their_errors():
    record = read("memcheck.json")
    errors, *found = next(record_tables.memcheck_record(record))
    assert numbers(errors[1]) == [sum(run["errors"] for run in record["runs"])]
    tests = [row for row in found if row[0].startswith("Tests, ")]
    assert len(tests) == len(record["runs"]) > 50
    for (words, text), run in zip(tests, record["runs"], strict=True):
        assert words == f"Tests, {run['tool']}"
        assert text.startswith(f"{run['result']} (")


def test_the_times_of_voice_activity_are_shown():
    record = read("voice_activity.json")
    *stream, chunk, hours = shown(record_tables.voice_activity, record)
    for row, which in zip(stream, ("minimum", "median"), strict=True):
        times = record["chunk_us"]
        expected = [times[name][which] for name in ("dnnffi", "onnxruntime")]
        assert numbers(*row[1:]) == nearly(expected, 0)
    assert numbers(*chunk) == nearly([1000, record["streams"]["chunk_ms"]], 2)
    assert numbers(*hours) == nearly([1000, record["streams"]["hours_per_second"]], 2)


def test_a_device_without_onnxruntime_is_shown():
    record = read("voice_activity_gpu.json")
    rows = shown(record_tables.voice_activity, record)
    for row, which in zip(rows[:2], ("minimum", "median"), strict=True):
        time, other = row[1:]
        assert numbers(time) == nearly([record["chunk_us"]["dnnffi"][which]], 0)
        assert other == "not measured"


def test_the_host_cost_of_calls_is_shown():
    record = read("call_overhead.json")
    found = shown(record_tables.call_overhead, record)
    for cells, row in zip(found, record["rows"], strict=True):
        expected = [row["raw"], row["executor"] - row["raw"]]
        expected += [row[key] for key in ("functional", "allocations", "launch", "torch")]
        assert numbers(*cells[1:]) == nearly(expected, 1)


def test_the_host_cost_of_the_parts_of_a_call_is_shown():
    parts = {"kernel": 6.26, "product": 12.04, "array": 2.31}
    found = shown(record_tables.call_parts, {"parts": parts})
    assert [row[1] for row in found] == ["6.3", "12.0", "2.3", "not measured"]


def test_first_calls_are_shown():
    record = read("first_call.json")
    for cells, row in zip(shown(record_tables.first_call, record), record["rows"], strict=True):
        expected = [row["first_s"], row["longest_s"], row["longest_call"], row["sum_s"]]
        words = {"inference": "inference", "training": "forward + backward"}[row["phase"]]
        assert cells[:2] == (row["shape"], words)
        assert numbers(*cells[2:]) == nearly([*expected, 1e3 * row["last_s"]], 2)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", ["bench_rnn.json", "bench_cnn.json"])
def test_a_benchmark_of_networks_is_shown(name, phase):
    record = read(name)
    images = name == "bench_cnn.json"
    models = record_tables.IMAGE_MODELS if images else record_tables.NETWORK_MODELS
    columns = [milliseconds(record, model, phase) for model in models]
    hosts = [milliseconds(record, model, phase, "host_us") for model in ("dnnffi", "torch eager")]
    tables = blocks("bench-images" if images else "bench-record")[1:4:2]
    rows = [tuple(row.values()) for row in tables[PHASES.index(phase)]]
    assert [row[0] for row in rows] == [shape["name"] for shape in record["shapes"]]
    assert all([columns[0], *hosts])
    for shape, *cells in rows:
        for cell, column in zip(cells, [*columns, *hosts], strict=True):
            digits = 1 if column in hosts else 3
            assert numbers(cell) == nearly([column[shape]] if shape in column else [], digits)


def test_records_of_networks_have_the_shapes_of_their_sets():
    own = read("bench_own.json")
    drawn = {**SETS, "random": draw_shapes(own["seed"])}
    for record, sets, known in (
        (read("bench_rnn.json"), ("performance", "fastrnns"), SETS),
        (own, ("own", "random"), drawn),
        (read("bench_cnn.json"), ("imagenet",), IMAGE_SETS),
    ):
        found = {shape["name"]: tuple(shape["sets"]) for shape in record["shapes"]}
        assert found == {shape.name: of for shape, of in shapes_of(sets, known).items()}


def test_the_host_cost_of_plans_is_shown():
    record = read("bench_rnn.json")
    columns = [
        milliseconds(record, model, phase, "host_us")
        for phase in PHASES
        for model in ("dnnffi", "dnnffi plan", "dnnffi plan captured", "torch eager")
    ]
    for shape, *cells in shown(record_tables.bench_plans, record):
        assert len(cells) == len(columns)
        expected = [column[shape] for column in columns if shape in column]
        assert numbers(*cells) == nearly(expected, 1)


def equal_shapes(record):
    """Return the shapes of the set ``performance`` with rows of equal length, for means."""
    return [
        one["name"]
        for one in record["shapes"]
        if "performance" in one["sets"] and not one["lengths"]
    ]


@pytest.mark.parametrize("name", ["bench_rnn.json", "bench_own.json"])
def test_what_networks_gain_over_the_library_is_shown(name):
    record = read(name)
    *rows, means = shown(record_tables.bench_gain, record)
    gained = []
    for phase, begin in zip(PHASES, (1, 4), strict=True):
        raw = milliseconds(record, "cudnn raw", phase)
        own = milliseconds(record, "dnnffi plan captured", phase)
        for row in rows:
            both = [raw[row[0]], own[row[0]]] if row[0] in raw and row[0] in own else []
            assert numbers(*row[begin : begin + 2]) == nearly(both, 3)
        compared = equal_shapes(record) or list(own)
        ratios = [raw[shape] / own[shape] for shape in compared if shape in raw and shape in own]
        gained.append(geometric_mean(ratios))
    assert numbers(*means[1:]) == nearly(gained, 2)
    is_all = not equal_shapes(record)
    assert means[0] == "geometric mean" if is_all else f", {len(compared)} shapes" in means[0]


def test_the_aims_of_networks_are_shown_with_the_means_of_the_record():
    record = read("bench_rnn.json")
    equal = equal_shapes(record)
    rows = {(row[0], row[1]): row for row in shown(record_tables.bench_targets, record)}
    for phase, words in zip(PHASES, ("inference", "forward + backward"), strict=True):
        peer, own = (milliseconds(record, model, phase) for model in ("torch eager", "dnnffi"))
        mean = geometric_mean(peer[shape] / own[shape] for shape in equal)
        cell = rows[f"{words}, geometric mean", "PyTorch"][3]
        assert numbers(cell) == nearly([mean, len(equal)], 2)


def test_convolutions_are_shown_with_pytorchs_time_over_theirs():
    record = read("bench_conv.json")
    names = {"forward": "y", "backward_data": "dx", "backward_weights": "dw"}
    rows = {
        (f"{row['set']} {row['layer']}", f"{row['config']}, {names[row['operation']]}"): row
        for row in record["kernels"]
    }
    _, *columns = head(record_tables.conv_layers, record)
    for layer, *cells in shown(record_tables.conv_layers, record):
        for column, cell in zip(columns, cells, strict=True):
            row = rows.pop((layer, column), {})
            times = [row["dnnffi"]] if "dnnffi" in row else []
            assert numbers(cell)[:1] == nearly(times, 1)
            if "torch" in row and times:
                assert numbers(cell)[1] == nearly(row["torch"] / row["dnnffi"], 2)
    assert rows == {}


def test_the_aims_of_convolutions_are_shown_with_the_figures_of_the_record():
    record = read("bench_conv.json")
    rows = {row[0]: row for row in shown(record_tables.conv_aims, record)}
    for config in {row["config"] for row in record["kernels"]}:
        both = [row for row in record["kernels"] if row["config"] == config and "torch" in row]
        ratios = [row["torch"] / row["dnnffi"] for row in both]
        what = f"kernels, PyTorch's time over dnnffi's, {config}"
        cell = rows[f"{what}, geometric mean"][2]
        assert numbers(cell) == nearly([geometric_mean(ratios), len(ratios)], 2)
        assert numbers(rows[f"{what}, lowest"][2]) == nearly([min(ratios)], 2)
        if "errors" in both[0]:
            errors = {side: [row["errors"][side] for row in both] for side in ("dnnffi", "torch")}
            precise = [one for one, e in zip(ratios, errors["torch"], strict=True) if e <= 1e-4]
            cell = rows[f"{what}, lowest where both are precise"][2]
            assert 0 < len(precise) < len(ratios)
            assert numbers(cell) == nearly([min(precise)], 2)
            most = [max(errors["dnnffi"]), max(errors["torch"])]
            assert numbers(rows[f"error, largest, {config}"][2]) == pytest.approx(most, rel=0.5)
    for row in record["host"]:
        for words, key in (("a held plan", "held"), ("dnnffi.conv", "functional")):
            cell = rows[f"host cost of a call of {words}, {row['problem']}"][2]
            assert numbers(cell) == nearly([row[key], row["torch"]], 1)
    for config in {row["config"] for row in record["first"]}:
        calls = [row for row in record["first"] if row["config"] == config]
        medians = [median(row[side] for row in calls) for side in ("dnnffi", "torch")]
        cell = rows[f"first call of a new problem, {config}"][2]
        assert numbers(cell) == nearly([*medians, len(calls)], 2)


def is_reached(aim, measured):
    """Return whether the first number of a measurement reaches an aim; None if they are equal."""
    (limit, found) = numbers(aim)[0], numbers(measured)[0]
    if found == limit:
        return None
    return (found > limit) == (">" in aim)


def test_an_aim_is_said_to_be_reached_if_its_figure_does_so():
    rows = [
        row for row in shown(record_tables.conv_aims, read("bench_conv.json")) if numbers(row[1])
    ]
    rows += [row for row in targets() if numbers(row[1]) and numbers(row[2])]
    assert {row[3] for row in rows} == {"yes", "no"}
    for words, aim, measured, said in rows:
        reached = is_reached(aim, re.sub("^[a-z ]*", "", measured))
        assert reached is None or said == ("yes" if reached else "no"), words


def targets():
    """Return (what, aim, measured, reached) of the rows of the table of aims for networks."""
    return [
        (what, *cells[1:4])
        for what, *cells in shown(record_tables.bench_targets, read("bench_rnn.json"))
    ]


def test_untuned_layers_are_shown_with_means_and_the_lowest():
    record = read("bench_depthwise.json")
    rows = shown(record_tables.depthwise_bench, record)
    assert head(record_tables.depthwise_bench, record)[3:] == ["PyTorch", "cuDNN's heuristics"]
    assert sum(int(row[2]) for row in rows) == len(record["kernels"])
    for config, operation, _, *cells in rows:
        kernels = [
            row
            for row in record["kernels"]
            if (row["config"], row["operation"].replace("_", " ")) == (config, operation)
        ]
        for peer, cell in zip(("torch", "cudnn"), cells, strict=True):
            ratios = [row[peer] / row["dnnffi"] for row in kernels if peer in row]
            expected = [geometric_mean(ratios), min(ratios)] if ratios else []
            assert numbers(cell) == nearly(expected, 2)


@pytest.mark.parametrize("phase", PHASES)
def test_networks_in_jax_are_shown(phase):
    record = read("bench_jax.json")
    tables = blocks("jax-bench")[1:4:2]
    rows = [tuple(row.values()) for row in tables[PHASES.index(phase)]]
    for (shape, *cells), row in zip(rows, record["rows"], strict=True):
        times = {name: ms for name, ms in row[phase].items() if isinstance(ms, float)}
        unrolled = [ms for name, ms in times.items() if name.startswith("scan ")]
        expected = [times.get(name) for name in ("dnnffi.jax", "plan", "scan 1")]
        found = [numbers(cell)[:1] for cell in cells]
        assert shape == row["shape"]
        for one, ms in zip(found, expected, strict=False):
            assert one == nearly([] if ms is None else [ms], 3)
        others = [ms for name, ms in times.items() if name not in ("dnnffi.jax", "plan")]
        assert found[-1] == nearly([min(others) / times["dnnffi.jax"]] if others else [], 2)
        assert len(unrolled) > 1
        assert found[3] == nearly([min(unrolled[1:])], 3)
    aims = shown(record_tables.jax_aims, record)
    ratios = [
        row[one]["plan"] / row[one]["dnnffi.jax"]
        for row in record["rows"]
        for one in PHASES
        if "plan" in row[one]
    ]
    assert numbers(*aims[0][2:4]) == nearly([geometric_mean(ratios), min(ratios)], 2)


# What each line of the aims for our own kernels is about, with the aims as they are printed.
EQUAL = "the set performance, rows of equal length"
LARGE = "f16, H from 1024 to 2816, B from 8 to 64"
OWN_LINES = {
    "LSTM f16, T 100, B 64, H 512": ("3.5", "lstm f16 100 64 512 512 1 uni"),
    "LSTM float32 (TF32), the same sizes": ("3; 2.8", "lstm f32 100 64 512 512 1 uni"),
    "GRU f16, the same sizes": ("3", "gru f16 100 64 512 512 1 uni"),
    "LSTM f16, T 150, B 64, H 256": ("5; 4.5", "lstm f16 150 64 256 256 1 uni"),
    LARGE: (
        "2, none below 1.3",
        lambda one: (
            one["dtype"] == "float16"
            and one["hidden_size"] in range(1024, 2817)
            and one["batch"] in range(8, 65)
        ),
    ),
    "B 1, T 1000, H 128 and 256": ("5", lambda one: (one["batch"], one["steps"]) == (1, 1000)),
    "2 and 4 layers, T from 100 to 500": (
        "2.5",
        lambda one: one["layers"] in (2, 4) and one["steps"] in range(100, 501),
    ),
    EQUAL: ("2.5; 2.3", lambda one: "performance" in one["sets"] and not one["lengths"]),
    "20 networks drawn at random": ("2.5; 2.3", lambda one: "random" in one["sets"]),
    "any of these": ("none below 0.97", lambda one: True),
}
OF_ALL_SETS = (EQUAL, "20 networks drawn at random", "any of these")


def own_speedups(phase):
    """Return the fastest peer's time divided by that of the captured plan, by shape."""
    scans = {
        row["shape"]: min(ms for name, ms in row[phase].items() if name.startswith("scan "))
        for row in read("bench_jax.json")["rows"]
    }
    found = {}
    for name in ("bench_own.json", "bench_rnn.json"):  # where both have a shape, the latter counts
        peers = [
            milliseconds(read(name), model, phase)
            for model in ("cudnn raw", "torch graph", "jax scan")
        ]
        for shape, own in milliseconds(read(name), "dnnffi plan captured", phase).items():
            others = [one[shape] for one in (*peers, scans) if shape in one]
            found[shape] = min(others) / own
    return found


def test_the_aims_for_our_own_kernels_are_shown_with_the_figures_of_the_records():
    both = [read("bench_rnn.json"), read("bench_own.json")]
    shapes = {one["name"]: one for record in both for one in record["shapes"]}
    rows = shown(own_aims.own_aims, *both, read("bench_jax.json"), read("own_steps.json"))
    assert [row[0] for row in rows] == list(OWN_LINES)
    for words, aim, *cells in rows:
        expected_aim, about = OWN_LINES[words]
        assert aim == expected_aim
        for phase, cell in zip(PHASES, cells, strict=False):
            ratios = own_speedups(phase)
            if isinstance(about, str):
                assert numbers(cell) == nearly([ratios[about]], 2)
                continue
            inside = [
                ratios[name]
                for name, shape in shapes.items()
                if about(shape) and (words in OF_ALL_SETS or "random" not in shape["sets"])
            ]
            mean = [] if words == "any of these" else [geometric_mean(inside), len(inside)]
            figures = numbers(cell.partition(" (")[0])
            assert figures == nearly([*mean, min(inside)], 2)


def test_scans_of_jax_are_shown_beside_captured_plans():
    jax = read("bench_jax.json")
    both = [read("bench_rnn.json"), read("bench_own.json")]
    scans = {row["shape"]: row for row in jax["rows"]}
    for shape, *cells in shown(own_aims.own_jax, *both, jax):
        for number, phase in enumerate(PHASES):
            own = next(
                times[shape]
                for record in both
                if shape in (times := milliseconds(record, "dnnffi plan captured", phase))
            )
            times = scans[shape][phase].items()
            scan = min(ms for name, ms in times if name.startswith("scan "))
            found = cells[3 * number : 3 * number + 3]
            assert numbers(*found[:2]) == nearly([scan, own], 3)
            assert numbers(found[2]) == nearly([scan / own], 2)


def test_what_works_is_shown_with_the_problems_that_passed():
    found = [read(name) for name in ("gpu.json", "miopen.json", "vulkan.json")]
    rows = {row[0]: row[1:4] for row in shown(support_table, *found)}
    for words, asked, refusal in (
        ("LSTM", {"lstm"}, None),
        ("float16", {"float16"}, None),
        ("float64", {"float64"}, "float64"),
        ("Both directions", {"bi"}, None),
        ("Projection of an LSTM", {"projection"}, "projection"),
        ("Choice of math", {"strict", "fast"}, "math"),
    ):
        for cell, record in zip(rows[words], found, strict=True):
            problems = record["problems"].items()
            count = sum(n for name, n in problems if asked & set(name.split()))
            if count:
                assert numbers(cell.partition(" problems")[0]) == [count]
            else:
                assert cell == f"no: {record['refusals'][refusal]}"
    (combinations,) = (cells for words, cells in rows.items() if words.startswith("Combinations"))
    for cell, record in zip(combinations, found, strict=True):
        assert numbers(cell)[0] == len({tuple(name.split()[:6]) for name in record["problems"]})


def test_several_gpus_in_jax_are_shown():
    record = read("bench_jax.json")
    rows = shown(record_tables.jax_devices, record)
    for cells, row in zip(rows, record["devices"], strict=True):
        expected = [row["devices"]]
        for how in ("shard_map", "jit"):
            expected += [row[how], row[f"{how} throughput"]]
        assert numbers(*cells[:5]) == nearly(expected, 2)


def test_convolutions_in_jax_are_shown():
    record = read("bench_jax_conv.json")
    for _, config, operation, count, mean, slower, _ in shown(record_tables.jax_conv, record):
        ratios = [
            row["jax"] / row["djax"]
            for row in record["rows"]
            if (row["config"], row["operation"].replace("_", " ")) == (config, operation)
        ]
        assert numbers(mean) == nearly([geometric_mean(ratios), min(ratios), max(ratios)], 2)
        assert int(count) == len(ratios)
        assert int(slower) == sum(ratio < 1 for ratio in ratios)


@pytest.mark.parametrize("name", ["bench_vulkan.json", "bench_vulkan_gpu.json"])
def test_the_benchmark_of_vulkan_is_shown(name):
    record = read(name)
    expected = [
        (row["problem"], call, ms, row["least_ms"][call], ms / row["median_ms"]["reference"])
        for row in record["rows"]
        for call, ms in row["median_ms"].items()
    ]
    calls, *parts, said = record_tables.vulkan_bench(record)
    rows = [tuple(row.values()) for row in calls]
    for (problem, call, times, ratios, *_), values in zip(rows, expected, strict=True):
        assert (problem, call) == values[:2]
        assert [*numbers(times), numbers(ratios)[0]] == nearly(values[2:], 2)
    assert sum(map(len, parts)) == sum("parts_us" in row for row in record["rows"])
    assert numbers(said)[0] == nearly(record["bounds"]["gflops"], 0)


def test_launches_are_shown_with_the_words_that_differed():
    record = read("own_stress.json")
    keys = ("launches", "problems", "seconds", "graph_launches", "direct_calls", "threads")
    said = next(record_tables.own_stress(record))
    assert numbers(said) == [*(record[key] for key in keys), record["products_beside"]]
    assert record["differing_words"] == 0


@pytest.mark.parametrize("name", ["stream.json", "stream_conv.json", "stream_resets.json"])
def test_streams_are_shown_with_their_times_and_means(name):
    record = read(name)
    rows = {row["Stream"]: row for row in next(record_tables.stream_bench(record))}
    for row in record["rows"]:
        if "ms" in row:
            assert numbers(rows[row["shape"]][f"{row['model']}, ms"]) == nearly([row["ms"]], 3)
    by_name = {
        model: {row["shape"]: row["ms"] for row in record["rows"] if row["model"] == model}
        for model in ("dnnffi", "tuned plan")
    }
    for shape_set in {one for shape in record["shapes"] for one in shape["sets"]}:
        names = [shape["name"] for shape in record["shapes"] if shape_set in shape["sets"]]
        both = [name for name in names if all(name in times for times in by_name.values())]
        if both:
            mean = geometric_mean(by_name["dnnffi"][n] / by_name["tuned plan"][n] for n in both)
            cell = rows[f"geometric mean, {shape_set}"]["dnnffi / tuned plan"]
            assert numbers(cell) == nearly([mean], 2)


def test_times_of_lengths_in_device_memory_are_divided_by_the_others():
    record = read("device_lengths.json")
    table = next(record_tables.device_lengths(record))
    cells = {(row["Network"], row["Pass"]): list(row.values())[2:] for row in table}
    words = {"inference": "inference", "training": "forward + backward"}
    for row in record["rows"]:
        ratio, ms = numbers(cells[row["shape"], words[row["phase"]]].pop(0))
        assert [ratio] == nearly([row["device_ms"] / row["known_ms"]], 2)
        assert [ms] == nearly([row["device_ms"]], 3)
    assert not any(cells.values())


def test_calls_through_each_entry_are_shown():
    record = read("callers.json")
    rows = {(row["Entry"], row["Pass"]): row for row in next(record_tables.caller_bench(record))}
    words = {"inference": "inference", "training": "forward + backward"}
    for row in record["rows"]:
        if "ms" in row:
            ms, host = numbers(rows[row["model"], words[row["phase"]]][row["shape"]])
            assert [ms] == nearly([row["ms"]], 3)
            assert [host] == nearly([row["host_us"]], 1)


def test_every_record_is_read_by_a_test_of_its_tables():
    text = Path(__file__).read_text(encoding="utf-8")
    # own_steps.json is drawn (test_figures.py), to own_costs.json a model is fitted
    # (test_own_costs.py), and texts are shown as they are.
    tables = {name for name in RECORDS if name.endswith(".json")}
    tables -= {"own_steps.json", "own_costs.json"}
    assert {name for name in tables if f'"{name}"' not in text} == set()


def test_every_content_is_on_a_page_and_the_pages_name_no_other():
    for module in ("figures", "limit_tables"):  # which are not used above
        importlib.import_module(module)
    pages = (Path(__file__).parents[2] / "docs").glob("*.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert set(re.findall(r"^```\{generated\} (\S+)", text, re.MULTILINE)) == CONTENTS.keys()
