"""Structs of kernels as a compiler of the host lays them out."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

WORD_BYTES = 8
"""The bytes of a field."""


class Declared(NamedTuple):
    """A struct: the offset of each field, whether it is a double, and the bytes of the struct."""

    offsets: list[int]
    doubles: list[bool]
    size: int


def declared(compiled, name, fields):
    """Return how fields of a struct are declared.

    ``compiled`` gives the shared library of a source that has the struct, followed by a text.
    """
    struct_name = f"dnnffi::{name}"
    places = ", ".join(f"__builtin_offsetof({struct_name}, {field})" for field in fields)
    doubles = ", ".join(f"__is_same(decltype({struct_name}::{field}), double)" for field in fields)
    visible = 'extern "C" __attribute__((visibility("default"))) const'
    library = compiled(
        f"\n{visible} long offsets[] = {{{places}, sizeof({struct_name})}};\n"
        f"{visible} bool doubles[] = {{{doubles}}};\n"
    )
    *offsets, size = (ctypes.c_long * (len(fields) + 1)).in_dll(library, "offsets")
    return Declared(offsets, list((ctypes.c_bool * len(fields)).in_dll(library, "doubles")), size)
