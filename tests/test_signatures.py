"""Signatures of public names are as they are written: no quotes, no ``ForwardRef``."""

from __future__ import annotations

import inspect
import typing

import pytest
import signatures

import dnnffi
from dnnffi import foreign, testing
from dnnffi.annotations import AnnotationText, show_annotations
from dnnffi.typing import BackendName

CASES = [
    pytest.param(module, name, id=f"{module.__name__}.{name}")
    for module in (dnnffi, foreign, testing)
    for name in signatures.names_of(module)
]


@pytest.mark.parametrize(("module", "name"), CASES)
def test_no_annotation_is_quoted(module, name):
    assert signatures.quoted(module, name) == []


def test_a_signature_shows_what_is_written():
    assert "backend: BackendName | None = None" in str(inspect.signature(dnnffi.lstm))
    assert str(inspect.signature(dnnffi.RNNProblem)).startswith("(spec: RNNSpec, steps: int, ")
    assert "-> hypothesis.strategies.SearchStrategy[RNNSpec]" in str(
        inspect.signature(testing.specs)
    )


def test_types_can_still_be_asked_for():
    assert typing.get_type_hints(dnnffi.lstm)["backend"] == BackendName | None
    assert typing.get_type_hints(dnnffi.RNNProblem)["spec"] is dnnffi.RNNSpec
    assert inspect.signature(dnnffi.conv, eval_str=True).parameters["groups"].annotation is int


def test_what_is_no_function_or_class_is_left_alone():
    show_annotations(("a", 3), None, len)


def test_a_text_is_a_string_without_quotes():
    text = AnnotationText("int | None")
    assert text == "int | None"
    assert repr(text) == "int | None"
