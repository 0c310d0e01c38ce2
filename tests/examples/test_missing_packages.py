"""An example without the package that it needs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_in_jax_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(SystemExit, match=r"needs JAX .*pip install '\.\[jax\]'"):
        runpy.run_path(str(EXAMPLES / "jax_data_parallel.py"))


def test_the_index_lists_each_example():
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    missing = [
        path.name for path in EXAMPLES.glob("*.py") if f"[{path.name}]({path.name})" not in index
    ]
    assert not missing
