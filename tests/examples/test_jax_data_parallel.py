"""The example that trains in JAX over several devices, here over two of the host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

EXAMPLE = Path(__file__).parents[2] / "examples" / "jax_data_parallel.py"
TEXT = "the quick brown fox jumps over the lazy dog. " * 20
SMALL = ("--steps=40", "--batch=4", "--window=20", "--hidden=8", "--layers=1")


@pytest.fixture
def run(tmp_path):
    """A function that runs the example on a number of devices, of which there are two."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    return lambda devices: subprocess.run(
        [sys.executable, EXAMPLE, f"--devices={devices}", f"--text={text}", *SMALL],
        env=os.environ
        | {
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        },
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.fixture
def losses(run):
    """A function that runs the example on a number of devices and returns the losses it prints."""

    def read(devices):
        done = run(devices)
        assert done.returncode == 0, done.stderr
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("bits"))
        words = line.split()
        return float(words[3]), float(words[6])

    return read


def test_two_devices_learn_what_one_learns(losses):
    one, two = losses(1), losses(2)
    assert two == pytest.approx(one, abs=2e-4)
    assert one[1] < one[0] - 0.1


def test_more_devices_than_there_are_are_refused(run):
    assert "error: --devices is 3; 2 are present" in run(3).stderr
