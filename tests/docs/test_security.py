"""Test that SECURITY.md names every module that opens a file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import dnnffi

PACKAGE = Path(dnnffi.__file__).parent
SECURITY = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
TABLE = SECURITY.partition("## Files that are read")[2].partition("\n## ")[0]

# Functions and methods that open a file for reading; those of `dnnffi.files` too.
OPENERS = {
    *("CDLL", "ZipFile", "dlopen", "fromfile", "load_nvidia_dynamic_lib", "memmap", "open"),
    *("open_regular", "read_bytes", "read_json", "read_kernel_file", "read_text"),
}
# The first names the type of an open library, the second opens the null device for writing.
NOT_OPENED = {"reference/threads.py", "cli/__init__.py"}


def opens(path):
    """Return whether a module calls, or passes on, a function that opens a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if isinstance(node.ctx, ast.Load) and name in OPENERS:
                return True
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "files.read":
                return True
    return False


def test_every_module_that_opens_a_file_is_named():
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if opens(path) and not path.name.startswith("_cdef")
    }
    named = set(re.findall(r"`([\w/]+\.py)`", TABLE))
    assert "files.py" in found
    assert named == found - NOT_OPENED


def test_every_row_says_what_is_trusted():
    rows = [line for line in TABLE.splitlines() if line.startswith("| ")][2:]
    assert rows
    assert [row for row in rows if len([cell for cell in row.split(" | ") if cell]) != 3] == []
