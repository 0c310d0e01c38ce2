"""The example of a training step as one CUDA graph; here without the graph."""

from __future__ import annotations

import argparse
import runpy
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from char_lstm import Adam, Alphabet, clip_by_norm, windows

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "char_graph.py"))
TEXT = "the quick brown fox jumps over the lazy dog. " * 20
SMALL = {"hidden": 6, "layers": 2, "batch": 3, "window": 40}


@pytest.fixture
def without_gpu(monkeypatch):
    names = EXAMPLE["main"].__globals__
    monkeypatch.setitem(names, "gpu_problem", lambda: "there is no GPU")


def test_without_a_gpu_it_says_so(without_gpu, capsys):
    assert EXAMPLE["main"]([]) == 1
    assert "needs a GPU that cuDNN can use: there is no GPU. Try --eager" in capsys.readouterr().out


def test_two_steps_on_numpy(without_gpu, capsys, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    sizes = [f"--{name}={value}" for name, value in SMALL.items()]
    assert EXAMPLE["main"](["--eager", "--steps", "2", "--text", str(text), *sizes]) == 0
    out = capsys.readouterr().out
    assert "reference on numpy" in out
    assert "eager: 4 steps" in out
    assert "steps/s" in out


def test_without_arguments_it_is_small_on_numpy(without_gpu, capsys, monkeypatch):
    ran = []

    def train(training, walk, steps, as_graph):
        ran.append((training.plan.problem.batch, training.plan.problem.steps, steps))
        return [1.0], 1.0

    monkeypatch.setitem(EXAMPLE["main"].__globals__, "train", train)
    assert EXAMPLE["main"](["--eager"]) == 0
    sizes = EXAMPLE["SIZES_ON_NUMPY"]
    assert ran == [(sizes["batch"], sizes["window"], sizes["steps"])]
    assert "Sizes: --steps 40, --hidden 64, " in capsys.readouterr().out


@pytest.mark.parametrize("steps", ["0", "-1", "many"])
def test_steps_are_at_least_one(steps, capsys):
    with pytest.raises(SystemExit):
        EXAMPLE["main"](["--steps", steps])
    assert "argument --steps: " in capsys.readouterr().err


def test_a_step_is_that_of_the_functions(without_gpu):
    alphabet = Alphabet(TEXT)
    numbers = alphabet.encode(TEXT)
    options = argparse.Namespace(**SMALL)
    training = EXAMPLE["Training"](np, "reference", alphabet, options)
    walk = windows(numbers, SMALL["batch"], SMALL["window"])
    losses, _ = EXAMPLE["train"](training, walk, 10, False)

    model = EXAMPLE["Training"](np, "reference", alphabet, options).model
    adam, expected, state = Adam(np, model.parameters, EXAMPLE["RATE"]), [], None
    for inputs, targets, restarts in islice(windows(numbers, SMALL["batch"], SMALL["window"]), 20):
        before = None if restarts else state
        loss, gradients, state = model.loss_and_gradients(inputs, targets, before)
        clip_by_norm(np, gradients, 1.0)
        adam.step(gradients)
        expected.append(float(loss))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert losses[-1] < losses[0] - 0.1
