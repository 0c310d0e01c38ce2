"""Checks of the arguments that descriptors have in common; each error names the argument."""

from __future__ import annotations

from collections.abc import Iterable

from dnnffi.spec.sequences import as_integers

INT32_MAX = 2**31 - 1


def choice(name: str, value: object, choices: Iterable[str]) -> str:
    """``value`` if it is one of ``choices``."""
    if isinstance(value, str) and value in choices:
        return value
    raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def data_type(name: str, value: object, known: Iterable[str]) -> str:
    """The name of one of the ``known`` data types, given as such or as a dtype object."""
    return choice(name, getattr(value, "name", value), known)


def integer(name: str, value: object, least: int, most: int = INT32_MAX) -> int:
    """``value`` as a Python integer from ``least`` to ``most``."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer; got {type(value).__name__}")
    checked: int = value.__index__()
    if not least <= checked <= most:
        raise ValueError(f"{name} must be from {least} to {most}; got {checked}")
    return checked


def sizes(name: str, values: object) -> tuple[int, ...]:
    """``values`` as a tuple of positive int32 values."""
    checked = as_integers(name, values)
    for index, value in enumerate(checked):
        if not 1 <= value <= INT32_MAX:
            raise ValueError(f"{name}[{index}] must be from 1 to {INT32_MAX}; got {value}")
    return checked
