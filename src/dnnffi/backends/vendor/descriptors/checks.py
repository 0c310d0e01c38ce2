"""Checks of arguments that all descriptors share; each error names the argument."""

from __future__ import annotations

from collections.abc import Iterable

from dnnffi.spec.checks import INT32_MAX, check_choice, check_range
from dnnffi.spec.sequences import as_integers


def data_type(name: str, value: object, known: Iterable[str]) -> str:
    """Return the name of one of the ``known`` data types, given as such or as a dtype object."""
    return check_choice(name, getattr(value, "name", value), known)


def integers(name: str, values: object, minimum: int, maximum: int = INT32_MAX) -> tuple[int, ...]:
    """``values`` as a tuple of integers from ``minimum`` to ``maximum``."""
    checked = as_integers(name, values)
    for index, value in enumerate(checked):
        if not minimum <= value <= maximum:
            check_range(f"{name}[{index}]", value, minimum, maximum)  # which raises
    return checked
