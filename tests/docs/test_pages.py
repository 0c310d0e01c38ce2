"""Tests that what the pages say of the repository is true, and that they show the records."""

from __future__ import annotations

import json
import math
import re
import runpy
import tomllib
from pathlib import Path
from statistics import geometric_mean
from types import SimpleNamespace

import conformance
import pytest
import verification
from conformance import CUDNN, MIOPEN, VULKAN

import dnnffi
from dnnffi.backends.cudnn import limits as cudnn
from dnnffi.backends.miopen import limits as miopen
from dnnffi.backends.registry import BACKENDS
from dnnffi.backends.vendor.limits import Limit
from dnnffi.bench.summary import is_compared
from dnnffi.cli.sources import RECORDS
from dnnffi.spec.options import VENDOR_ALGORITHMS

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/reference/*")]
)
PATH = re.compile(r"`((?:src|tests|bindings|benchmarks|docs|examples)/[\w./]+)(?:::(\w+))?")
ROOM = re.compile(
    r"`((?:backends|bench|cli|convolution|device|execution|reference|rnn|spec|testing)/[\w./]*)`"
)
MADE = {"docs/_build"} | {  # by tools, and not in every checkout
    f"docs/verification/{name}" for name in RECORDS
}
TARGET = re.compile(r"`make ([a-z-]+)|^make ([a-z-]+)", re.MULTILINE)

records = runpy.run_path(str(ROOT / "docs" / "records.py"))
support = runpy.run_path(str(ROOT / "docs" / "support_table.py"))
conv = runpy.run_path(str(ROOT / "docs" / "conv_table.py"))
rnn = runpy.run_path(str(ROOT / "docs" / "rnn_table.py"))


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_files_and_tests_that_are_named_are_there(page):
    for path, test in PATH.findall(read(page).replace("\n", " ")):
        assert path in MADE or (ROOT / path).exists(), path
        if test:
            assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), test


def test_files_of_the_source_that_contributing_names_are_there():
    named = ROOM.findall(read("CONTRIBUTING.md"))
    assert len(named) > 20
    for path in named:
        assert (ROOT / "src" / "dnnffi" / path).exists(), path


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([\w./-]+)\)", read(page)):
        assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_that_are_named_are_there(page):
    makefile = read("Makefile")
    for names in TARGET.findall(read(page).replace("`make\n", "`make ")):
        assert re.search(rf"^{''.join(names)}:", makefile, re.MULTILINE), names


def test_the_index_of_the_reference_has_every_name_once():
    text = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    names = re.findall(r"^   (\w+)$", text, re.MULTILINE)
    assert sorted(names) == sorted(dnnffi.__all__)


def test_the_pages_are_in_three_parts():
    parts = re.findall(r":caption: (\w+)", read("docs/index.md"))
    assert parts == ["Use", "Reference", "Internals"]


@pytest.mark.parametrize(
    "word", ["reserve space", "workspace", "plan", "context", "executor", "row", "TF32"]
)
def test_the_glossary_has_the_word(word):
    assert f"\n\n{word}\n: " in read("docs/glossary.md")


def test_the_citation_is_of_this_version():
    assert f"\nversion: {dnnffi.__version__}\n" in read("CITATION.cff")


def test_versions_of_the_support_table_are_those_checked():
    vendors = runpy.run_path(str(ROOT / "bindings" / "vendors.py"))["VENDORS"]
    checked = [wheel.version for wheel in vendors["cudnn"].wheels]
    rows = re.findall(r"^\| ([\d.]+|newest)[^|]*\| yes \|", read("docs/support.md"), re.MULTILINE)
    assert len(rows) == len(checked)
    for row, version in zip(rows, checked, strict=True):
        assert f"{version}.".startswith(f"{row}.")


RECORD = {
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


def test_a_record_of_a_gpu_in_words():
    rows = dict(records["gpu_rows"](RECORD, []))
    assert rows["Tests"] == "1,234 passed, 1 failed, 0 error, 2 skipped"
    assert rows["Run on"] == "the source as it is now, dnnffi 0.1.0, 2026-01-02"
    assert rows["Driver"] == "580.1, CUDA 13.2"


def test_a_record_of_other_sources_says_so():
    rows = dict(records["gpu_rows"](RECORD, ["rnn", "cudnn"]))
    words = "an earlier state of the source (changed since: rnn, cudnn), "
    assert rows["Run on"].startswith(words)


def test_a_record_under_memcheck_in_words():
    runs = [
        {"tool": "memcheck", "errors": 0, "result": "12 passed", "tests": ["a.py", "-k", "lstm"]},
        {"tool": "racecheck", "errors": 2, "result": "3 passed", "tests": ["b.py"]},
    ]
    found = records["memcheck_rows"](RECORD | {"runs": runs}, [])
    assert found[:3] == [
        ("Errors found", "2"),
        ("Tests, memcheck", "12 passed (a.py -k lstm)"),
        ("Tests, racecheck", "3 passed (b.py)"),
    ]
    rows = dict(found)
    assert rows["Device"] == "Some GPU, 1 in the machine"


def test_a_record_of_the_emulated_device_in_words():
    record = RECORD | {"verified": "real libMIOpen 3.4.0", "problems": {"a": 2, "b": 1}}
    rows = dict(records["miopen_rows"](record, []))
    assert rows["Problems"] == "3 compared with the reference"
    assert rows["Run on"].startswith("the source as it is now, ")
    assert rows["Verified on"] == "real libMIOpen 3.4.0"


def supported(cudnn=None, miopen=None):
    """Return the cells of cuDNN and MIOpen in the table of support, by the first column."""
    rows = support["support_rows"]({"cudnn": cudnn, "miopen": miopen, "vulkan": None})
    assert {len(row) for row in rows} == {len(support["HEAD"])}
    return {row[0]: row[1:3] for row in rows}


def test_the_table_counts_what_passed_and_quotes_what_was_refused():
    shown = {
        "problems": {
            "lstm float32 dense L1 uni bias": 2,
            "lstm float32 packed L1 bi bias": 1,
            "gru float32 dense L1 uni bias": 4,
        },
        "refusals": {"float64": "MIOpen 3.4.0: not float64"},
        "tests": {test: 3 for row in support["ROWS"] for test in row.miopen},
    }
    rows = supported(miopen=shown | {"verified": "an emulated device"})
    assert rows["Verified on"][1] == "an emulated device"
    assert rows["LSTM"][1] == "yes: 3 problems"
    assert rows["x is [T, B, I]"][1] == "yes: 6 problems"
    assert rows["Own buffers, without allocation"][1] == "yes: 3 tests"
    assert rows["float64"][1] == "no: MIOpen 3.4.0: not float64"
    assert rows["float16"][1] == "not verified"
    # 2 modes, 2 layouts, 2 directions
    assert rows["Combinations of modes, types, x, layers, directions, biases"][1] == "3 of 8"


def test_a_record_without_counts_says_nothing_of_what_works():
    rows = supported(cudnn=RECORD)
    assert rows.pop("Verified on") == ("cuDNN 9.19.0, Some GPU", "not recorded yet")
    assert {cell for row in rows.values() for cell in row} == {"not recorded yet"}


def test_the_rows_of_the_table_are_of_words_and_tests_that_there_are():
    cases = [case for one in (CUDNN, MIOPEN, VULKAN) for case in conformance.matrix(one)]
    words = {word for case in cases for word in conformance.capability(case.problem).split()}
    elsewhere = {"clip", "dropout", "fast", *VENDOR_ALGORITHMS["cudnn"]}  # not in the matrix
    for row in support["ROWS"]:
        assert set(row.problems) <= words | elsewhere
        for test in row.cudnn + row.miopen:
            path, _, name = test.partition("::")
            assert f"def {name}(" in read(path), test


def test_the_table_of_convolutions_quotes_the_limits():
    rows = {words: cells for words, *cells in conv["rows"]()}
    assert {len(cells) for cells in rows.values()} == {len(conv["HEAD"]) - 1}
    assert len(rows) == len(conv["ROWS"])
    assert rows["float64"] == [
        "yes",
        "no: convolutions are float16, bfloat16, float32, not float64; cudnn and reference have it",
        "yes",
    ]
    padding = "output_padding must be smaller than stride, (1, 1); got (1, 1); reference has it"
    assert rows["Transposed, an output padding of the stride or more"] == [
        *(f"no: {padding}", f"no: {padding}"),
        "yes",
    ]
    assert rows['"math": "strict"'][2] == "ignored"
    assert rows["In one kernel: bias, residual and ReLU"] == [
        *("if the library has a kernel", "no: a fusion plan has no residual"),
        "-",
    ]
    refused = [{words for words in rows if rows[words][n].startswith("no:")} for n in range(3)]
    assert refused == [
        {"Transposed, an output padding of the stride or more"},
        {
            "float64",
            "Bias, residual and ReLU, bfloat16",
            "Transposed, an output padding of the stride or more",
            '"math": "strict"',
            '"math": "fast"',
            "An array of more than 2147483647 elements",
            "In one kernel: bias, residual and ReLU",
            *(
                f"In one kernel: bias and ReLU, {what}"
                for what in (
                    *("float16", "channels last", "three dimensions"),
                    *("transposed", "deterministic"),
                )
            ),
            *(f"Without CuPy: gradient of a bias, {dtype}" for dtype in ("bfloat16", "float64")),
        },
        set(),
    ]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("Groups", "groups=2"),
        ("Depthwise", "in_channels=4, out_channels=4, .*groups=4"),
        ("Stride", r"stride=\(2, 2\)"),
        ("Dilation", r"dilation=\(2, 2\)"),
        ("ransposed", "transposed=True"),
        ("float16", "dtype='b?float16'"),
        ("bfloat16", "dtype='bfloat16'"),
        ("float64", "dtype='float64'"),
        ("hannels last", "channels_last"),
        ("esidual and ReLU", r"forward \+ 0.5 \* residual \+ bias \+ relu"),
        ("bias and ReLU", r"forward \+ bias \+ relu"),
        ('"math": "strict"', "math='strict'"),
        ('"deterministic"', "deterministic=True"),
        ("Backward data", "^backward_data "),
    ],
)
def test_a_row_of_convolutions_asks_for_what_its_words_say(words, asked):
    rows = [row for row in conv["ROWS"] if words in row.words and "gradient" not in row.words]
    assert rows
    for problem in (problem for row in rows for problem in row.asked):
        assert re.search(asked, f"{problem} {problem.options}"), problem


def test_rows_of_several_dimensions_ask_for_each():
    ranks = {row.words: {len(one.sizes) for one in row.asked} for row in conv["ROWS"][:3]}
    assert [*ranks.values()] == [{1, 2, 3}] * 3
    assert all(words.endswith("in one to three dimensions") for words in ranks)


def test_every_limit_of_convolutions_is_in_the_table():
    # Each limit is in one row, whose problems are all refused.
    cells = [cell for _, *cells in conv["rows"]() for cell in cells]
    assert not any(cell.startswith("in part") for cell in cells)
    for limits in (cudnn.LIMITS, miopen.LIMITS, miopen.FUSION, miopen.BIAS_GRADIENT):
        for limit in limits:
            assert any(limit.words.partition("{")[0] in cell for cell in cells), limit.words


def test_the_table_of_networks_quotes_what_is_refused():
    rows = {words: cells for words, *cells in rnn["rows"]()}
    assert len(rows) == len(rnn["ROWS"])
    assert rnn["HEAD"][1:] == tuple(backend.title for backend in BACKENDS.values())
    assert rows["float32"] == ["no limit"] * len(BACKENDS)
    assert dict(zip(BACKENDS, rows["float64"], strict=True)) == {
        "cudnn": "no limit",
        "miopen": "no: RNNs are float16 or float32, not float64; cudnn and reference have it",
        "vulkan": "no: RNNs are float16 or float32, not float64; cudnn and reference have it",
        "reference": "no limit",
    }


def test_a_row_of_networks_asks_for_what_its_words_say():
    asked = {row.words: row.asked for row in rnn["ROWS"]}
    assert asked["Training"].training
    assert asked["float16"].spec.dtype == "float16"
    assert asked["Projection of an LSTM"].spec.proj_size
    assert asked["Clipping of the cell of an LSTM"].options.clip
    assert asked['"math": "strict"'].options.math == "strict"
    assert len(set(asked["Rows of different length"].lengths)) == 2
    persistent = asked['Rows of different length, "algorithm": "persist_static"']
    assert (persistent.options.algorithm, persistent.lengths) == ("persist_static", (3, 2))
    assert asked["65536 time steps"].steps == 65536


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=list(BACKENDS))
def test_every_limit_of_networks_is_in_the_column_of_its_backend(backend):
    column = rnn["HEAD"].index(backend.title)
    cells = [row[column] for row in rnn["rows"]()]
    for limit in backend.rnn_limits:
        assert any(limit.words.partition("{")[0] in cell for cell in cells), limit.words


def test_limits_that_differ_are_no_whole_answer():
    limits = (Limit(lambda asked: asked > 1, "at most 1, not {asked}", "ask for less"),)
    row = conv["Row"]("numbers", (1, 2, 3), {"cudnn": limits})
    assert conv["cell"](row, "cudnn") == (
        "in part: at most 1, not 2; ask for less; at most 1, not 3; ask for less"
    )
    assert conv["cell"](row._replace(asked=(3,)), "cudnn") == "no: at most 1, not 3; ask for less"


def test_what_a_run_showed_is_what_its_tests_kept():
    kept = [("checked", ["lstm", "gru"]), ("refused", ("clip", "no"))]
    reports = [
        SimpleNamespace(nodeid=f"tests/a.py::test_b[{n}]", user_properties=kept) for n in range(2)
    ]
    assert verification.shown(reports) == {
        "problems": {"gru": 2, "lstm": 2},
        "refusals": {"clip": "no"},
        "tests": {"tests/a.py::test_b": 2},
    }


class Run:
    """Stand-in for pytest's terminal reporter at the end of a run."""

    def __init__(self, *, record=True, **reports):
        self.config = SimpleNamespace(getoption=lambda name: record)
        self.reports, self.lines = reports, []

    def getreports(self, kind):
        return self.reports.get(kind, [])

    def write_line(self, line):
        self.lines.append(line)


def report(nodeid, problem):
    return SimpleNamespace(nodeid=nodeid, user_properties=[("checked", [problem])])


@pytest.mark.parametrize(
    ("folder", "record", "written"),
    [("gfx1100", True, True), ("gfx1100", False, False), ("gpu", True, False)],
)
def test_a_record_is_of_a_run_in_its_folder(tmp_path, monkeypatch, folder, record, written):
    monkeypatch.setattr(verification, "RECORDS", tmp_path)
    right = report("tests/gfx1100/test_a.py::test_right", "lstm")
    leaking = report("tests/gfx1100/test_a.py::test_leaking", "gru")
    run = Run(record=record, passed=[right, leaking], error=[leaking])
    verification.write(run, "one.json", ROOT / "tests" / folder, lambda: {"device": "it"})
    assert (tmp_path / "one.json").exists() == bool(run.lines) == written
    if written:
        found = json.loads((tmp_path / "one.json").read_text(encoding="utf-8"))
        assert (found["device"], found["passed"], found["error"]) == ("it", 2, 1)
        # A leak is found after the test passed, and removes it from the record.
        assert found["problems"] == {"lstm": 1}


def test_the_overhead_of_the_executor_is_a_difference():
    row = {"problem": "lstm", "raw": 20.0, "executor": 21.5, "functional": 13.25, "launch": 3.0}
    found = records["overhead_rows"]({"rows": [row]})
    assert found == [("lstm", "20.0", "+1.5", "13.2", "not measured", "3.0", "not measured")]
    assert len(found[0]) == len(records["OVERHEAD_HEAD"])


def test_aims_without_a_record_are_not_measured():
    rows = records["target_rows"](None)
    assert all(len(row) == len(records["TARGET_HEAD"]) for row in rows)
    assert {row[3] for row in rows} == {"not measured"}
    expected = ("any single shape", "PyTorch", ">= 1.0x", "not measured", "-", "not measured", "-")
    assert expected in rows


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
    found = records["jax_rows"]({"rows": rows}, "training")
    none = "not measured"
    assert found == [
        ("lstm f16 1 2 3 4 1 uni", "1.000", "0.990", "4.000", "2.000 (10)", "8.000", none, "2.00"),
        ("lstm f32 1 2 3 4 1 uni", "2.000", "1.000", "1.500", none, none, none, "0.75"),
    ]
    assert all(len(row) == len(records["JAX_HEAD"]) for row in found)
    assert records["jax_rows"]({"rows": rows}, "inference")[1][1:] == (none,) * 7
    # float32 is not among those that are to be as fast as JAX's fastest.
    assert records["jax_aims"]({"rows": rows}) == [
        ("the captured plan", ">= 0.97x", "0.79", "0.50", "2 of 3"),
        ("JAX's fastest, float16 and bfloat16", ">= 1.00x", "2.00", "2.00", "2 of 2"),
    ]
    assert len(records["JAX_AIM_HEAD"]) == 5
    assert records["jax_aims"]({"rows": []})[0][2:] == (none, none, "0 of 0")


@pytest.mark.parametrize(
    ("nothing", "said"), [((0.028, 0.0281), "28 µs"), ((0.1, 0.0281, 0.09), "from 28 to 100 µs")]
)
def test_the_least_that_a_call_in_jax_takes(nothing, said):
    rows = [{"nothing": ms} for ms in nothing]
    assert f" took {said} a call " in records["jax_least"]({"rows": rows})


def test_several_gpus_in_jax_stand_beside_one():
    one = {"devices": 1, "shard_map": 7.5, "jit": 7.0}
    one |= {"shard_map throughput": 1.0, "jit throughput": 1.0}
    two = one | {"devices": 2, "shard_map throughput": 1.951, "sum": 0.24, "alone": [7.0, 7.25]}
    assert records["jax_device_rows"]({"devices": [one, two]}) == [
        ("1", "7.50", "1.00x", "7.00", "1.00x", "-", "-", "-"),
        ("2", "7.50", "1.95x", "7.00", "1.00x", ">= 1.95x", "0.24", "7.00, 7.25"),
    ]
    assert len(records["JAX_DEVICES_HEAD"]) == 8


def test_convolutions_in_jax_stand_beside_plans():
    of_row = {"set": "resnet50", "config": "f16 last", "operation": "backward_data"}
    rows = [of_row | {"jax": 2.0, "dnnffi": 1.0}, of_row | {"jax": 0.5, "dnnffi": 1.0}]
    found = records["jax_conv_rows"]({"rows": [*rows, of_row | {"error": "no engine"}]})
    what, plan = ("resnet50", "f16 last", "backward data", "2"), "1.00 (0.50 to 2.00)"
    assert found == [(*what, "not measured", "not measured", plan)]
    ours = [row | {"djax": 1.25} for row in rows]
    found = records["jax_conv_rows"]({"rows": ours})
    assert found == [(*what, "0.80 (0.40 to 1.60)", "1", plan)]
    assert len(records["JAX_CONV_HEAD"]) == len(found[0])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (None, "an unknown state of the source"),
        ([], "the source as it is now"),
        (["spec", "rnn"], "an earlier state of the source (changed since: spec, rnn)"),
    ],
)
def test_a_benchmark_says_of_which_source_it_is(changed, words):
    machine = {"device": "Some GPU", "src_sha256": "abc", "source": {"rnn": "0"}, "python": "3.12"}
    found = records["measured_on"](machine, changed)
    assert found == f"A record of {words}: device Some GPU, python 3.12."


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
    rows = records["conv_layers"](record)
    assert records["conv_layers_head"](record) == ("Layer", "f16, dx", "f16, y")
    assert rows == [
        ("vgg16 3x3", "10.0 (1.20)", "10.0 (0.90)"),
        ("vgg16 1x1", "4.0", "not measured"),
    ]
    ratio, called = "kernels, PyTorch's time over dnnffi's, f16", "host cost of a call of"
    assert records["conv_aims"](record) == [
        (f"{ratio}, geometric mean", ">= 1.0", "1.04 of 2", "yes"),
        (f"{ratio}, lowest", ">= 0.95", "0.90", "no"),
        (f"{called} a held plan, small", "<= 6 µs", "6.0 µs; PyTorch 13.5 µs", "no"),
        (f"{called} dnnffi.conv, small", "<= 12 µs", "11.0 µs; PyTorch 13.5 µs", "yes"),
        (
            *("first call of a new problem, f16", "<= PyTorch's"),
            *("2.50 ms; PyTorch 2.50 ms; medians of 2 problems", "yes"),
        ),
    ]
    assert all(len(one) == len(records["CONV_HEAD"]) for one in records["conv_aims"](record))


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
    assert records["conv_layers"](record) == [
        ("vgg16 5x5", "10.0 (0.96)"),
        ("vgg16 7x7", "10.0 (0.40; error 8e-04)"),
    ]
    ratio = "kernels, PyTorch's time over dnnffi's, f32"
    assert records["conv_aims"](record)[1:] == [
        (f"{ratio}, lowest", ">= 0.95", "0.40", "no"),
        (f"{ratio}, lowest where both are precise", ">= 0.95", "0.96", "yes"),
        ("error, largest, f32", "<= 1e-04", "4e-06; PyTorch 8e-04", "yes"),
    ]


def test_layers_that_were_not_tuned_in_a_table():
    row = {"config": "f32 first", "operation": "backward_data", "dnnffi": 2.0}
    record = {"kernels": [row | {"torch": 4.0, "cudnn": 2.0}, row | {"torch": 16.0, "cudnn": 8.0}]}
    (cells,) = records["untuned_rows"](record)
    assert dict(zip(records["UNTUNED_HEAD"], cells, strict=True)) == {
        "Arrays": "f32 first",
        "Operation": "backward data",
        "Layers": "2",
        "PyTorch": "4.00; 2.00",
        "cuDNN's heuristics": "2.00; 1.00",
    }


def test_what_is_gained_over_the_library_in_a_table():
    row = {"shape": "one", "phase": "inference", "ms": 0.5}
    record = {
        "shapes": [{"name": "one"}, {"name": "two"}],
        "rows": [
            row | {"model": "cudnn raw"},
            row | {"model": "dnnffi plan captured", "ms": 0.25},
            row | {"model": "cudnn raw", "shape": "two"},
        ],
    }
    none = ("not measured",) * 3
    assert records["gain_rows"](record) == [
        ("one", "0.500", "0.250", "2.00", *none),
        ("two", *none, *none),
        ("geometric mean", "", "", "2.00", "", "", "not measured"),
    ]
    assert len(records["GAIN_HEAD"]) == 7


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
    found = records["memory_of_own_kernels"]([{"rows": rows[:3]}, {"rows": rows}])
    assert "are 0.30 to 0.90 times those" in found
    assert "(most for c, inference)" in found
    assert "0.80 times in the median of 3 cases" in found
    assert records["memory_of_own_kernels"]([{"rows": []}]).startswith("No shape")


def test_the_gain_that_the_readme_tells_is_that_of_the_record():
    record = json.loads((ROOT / "docs/verification/bench_rnn.json").read_text(encoding="utf-8"))
    *_, means = records["gain_rows"](record)
    inference, training = means[3], means[6]
    measured = [shape for shape in record["shapes"] if is_compared(shape)]
    text = " ".join(read("README.md").split())
    assert (
        f"On an {record['machine']['device'].split()[-1]}, tuned plans are {inference} times as "
        f"fast as cuDNN's fastest algorithm at inference, and {training} times with all gradients "
        f"(geometric means over {len(measured)} shapes whose rows have equal lengths)"
    ) in text


def test_what_is_said_of_networks_in_jax_is_of_the_record():
    record = json.loads((ROOT / "docs/verification/bench_jax.json").read_text(encoding="utf-8"))
    times = [row[phase] for row in record["rows"] for phase in ("inference", "training")]
    scans = [
        min(ms for name, ms in one.items() if name.startswith("scan ")) / one["dnnffi.jax"]
        for one in times
    ]
    assert (
        f"these functions are {geometric_mean(scans):.1f} times as fast as the fastest unrolled "
        f"`lax.scan` (geometric mean over {len(record['rows'])} networks, inference and gradients; "
        f"from {min(scans):.2f} to {max(scans):.1f} times)"
    ) in " ".join(read("README.md").split())
    page = " ".join(read("docs/jax.md").split())
    slowest = max(one["dnnffi.jax"] for one in times if one["plan"] < 0.97 * one["dnnffi.jax"])
    longer = f"{math.ceil(100 * slowest) / 100:.2f}"
    assert f"networks that take more than {longer} ms are within 3 % of the plan" in page
    alone, two = record["devices"][:2]
    most = [2 * alone[way] / (alone[way] + two["sum"]) for way in ("shard_map", "jit")]
    assert f"two H200s cannot exceed {max(most):.2f} times the throughput of one" in page


def test_a_benchmark_in_a_table():
    record = {
        "shapes": [{"name": "one"}],
        "rows": [
            {"shape": "one", "model": "dnnffi", "phase": "inference", "ms": 0.5, "host_us": 8.04},
            {"shape": "one", "model": "cudnn raw", "phase": "inference", "ms": 0.25},
            {"shape": "one", "model": "torch graph", "phase": "training", "ms": 1.25},
        ],
    }
    (row,) = records["bench_rows"](record, "inference")
    assert dict(zip(records["BENCH_HEAD"], row, strict=True)) == {
        "Shape": "one",
        "dnnffi": "0.500",
        "RNNPlan.capture": "not measured",
        "cuDNN alone": "0.250",
        "PyTorch": "not measured",
        "PyTorch in a graph": "not measured",
        "host µs, dnnffi": "8.0",
        "host µs, PyTorch": "not measured",
    }
    (row,) = records["bench_rows"](record, "training")
    assert row == ("one", *["not measured"] * 4, "1.250", *["not measured"] * 2)


def test_a_benchmark_of_images_in_a_table():
    row = {"shape": "one", "phase": "inference"}
    record = {
        "shapes": [{"name": "one"}],
        "rows": [
            row | {"model": "dnnffi", "ms": 0.5, "host_us": 8.04},
            row | {"model": "dnnffi tuned", "ms": 0.25, "host_us": 9.0},
            row | {"model": "torch graph", "ms": 1.25, "host_us": 3.0},
        ],
    }
    (row,) = records["bench_rows"](record, "inference", records["IMAGE_MODELS"])
    absent = "not measured"
    assert row == ("one", "0.500", "0.250", *[absent] * 4, "1.250", "8.0", absent)
    assert len(row) == len(records["IMAGE_HEAD"])


def test_host_costs_of_plans_in_a_table():
    row = {"shape": "one", "ms": 0.5}
    record = {
        "shapes": [{"name": "one"}],
        "rows": [
            row | {"model": "dnnffi plan", "phase": "inference", "host_us": 7.26},
            row | {"model": "torch eager", "phase": "training", "host_us": 90.0},
        ],
    }
    (found,) = records["plan_rows"](record)
    measured = dict(zip(records["PLAN_HEAD"], found, strict=True))
    assert measured.pop("Shape") == "one"
    assert measured.pop("inference, dnnffi plan") == "7.3"
    assert measured.pop("forward + backward, PyTorch") == "90.0"
    assert set(measured.values()) == {"not measured"}
    assert len(measured) == 6


def test_the_first_calls_are_told_in_seconds():
    row = {
        "shape": "one",
        "phase": "training",
        "first_s": 0.125,
        "longest_s": 1.5,
        "longest_call": 8,
        "sum_s": 2.0,
        "last_s": 0.0005,
    }
    found = records["first_rows"]({"rows": [row]})
    assert found == [("one", "forward + backward", "0.12", "1.50 (call 8)", "2.00", "0.50")]
    assert len(found[0]) == len(records["FIRST_HEAD"])


def test_the_benchmark_of_vulkan_is_beside_the_reference():
    row = {
        "problem": "gru",
        "submissions": 1,
        "median_ms": {"auto": 2.0, "reference": 4.0},
        "least_ms": {"auto": 1.5, "reference": 1.0},
    }
    found = records["vulkan_rows"]({"rows": [row]})
    assert found == [
        ("gru", "auto", "2.00 (1.50)", "0.50 (1.50)", "", "", "1"),
        ("gru", "reference", "4.00 (1.00)", "1.00 (1.00)", "", "", ""),
    ]
    row |= {"bound_ms": {"auto": 0.75}, "dispatches": {"auto": 51}}
    assert records["vulkan_rows"]({"rows": [row]})[0][4:] == ("0.75", "51", "1")
    assert records["vulkan_bounds"]({}) == ""
    bounds = {"gflops": 1234.5, "dispatch_us": 2.5, "submission_us": 80.0}
    assert records["vulkan_bounds"]({"bounds": bounds}).endswith("waited for 80 µs. ")
    assert "1,234 GFLOP/s" in records["vulkan_bounds"]({"bounds": bounds})
    bounds |= {
        "submission_wgpu_py_us": 120.0,
        "submission_asleep_us": 70.0,
        "copy_ms": 0.25,
        "copy_threads": 4,
        "copy_one_thread_ms": 1.0,
    }
    text = records["vulkan_bounds"]({"bounds": bounds})
    assert "80 µs (120 µs by wgpu-py's thread, 70 µs where the caller sleeps)" in text
    assert text.endswith("memory in 1.00 ms, by 4 threads in 0.25 ms. ")
    assert records["vulkan_parts"]({"rows": [row]}) == []
    row["parts_us"] = {"prepare": 1500.0, "submit": 9.0, "wait": 80.0, "results": 4.0}
    assert records["vulkan_parts"]({"rows": [row]}) == [("gru", "1,500", "9", "80", "4")]


def test_the_page_to_install_names_each_extra():
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    page = read("docs/install.md")
    named = set(re.findall(r"'\.\[([a-z0-9,]+)\]'|^\| `([a-z`, ]+)` \|", page, re.MULTILINE))
    names = {one for pair in named for text in pair for one in re.findall(r"[a-z0-9]+", text)}
    # make installs the extras dev and docs.
    assert names == extras.keys() - {"dev", "docs"}
