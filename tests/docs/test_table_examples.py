"""Tests of tables on small records: words, missing figures, means."""

from __future__ import annotations

from itertools import islice

import pytest
import record_tables
from records import Record

from dnnffi.cli.sources import part_hashes

NONE = "not measured"
RUN = {
    "date": "2026-01-02",
    "device": "Some GPU",
    "devices": 1,
    "driver": "580.1",
    "cuda_driver_api": 13020,
    "cudnn": "9.19.0",
    "cupy": "14.0.0",
    "numpy": "2.4.0",
    "python": "3.12.1",
    "dnnffi": "0.1.0",
    "passed": 1234,
    "failed": 1,
    "error": 0,
    "skipped": 2,
}
NETWORK = {"shape": "one", "phase": "inference"}


def shown(make, *records):
    """Return the cells of the first table of a content, by row."""
    return [tuple(row.values()) for row in next(make(*records))]


def test_a_record_of_a_gpu_in_words():
    run = RUN | {"source": part_hashes()}
    rows = dict(next(record_tables.gpu_record(Record("gpu.json", run))))
    assert rows["Tests"] == "1,234 passed, 1 failed, 0 error, 2 skipped"
    assert rows["Run on"] == "the source as it is now, dnnffi 0.1.0, 2026-01-02"
    assert rows["Driver"] == "580.1, CUDA 13.2"


def test_a_record_under_memcheck_in_words():
    runs = [
        {"tool": "memcheck", "errors": 0, "result": "12 passed", "tests": ["a.py", "-k", "lstm"]},
        {"tool": "racecheck", "errors": 2, "result": "3 passed", "tests": ["b.py"]},
    ]
    found = next(record_tables.memcheck_record(Record("memcheck.json", RUN | {"runs": runs})))
    assert found[:3] == [
        ("Errors found", "2"),
        ("Tests, memcheck", "12 passed (a.py -k lstm)"),
        ("Tests, racecheck", "3 passed (b.py)"),
    ]
    assert dict(found)["Device"] == "Some GPU, 1 in the machine"


def test_a_record_of_the_emulated_device_in_words():
    record = RUN | {"verified": "real libMIOpen 3.4.0", "problems": {"a": 2, "b": 1}}
    rows = dict(next(record_tables.checked_record(Record("miopen.json", record))))
    assert rows["Problems"] == "3 compared with the reference"
    assert rows["Run on"].startswith("an unknown state of the source, ")
    assert rows["Verified on"] == "real libMIOpen 3.4.0"


@pytest.mark.parametrize(
    ("hashes", "words"),
    [
        (None, "an unknown state of the source"),
        (part_hashes(), "the source as it is now"),
        (
            part_hashes() | {"spec-conv": "0", "convolution": "0", "rnn": "0"},
            "an earlier state of the source (changed since: spec-conv, convolution)",
        ),
    ],
)
def test_a_benchmark_says_of_which_source_it_is(hashes, words):
    machine = {"device": "Some GPU", "src_sha256": "abc", "source": hashes, "python": "3.12"}
    found = Record("bench_conv.json", {"machine": machine}).conditions()
    assert found == f"A record of {words}: device Some GPU, python 3.12."


def test_the_overhead_of_the_executor_is_a_difference():
    row = {"problem": "lstm", "raw": 20.0, "executor": 21.5, "functional": 13.25, "launch": 3.0}
    found = shown(record_tables.call_overhead, {"rows": [row]})
    assert found == [("lstm", "20.0", "+1.5", "13.2", NONE, "3.0", NONE)]


BOUNDS = {
    "gflops": 1234.5,
    "dispatch_us": 2.5,
    "submission_us": 80.0,
    "submission_wgpu_py_us": 120.0,
    "submission_asleep_us": 70.0,
    "copy_ms": 0.25,
    "copy_threads": 4,
    "copy_one_thread_ms": 1.0,
}


