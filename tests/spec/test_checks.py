"""Choices that are given by name: what is taken, and what the errors say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi.spec.checks import check_choice

CHOICES = ("first", "second")


@pytest.mark.parametrize("choices", [CHOICES, list(CHOICES), dict.fromkeys(CHOICES), iter(CHOICES)])
def test_a_choice_is_returned(choices):
    assert check_choice("way", "second", choices) == "second"


def test_text_of_numpy_becomes_the_name():
    assert type(check_choice("way", np.str_("first"), CHOICES)) is str


SHORT_TEXT, SHORT_INTEGERS = st.text(max_size=15), st.integers(-(2**99), 2**99)


@given(st.one_of(SHORT_TEXT, SHORT_INTEGERS, st.none(), st.booleans(), st.floats()))
def test_any_other_name_is_a_value_error(value):
    with pytest.raises(ValueError, match=r"^way must be one of ") as raised:
        check_choice("way", value, CHOICES)
    assert str(raised.value) == f"way must be one of first, second; got {value!r}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (["first"], "['first']"),
        ({"first": 1}, "{'first': 1}"),
        ({"first"}, "{'first'}"),
        (np.array(["first", "second"]), "ndarray"),
        (np.array("first"), "ndarray"),
        (np.zeros(2), "ndarray"),
        (np.float32(1), "float32"),
    ],
    ids=repr,
)
def test_what_cannot_be_a_name_is_a_type_error(value, shown):
    with pytest.raises(TypeError, match=r"^way must be one of ") as raised:
        check_choice("way", value, CHOICES)
    assert str(raised.value) == f"way must be one of first, second; got {shown}"


def test_none_is_named_where_it_has_a_meaning():
    with pytest.raises(ValueError, match=r"^way must be one of first, second or None; got 1$"):
        check_choice("way", 1, CHOICES, or_none=True)
