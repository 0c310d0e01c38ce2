"""Mutants of `make mutate`, and the tests that run with each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import executed_lines
import mutation
import pytest
from executed_lines import Record

PATH = "src/dnnffi/errors.py"


@pytest.fixture
def changes(tmp_path, monkeypatch):
    """The lines that replace those of a source text, one entry for each mutant."""
    monkeypatch.setattr(mutation, "ROOT", tmp_path)

    def changes(text):
        (tmp_path / "a.py").write_text(text)
        differences = [mutant.difference.splitlines() for mutant in mutation.mutants("a.py")]
        return [[line[1:].strip() for line in one if line[0] == "+"] for one in differences]

    return changes


def test_a_mutant_differs_in_one_place(changes):
    assert changes("def f(a: int = 1):\n    return a < 3 and not a") == [
        ["def f(a: int=2):"],
        ["return None"],
        ["return a < 3 or not a"],
        ["return a <= 3 and (not a)"],
        ["return a < 4 and (not a)"],
        ["return a < 3 and a"],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "assert 1 < 2",
        "for a, b in zip(c, d, strict=True):\n    print",
        '"text"',
        "a: int = b",
        "import a",
    ],
)
def test_assertions_texts_and_annotations_are_not_changed(changes, text):
    assert changes(text) == []


def test_a_zip_of_any_lengths_is_changed(changes):
    assert changes("a = zip(b, c, strict=False)") == [["a = zip(b, c, strict=True)"]]


def test_every_file_of_the_package_has_tests():
    paths = mutation._files("src/dnnffi")
    assert len(paths) > 200
    for path in paths:
        for name in mutation.tests_of(path):
            assert (mutation.ROOT / name).exists(), name


def test_the_beginning_of_a_path_that_is_longest_decides():
    found = {name: mutation.tests_of(f"src/dnnffi/backends/{name}.py") for name in ("own/bias",)}
    assert found["own/bias"] == mutation.TESTS["backends/own"]
    deeper = mutation.tests_of("src/dnnffi/backends/own/recurrent/rows.py")
    assert deeper == mutation.TESTS["backends/own/recurrent"]


def test_a_missing_interpreter_is_named_with_the_target_that_makes_it(monkeypatch, tmp_path):
    monkeypatch.setattr(mutation.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert mutation.interpreter_of(PATH) == sys.executable
    with pytest.raises(SystemExit, match=r"engine\.py import jax: `make test-jax` installs it$"):
        mutation.interpreter_of("src/dnnffi/jax/engine.py")
    python = tmp_path / ".venv-jax" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert mutation.interpreter_of("src/dnnffi/jax/engine.py") == str(python)


def test_the_fastest_tests_of_a_line_come_first_and_one_of_each_function():
    seconds = {
        "t.py::slow": 9.0,
        "t.py::a[1]": 0.1,
        "t.py::a[2]": 0.2,
        "t.py::b": 0.3,
        "t.py::c": 1,
    }
    record = Record(seconds, {PATH: {7: ["t.py::a[2]", "t.py::a[1]", "t.py::b"], 8: ["t.py::c"]}})

    def first(line):
        return mutation.first_tests(mutation.Mutant(PATH, line, "", ""), record)

    assert first(7) == ["t.py::a[1]", "t.py::b", "t.py::a[2]"]
    assert first(6) == ["t.py::a[1]", "t.py::b", "t.py::c", "t.py::a[2]"]  # all of the file
    assert first(9) == ["t.py::c", "t.py::a[1]", "t.py::b", "t.py::a[2]"]  # line 8 is the nearest


def test_the_first_tests_are_few(monkeypatch):
    monkeypatch.setattr(mutation, "MAX_SECONDS_OF_FIRST_TESTS", 5.0)
    seconds = {f"t.py::t{number}": float(number) for number in range(3, 9)}
    mutant = mutation.Mutant(PATH, 1, "", "")

    def first(names):
        return mutation.first_tests(mutant, Record(seconds, {PATH: {1: names}}))

    assert first(["t.py::t8"]) == ["t.py::t8"]  # one, however long
    assert first(["t.py::t4", "t.py::t3"]) == ["t.py::t3"]
    assert first([]) == []


def test_the_lines_that_each_test_executes_are_recorded(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text(
        "def f(a):\n    if a:\n        return 1\n    return 2\n"
    )
    (tmp_path / "tests").mkdir()
    shutil.copy(executed_lines.__file__, tmp_path / "tests")
    (tmp_path / "tests" / "test_a.py").write_text(
        "import threading\n"
        "from code import f\n"
        "def test_one(): f(1)\n"
        "def test_two():\n"
        "    thread = threading.Thread(target=f, args=[0])\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "def test_none(): pass\n"
    )
    folder = tmp_path / "record"
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "executed_lines", "tests"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path / 'src'}:{tmp_path / 'tests'}",
            executed_lines.FOLDER: str(folder),
        },
        check=True,
        stdout=subprocess.DEVNULL,
    )
    record = executed_lines.read(folder)
    one, two, none = (f"tests/test_a.py::test_{name}" for name in ("one", "two", "none"))
    assert set(record.seconds) == {one, two, none}
    assert record.tests == {
        str(Path("src", "code.py")): {1: [one, two], 2: [one, two], 3: [one], 4: [two]}
    }
