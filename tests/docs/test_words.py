"""Tests of the words in texts for users: pages, docstrings of public names, help."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
from prose import NO_FIRST_WORD, phrases, search

from dnnffi.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md")),
    *(ROOT / "examples").glob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs").glob("reference/*"),
]
MODULES = ("dnnffi", "dnnffi.testing", "dnnffi.foreign", "dnnffi.typing", "dnnffi.errors")
CLASSES = {
    "dnnffi.rnn.executor": ("RNNExecutor",),
    "dnnffi.rnn.context": ("Context", "Phase"),
    "dnnffi.device.graphs": ("StepGraph",),
    "dnnffi.device.interface": ("Launch",),
    "dnnffi.backends.rnn_interface": (
        *("AddressExecutor", "ForwardAddresses", "BackwardDataAddresses"),
        "BackwardWeightsAddresses",
    ),
    "dnnffi.backends.vendor.handle": ("Handle",),
}
"""Classes that the reference documents, but the package does not export."""


def members(value):
    """Yield a class and its own public methods and properties, or a function."""
    yield value
    for name, one in vars(value).items() if isinstance(value, type) else ():
        one = getattr(one, "__func__", one)
        if not name.startswith("_") and (inspect.isfunction(one) or isinstance(one, property)):
            yield one


def documented():
    """Yield the docstrings of the public names."""
    for module in map(importlib.import_module, MODULES):
        yield inspect.getdoc(module)
        for name in getattr(module, "__all__", ()) or vars(module):
            value = getattr(module, name)
            if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, type)):
                yield from map(inspect.getdoc, members(value))
    for module, names in CLASSES.items():
        for name in names:
            value = getattr(importlib.import_module(module), name)
            yield from map(inspect.getdoc, members(value))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_words_of_a_page(page):
    assert list(search(page, page.read_text(encoding="utf-8"))) == []


def test_the_words_of_docstrings():
    texts = [text for text in documented() if text]
    assert len(texts) > 200
    assert [one for text in texts for one in phrases(text)] == []
    assert [text for text in texts if NO_FIRST_WORD.match(text)] == []


@pytest.mark.parametrize("command", ["", "info", "demo", "bench rnn", "bench cnn", "bench stream"])
def test_the_words_of_help(command, capsys):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    assert list(phrases(capsys.readouterr().out)) == []


@pytest.mark.parametrize(
    "text",
    [
        "what the forward has left",
        "A backward, which begins with the last layer",
        "of a training\nforward that ended",
        "Let go of the buffers",
        "so many rows",
    ],
)
def test_what_is_not_to_be_written_is_found(text):
    assert len(list(phrases(text))) == 1


@pytest.mark.parametrize(
    "text", ["the forward pass", "a backward kernel", "each forward and backward pass"]
)
def test_words_of_the_field_are_not_found(text):
    assert list(phrases(text)) == []
