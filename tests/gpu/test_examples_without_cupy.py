"""The examples without an array library on a GPU, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from example_runs import EXAMPLES


def output_of(example, *arguments):
    command = [sys.executable, EXAMPLES / example, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_framework_learns_on_a_gpu_what_it_learns_on_the_host():
    lines = [output_of("autograd_framework.py", "--device", name) for name in ("cpu", "gpu")]
    on_host, on_gpu = (float(line.split()[-5]) for line in lines)
    assert abs(on_gpu - on_host) < 0.2 * on_host


def test_a_training_step_on_raw_addresses_is_that_of_the_reference():
    printed = output_of("raw_addresses.py").splitlines()
    assert [line.partition(":")[0] for line in printed] == ["y", "h_n", "dx", "dweights"]
