"""Records of test runs for docs/verification.

A ``conftest.py`` takes the hooks from here and calls `write` at the end of a run with ``--record``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import conformance
import pytest

from dnnffi import files

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "docs" / "verification"
CHECKED, REFUSED = "checked", "refused"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Keep with the report of a test which problems it found right."""
    conformance.checked.clear()
    result = yield
    item.user_properties.append((CHECKED, list(conformance.checked)))
    return result


@pytest.fixture
def refused(record_property):
    """Keep with the report of a test what a backend refused, by a name, and in which words."""
    return lambda name, error: record_property(REFUSED, (name, str(error)))


def write(terminalreporter, name, folder, environment):
    """Write the record ``name`` of a run with ``--record``, if tests of ``folder`` ran in it."""
    config = terminalreporter.config
    if not config.getoption("--record") or hasattr(config, "workerinput"):
        return
    reports = {
        kind: terminalreporter.getreports(kind) for kind in ("passed", "failed", "error", "skipped")
    }
    inside = f"{folder.relative_to(ROOT).as_posix()}/"
    if not any(report.nodeid.startswith(inside) for report in reports["passed"]):
        return
    counts = {kind: len(found) for kind, found in reports.items()}
    wrong = {report.nodeid for report in reports["error"]}  # what its teardown found counts too
    right = [report for report in reports["passed"] if report.nodeid not in wrong]
    record = environment() | counts | shown(right)
    path = RECORDS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, record, indent=2)
    terminalreporter.write_line(f"recorded in {path}: {counts}")


def shown(reports):
    """Count what passed tests covered: problems by capability, refusals, tests by function."""
    problems, refusals, tests = Counter(), {}, Counter()
    for report in reports:
        tests[report.nodeid.partition("[")[0]] += 1
        for key, value in report.user_properties:
            if key == CHECKED:
                problems.update(value)
            elif key == REFUSED:
                refusals.update([value])
    return {
        "problems": dict(sorted(problems.items())),
        "refusals": dict(sorted(refusals.items())),
        "tests": dict(sorted(tests.items())),
    }
