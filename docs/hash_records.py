"""Adds the hashes of the package's parts to records that name their source only as a whole.

    python docs/hash_records.py

A record has the hash of all source files, `src_sha256`. This script looks in the history for the
commit whose source files have that hash, and writes into the record the hashes that the parts of
`dnnffi.cli.sources` have at that commit. If no commit has that hash, the hashes of the parts stay
as they are, or are null: the figures are of a state of the source that was not committed. Run it
after a change of `PARTS`, so that records measured before are compared by the new parts. It
changes nothing else in a record.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from dnnffi import files
from dnnffi.cli.sources import hashes_of

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "docs" / "verification"
# Records of 2026-11-23 and before do not count kernels in files of their own.
SUFFIXES = ((".py", ".cu", ".cuh"), (".py",))


def git(*arguments: str) -> bytes:
    """Return what a git command prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def listed(tree: str) -> list[tuple[str, str]]:
    """Return the path and the object of each source file of a tree, in the order of the hash."""
    found = []
    for line in git("ls-tree", "-r", "-z", tree).decode().split("\0")[:-1]:
        attributes, _, path = line.partition("\t")
        if path.endswith(SUFFIXES[0]):
            found.append((path, attributes.split()[2]))
    return sorted(found, key=lambda file: PurePosixPath(file[0]))


@cache
def content(name: str) -> bytes:
    """Return an object of the repository."""
    return git("cat-file", "blob", name)


def trees() -> Iterator[str]:
    """Yield the trees of the package in the history, the newest first."""
    commits = git("rev-list", "HEAD", "--", "src/dnnffi").decode().split()
    for commit in commits:
        yield git("rev-parse", f"{commit}:src/dnnffi").decode().strip()


def whole_hash(sources: list[tuple[str, str]], suffixes: tuple[str, ...]) -> str:
    """Return the hash of `dnnffi.cli.sources.source_hash` for files in the repository."""
    digest = hashlib.sha256()
    for path, name in sources:
        if path.endswith(suffixes):
            digest.update(f"src/dnnffi/{path}\0".encode() + content(name) + b"\0")
    return digest.hexdigest()


def parts_by_hash(wanted: set[str]) -> dict[str, dict[str, str]]:
    """Return the hashes of the parts by the hash of the whole source, for those in the history."""
    found: dict[str, dict[str, str]] = {}
    for tree in trees():
        sources = listed(tree)
        for whole in {whole_hash(sources, suffixes) for suffixes in SUFFIXES} & wanted:
            found.setdefault(whole, hashes_of((path, content(name)) for path, name in sources))
        if found.keys() == wanted:
            break
    return found


def machines(record: Any) -> Iterator[dict[str, Any]]:
    """Yield each dictionary of a record that says where something was measured."""
    if isinstance(record, dict):
        if "src_sha256" in record:
            yield record
        for value in record.values():
            yield from machines(value)


def with_parts(machine: dict[str, Any], parts: dict[str, str] | None) -> dict[str, Any]:
    """Return the entries of a machine; the hashes of the parts follow that of the whole source."""
    entries: dict[str, Any] = {}
    for name, value in machine.items():
        if name != "source":
            entries[name] = value
        if name == "src_sha256":
            entries["source"] = parts
    return entries


def main() -> int:
    """Write the hashes into all records."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(RECORDS.glob("*.json"))}
    records = {path: json.loads(text) for path, text in texts.items()}
    wanted = {one["src_sha256"] for record in records.values() for one in machines(record)}
    known = parts_by_hash(wanted)
    for path, record in records.items():
        for machine in list(machines(record)):
            entries = with_parts(machine, known.get(machine["src_sha256"], machine.get("source")))
            machine.clear()
            machine.update(entries)
            if entries["source"] is None:
                print(f"{path.name}: no commit has its source, {machine['src_sha256'][:8]}")
        # Each tool writes with an indentation of its own.
        indent = 2 if texts[path].startswith("{\n  ") else 1
        files.write_json(path, record, indent=indent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
