"""The model and the options that examples share."""

from __future__ import annotations

import argparse
import sys
from itertools import islice
from types import ModuleType, SimpleNamespace

import char_lstm
import command_line
import numpy as np
import pytest

import dnnffi

TEXT = "abcab " * 10


def test_an_alphabet_numbers_the_most_frequent_characters():
    alphabet = char_lstm.Alphabet(TEXT)
    assert len(alphabet) == 5
    assert alphabet.encode(" abcx").tolist() == [1, 2, 3, 4, 0]


def test_an_alphabet_has_at_most_128_numbers():
    text = "".join(map(chr, range(300, 600))) + "zz"
    alphabet = char_lstm.Alphabet(text)
    assert len(alphabet) == 128
    assert alphabet.encode("z").tolist() != [0]


def test_windows_continue_and_restart():
    walk = char_lstm.windows(np.arange(13), 2, 3)
    found = [
        (inputs.T.tolist(), targets.T.tolist(), restarts)
        for inputs, targets, restarts in islice(walk, 3)
    ]
    assert found == [
        ([[0, 1, 2], [6, 7, 8]], [[1, 2, 3], [7, 8, 9]], True),
        ([[3, 4, 5], [9, 10, 11]], [[4, 5, 6], [10, 11, 12]], False),
        ([[0, 1, 2], [6, 7, 8]], [[1, 2, 3], [7, 8, 9]], True),
    ]


def test_a_text_that_is_too_short_ends_the_program():
    with pytest.raises(SystemExit, match="too short for 2 rows of 7 characters"):
        next(char_lstm.windows(np.arange(13), 2, 7))


@pytest.mark.parametrize("number", range(3))
def test_gradients_are_those_of_finite_differences(number):
    spec = dnnffi.RNNSpec(mode="lstm", input_size=5, hidden_size=4, dtype="float64")
    model = char_lstm.CharLSTM(np, spec, "reference")
    rng = np.random.default_rng(1)
    inputs, targets = rng.integers(0, 5, (2, 6, 3))
    _, gradients, _ = model.loss_and_gradients(inputs, targets, None)
    parameter, along = model.parameters[number], rng.standard_normal(gradients[number].shape)
    sides = []
    for step in (1e-5, -1e-5):
        parameter += step * along
        sides.append(model.loss_and_gradients(inputs, targets, None)[0])
        parameter -= step * along
    bits = (gradients[number] * along).sum() / np.log(2)
    assert bits == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-5)


def test_text_is_of_the_file_or_of_the_standard_library(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("some text")
    assert char_lstm.read_text(path, 4) == ("some", str(path))
    text, source = char_lstm.read_text(None, 100_000)
    assert (len(text), source) == (100_000, "Python's standard library")


def test_a_text_that_cannot_be_read_ends_the_program(tmp_path):
    path = tmp_path / "missing.txt"
    with pytest.raises(SystemExit, match=r"missing\.txt cannot be read: No such file"):
        char_lstm.read_text(path, 4)


@pytest.mark.parametrize("text", ["0", "-3"])
def test_a_count_is_at_least_1(text):
    with pytest.raises(argparse.ArgumentTypeError, match=f"must be at least 1; got {text}"):
        command_line.count(text)
    assert command_line.count("1") == 1


@pytest.mark.parametrize(("available", "problem"), [(True, ""), (False, "CuPy finds no GPU")])
def test_a_gpu_is_one_that_cupy_finds(available, problem, monkeypatch):
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(is_available=lambda: available)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert command_line.gpu_problem() == problem


def test_without_cupy_there_is_no_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert command_line.gpu_problem().startswith("CuPy cannot be imported")