def vulkan(row, bounds):
    """Return the blocks of a benchmark of Vulkan without the words about its machine."""
    record = Record("bench_vulkan.json", {"rows": [row], "bounds": bounds, "machine": {}})
    *tables, text = record_tables.vulkan_bench(record)
    cells = [[tuple(one.values()) for one in rows] for rows in tables]
    return [*cells, text.partition(" A record of")[0]]


def test_the_benchmark_of_vulkan_is_beside_the_reference():
    row = {
        "problem": "gru",
        "submissions": 1,
        "median_ms": {"auto": 2.0, "reference": 4.0},
        "least_ms": {"auto": 1.5, "reference": 1.0},
        "bound_ms": {"auto": 0.75},
        "dispatches": {"auto": 51},
        "parts_us": {"prepare": 1500.0, "submit": 9.0, "wait": 80.0, "results": 4.0},
    }
    calls, parts, said = vulkan(row, BOUNDS)
    assert calls == [
        ("gru", "auto", "2.00 (1.50)", "0.50 (1.50)", "0.75", "51", "1"),
        ("gru", "reference", "4.00 (1.00)", "1.00 (1.00)", "", "", ""),
    ]
    assert parts == [("gru", "1,500", "9", "80", "4")]
    assert "1,234 GFLOP/s" in said
    assert "80 µs (120 µs by wgpu-py's thread, 70 µs where the caller sleeps)" in said
    assert said.endswith("memory in 1.00 ms, by 4 threads in 0.25 ms.")
    *_, said = vulkan(row, BOUNDS | {"copy_threads": 1})
    assert said.endswith("memory in 1.00 ms.")


def test_aims_without_figures_are_not_measured():
    nothing = {"shapes": [], "rows": [], "settings": {}}
    networks = shown(record_tables.bench_targets, nothing)
    assert {row[3] for row in networks} == {NONE}
    assert ("any single shape", "PyTorch", ">= 1.0x", NONE, "-", NONE, "-") in networks
    assert {row[2:] for row in shown(record_tables.caller_aims, nothing)} == {(NONE, "-")}


JAX_TIMES = {
    "training: algorithm": "own 2",
    "dnnffi.jax": 1.0,
    "handler calls": {"forward": 3},
    "scan 1": 4.0,
    "scan 5": 2.5,
    "scan 10": 2.0,
    "flax": 8.0,
    "jax.experimental.rnn": "TypeError: not float16",
    "plan": 0.99,
}


def test_networks_in_jax_stand_beside_their_peers():
    slow = {"dnnffi.jax": 2.0, "scan 1": 1.5, "plan": 1.0}
    rows = [
        {"shape": "lstm f16 1 2 3 4 1 uni", "inference": JAX_TIMES, "training": JAX_TIMES},
        {"shape": "lstm f32 1 2 3 4 1 uni", "inference": {}, "training": slow},
    ]
    record = Record("bench_jax.json", {"rows": rows, "machine_rows": {}})
    inference, training = (
        [tuple(row.values()) for row in table]
        for table in record_tables.jax_bench(record)
        if isinstance(table, list)
    )
    assert training == [
        ("lstm f16 1 2 3 4 1 uni", "1.000", "0.990", "4.000", "2.000 (10)", "8.000", NONE, "2.00"),
        ("lstm f32 1 2 3 4 1 uni", "2.000", "1.000", "1.500", NONE, NONE, NONE, "0.75"),
    ]
    assert inference[1][1:] == (NONE,) * 7
    # float32 is not among those that are to be as fast as JAX's fastest.
    assert shown(record_tables.jax_aims, {"rows": rows}) == [
        ("the captured plan", ">= 0.97x", "0.79", "0.50", "2 of 3"),
        ("JAX's fastest, float16 and bfloat16", ">= 1.00x", "2.00", "2.00", "2 of 2"),
    ]
    assert shown(record_tables.jax_aims, {"rows": []})[0][2:] == (NONE, NONE, "0 of 0")


