"""The programs in examples/ run and do what they say."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def resnet_block():
    return runpy.run_path(str(EXAMPLES / "resnet_block.py"))


def test_the_residual_block_learns(resnet_block):
    losses = list(resnet_block["train"](np, 12, channels=4, size=6, batch=4))
    assert len(losses) == 12
    assert losses[-1] < 0.8 * losses[0]


def test_the_gradients_of_the_residual_block(resnet_block):
    rng = np.random.default_rng(0)
    block = resnet_block["Block"](np, 3, rng)
    for name in ("w1", "b1", "w2", "b2"):
        shape = getattr(block, name).shape
        setattr(block, name, rng.normal(size=shape) * 0.5)
    x, dy = rng.normal(size=(2, 2, 3, 5, 4))
    y, h = block.forward(x)
    dx, gradients = block.gradients(x, h, y, dy)
    for argument, gradient in zip([x, *block.parameters], [dx, *gradients], strict=True):
        along = 1e-6 * rng.normal(size=argument.shape)
        sides = []
        for sign in (1, -1):
            argument += sign * along
            sides.append((dy * block.forward(x)[0]).sum())
            argument -= sign * along
        expected = (sides[0] - sides[1]) / 2
        assert (gradient * along).sum() == pytest.approx(expected, rel=1e-5, abs=1e-12)


def test_the_residual_block_as_a_program():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "resnet_block.py", "--steps", "2"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "8 channels, 8 pictures of 12 x 12 a step, 2 steps, on numpy" in done.stdout
    assert "step    2  loss 0." in done.stdout


def test_the_residual_block_takes_at_least_one_step():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "resnet_block.py", "--steps", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "argument --steps: must be at least 1; got 0" in done.stderr
