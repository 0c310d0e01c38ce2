"""Writes docs/verification/gpu.json after a run with ``--record``: what ran where, and how it went.

The record carries a hash of src, so that anybody can see whether it is of this code.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def pytest_addoption(parser):
    parser.addoption("--record", action="store_true", help="write docs/verification/gpu.json")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.path).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.gpu)


def source_hash():
    """SHA-256 over the names and contents of the package's sources, in order."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "dnnffi").rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    if not config.getoption("--record", default=False) or hasattr(config, "workerinput"):
        return
    counts = {
        kind: len(terminalreporter.getreports(kind))
        for kind in ("passed", "failed", "error", "skipped")
    }
    path = ROOT / "docs" / "verification" / "gpu.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(environment() | counts, indent=2) + "\n")
    terminalreporter.write_line(f"recorded in {path.relative_to(ROOT)}: {counts}")


def environment():
    import cupy

    from dnnffi.cli.machine import machine

    devices = cupy.cuda.runtime.getDeviceCount()
    return machine("gpu", ()) | {"devices": devices, "src_sha256": source_hash()}
