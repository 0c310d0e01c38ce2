"""Threads, signals, forks and interrupts at once, each storm in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stress import storm

import dnnffi

OPERATIONS = 100  # of each thread


@pytest.mark.parametrize("backend", ["reference", "cudnn"])
def test_a_storm_passes(request, backend, some):
    if backend == "cudnn":
        request.getfixturevalue("standin_path")
    source = str(Path(dnnffi.__file__).parents[1])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OPENBLAS_NUM_THREADS": "1",  # BLAS threads and forks are not under test
    }
    for seed in some(range(50), 1):
        done = subprocess.run(
            [sys.executable, storm.__file__, backend, str(seed), str(OPERATIONS)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=2 * storm.SECONDS,
        )
        assert done.returncode == 0, f"seed {seed}: {done.stderr}"
        assert "fork in first calls" in done.stdout
        assert " fork," in done.stdout
        assert "in a handler" in done.stdout