@pytest.mark.parametrize(
    ("nothing", "said"), [((0.028, 0.0281), "28 µs"), ((0.1, 0.0281, 0.09), "from 28 to 100 µs")]
)
def test_the_least_that_a_call_in_jax_takes(nothing, said):
    rows = [{"shape": "a f32", "nothing": ms, "inference": {}, "training": {}} for ms in nothing]
    _, text = record_tables.jax_aims({"rows": rows})
    assert f" took {said} a call " in text


def test_several_gpus_in_jax_stand_beside_one():
    one = {"devices": 1, "shard_map": 7.5, "jit": 7.0}
    one |= {"shard_map throughput": 1.0, "jit throughput": 1.0}
    two = one | {"devices": 2, "shard_map throughput": 1.951, "sum": 0.24, "alone": [7.0, 7.25]}
    assert shown(record_tables.jax_devices, {"devices": [one, two]}) == [
        ("1", "7.50", "1.00x", "7.00", "1.00x", "-", "-", "-"),
        ("2", "7.50", "1.95x", "7.00", "1.00x", ">= 1.95x", "0.24", "7.00, 7.25"),
    ]


def test_convolutions_in_jax_stand_beside_plans():
    of_row = {"set": "resnet50", "config": "f16 last", "operation": "backward_data"}
    rows = [of_row | {"jax": 2.0, "dnnffi": 1.0}, of_row | {"jax": 0.5, "dnnffi": 1.0}]
    found = shown(record_tables.jax_conv, {"rows": [*rows, of_row | {"error": "no engine"}]})
    what, plan = ("resnet50", "f16 last", "backward data", "2"), "1.00 (0.50 to 2.00)"
    assert found == [(*what, NONE, NONE, plan)]
    ours = [row | {"djax": 1.25} for row in rows]
    found = shown(record_tables.jax_conv, {"rows": ours})
    assert found == [(*what, "0.80 (0.40 to 1.60)", "1", plan)]


def test_a_benchmark_of_convolutions_in_tables():
    row = {"set": "vgg16", "layer": "3x3", "config": "f16", "operation": "backward_data"}
    record = {
        "kernels": [
            row | {"dnnffi": 10.0, "torch": 12.0},
            row | {"dnnffi": 10.0, "torch": 9.0, "operation": "forward"},
            row | {"dnnffi": 4.04, "layer": "1x1"},
            row | {"error": "MemoryError: none", "layer": "1x1", "operation": "forward"},
        ],
        "host": [{"problem": "small", "held": 6.04, "functional": 11.0, "torch": 13.5}],
        "first": [
            {"problem": "17", "config": "f16", "dnnffi": 2.0, "torch": 1.0},
            {"problem": "18", "config": "f16", "dnnffi": 3.0, "torch": 4.0},
        ],
    }
    assert next(record_tables.conv_layers(record)) == [
        {"Layer": "vgg16 3x3", "f16, dx": "10.0 (1.20)", "f16, y": "10.0 (0.90)"},
        {"Layer": "vgg16 1x1", "f16, dx": "4.0", "f16, y": NONE},
    ]
    ratio, called = "kernels, PyTorch's time over dnnffi's, f16", "host cost of a call of"
    assert shown(record_tables.conv_aims, record) == [
        (f"{ratio}, geometric mean", ">= 1.0", "1.04 of 2", "yes"),
        (f"{ratio}, lowest", ">= 0.95", "0.90", "no"),
        (f"{called} a held plan, small", "<= 6 µs", "6.0 µs; PyTorch 13.5 µs", "no"),
        (f"{called} dnnffi.conv, small", "<= 12 µs", "11.0 µs; PyTorch 13.5 µs", "yes"),
        (
            *("first call of a new problem, f16", "<= PyTorch's"),
            *("2.50 ms; PyTorch 2.50 ms; medians of 2 problems", "yes"),
        ),
    ]


