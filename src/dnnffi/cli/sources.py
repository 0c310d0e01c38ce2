"""Hashes of the code that a measurement or a run of tests depends on.

The package is divided into parts. A record in docs/verification stores one hash for each part, and
`RECORDS` names the parts that its figures depend on: a change of another part, of a comment, of a
docstring or of a blank line does not make the record one of another state of the source.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from itertools import accumulate
from pathlib import Path, PurePath
from textwrap import fill
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[1]

PARTS = {
    # A file belongs to the first part that has a pattern for its path in the package. `*` also
    # matches slashes.
    "registry": ("backends/registry.py", "backends/*/entry.py", "plans.py", "__init__.py"),
    "vulkan": ("backends/vulkan/*",),
    "miopen": ("backends/miopen/*",),
    "cublas": ("backends/cublas/*",),
    "cudnn-conv": ("backends/cudnn/conv_*", "backends/cudnn/graph/*"),
    "cudnn-rnn": (
        *("backends/cudnn/rnn_*", "backends/cudnn/algorithm.py"),
        *("backends/cudnn/layout.py", "backends/cudnn/descriptors/*"),
    ),
    "cudnn": ("backends/cudnn/*",),
    "own": ("backends/own/source.py", "backends/own/params.py", "backends/own/cuda/common/*"),
    "own-rnn": ("backends/own/recurrent/*",),
    "own-conv": ("backends/own/*",),
    "rnn": (
        *("rnn/*", "weights.py", "dropout.py", "backends/rnn_interface.py"),
        *("backends/vendor/rnn_*", "backends/vendor/dropout.py", "reference/dropout.py"),
    ),
    "convolution": ("convolution/*", "backends/conv_interface.py"),
    "matrices": ("matrices.py",),
    "backends": ("backends/*",),
    "reference": ("reference/*",),
    "execution": ("execution/*",),
    "device": ("device/*", "foreign.py"),
    "runtime": ("runtime/*",),
    "spec-rnn": (
        "spec/rnn.py",
        "spec/weights.py",
        "spec/problem.py",
        "spec/likely_cause.py",
        "spec/rnn_size_class.py",
    ),
    "spec-conv": ("spec/conv*.py",),
    "spec": (
        "spec/*",
        "errors.py",
        "files.py",
        "cache_folder.py",
        "importing.py",
        "log.py",
        "annotations.py",
        "other_names.py",
        "installing.py",
        "wheels.py",
        "operating_system.py",
        "ownership.py",
        "typing.py",
    ),
    "formats": ("formats/*",),
    "torch": ("torch/*",),
    "jax-rnn": ("jax/rnn/*",),
    "jax-conv": ("jax/convolution/*",),
    "jax": ("jax/*",),
    "bench-report": (
        *("bench/plot.py", "bench/show.py", "bench/summary.py"),
        *("bench/streams/report.py", "bench/callers/report.py"),
    ),
    "bench-streams": ("bench/streams/*",),
    "bench-callers": ("bench/callers/*",),
    "bench": ("bench/*",),
    "testing": ("testing/*",),
    "cli": ("cli/*", "__main__.py"),
}
NO_RECORD = ("bench-report", "cli")
"""The parts that no record depends on: they show figures, or start the code that is measured."""

_SHARED = ("spec", "runtime", "device", "execution", "backends", "registry")
_RNN = (*_SHARED, "spec-rnn", "rnn")
_CONVOLUTION = (*_SHARED, "spec-conv", "convolution")
_NETWORKS = (*_RNN, "cudnn", "cudnn-rnn", "own", "own-rnn", "cublas")
_CONVOLUTIONS = (*_CONVOLUTION, "cudnn", "cudnn-conv", "own", "own-conv")
_JAX_NETWORKS = (*_NETWORKS, "jax", "jax-rnn")
_JAX_CONVOLUTIONS = (*_CONVOLUTIONS, "jax", "jax-conv")
_CHECKED = ("reference", "testing")  # the oracle and the random problems of a run of tests
_GPU_TESTS = (*_JAX_NETWORKS, *_JAX_CONVOLUTIONS, *_CHECKED, "matrices", "formats", "torch")
_VULKAN = (*_RNN, *_CHECKED, "vulkan")

RECORDS = {
    name: tuple(dict.fromkeys(parts))
    for name, parts in {
        "bench_cnn.json": (*_CONVOLUTIONS, "bench"),
        "bench_conv.json": _CONVOLUTIONS,
        "bench_depthwise.json": _CONVOLUTIONS,
        "bench_jax.json": (*_JAX_NETWORKS, "bench"),
        "bench_jax_conv.json": _JAX_CONVOLUTIONS,
        "bench_own.json": (*_NETWORKS, "bench"),
        "bench_rnn.json": (*_JAX_NETWORKS, "bench"),
        "bench_vulkan.json": _VULKAN,
        "bench_vulkan_gpu.json": _VULKAN,
        "call_overhead.json": _NETWORKS,
        "callers.json": (*_JAX_NETWORKS, "torch", "bench", "bench-callers"),
        "device_lengths.json": (*_NETWORKS, "bench"),
        "first_call.json": (*_NETWORKS, "bench"),
        "gpu.json": (*_GPU_TESTS, "bench"),
        "jax_cpu.txt": _JAX_NETWORKS,
        "memcheck.json": _GPU_TESTS,
        "miopen.json": (*_RNN, *_CONVOLUTION, *_CHECKED, "miopen"),
        "oracle_torch.txt": ("spec", "spec-rnn", "spec-conv", "runtime", "device", "reference"),
        "own_costs.json": (),  # what is fitted to it only decides what is measured
        "own_steps.json": (*_NETWORKS, "bench"),
        "own_stress.json": _NETWORKS,
        "fast_paths.txt": (*_NETWORKS, *_CONVOLUTIONS, "reference", "torch"),
        "reference_calls.txt": (*_RNN, *_CONVOLUTION, "reference"),
        "reference_cpu.txt": (*_RNN, "reference"),
        "reference_threads.txt": (),  # products of NumPy
        "stream.json": (*_NETWORKS, "torch", "bench", "bench-streams"),
        "stream_conv.json": (*_CONVOLUTIONS, "torch", "bench", "bench-streams"),
        "stream_resets.json": (*_JAX_NETWORKS, "torch", "bench", "bench-streams"),
        "voice_activity.json": (*_RNN, *_CONVOLUTION, "reference"),
        "voice_activity_gpu.json": (*_NETWORKS, *_CONVOLUTIONS),
        "vulkan.json": _VULKAN,
        "vulkan_gpu.json": _VULKAN,
    }.items()
}
"""The parts that each record in docs/verification depends on."""

_PYTHON, _CUDA = ".py", (".cu", ".cuh")
_CUDA_TOKEN = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])*')"""
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)",
    re.DOTALL,
)


