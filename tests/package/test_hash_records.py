"""Tests of the script that adds the hashes of parts to records with a hash of all sources."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

from dnnffi.cli.sources import hashes_of, source_hash

SCRIPT = Path(__file__).parents[2] / "release" / "hash_records.py"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with the script, whose first commit has one source file."""
    spec = importlib.util.spec_from_file_location("hash_records", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "RECORDS", tmp_path)
    written(tmp_path, "x = 1\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return script


def written(folder, text):
    path = folder / "src" / "dnnffi" / "rnn" / "plan.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def git(folder, *arguments):
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *author, *arguments], cwd=folder, check=True)


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a state")


def test_a_record_gets_the_hashes_of_the_parts_at_its_commit(checkout, tmp_path):
    whole = source_hash(tmp_path / "src" / "dnnffi")
    written(tmp_path, "x = 2\n")
    commit(tmp_path)
    path = tmp_path / "bench.json"
    before = {"machine": {"src_sha256": whole, "gpu": "it"}, "ms": 0.1}
    path.write_text(json.dumps(before, indent=1))
    assert checkout.main() == 0
    after = json.loads(path.read_text())
    assert list(after["machine"]) == ["src_sha256", "source", "gpu"]
    assert after["machine"].pop("source") == hashes_of([("rnn/plan.py", b"x = 1\n")])
    assert after == before
    assert path.read_text().startswith('{\n "machine"')


@pytest.mark.parametrize("source", [None, {"rnn": "its own"}])
def test_a_record_of_a_state_without_a_commit_keeps_what_it_has(checkout, tmp_path, source):
    machine = {"src_sha256": "0" * 64} | ({"source": source} if source else {})
    (tmp_path / "gpu.json").write_text(json.dumps(machine))
    checkout.main()
    assert json.loads((tmp_path / "gpu.json").read_text()) == machine | {"source": source}
