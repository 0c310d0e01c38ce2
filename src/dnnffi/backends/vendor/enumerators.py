"""Values of enumerators by name, read from a vendor's generated module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def constants(ffi: Any, type_name: str) -> dict[str, int]:
    """Return the enumerators of a C type by name."""
    return {name: value for value, name in ffi.typeof(type_name).elements.items()}


def named(ffi: Any, **names: str) -> dict[str, int]:
    """Return enumerators by the names that dnnffi gives them."""
    return {name: ffi.integer_const(enumerator) for name, enumerator in names.items()}


def name_of(names: Mapping[str, int], value: int) -> str:
    """Return the name of an enumerator's value, or the number in words if it has none here."""
    for name, known in names.items():
        if known == value:
            return name
    return f"unknown ({value})"
