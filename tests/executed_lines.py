"""A pytest plugin that records which lines of the package each test executes, and its duration.

`tests/mutation.py` loads it into the run without a mutant, and then gives each mutant the tests
that execute its line. Lines that run while tests are collected belong to no test. Neither do those
of other processes and of threads that Python has not started, such as XLA's.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDER = "DNNFFI_EXECUTED_LINES"
"""The environment variable with the folder to which each process writes its record."""

_PACKAGE = str(Path(__file__).resolve().parents[1] / "src")


class Record(NamedTuple):
    """The lines that each test of a run executes, and its duration."""

    seconds: dict[str, float]
    """The duration of each test by its node id, in seconds."""
    tests: dict[str, dict[int, list[str]]]
    """The node ids of the tests that execute a line, by file and line."""


def read(folder: Path) -> Record:
    """Return the merged records of all processes of a run."""
    record = Record({}, {})
    for path in folder.glob("*.json"):
        for test, seconds, lines in json.loads(path.read_text()):
            record.seconds[test] = seconds
            for file, numbers in lines.items():
                for number in numbers:
                    record.tests.setdefault(file, {}).setdefault(number, []).append(test)
    return record


_executed: set[tuple[str, int]] = set()
_records: list[tuple[str, float, dict[str, list[int]]]] = []


def _trace(frame, event, argument):
    name = frame.f_code.co_filename
    if not name.startswith(_PACKAGE):
        return None
    executed = _executed

    def line(frame, event, argument):
        executed.add((name, frame.f_lineno))
        return line

    return line(frame, event, argument)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    _executed.clear()
    threading.settrace(_trace)
    sys.settrace(_trace)
    begin = time.perf_counter()
    try:
        return (yield)
    finally:
        seconds = time.perf_counter() - begin
        sys.settrace(None)
        threading.settrace(None)
        lines: dict[str, list[int]] = {}
        for name, number in sorted(_executed.copy()):
            lines.setdefault(str(Path(name).relative_to(Path(_PACKAGE).parent)), []).append(number)
        _records.append((item.nodeid, seconds, lines))


def pytest_sessionfinish():
    if _records:
        Path(os.environ[FOLDER], f"{os.getpid()}.json").write_text(json.dumps(_records))
