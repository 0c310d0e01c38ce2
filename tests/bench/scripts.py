"""The scripts of `benchmarks`, which import each other by name."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"


def run_script(name):
    """Return the names that a script defines."""
    sys.path.insert(0, str(FOLDER))
    try:
        return runpy.run_path(str(FOLDER / name))
    finally:
        sys.path.remove(str(FOLDER))
