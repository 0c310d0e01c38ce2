"""Tests that what the pages say of the repository is true, and that they show the records."""

from __future__ import annotations

import json
import math
import re
import runpy
import tomllib
from pathlib import Path
from statistics import geometric_mean
from types import SimpleNamespace

import pytest
import record_tables
import verification

import dnnffi
from dnnffi.bench.summary import is_compared
from dnnffi.cli.sources import RECORDS

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/reference/*")]
)
PATH = re.compile(r"`((?:src|tests|bindings|benchmarks|docs|examples)/[\w./]+)(?:::(\w+))?")
ROOM = re.compile(
    r"`((?:backends|bench|cli|convolution|device|execution|reference|rnn|spec|testing)/[\w./]*)`"
)
MADE = {"docs/_build"} | {  # by tools, and not in every checkout
    f"docs/verification/{name}" for name in RECORDS
}
TARGET = re.compile(r"`make ([a-z-]+)|^make ([a-z-]+)", re.MULTILINE)


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_files_and_tests_that_are_named_are_there(page):
    for path, test in PATH.findall(read(page).replace("\n", " ")):
        assert path in MADE or (ROOT / path).exists(), path
        if test:
            assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), test


def test_files_of_the_source_that_contributing_names_are_there():
    named = ROOM.findall(read("CONTRIBUTING.md"))
    assert len(named) > 20
    for path in named:
        assert (ROOT / "src" / "dnnffi" / path).exists(), path


def packages_in_contributing():
    """Return the names in each row of the table of packages, from its first row to its last."""
    section = read("CONTRIBUTING.md").partition("## The packages")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    return [re.findall(r"`([\w/]+?)(?:/|\.py)?`", cell) for cell in cells]


def test_contributing_names_each_package_and_module():
    named = set(re.findall(r"`(\w+)(?:/|\.py)`", read("CONTRIBUTING.md")))
    named |= {name.partition("/")[0] for row in packages_in_contributing() for name in row}
    package = ROOT / "src" / "dnnffi"
    modules = {path.stem for path in package.glob("*.py")}
    packages = {path.parent.name for path in package.glob("*/__init__.py")}
    assert named >= (modules | packages) - {"__init__", "__main__"}


@pytest.mark.parametrize(("contract", "prefix"), [(0, ""), (1, "backends/")])
def test_contributing_lists_packages_above_those_that_they_import(contract, prefix):
    linter = tomllib.loads(read("pyproject.toml"))["tool"]["importlinter"]
    layers = [
        re.findall(r"(?:dnnffi\.)?(\w+)", layer)
        for layer in linter["contracts"][contract]["layers"]
    ]
    listed = [
        name.removeprefix(prefix).partition("/")[0]
        for row in packages_in_contributing()
        for name in row
        if name.startswith(prefix)
    ]
    ranks = [rank for name in listed for rank, layer in enumerate(layers) if name in layer]
    assert ranks == sorted(ranks)


def test_the_table_of_the_own_kernels_names_each_of_their_files():
    table = read("docs/own_engine.md").partition("| file | contents |")[2].partition("\n\n")[0]
    patterns = [name for row in table.splitlines() for name in re.findall(r"`([\w*.]+)`", row)]
    folder = ROOT / "src" / "dnnffi" / "backends" / "own" / "recurrent"
    named = {
        path for name in patterns for path in [*folder.glob(name), *folder.glob(f"cuda/{name}")]
    }
    assert named >= {*folder.glob("*.py"), *folder.glob("cuda/*")} - {folder / "__init__.py"}


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([\w./-]+)\)", read(page)):
        assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_that_are_named_are_there(page):
    makefile = read("Makefile")
    for names in TARGET.findall(read(page).replace("`make\n", "`make ")):
        assert re.search(rf"^{''.join(names)}:", makefile, re.MULTILINE), names


def test_the_index_of_the_reference_has_every_name_once():
    text = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    names = re.findall(r"^   (\w+)$", text, re.MULTILINE)
    assert sorted(names) == sorted(dnnffi.__all__)


def test_the_pages_are_in_three_parts():
    parts = re.findall(r":caption: (\w+)", read("docs/index.md"))
    assert parts == ["Use", "Reference", "Internals"]


@pytest.mark.parametrize(
    "word", ["reserve space", "workspace", "plan", "context", "executor", "row", "TF32"]
)
def test_the_glossary_has_the_word(word):
    assert f"\n\n{word}\n: " in read("docs/glossary.md")


def test_the_citation_is_of_this_version():
    assert f"\nversion: {dnnffi.__version__}\n" in read("CITATION.cff")


