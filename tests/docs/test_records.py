"""Tests that records in docs/verification are of the current source, or listed with a reason."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dnnffi.cli.sources import (
    PACKAGE,
    RECORDS,
    changed_parts,
    part_of,
    read_source_lines,
    source_files,
)

ROOT = Path(__file__).parents[2]
VERIFICATION = ROOT / "docs" / "verification"

# The records that are not of the source as it is now, with the reason why they were not made again.
# When a change adds a record to this list, its figures are of code that users do not have: run the
# tool that writes it as soon as there is a device, and remove its line.
ONE_STEP = "the single-step kernel's launches were changed after the run; needs a GPU"
NOVEMBER_23 = "measured on 2026-11-23; needs a GPU"
RESETS = "the kernels of resets and of bias gradients were changed after the run; needs a GPU"
STALE = {
    "bench_conv.json": "measured on 2026-11-22; needs a GPU",
    "bench_depthwise.json": "no commit has the source that it was measured on; needs a GPU",
    "bench_jax.json": f"{ONE_STEP}; so was the JAX code, on which a handler's cost depends",
    "bench_jax_conv.json": NOVEMBER_23,
    "bench_own.json": RESETS,
    "bench_rnn.json": RESETS,
    "bench_vulkan_gpu.json": NOVEMBER_23,
    "first_call.json": ONE_STEP,
    "memcheck.json": ONE_STEP,
    "own_steps.json": RESETS,
    "voice_activity_gpu.json": "measured on 2026-11-26; needs silero-vad and a GPU",
    "vulkan_gpu.json": NOVEMBER_23,
}

# Imports across parts that no figure depends on. A record of the first part does not depend on the
# second one.
OTHER_FAMILY = "networks for a record of convolutions, or the other way round"
NOT_USED = {
    ("registry", "*"): "lists all backends and public names, of which a measurement uses some",
    ("backends", "rnn"): OTHER_FAMILY,
    ("backends", "convolution"): OTHER_FAMILY,
    ("backends", "spec-rnn"): OTHER_FAMILY,
    ("backends", "spec-conv"): OTHER_FAMILY,
    ("cudnn", "cudnn-rnn"): OTHER_FAMILY,
    ("cudnn", "spec-rnn"): OTHER_FAMILY,
    ("cudnn", "spec-conv"): OTHER_FAMILY,
    ("execution", "spec-rnn"): OTHER_FAMILY,
    ("execution", "spec-conv"): OTHER_FAMILY,
    ("reference", "spec-conv"): OTHER_FAMILY,
    ("reference", "execution"): "the number of BLAS threads, not what they compute",
    ("testing", "spec-conv"): OTHER_FAMILY,
    ("vulkan", "spec-conv"): OTHER_FAMILY,
    ("jax-rnn", "formats"): "names of arrays, and refusals; measurements pass weights in one array",
    ("bench", "rnn"): OTHER_FAMILY,
    ("bench", "spec-rnn"): OTHER_FAMILY,
    ("bench-streams", "spec-rnn"): OTHER_FAMILY,
    ("torch", "convolution"): OTHER_FAMILY,
    ("torch", "rnn"): OTHER_FAMILY,
    ("torch", "spec-conv"): OTHER_FAMILY,
    ("torch", "spec-rnn"): OTHER_FAMILY,
    ("jax", "jax-rnn"): OTHER_FAMILY,
    ("jax", "jax-conv"): OTHER_FAMILY,
    ("spec", "spec-conv"): "names for users' annotations",
    ("bench", "bench-report"): "tables and targets, which are made from the figures",
    ("bench", "jax"): "a peer that records without JAX do not measure",
    ("bench", "bench-callers"): "entries of dnnffi, which have a record of their own",
    ("bench", "bench-streams"): "streams of batches, which have records of their own",
    ("bench", "reference"): "the sigmoid of LSTMs in array code, which are peers",
    ("rnn", "formats"): "converters, which are not part of a call",
    ("rnn", "reference"): "calls on NumPy arrays, and options={'validate': True}",
    ("convolution", "reference"): "calls on NumPy arrays, and options={'validate': True}",
    ("convolution", "own-conv"): "gradients of biases by a kernel for CuPy arrays",
    ("jax-rnn", "reference"): "calls on the host",
}


def hashes(name: str) -> Iterator[dict[str, str] | None]:
    """Yield the hashes of the parts of the source, one for each run that a record contains."""

    def inside(value):
        if isinstance(value, dict):
            if "src_sha256" in value:
                yield value.get("source")
            for one in value.values():
                yield from inside(one)

    text = (VERIFICATION / name).read_text(encoding="utf-8")
    yield from inside(json.loads(text)) if name.endswith(".json") else [read_source_lines(text)[1]]


def changes(name: str) -> str:
    """Return which parts changed since the record; empty for one that is up to date."""
    found = [changed_parts(name, one) for one in hashes(name)]
    if any(changed is None for changed in found):
        return "the record does not name its source"
    return ", ".join(dict.fromkeys(part for changed in found for part in changed))


def test_a_record_whose_code_changed_is_on_the_list():
    stale = {name: why for name in RECORDS if (why := changes(name))}
    new = {name: why for name, why in stale.items() if name not in STALE}
    assert not new, "the code of these records changed: make them again, or add them to STALE"


def test_a_record_that_was_made_again_is_off_the_list():
    fresh = [name for name in STALE if not changes(name)]
    assert not fresh, "these records are of the source as it is now: remove them from STALE"


def test_the_table_has_every_record():
    made = {path.name for path in VERIFICATION.iterdir()}
    assert made == set(RECORDS)
    assert all(list(hashes(name)) for name in RECORDS)
    assert STALE.keys() <= RECORDS.keys()


def test_every_source_file_belongs_to_a_part():
    paths = [path.relative_to(PACKAGE).as_posix() for path in source_files()]
    assert len(paths) > 200
    assert [path for path in paths if part_of(path) is None] == []


def imports() -> Iterator[tuple[str, str]]:
    """Yield for each import of a module of the package both files, by their paths in it."""
    paths = {path.relative_to(PACKAGE).as_posix() for path in source_files()}

    def file_of(module: str) -> str | None:
        inside = module.removeprefix("dnnffi").removeprefix(".").replace(".", "/")
        choices = (f"{inside}.py", f"{inside}/__init__.py".removeprefix("/"))
        return next((choice for choice in choices if choice in paths), None)

    for path in sorted(paths):
        if not path.endswith(".py"):
            continue
        for node in ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [
                    f"{node.module}.{one.name}"
                    if file_of(f"{node.module}.{one.name}")
                    else node.module
                    for one in node.names
                ]
            elif isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            for name in names:
                if name.split(".")[0] == "dnnffi" and (found := file_of(name)):
                    yield path, found


def test_a_record_depends_on_what_its_parts_import():
    across = {(part_of(path), part_of(found)): (path, found) for path, found in imports()}
    outside = {
        (importing, "*" if importing == "registry" else imported): f"{name}: {files}"
        for name, parts in RECORDS.items()
        for (importing, imported), files in across.items()
        if importing in parts and imported not in parts
    }
    assert {edge: files for edge, files in outside.items() if edge not in NOT_USED} == {}
    assert NOT_USED.keys() - outside.keys() == set()


@pytest.mark.parametrize(
    ("path", "records"),
    [
        (
            "backends/own/recurrent/cuda/forward.cu",
            {"bench_rnn.json", "own_steps.json", "gpu.json"},
        ),
        ("backends/cudnn/conv_executor.py", {"bench_conv.json", "gpu.json"}),
        ("backends/vulkan/shaders.py", {"vulkan.json", "bench_vulkan_gpu.json"}),
        ("backends/miopen/conv_executor.py", {"miopen.json"}),
        ("cli/demo.py", set()),
    ],
)
def test_a_change_of_a_file_makes_records_stale(path, records):
    stale = {name for name, parts in RECORDS.items() if part_of(path) in parts}
    families = {"bench_rnn.json", "own_steps.json", "gpu.json", "bench_conv.json", "miopen.json"}
    families |= {"vulkan.json", "bench_vulkan_gpu.json"}
    assert stale & families == records


def test_records_are_compared_by_their_own_parts():
    (found,) = hashes("miopen.json")
    before = changed_parts("miopen.json", found)
    assert changed_parts("miopen.json", found | {"vulkan": "0", "cli": "0"}) == before
    assert "miopen" in changed_parts("miopen.json", found | {"miopen": "0"})
    assert changed_parts("miopen.json", None) is None
