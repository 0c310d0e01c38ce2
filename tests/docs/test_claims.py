"""Tests that figures in pages and comments name their GPU and come from a record."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from pathlib import Path

import pytest

from dnnffi.bench.resnet import resnet
from dnnffi.cli.sources import PACKAGE, source_files

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
)
FIGURE = re.compile(r"\d ?(?:µs|us|ms|ns|%|s|GB/s)(?![\w-])|\d(?:\.\d+)? times (?:as|the)\b")
GPU = re.compile(r"\b(?:RTX \d{4}|GH200|[ABHLTV]\d{2,3})(?=s?\b)")
# Parts of the paragraphs whose figures a test compares with a record, here or in test_pages.py.
COMPARED = {
    "README.md": ["tuned plans are", "the fastest unrolled `lax.scan`"],
    "docs/convolution.md": ["is the fastest candidate for several layers of MobileNetV2"],
    "docs/jax.md": ["XLA adds", "two H200s cannot exceed"],
    "docs/own_engine.md": ["a word takes", "a step of an LSTM on an H200 takes cuDNN"],
}
# Parts of paragraphs with times that are not results of a measurement.
SETTINGS = {
    "docs/benchmarks.md": ["consecutive calls for about 20 ms", "resets states at 1 % and at 10 %"],
    "docs/tuning.md": ["at least 1.5 times as fast as cuDNN's other algorithms"],
}
SETTING = ("bench", "cli")


def record(name):
    return json.loads((ROOT / "docs" / "verification" / name).read_text(encoding="utf-8"))


def text_of(page):
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def gpus():
    """Return the GPU models that the records name."""
    made = (ROOT / "docs" / "verification").glob("*.json")
    text = "".join(json.dumps(record(path.name)) for path in made)
    return {name.split()[1] for name in re.findall(r'"device": "(NVIDIA [^"(]+)', text)}


def paragraphs(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(one.split()) for one in re.split(r"\n\s*\n|\n(?=[-|] )", text)]


def comments(path):
    """Return the comments and docstrings of a source file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".cu", ".cuh"):
        return re.findall(r"//[^\n]*|/\*.*?\*/", text, re.DOTALL)
    strings = (
        node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return [*(one for one in strings if isinstance(one, str)), *found]


def test_gpus_are_found_by_their_names():
    assert gpus() == {"H100", "H200"}
    names = "an H100, the H200s, an A100 and an RTX 4090, not H 2048, float16 or H1024"
    assert GPU.findall(names) == ["H100", "H200", "A100", "RTX 4090"]


@pytest.mark.parametrize("page", PAGES)
def test_a_figure_names_a_gpu_that_has_a_record(page):
    for paragraph in paragraphs(page):
        if any(words in paragraph for words in SETTINGS.get(page, ())):
            continue
        if FIGURE.search(paragraph):
            compared = COMPARED.get(page, ())
            assert any(words in paragraph for words in compared), f"has no record: {paragraph}"
            assert any(gpu in paragraph for gpu in gpus()), paragraph
            assert set(GPU.findall(paragraph)) <= gpus(), paragraph


def test_comments_hold_no_measured_figures():
    # Times in the commands and the benchmark are settings.
    paths = [one for one in source_files() if one.relative_to(PACKAGE).parts[0] not in SETTING]
    assert len(paths) > 200
    for path in paths:
        for comment in comments(path):
            assert not FIGURE.search(comment), f"{path}: {comment}"


def test_a_failure_in_the_record_of_the_gpu_tests_is_explained():
    is_explained = "The failed test " in text_of("docs/verification.md")
    assert is_explained == (record("gpu.json")["failed"] > 0)


def test_the_page_of_what_is_supported_names_the_gpus_of_the_records():
    text = text_of("docs/support.md")
    assert f"The records of runs on a GPU are of NVIDIA {' and '.join(sorted(gpus()))}." in text
    version = record("gpu.json")["cudnn"].rpartition(".")[0]
    assert f"| {version} | yes | yes, on {' and '.join(sorted(gpus()))} |" in text


def steps(side, dtype, batch, sizes):
    """Return the recorded microseconds of a step, or the ratios of cuDNN to dnnffi's kernels."""
    rows = [
        row
        for row in record("own_steps.json")["rows"]
        if (row["dtype"] in dtype, row["batch"], row["hidden_size"] in sizes) == (True, batch, True)
    ]
    if side == "ratio":
        return [row["cudnn"]["us"] / row["own"]["us"] for row in rows]
    return [row[side]["us"] for row in rows]


def spread(values):
    return f"{min(values):.1f} to {max(values):.1f}"


def test_the_times_of_steps_on_the_page_are_those_of_the_record():
    text = text_of("docs/own_engine.md")
    found = record("own_steps.json")
    both, middle = ("float16", "float32"), (256, 384, 512)
    exchange = f"{found['device']['exchange_us']:.2f}"
    small = [row["own"]["us"] for row in found["rows"] if row["own"] and row["hidden_size"] <= 512]
    gpu = found["machine"]["device"].split()[1]
    assert f"On an {gpu} a word takes {exchange} µs from one block to another" in text
    assert f"a step of a layer with H up to 512 takes {spread(small)} µs" in text
    cudnn, own = (steps(side, both, 64, middle) for side in ("cudnn", "own"))
    assert (
        f"with 64 rows and H from 256 to 512, a step of an LSTM on an {gpu} takes cuDNN "
        f"{spread(cudnn)} µs and these kernels {spread(own)} µs"
    ) in text
    single = steps("ratio", ("float32",), 1, range(769))
    single += steps("ratio", ("float32",), 64, range(65))
    assert (
        "They gain less in `float32` with one row and H up to 768, or with H up to 64: there "
        "cuDNN's persistent algorithms, which keep the weights on the chip, too, take "
        f"{spread(single)} times as long in inference"
    ) in text


def test_what_xla_adds_to_a_call_is_that_of_the_record():
    added = [
        1e3 * (row[phase]["dnnffi.jax"] - row[phase]["plan"])
        for row in record("bench_jax.json")["rows"]
        for phase in ("inference", "training")
    ]
    assert "On an H200 XLA adds 3 to 20 µs to most calls" in text_of("docs/jax.md")
    assert sum(3 <= one <= 20 for one in added) > len(added) / 2


def test_about_half_of_a_call_is_allocation_and_launch():
    rows = record("call_overhead.json")["rows"]
    parts = [(row["allocations"] + row["launch"]) / row["functional"] for row in rows]
    assert 0.4 <= min(parts) <= max(parts) <= 0.6
    assert "About half of the host cost of a call is CuPy's allocation" in text_of(
        "docs/benchmarks.md"
    )


def test_the_gain_of_gradients_of_depthwise_weights_is_that_of_the_record():
    ratios = [
        row["torch"] / row["dnnffi"]
        for row in record("bench_conv.json")["kernels"]
        if row["operation"] == "backward_weights" and "of dnnffi's" in row.get("engine", "")
    ]
    text = text_of("docs/convolution.md")
    assert f"several layers of MobileNetV2, {spread(ratios)} times as fast as PyTorch" in text


def test_a_record_of_no_commit_is_said_to_be_one():
    assert record("bench_depthwise.json")["machine"]["source"] is None
    words = "was measured on a state of the source that is not in the repository's history"
    assert words in text_of("docs/convolution.md")


def searched(arch, size=224):
    """Return the different convolutions and gradients of a network, which are searched for."""
    network = resnet(arch, 64)
    found = set()
    for block in network.blocks:
        outer = size
        for conv in block.convs:
            problem = (*conv[1:], size)
            found |= {("forward", problem, block.residual and conv is block.convs[-1])}
            found |= {("weights", problem)}
            if conv.number:  # the gradient of the pictures is not computed
                found |= {("data", problem)}
            size = -(-size // conv.stride)
        if block.around is not None:
            problem = (*block.around[1:], outer)
            found |= {("forward", problem, None), ("weights", problem), ("data", problem)}
    scores = (*network.scores[1:], 1)
    return found | {("forward", scores, None), ("weights", scores), ("data", scores)}


def test_the_numbers_of_convolutions_that_are_searched_are_those_of_the_networks():
    counts = [len(searched(arch)) for arch in ("resnet18", "resnet50")]
    words = f"of which ResNet-18 has {counts[0]} and ResNet-50 {counts[1]}"
    assert words in text_of("docs/benchmarks.md")


def test_the_images_that_the_host_limits_are_those_of_the_record():
    words = "In `float16`, and in training ResNet-50 in `float32`, the functions are limited by"
    assert words in text_of("docs/benchmarks.md")
    times = {
        (r["shape"], r["phase"], r["model"]): r["ms"] for r in record("bench_cnn.json")["rows"]
    }
    for shape, phase, model in times:
        if model == "dnnffi":
            is_limited = times[shape, phase, model] > 1.25 * times[shape, phase, "dnnffi captured"]
            is_large = shape.startswith("resnet50") and phase == "training"
            assert is_limited == (" f16 " in shape or is_large)


def test_the_products_of_the_largest_lstms_take_longer_than_pytorch():
    words = "In the two largest of these LSTMs the products alone take longer than all that PyTorch"
    assert words in text_of("docs/benchmarks.md")
    path = ROOT / "docs" / "verification" / "reference_cpu.txt"
    rows = path.read_text(encoding="utf-8").splitlines()
    largest = [row.split()[5:] for row in rows if row.startswith("lstm float32")][-2:]
    assert len(largest) == 2
    for columns in largest:
        for torch, _, _, products in (columns[:4], columns[4:]):
            assert float(products) > float(torch)


def test_lavapipe_is_slower_than_the_reference_with_every_network():
    words = "On lavapipe, on two cores, a network is slower than the reference"
    assert words in text_of("docs/vulkan.md")
    found = record("bench_vulkan.json")
    assert "llvmpipe" in found["machine"]["adapter"]
    assert found["machine"]["processor"].endswith(" x 2")
    for row in found["rows"]:
        assert row["median_ms"]["auto"] > row["median_ms"]["reference"]