def test_versions_of_the_support_table_are_those_checked():
    vendors = runpy.run_path(str(ROOT / "bindings" / "vendors.py"))["VENDORS"]
    checked = [wheel.version for wheel in vendors["cudnn"].wheels]
    rows = re.findall(r"^\| ([\d.]+|newest)[^|]*\| yes \|", read("docs/support.md"), re.MULTILINE)
    assert len(rows) == len(checked)
    for row, version in zip(rows, checked, strict=True):
        assert f"{version}.".startswith(f"{row}.")


def test_what_a_run_showed_is_what_its_tests_kept():
    kept = [("checked", ["lstm", "gru"]), ("refused", ("clip", "no"))]
    reports = [
        SimpleNamespace(nodeid=f"tests/a.py::test_b[{n}]", user_properties=kept) for n in range(2)
    ]
    assert verification.shown(reports) == {
        "problems": {"gru": 2, "lstm": 2},
        "refusals": {"clip": "no"},
        "tests": {"tests/a.py::test_b": 2},
    }


class Run:
    """Stand-in for pytest's terminal reporter at the end of a run."""

    def __init__(self, *, record=True, **reports):
        self.config = SimpleNamespace(getoption=lambda name: record)
        self.reports, self.lines = reports, []

    def getreports(self, kind):
        return self.reports.get(kind, [])

    def write_line(self, line):
        self.lines.append(line)


def report(nodeid, problem):
    return SimpleNamespace(nodeid=nodeid, user_properties=[("checked", [problem])])


@pytest.mark.parametrize(
    ("folder", "record", "written"),
    [("gfx1100", True, True), ("gfx1100", False, False), ("gpu", True, False)],
)
def test_a_record_is_of_a_run_in_its_folder(tmp_path, monkeypatch, folder, record, written):
    monkeypatch.setattr(verification, "RECORDS", tmp_path)
    right = report("tests/gfx1100/test_a.py::test_right", "lstm")
    leaking = report("tests/gfx1100/test_a.py::test_leaking", "gru")
    run = Run(record=record, passed=[right, leaking], error=[leaking])
    verification.write(run, "one.json", ROOT / "tests" / folder, lambda: {"device": "it"})
    assert (tmp_path / "one.json").exists() == bool(run.lines) == written
    if written:
        found = json.loads((tmp_path / "one.json").read_text(encoding="utf-8"))
        assert (found["device"], found["passed"], found["error"]) == ("it", 2, 1)
        # A leak is found after the test passed, and removes it from the record.
        assert found["problems"] == {"lstm": 1}


def test_the_gain_that_the_readme_tells_is_that_of_the_record():
    record = json.loads((ROOT / "docs/verification/bench_rnn.json").read_text(encoding="utf-8"))
    means = next(record_tables.bench_gain(record))[-1]
    inference, training = means["inference, ratio"], means["forward + backward, ratio"]
    measured = [shape for shape in record["shapes"] if is_compared(shape)]
    text = " ".join(read("README.md").split())
    assert (
        f"On an {record['machine']['device'].split()[-1]}, tuned plans are {inference} times as "
        f"fast as cuDNN's fastest algorithm at inference, and {training} times with all gradients "
        f"(geometric means over {len(measured)} shapes whose rows have equal lengths)"
    ) in text


def test_what_is_said_of_networks_in_jax_is_of_the_record():
    record = json.loads((ROOT / "docs/verification/bench_jax.json").read_text(encoding="utf-8"))
    times = [row[phase] for row in record["rows"] for phase in ("inference", "training")]
    scans = [
        min(ms for name, ms in one.items() if name.startswith("scan ")) / one["dnnffi.jax"]
        for one in times
    ]
    assert (
        f"these functions are {geometric_mean(scans):.1f} times as fast as the fastest unrolled "
        f"`lax.scan` (geometric mean over {len(record['rows'])} networks, inference and gradients; "
        f"from {min(scans):.2f} to {max(scans):.1f} times)"
    ) in " ".join(read("README.md").split())
    page = " ".join(read("docs/jax.md").split())
    slowest = max(one["dnnffi.jax"] for one in times if one["plan"] < 0.97 * one["dnnffi.jax"])
    longer = f"{math.ceil(100 * slowest) / 100:.2f}"
    assert f"networks that take more than {longer} ms are within 3 % of the plan" in page
    alone, two = record["devices"][:2]
    most = [2 * alone[way] / (alone[way] + two["sum"]) for way in ("shard_map", "jit")]
    assert f"two H200s cannot exceed {max(most):.2f} times the throughput of one" in page


def test_the_page_to_install_names_each_extra():
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    page = read("docs/install.md")
    named = set(re.findall(r"'\.\[([a-z0-9,]+)\]'|^\| `([a-z`, ]+)` \|", page, re.MULTILINE))
    names = {one for pair in named for text in pair for one in re.findall(r"[a-z0-9]+", text)}
    # make installs the extras dev and docs.
    assert names == extras.keys() - {"dev", "docs"}