def test_strict_convolutions_are_shown_with_the_errors_of_both():
    row = {"set": "vgg16", "layer": "5x5", "config": "f32", "operation": "forward"}
    precise, not_precise = {"dnnffi": 2e-6, "torch": 3e-6}, {"dnnffi": 4e-6, "torch": 7.7e-4}
    record = {
        "kernels": [
            row | {"dnnffi": 10.0, "torch": 9.6, "errors": precise},
            row | {"dnnffi": 10.0, "torch": 4.0, "errors": not_precise, "layer": "7x7"},
        ],
        "host": [],
        "first": [],
    }
    assert shown(record_tables.conv_layers, record) == [
        ("vgg16 5x5", "10.0 (0.96)"),
        ("vgg16 7x7", "10.0 (0.40; error 8e-04)"),
    ]
    ratio = "kernels, PyTorch's time over dnnffi's, f32"
    assert shown(record_tables.conv_aims, record)[1:] == [
        (f"{ratio}, lowest", ">= 0.95", "0.40", "no"),
        (f"{ratio}, lowest where both are precise", ">= 0.95", "0.96", "yes"),
        ("error, largest, f32", "<= 1e-04", "4e-06; PyTorch 8e-04", "yes"),
    ]


def test_what_is_gained_over_the_library_in_a_table():
    row = NETWORK | {"ms": 0.5}
    record = {
        "shapes": [{"name": "one"}, {"name": "two"}],
        "rows": [
            row | {"model": "cudnn raw"},
            row | {"model": "dnnffi plan captured", "ms": 0.25},
            row | {"model": "cudnn raw", "shape": "two"},
        ],
    }
    none = (NONE,) * 3
    assert shown(record_tables.bench_gain, record) == [
        ("one", "0.500", "0.250", "2.00", *none),
        ("two", *none, *none),
        ("geometric mean", "", "", "2.00", "", "", NONE),
    ]


def test_a_benchmark_in_a_table():
    record = {
        "shapes": [{"name": "one"}],
        "rows": [
            {"shape": "one", "model": "dnnffi", "phase": "inference", "ms": 0.5, "host_us": 8.04},
            {"shape": "one", "model": "cudnn raw", "phase": "inference", "ms": 0.25},
            {"shape": "one", "model": "torch graph", "phase": "training", "ms": 1.25},
        ],
    }
    _, (row,), _, (training,) = islice(record_tables.bench_record(record), 4)
    assert row == {
        "Shape": "one",
        "dnnffi": "0.500",
        "RNNPlan.capture": NONE,
        "cuDNN alone": "0.250",
        "PyTorch": NONE,
        "PyTorch in a graph": NONE,
        "host µs, dnnffi": "8.0",
        "host µs, PyTorch": NONE,
    }
    assert tuple(training.values()) == ("one", *[NONE] * 4, "1.250", *[NONE] * 2)


CALLER_TIMES = {
    "dnnffi": (0.2, 17.0),
    "dnnffi torch flat": (0.21, 40.0),
    "torch eager": (0.9, 90.0),
}
CALLERS = {
    "shapes": [{"name": "a", "sets": ["callers"]}],
    "rows": [
        {"shape": "a", "model": model, "phase": phase, "ms": ms, "host_us": host}
        for phase in ("inference", "training")
        for model, (ms, host) in CALLER_TIMES.items()
        if (model, phase) != ("torch eager", "training")
    ],
}


def test_each_entry_has_its_times():
    rows = next(record_tables.caller_bench(CALLERS))
    assert [(row["Entry"], row["Pass"]) for row in rows] == [
        (model, words) for words in ("inference", "forward + backward") for model in CALLER_TIMES
    ]
    assert [row["a"] for row in rows[:3]] == ["0.200 (17.0)", "0.210 (40.0)", "0.900 (90.0)"]
    assert rows[-1]["a"] == NONE


def test_aims_of_callers_are_shown_with_their_figures():
    by_what = {row["What"]: row for row in next(record_tables.caller_aims(CALLERS))}
    row = by_what["dnnffi torch flat, time of a call, limited by the GPU"]
    assert (row["Measured"], row["Reached"]) == ("at most 1.05x (a, inference)", "yes")
