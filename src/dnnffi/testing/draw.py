"""Helpers of the strategies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from hypothesis import strategies as st

from dnnffi.spec.checks import brief
from dnnffi.spec.names import DType

Name = TypeVar("Name", bound=str)

# Hypothesis shrinks towards the first of each, so the plainest comes first.
DTYPES: tuple[DType, ...] = ("float32", "float64", "float16", "bfloat16")


def names_among(argument: str, values: Iterable[Name], known: Iterable[str]) -> list[Name]:
    """Return the ``known`` names to draw from; errors name the argument."""
    if isinstance(values, str):
        raise TypeError(f"{argument} must be a tuple of names; got {values!r}; write ({values!r},)")
    try:
        names = list(values)
    except TypeError:
        raise TypeError(f"{argument} must be a tuple of names; got {brief(values)}") from None
    if not names:
        raise ValueError(f"{argument} must have at least one name; got {brief(values)}")
    expected = list(known)
    for name in names:
        if name not in expected:
            raise ValueError(f"{argument} must be among {', '.join(expected)}; got {brief(name)}")
    return names


def check_strategy(argument: str, value: object, drawn: type, just: str) -> None:
    """Raise ``TypeError`` unless ``value`` is a strategy or None.

    ``just`` says how to make a strategy of an object of the class ``drawn``.
    """
    if value is None or isinstance(value, st.SearchStrategy):
        return
    how = f"; use {just}" if isinstance(value, drawn) else ""
    raise TypeError(f"{argument} must be a strategy; got {type(value).__name__}{how}")


def either(fixed: bool | None) -> st.SearchStrategy[bool]:
    """Return ``fixed``, or where it is None a bool."""
    return st.booleans() if fixed is None else st.just(fixed)
