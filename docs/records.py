"""Directives that show the records in docs/verification, so that no page repeats their figures.

``gpu-record`` shows the last run of the tests on a GPU and whether it was of this source,
``call-overhead`` the measured host cost of a call. Where there is no record they say so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).resolve().parent
SOURCE = DOCS.parent / "src" / "dnnffi"


def source_hash() -> str:
    """SHA-256 over the names and contents of the package's sources, as tests/gpu records it."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*.py")):
        digest.update(path.relative_to(DOCS.parent).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def gpu_rows(record: dict[str, Any], source: str) -> list[tuple[str, str]]:
    """The record of a GPU run in words; ``source`` is the hash of the source as it is now."""
    major, minor = divmod(int(record["cuda_driver_api"]), 1000)
    same = "this source" if record["src_sha256"] == source else "an earlier state of the source"
    counts = [f"{record[kind]:,} {kind}" for kind in ("passed", "failed", "error", "skipped")]
    return [
        ("Tests", ", ".join(counts)),
        ("Run on", f"{same}, dnnffi {record['dnnffi']}, {record['date']}"),
        ("Device", f"{record['device']}, {record['devices']} in the machine"),
        ("Driver", f"{record['driver']}, CUDA {major}.{minor // 10}"),
        ("cuDNN", str(record["cudnn"])),
        (
            "With",
            f"CuPy {record['cupy']}, NumPy {record['numpy']}, Python {record['python']}",
        ),
    ]


OVERHEAD_HEAD = ("Problem", "C call", "executor", "dnnffi.lstm and its like", "PyTorch")


def overhead_rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a problem: microseconds of the C call, and how far each way of calling lies above."""
    rows = []
    for row in record["rows"]:
        above = [
            f"{row[key] - row['raw']:+.1f}" if key in row else "not measured"
            for key in ("executor", "functional", "torch")
        ]
        rows.append((row["problem"], f"{row['raw']:.1f}", *above))
    return rows


class Record(SphinxDirective):
    """A directive that shows a JSON file of docs/verification."""

    file = ""
    missing = ""

    def run(self) -> list[nodes.Node]:
        path = DOCS / "verification" / self.file
        self.env.note_dependency(str(path))
        if not path.exists():
            return [nodes.paragraph(text=self.missing)]
        return self.show(json.loads(path.read_text(encoding="utf-8")))

    def show(self, record: dict[str, Any]) -> list[nodes.Node]:
        """The record as nodes."""
        raise NotImplementedError


class GpuRecord(Record):
    """``gpu-record``."""

    file = "gpu.json"
    missing = "This checkout holds no record of a run on a GPU."

    def show(self, record: dict[str, Any]) -> list[nodes.Node]:
        return [table(gpu_rows(record, source_hash()))]


class CallOverhead(Record):
    """``call-overhead``."""

    file = "call_overhead.json"
    missing = "This checkout holds no record of such a measurement."

    def show(self, record: dict[str, Any]) -> list[nodes.Node]:
        machine = ", ".join(f"{name} {value}" for name, value in record["machine"].items())
        return [
            table(overhead_rows(record), OVERHEAD_HEAD),
            nodes.paragraph(text=f"Measured on: {machine}."),
        ]


def table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> nodes.table:
    """A table of plain text."""
    columns = len(rows[0])
    group = nodes.tgroup(cols=columns)
    group += [nodes.colspec(colwidth=1) for _ in range(columns)]
    if head:
        group += nodes.thead("", _row(head))
    group += nodes.tbody("", *(_row(row) for row in rows))
    return nodes.table("", group)


def _row(texts: Iterable[str]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph(text=text)) for text in texts))


def setup(app: Any) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("gpu-record", GpuRecord)
    app.add_directive("call-overhead", CallOverhead)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