class _Span(NamedTuple):
    """The range of a string or a comment in a text; ``kept`` if it is part of the code."""

    start: int
    stop: int
    kept: bool


def source_files(package: Path = PACKAGE) -> list[Path]:
    """Return the Python files and kernels of the package, in the order in which they are hashed."""
    return sorted(path for kind in (_PYTHON, *_CUDA) for path in package.rglob(f"*{kind}"))


def source_hash(package: Path = PACKAGE) -> str:
    """Return the SHA-256 of the names and contents of all source files: it identifies a commit."""
    digest = hashlib.sha256()
    for path in source_files(package):
        # Named as in the repository, so that an installed package of the same source has its hash.
        digest.update(b"src/dnnffi/" + path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def part_of(path: str) -> str | None:
    """Return the part of a file, given by its path in the package; None if no pattern matches."""
    matching = (
        part
        for part, patterns in PARTS.items()
        if any(fnmatchcase(path, pattern) for pattern in patterns)
    )
    return next(matching, None)


@cache
def part_hashes(package: Path = PACKAGE) -> dict[str, str]:
    """Return for each part 16 digits of the SHA-256 of the names and the `code` of its files."""
    paths = source_files(package)
    return hashes_of((path.relative_to(package).as_posix(), path.read_bytes()) for path in paths)


def hashes_of(files: Iterable[tuple[str, bytes]]) -> dict[str, str]:
    """Return the hashes of the parts of files, given by path in the package and content."""
    digests = {part: hashlib.sha256() for part in PARTS}
    for path, content in files:
        part = part_of(path)
        if part is not None:
            text = code(content.decode(), PurePath(path).suffix)
            digests[part].update(f"{path}\0{text}\0".encode())
    return {part: digest.hexdigest()[:16] for part, digest in digests.items()}


def changed_parts(name: str, found: Mapping[str, str] | None) -> list[str] | None:
    """Return the parts that the record ``name`` depends on and that changed since it was written.

    Parameters
    ----------
    name : the name of a file in docs/verification
    found : the hashes of the parts in that record, or None if it has none

    Returns
    -------
    The names of the parts that the record depends on and that changed; an empty list for a
    a record that is up to date; None for a record without hashes, whose state is unknown.
    """
    if found is None:
        return None
    now = part_hashes()
    return [part for part in RECORDS[name] if found.get(part) != now[part]]


def source_lines(name: str) -> str:
    """Return the lines with the hashes for the end of a record that is a text, ``name``."""
    now = part_hashes()
    words = ", ".join(f"{part} {now[part]}" for part in RECORDS[name])
    # A name with a hyphen stays on one line, so that it is read again.
    lines = fill(f"source: {words}", width=90, subsequent_indent="  ", break_on_hyphens=False)
    return f"{lines}\n"


def read_source_lines(text: str) -> tuple[str, dict[str, str] | None]:
    """Return a record that is a text without the lines of `source_lines`, and their hashes."""
    figures, found, hashes = text.partition("source:")
    if not found:
        return text, None
    return figures, dict(re.findall(r"([a-z-]+)\s+([0-9a-f]{16})", hashes))


def code(text: str, suffix: str) -> str:
    """Return the text of a file of Python or CUDA without comments, docstrings and blank lines.

    The result only depends on the text, not on the version of Python. Literals stay as they are.
    """
    spans = list(_python_spans(text) if suffix == _PYTHON else _cuda_spans(text))
    pieces: list[str] = []
    literals: list[str] = []
    end = 0
    for span in spans:
        before = text[end : span.start]
        if span.kept:  # a literal may contain blank lines
            pieces += [before, f"\0{len(literals)}\0"]
            literals.append(text[span.start : span.stop])
        else:
            pieces.append(before.rstrip(" \t"))
            if before[-1:].isalnum():  # in C++ a comment separates two words
                pieces.append(" ")
        end = span.stop
    lines = [line.rstrip() for line in "".join([*pieces, text[end:]]).split("\n")]
    if suffix in _CUDA:
        lines = [" ".join(line.split()) for line in lines]
    stripped = "\n".join(line for line in lines if line)
    return re.sub(r"\0(\d+)\0", lambda found: literals[int(found[1])], stripped)


def _python_spans(text: str) -> Iterator[_Span]:
    """Yield the strings and comments of a Python file; docstrings are not kept."""
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    documented = {
        (node.lineno, len(lines[node.lineno - 1].encode()[: node.col_offset].decode()))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    opened: list[tuple[int, int]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        # From Python 3.12 on, an f-string is several tokens; they may be nested.
        if name.endswith("STRING_START"):
            opened.append(token.start)
        elif name == "STRING" or name == "COMMENT" or name.endswith("STRING_END"):
            row, column = opened.pop() if name.endswith("STRING_END") else token.start
            if not opened:
                kept = name != "COMMENT" and (row, column) not in documented
                first, last = starts[row - 1] + column, starts[token.end[0] - 1] + token.end[1]
                yield _Span(first, last, kept)


def _cuda_spans(text: str) -> Iterator[_Span]:
    """Yield the strings, characters and comments of a CUDA file."""
    for found in _CUDA_TOKEN.finditer(text):
        yield _Span(*found.span(), found["string"] is not None)
