"""The demo writes text on the adapter with a network that another backend trained."""

from __future__ import annotations

import numpy as np
import pytest

import dnnffi
from dnnffi.cli import main
from dnnffi.cli.charmodel import Alphabet, CharModel, generate

pytestmark = pytest.mark.usefixtures("device")


def test_text_is_that_of_the_backend_that_trained(tmp_path):
    alphabet = Alphabet.of("the quick brown fox")
    spec = dnnffi.RNNSpec(mode="lstm", input_size=len(alphabet), hidden_size=9, num_layers=2)
    model = CharModel(np, spec, "reference", np.random.default_rng(0))
    model.save(tmp_path, alphabet)
    texts = [
        generate(tmp_path, backend, np, "the ", 40, np.random.default_rng(1))
        for backend in ("reference", "vulkan")
    ]
    assert texts[0] == texts[1]


def test_the_command_generates_what_it_trained(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40, encoding="utf-8")
    small = ["--hidden", "16", "--batch", "4", "--window", "16", "--steps", "3"]
    demo = ["demo", "--output", str(tmp_path)]
    assert main([*demo, "--backend", "reference", "--text", str(text), *small]) == 0
    capsys.readouterr()
    assert main([*demo, "--backend", "vulkan", "--generate"]) == 0
    found = capsys.readouterr().out
    assert main([*demo, "--backend", "reference", "--generate"]) == 0
    assert capsys.readouterr().out.endswith(found)
