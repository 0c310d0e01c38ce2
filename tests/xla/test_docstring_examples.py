"""Examples in the docstrings of `dnnffi.jax` run as printed, each in a namespace of its own."""

from __future__ import annotations

import doctest
import inspect

import pytest

from dnnffi import jax as djax

# The arguments of the other networks are those of lstm, and tune needs a GPU.
NOT_SHOWN = {"gru", "rnn_relu", "rnn_tanh", "tune"}


@pytest.mark.parametrize("name", sorted({*djax.__all__} - NOT_SHOWN))
def test_examples_run(name):
    text = inspect.getdoc(getattr(djax, name))
    assert "\n\nExamples\n--------\n>>> " in text
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    said = []
    doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not "".join(said)
