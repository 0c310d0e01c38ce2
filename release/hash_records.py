"""Adds the hashes of the package's parts to records that name their source only as a whole.

    python release/hash_records.py

A record has the hash of all source files, `src_sha256`. This script looks in the history for the
commit whose source files have that hash, and writes into the record the hashes that the parts of
`dnnffi.cli.sources` have at that commit. If no commit has that hash, the hashes of the parts stay
as they are, or are null: the figures are of a state of the source that was not committed. Run it
after a change of `PARTS`, so that records measured before are compared by the new parts. It
changes nothing else in a record.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from functools import partial
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


def sources_at(commit: str) -> list[tuple[str, bytes]]:
    """Return path and content of each source file at a commit, in the order of the hash."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", f"{commit}:src/dnnffi"))) as archive:
        files = [one for one in archive if one.name.endswith(SUFFIXES[0])]
        found = [(one.name, archive.extractfile(one).read()) for one in files]
    return sorted(found, key=lambda file: PurePosixPath(file[0]))


def whole_hash(sources: list[tuple[str, bytes]], suffixes: tuple[str, ...]) -> str:
    """Return the hash of `dnnffi.cli.sources.source_hash` for files in the repository."""
    digest = hashlib.sha256()
    for path, content in sources:
        if path.endswith(suffixes):
            digest.update(f"src/dnnffi/{path}\0".encode() + content + b"\0")
    return digest.hexdigest()


def parts_by_hash(wanted: set[str]) -> dict[str, dict[str, str]]:
    """Return the hashes of the parts by the hash of the whole source, for those in the history."""
    found: dict[str, dict[str, str]] = {}
    for commit in git("rev-list", "HEAD", "--", "src/dnnffi").decode().split():
        sources = sources_at(commit)
        for whole in {whole_hash(sources, suffixes) for suffixes in SUFFIXES} & wanted:
            found.setdefault(whole, hashes_of(sources))
        if found.keys() == wanted:
            break
    return found


def with_parts(
    entries: dict[str, Any], name: str, known: Mapping[str, dict[str, str]]
) -> dict[str, Any]:
    """Return a dictionary of the record ``name`` with the hashes of the parts after the whole one.

    Dictionaries that do not say where something was measured stay as they are.
    """
    found: dict[str, Any] = {}
    for key, value in entries.items():
        if key != "source" or "src_sha256" not in entries:
            found[key] = value
        if key == "src_sha256":
            found["source"] = known.get(value, entries.get("source"))
            if found["source"] is None:
                print(f"{name}: no commit has its source, {value[:8]}")
    return found


def main() -> int:
    """Write the hashes into all records."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(RECORDS.glob("*.json"))}
    known = parts_by_hash(set(re.findall(r'"src_sha256": "(\w+)"', "".join(texts.values()))))
    for path, text in texts.items():
        record = json.loads(text, object_hook=partial(with_parts, name=path.name, known=known))
        # Each tool writes with an indentation of its own.
        files.write_json(path, record, indent=2 if text.startswith("{\n  ") else 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
