"""Code that must not wait, nor take memory without end: run where both are bounded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dnnffi

_LIMITED = """\
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
"""


def run(code, *arguments, seconds=30):
    """Run ``code`` in an interpreter of its own with 4 GiB of memory, and return what it prints.

    ``seconds`` is far more than it needs: code that hangs fails the test instead of the whole run.
    """
    environment = os.environ | {
        "PYTHONPATH": str(Path(dnnffi.__file__).parents[1]),
        "OPENBLAS_NUM_THREADS": "1",  # each thread has a share of the memory
    }
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED + code, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
