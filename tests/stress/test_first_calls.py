"""First calls of a process that has only imported dnnffi, each case in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stress import first_calls
from stress.bounds import SECONDS

import dnnffi


def run(*arguments):
    """The lines that the script prints."""
    source = str(Path(dnnffi.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, first_calls.__file__, *arguments],
        env=os.environ | {"PYTHONPATH": source, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    assert "Exception ignored" not in done.stderr
    return done.stdout.split()


def test_a_fork_while_another_thread_makes_the_first_call_gives_a_child_that_can_call(some):
    modules = run("points")
    assert "dnnffi.rnn.functions" in modules
    for module in ("dnnffi.rnn.functions", "numpy.random", *some(modules, 4)):
        run("fork", module)


@pytest.mark.parametrize("backend", ["reference", "cudnn"])
def test_whatever_a_call_imports_is_imported_under_the_lock_that_fork_waits_for(request, backend):
    if backend == "cudnn":
        request.getfixturevalue("standin_path")
    assert run("unguarded", backend) == []
