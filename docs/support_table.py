"""The table of what each backend does, out of the records of the tests that showed it."""

from __future__ import annotations

from typing import Any, NamedTuple

NOT_RECORDED = "not recorded yet"
NOT_VERIFIED = "not verified"
HEAD = ("", "cuDNN", "MIOpen", "Vulkan", "reference")
RECORD_FILES = {"cudnn": "gpu.json", "miopen": "miopen.json", "vulkan": "vulkan.json"}

Tests = tuple[str, ...]
CHOSEN = (
    *("standard", "persist_static", "persist_dynamic", "persist_static_small_h"),
    *("fundamental", "stepwise", "persistent"),
)
CAPTURE: Tests = ("tests/gpu/test_calls.py::test_capture_in_a_graph",)


class Row(NamedTuple):
    """A question, and the part of a record that answers it.

    Problems count that have one of ``problems`` among the words of their capability (see
    tests/conformance.py), and so do the tests; ``refusal`` is the name by which a test records the
    error of a backend that has no such thing.
    """

    words: str
    problems: tuple[str, ...] = ()
    cudnn: Tests = ()
    miopen: Tests = ()
    refusal: str = ""
    reference: str = "yes"


ROWS = (
    Row(
        "Training and gradients",
        cudnn=("tests/gpu/test_rnn.py::test_matrix",),
        miopen=("tests/gfx1100/test_functional.py::test_matrix",),
        refusal="training",
    ),
    Row("LSTM", ("lstm",)),
    Row("GRU", ("gru",)),
    Row("RNN with tanh", ("rnn_tanh",)),
    Row("RNN with ReLU", ("rnn_relu",)),
    Row("float32", ("float32",)),
    Row("float16", ("float16",)),
    Row("bfloat16", ("bfloat16",), refusal="bfloat16"),
    Row("float64", ("float64",), refusal="float64"),
    Row("x is [T, B, I]", ("dense",)),
    Row("x is [B, T, I]", ("batch_first",)),
    Row("x is packed", ("packed",)),
    Row("x is [T, B, I], lengths in any order", ("lengths",)),
    Row("x is [B, T, I], lengths in any order", ("batch_first_lengths",)),
    Row("One layer", ("L1",)),
    Row("Two layers", ("L2",)),
    Row("Three layers", ("L3",)),
    Row("One direction", ("uni",)),
    Row("Both directions", ("bi",)),
    Row("With biases", ("bias",)),
    Row("Without biases", ("nobias",)),
    Row("Projection of an LSTM", ("projection",), refusal="projection"),
    Row("Clipping of the cell of an LSTM", ("clip",), refusal="clip"),
    Row(
        "Dropout between layers",
        ("dropout",),
        cudnn=(
            "tests/gpu/test_dropout.py::test_results_are_the_reference_with_the_same_masks",
            "tests/gpu/test_own.py::test_dropout_is_the_reference_with_the_same_masks",
        ),
    ),
    Row("Choice of algorithm", CHOSEN, reference="ignored"),
    Row("Choice of math", ("strict", "fast"), refusal="math", reference="ignored"),
    Row(
        "Own buffers, without allocation",
        cudnn=("tests/gpu/test_calls.py::test_executor_with_own_buffers_in_and_out_of_order",),
        miopen=("tests/gfx1100/test_executor.py::test_with_own_buffers_and_accumulation",),
        reference="no",
    ),
    Row(
        "Arrays of other libraries without CuPy, results from an allocator",
        cudnn=("tests/gpu/test_embedding.py::test_tensors_in_and_tensors_out",),
        miopen=(
            "tests/gfx1100/test_functional_calls.py::test_arrays_in_and_the_allocators_own_out",
        ),
        reference="yes, on the host",
    ),
    Row("Capture in a graph", cudnn=CAPTURE, reference=NOT_VERIFIED),
    Row(
        "Convolution, its gradients, transposed",
        cudnn=("tests/gpu/test_conv.py::test_matrix",),
        miopen=("tests/gfx1100/test_functional_conv.py::test_matrix",),
        refusal="convolution",
    ),
)


def support_rows(records: dict[str, dict[str, Any] | None]) -> list[tuple[str, ...]]:
    """One row for how it was verified, one for each of `ROWS`, one for their combinations."""
    cudnn, miopen, vulkan = (records[name] or {} for name in RECORD_FILES)
    how = (
        f"cuDNN {cudnn['cudnn']}, {cudnn['device']}" if cudnn else NOT_RECORDED,
        miopen.get("verified", NOT_RECORDED),
        vulkan.get("verified", NOT_RECORDED),
    )
    rows: list[tuple[str, ...]] = [("Verified on", *how, "CPU")]
    for row in ROWS:
        cells = (
            _cell(row, row.cudnn, cudnn),
            _cell(row, row.miopen, miopen),
            _cell(row, (), vulkan),
        )
        rows.append((row.words, *cells, row.reference))
    covered = _combinations(cudnn), _combinations(miopen), _combinations(vulkan)
    rows.append(("Combinations of modes, types, x, layers, directions, biases", *covered, "-"))
    return rows


def _cell(row: Row, tests: Tests, record: dict[str, Any]) -> str:
    if "problems" not in record:
        return NOT_RECORDED
    asked = set(row.problems)
    problems = sum(n for words, n in record["problems"].items() if asked & set(words.split()))
    passed = sum(record["tests"].get(test, 0) for test in tests)
    shown = [f"{n:,} {of}" for n, of in ((problems, "problems"), (passed, "tests")) if n]
    if shown:
        return f"yes: {', '.join(shown)}"
    refusal = record["refusals"].get(row.refusal)
    return f"no: {refusal}" if refusal else NOT_VERIFIED


def _combinations(record: dict[str, Any]) -> str:
    """Return the number of possible combinations of the words that occur, and of those seen."""
    if "problems" not in record:
        return NOT_RECORDED
    seen = {tuple(words.split()[:6]) for words in record["problems"]}
    possible = 1
    for values in zip(*seen, strict=True):
        possible *= len(set(values))
    return f"{len(seen):,} of {possible:,}"
