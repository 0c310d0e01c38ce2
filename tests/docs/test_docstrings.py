"""Tests that the examples in the docstrings of public names run as printed, independently."""

from __future__ import annotations

import doctest
import inspect

import needs
import pytest

import dnnffi

NOT_SHOWN = {
    "DropoutState.generator",  # backends ask for it
    "RNNPlan.capture",  # needs a GPU; docs/tuning.md shows it
}
ON_VULKAN = ("PackedRNN", "load_rnn", "pack_rnn")


def is_used(name):
    """Return whether callers call a name or its methods, unlike errors and named results."""
    value = getattr(dnnffi, name)
    only_looked_at = name in ("Gradients", "HeldMemory", "Parameter")
    return not (only_looked_at or (isinstance(value, type) and issubclass(value, BaseException)))


def methods(name):
    """Yield the public methods that a class defines itself."""
    found = vars(getattr(dnnffi, name)) if isinstance(getattr(dnnffi, name), type) else {}
    for method, value in found.items():
        plain = value.__func__ if isinstance(value, classmethod) else value
        if inspect.isfunction(plain) and not method.startswith("_"):
            yield method


def docstring(name):
    parent, _, method = name.partition(".")
    value = getattr(dnnffi, parent)
    return inspect.getdoc(inspect.getattr_static(value, method) if method else value) or ""


NAMES = [
    name
    for one in dnnffi.__all__
    if is_used(one)
    for name in (one, *(f"{one}.{method}" for method in methods(one)))
]
WITH_EXAMPLES = [name for name in NAMES if ">>>" in docstring(name)]


@pytest.mark.parametrize("name", sorted({*NAMES} - NOT_SHOWN))
def test_an_example_shows(name):
    parent, _, method = name.partition(".")
    shown = [docstring(one) for one in WITH_EXAMPLES if one.partition(".")[0] == parent]
    wanted = f".{method}(" if method else ">>> "
    assert any(wanted in text.partition("Examples")[2] for text in shown)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name, tmp_path, monkeypatch, pytestconfig):
    if name in ON_VULKAN:
        needs.check_vulkan(pytestconfig)
    monkeypatch.chdir(tmp_path)
    text = docstring(name)
    assert "\n\nExamples\n--------\n>>> " in text
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    said = []
    doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not "".join(said)
