"""Workflows run fixed code with few rights."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
LOCK = (ROOT / ".ci" / "requirements.txt").read_text(encoding="utf-8")


def test_there_is_a_workflow_that_runs_all_checks():
    assert any(".ci/run" in path.read_text(encoding="utf-8") for path in WORKFLOWS)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_the_hash_of_a_commit(path):
    actions = re.findall(r"uses:\s*(\S+)", path.read_text(encoding="utf-8"))
    assert actions
    assert [one for one in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read(path):
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^permissions:\n((?:  .+\n)+)", text, re.MULTILINE) == ["  contents: read\n"]
    assert text.count("permissions:") == 1
    assert "secrets." not in text


def test_every_package_of_the_lock_has_a_version_and_hashes():
    entries = re.split(r"\n(?=\S)", re.sub(r"(?m)^\s*#.*\n?", "", LOCK).strip())
    assert len(entries) > 30
    pattern = r"[\w.-]+==\S+(?: ; [^\\]+)? \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\\n|\s*$))+"
    assert [one for one in entries if not re.fullmatch(pattern, one)] == []


@pytest.mark.parametrize("name", ["hypothesis", "mypy", "numpy", "pytest", "ruff", "setuptools"])
def test_the_lock_has_what_decides_a_result(name):
    assert re.search(rf"^{name}==", LOCK, re.MULTILINE)
