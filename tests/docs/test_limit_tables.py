"""Tests that the tables of limits and of support tell what the code and the tests do."""

from __future__ import annotations

import re
from pathlib import Path

import conformance
import limit_tables
import pytest
import support_table
from conformance import CUDNN, MIOPEN, VULKAN

from dnnffi.backends.cudnn import limits as cudnn
from dnnffi.backends.miopen import limits as miopen
from dnnffi.backends.registry import BACKENDS
from dnnffi.backends.vendor.limits import Limit
from dnnffi.spec.options import VENDOR_ALGORITHMS

ROOT = Path(__file__).parents[2]


def cells_of(make):
    """Return the cells of the rows of a table by their first column."""
    (rows,) = make()
    return {words: cells for words, *cells in (row.values() for row in rows)}


def is_quoted(limit, cells):
    """Return whether one of the cells has the words of a limit, with anything for what came."""
    words = ".+".join(map(re.escape, re.split(r"\{[^}]*\}", limit.words)))
    return any(re.search(words, cell) for cell in cells)


def supported(cudnn, miopen):
    """Return the rows of the table of support by their first column."""
    (rows,) = support_table.support_table(cudnn, miopen, {})
    return {row[""]: row for row in rows}


def test_the_table_counts_what_passed_and_quotes_what_was_refused():
    shown = {
        "problems": {
            "lstm float32 dense L1 uni bias": 2,
            "lstm float32 packed L1 bi bias": 1,
            "gru float32 dense L1 uni bias": 4,
        },
        "refusals": {"float64": "MIOpen 3.4.0: not float64"},
        "tests": {test: 3 for one in support_table.QUESTIONS for test in one["miopen"].split()},
        "verified": "an emulated device",
    }
    rows = supported({}, shown)
    assert rows["Verified on"]["MIOpen"] == "an emulated device"
    assert rows["LSTM"]["MIOpen"] == "yes: 3 problems"
    assert rows["x is [T, B, I]"]["MIOpen"] == "yes: 6 problems"
    assert rows["Own buffers, without allocation"]["MIOpen"] == "yes: 3 tests"
    assert rows["float64"]["MIOpen"] == "no: MIOpen 3.4.0: not float64"
    assert rows["float16"]["MIOpen"] == "not verified"
    # 2 modes, 2 layouts, 2 directions
    assert rows["Combinations of modes, types, x, layers, directions, biases"]["MIOpen"] == "3 of 8"


def test_a_record_without_counts_says_nothing_of_what_works():
    rows = supported({"cudnn": "9.19.0", "device": "Some GPU"}, {})
    verified = rows.pop("Verified on")
    assert (verified["cuDNN"], verified["MIOpen"]) == ("cuDNN 9.19.0, Some GPU", "not recorded yet")
    cells = {row[title] for row in rows.values() for title in ("cuDNN", "MIOpen", "Vulkan")}
    assert cells == {"not recorded yet"}


def test_the_rows_of_the_table_are_of_words_and_tests_that_there_are():
    cases = [case for one in (CUDNN, MIOPEN, VULKAN) for case in conformance.matrix(one)]
    words = {word for case in cases for word in conformance.capability(case.problem).split()}
    elsewhere = {"clip", "dropout", "fast", *VENDOR_ALGORITHMS["cudnn"]}  # not in the matrix
    for question in support_table.QUESTIONS:
        assert set(question["problems"].split()) <= words | elsewhere
        for test in f"{question['cudnn']} {question['miopen']}".split():
            path, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), test


def test_the_table_of_convolutions_quotes_the_limits():
    rows = cells_of(limit_tables.conv_table)
    assert len(rows) == len(limit_tables.CONV_ROWS)
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
        {
            "Transposed, an output padding of the stride or more",
            "An array of more than 2147483647 positions in one dimension",
        },
        {
            "float64",
            "Bias, residual and ReLU, bfloat16",
            "Transposed, an output padding of the stride or more",
            '"math": "strict"',
            '"math": "fast"',
            "An array of more than 2147483647 elements",
            "An array of more than 2147483647 positions in one dimension",
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
    rows = [
        row for row in limit_tables.CONV_ROWS if words in row.words and "gradient" not in row.words
    ]
    assert rows
    for problem in (problem for row in rows for problem in row.asked):
        assert re.search(asked, f"{problem} {problem.options}"), problem


def test_rows_of_several_dimensions_ask_for_each():
    ranks = {row.words: {len(one.sizes) for one in row.asked} for row in limit_tables.CONV_ROWS[:3]}
    assert [*ranks.values()] == [{1, 2, 3}] * 3
    assert all(words.endswith("in one to three dimensions") for words in ranks)


def test_every_limit_of_convolutions_is_in_the_table():
    # Each limit is in one row, whose problems are all refused.
    cells = [cell for row in cells_of(limit_tables.conv_table).values() for cell in row]
    assert not any(cell.startswith("in part") for cell in cells)
    for limits in (cudnn.CONV_LIMITS, miopen.CONV_LIMITS, miopen.FUSION, miopen.BIAS_GRADIENT):
        for limit in limits:
            assert is_quoted(limit, cells), limit.words


def test_the_table_of_networks_quotes_what_is_refused():
    rows = cells_of(limit_tables.rnn_table)
    assert len(rows) == len(limit_tables.RNN_ROWS)
    assert rows["float32"] == ["no limit"] * len(BACKENDS)
    assert dict(zip(BACKENDS, rows["float64"], strict=True)) == {
        "cudnn": "no limit",
        "miopen": "no: RNNs are float16 or float32, not float64; cudnn and reference have it",
        "vulkan": "no: RNNs are float16 or float32, not float64; cudnn and reference have it",
        "reference": "no limit",
    }


def test_a_row_of_networks_asks_for_what_its_words_say():
    asked = {row.words: row.asked for row in limit_tables.RNN_ROWS}
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
    (rows,) = limit_tables.rnn_table()
    cells = [row[backend.title] for row in rows]
    for limit in backend.rnn_limits:
        if "{asked.spec.mode" not in limit.words:  # no network of an unknown mode can be made
            assert is_quoted(limit, cells), limit.words


def test_limits_that_differ_are_no_whole_answer():
    limits = (Limit(lambda asked: asked > 1, "at most 1, not {asked}", "ask for less"),)
    row = limit_tables.ConvRow("numbers", (1, 2, 3), {"cudnn": limits})
    assert limit_tables.conv_cell(row, "cudnn") == (
        "in part: at most 1, not 2; ask for less; at most 1, not 3; ask for less"
    )
    assert (
        limit_tables.conv_cell(row._replace(asked=(3,)), "cudnn")
        == "no: at most 1, not 3; ask for less"
    )
