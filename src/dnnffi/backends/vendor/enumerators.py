"""The enumerators of a vendor, read from its generated module, and their names in dnnffi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def constants(ffi: Any, type_name: str) -> dict[str, int]:
    """The enumerators of a C type by name."""
    return {name: value for value, name in ffi.typeof(type_name).elements.items()}


def name_of(names: Mapping[str, int], value: int) -> str:
    """The name of an enumerator's value, or the number in words if it has none here."""
    for name, known in names.items():
        if known == value:
            return name
    return f"unknown ({value})"
