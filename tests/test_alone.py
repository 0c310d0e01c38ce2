"""Tests that are alone run after those of pytest-xdist's workers, in one run and one record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent

CONFTEST = """
from pathlib import Path
import verification
from alone import *
from verification import pytest_runtest_call, refused

verification.ROOT = verification.RECORDS = HERE = Path(__file__).parent

def pytest_addoption(parser):
    parser.addoption("--record", action="store_true")

def pytest_terminal_summary(terminalreporter):
    verification.write(terminalreporter, "record.json", HERE / "gpu", lambda: {"device": "it"})
"""
MODULE = """
import os
import conformance
import pytest

def note(name):
    with open("log", "a") as log:
        print(name, os.environ.get("PYTEST_XDIST_WORKER", "no worker"), file=log)
    conformance.checked.append(name)

@pytest.mark.alone
@pytest.mark.parametrize("name", ["a::b", "c d"])
def test_alone(name, refused):
    note("alone")
    refused("clip", ValueError("by one that is alone"))

@pytest.mark.parametrize("number", range(6))
def test_beside_others(number, refused):
    note("beside")
    refused("size", ValueError("by one that is not"))
    assert number != 2

@pytest.mark.skip
def test_skipped():
    pass
"""
INI = """
[pytest]
addopts = --import-mode=importlib --strict-markers
filterwarnings = error
markers = alone
"""


@pytest.fixture
def run(tmp_path):
    """Runs those tests with pytest's arguments; the exit status, and who ran what, in order."""
    (tmp_path / "gpu").mkdir()
    for name, text in (
        ("conftest.py", CONFTEST),
        ("gpu/test_it.py", MODULE),
        ("pytest.ini", INI),
        ("log", ""),
    ):
        (tmp_path / name).write_text(text)
    path = os.pathsep.join([str(TESTS), *sys.path])

    def run(*arguments):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "gpu", *arguments]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=inherited | {"PYTHONPATH": path},
            text=True,
            capture_output=True,
            check=False,
        )
        lines = (tmp_path / "log").read_text().splitlines()
        assert "INTERNALERROR" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done.returncode, [line.split(" ", 1) for line in lines]

    return run


def test_one_by_one_behind_all_others_with_one_record(run, tmp_path):
    status, found = run("-n", "2", "--dist", "worksteal", "--record")
    assert status == 1
    assert [name for name, _ in found] == ["beside"] * 6 + ["alone"] * 2
    assert {who for _, who in found[:6]} == {"gw0", "gw1"}
    assert [who for _, who in found[6:]] == ["no worker"] * 2
    record = json.loads((tmp_path / "record.json").read_text())
    assert record == {
        **{"device": "it", "passed": 7, "failed": 1, "error": 0, "skipped": 1},
        "problems": {"alone": 2, "beside": 5},
        "refusals": {"clip": "by one that is alone", "size": "by one that is not"},
        "tests": {"gpu/test_it.py::test_alone": 2, "gpu/test_it.py::test_beside_others": 5},
    }


@pytest.mark.parametrize(
    ("selected", "status", "ran"),
    [("alone", 0, ["alone"] * 2), ("beside and not 2", 0, ["beside"] * 5)],
)
def test_what_is_selected(run, selected, status, ran):
    found = run("-n", "2", "-k", selected)
    assert (found[0], [name for name, _ in found[1]]) == (status, ran)


def test_without_workers_in_the_order_of_the_file(run):
    _, found = run("-n", "0")
    assert [name for name, _ in found] == ["alone"] * 2 + ["beside"] * 6


def test_the_first_failure_ends_a_run_that_asks_for_it(run):
    status, found = run("-n", "2", "-x")
    assert status
    assert "alone" not in dict(found)
