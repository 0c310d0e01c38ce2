"""Sources of kernels: a file in a folder ``cuda``, the headers that it includes, and its constants.

A file includes ``kernel_config.cuh``, which is made for each kernel: a struct ``Config`` whose
members are the kernel's constants. The file of that name in the folder is one example, so that an
editor understands the others. Headers that several folders use are in ``backends/own/cuda/common``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import NamedTuple

from dnnffi.importing import import_lock
from dnnffi.runtime.kernel_cache import Headers

Constant = bool | int | str
"""The value of a member of ``Config``: a number, an enumerator, or the name of a type."""

CONFIG_HEADER = "kernel_config.cuh"

DTYPES = MappingProxyType(
    {
        "float16": "FLOAT16",
        "bfloat16": "BFLOAT16",
        "float32": "FLOAT32",
        "float64": "FLOAT64",
    }
)
"""The enumerators of ``Dtype`` in ``basics.cuh``."""

BIT_TYPES = MappingProxyType({2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"})
"""Types for elements that are only copied, by their bytes."""

_COMMON = "dnnffi.backends.own", "cuda", "common"
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


class KernelFolder(NamedTuple):
    """The folder ``cuda`` of a package, with kernels and the headers of these kernels alone.

    package : name of the package
    config_include : header with the types of the enumerators that a ``Config`` names
    enums : type of each member of ``Config`` that is an enumerator
    """

    package: str
    config_include: str = "basics.cuh"
    enums: Mapping[str, str] = MappingProxyType({"DTYPE": "Dtype"})


FOLDER = KernelFolder("dnnffi.backends.own")
"""The kernels for what surrounds convolutions."""


class KernelSource(NamedTuple):
    """The arguments of `MemoryWithGraphs.kernel`.

    text : CUDA C++
    name : the kernel, a function in it
    headers : name and text of each header that it includes, directly or through another one
    """

    text: str
    name: str
    headers: Headers


def kernel_source(
    folder: KernelFolder,
    file: str,
    name: str,
    constants: Mapping[str, Constant],
) -> KernelSource:
    """Return the source of the kernel ``name`` in ``file`` of a folder."""
    made = {CONFIG_HEADER: config_header(folder, constants)}
    return with_headers(folder, text_of(folder, file), name, made)


def with_headers(
    folder: KernelFolder, text: str, name: str, made: Mapping[str, str]
) -> KernelSource:
    """Return a source with the headers that it includes; those in ``made`` are not read."""
    found: dict[str, str] = {}
    pending = list(_included(text))
    while pending:
        header = pending.pop()
        if header in found:
            continue
        if header in made:
            found[header] = made[header]
            pending += _INCLUDE.findall(made[header])
        else:
            found[header] = text_of(folder, header)
            pending += _included(found[header])
    return KernelSource(text, name, tuple(sorted(found.items())))


@cache
def _included(text: str) -> tuple[str, ...]:
    """Return the headers that a file includes. It is searched once: a kernel has many headers."""
    return tuple(_INCLUDE.findall(text))


def config_header(folder: KernelFolder, constants: Mapping[str, Constant]) -> str:
    """Return the text of `CONFIG_HEADER` for the constants of a kernel.

    Examples
    --------
    >>> constants = {"DTYPE": "FLOAT16", "THREADS": 256, "BIAS": False, "Index": "unsigned int"}
    >>> print(config_header(KernelFolder("dnnffi.backends.own"), constants))
    #pragma once
    #include "basics.cuh"
    <BLANKLINE>
    namespace dnnffi {
    <BLANKLINE>
    struct Config
    {
        static constexpr Dtype DTYPE = FLOAT16;
        static constexpr int THREADS = 256;
        static constexpr bool BIAS = false;
        using Index = unsigned int;
    };
    <BLANKLINE>
    } // namespace dnnffi
    <BLANKLINE>
    """
    members = "".join(f"    {_member(folder, *one)}\n" for one in constants.items())
    return (
        f'#pragma once\n#include "{folder.config_include}"\n\nnamespace dnnffi {{\n\n'
        f"struct Config\n{{\n{members}}};\n\n}} // namespace dnnffi\n"
    )


def _member(folder: KernelFolder, name: str, value: Constant) -> str:
    if isinstance(value, bool):
        return f"static constexpr bool {name} = {str(value).lower()};"
    if isinstance(value, int):
        kind = "int" if -(1 << 31) <= value < 1 << 31 else "long long"
        return f"static constexpr {kind} {name} = {value};"
    if name in folder.enums:
        return f"static constexpr {folder.enums[name]} {name} = {value};"
    return f"using {name} = {value};"


def text_of(folder: KernelFolder, name: str) -> str:
    """Return a file of a folder, or if it has none of that name, the header that folders share."""
    return _text_of(folder.package, name)


@cache
def _text_of(package: str, name: str) -> str:
    with import_lock:  # for importlib.readers, which files() imports
        path = files(package).joinpath("cuda", name)
        if not path.is_file():
            path = files(_COMMON[0]).joinpath(*_COMMON[1:], name)
        return path.read_text(encoding="utf-8")
