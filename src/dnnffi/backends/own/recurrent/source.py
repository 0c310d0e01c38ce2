"""The source of a kernel: its file in ``cuda/``, the headers that it includes, and its constants.

A file includes ``kernel_config.cuh``, which is made for each kernel: a struct ``Config`` whose
members are the kernel's constants. The file of that name in ``cuda/`` is one example, so that an
editor understands the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from dnnffi.importing import import_lock
from dnnffi.runtime.kernel_cache import Headers

Constant = bool | int | str
"""The value of a member of ``Config``: a number, an enumerator, or the name of a type."""

CONFIG_HEADER = "kernel_config.cuh"
POLICY_HEADER = "product_policy.cuh"

_ENUMS = {"DTYPE": "Dtype", "FACTORS": "Dtype", "CELL": "CellMode", "CLIP": "Clip"}
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


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
    file: str, name: str, constants: Mapping[str, Constant], policy: str = ""
) -> KernelSource:
    """Return the source of the kernel ``name`` in ``file`` of the folder ``cuda``.

    ``policy`` is the header that `POLICY_HEADER` includes, if it is not the one of the file there.
    """
    made = {CONFIG_HEADER: config_header(constants)}
    if policy:
        made[POLICY_HEADER] = f'#pragma once\n#include "{policy}"\n'
    return with_headers(text_of(file), name, made)


def with_headers(text: str, name: str, made: Mapping[str, str]) -> KernelSource:
    """Return a source with the headers that it includes; those in ``made`` are not read."""
    found: dict[str, str] = {}
    pending = [text]
    while pending:
        for header in _INCLUDE.findall(pending.pop()):
            if header not in found:
                found[header] = made[header] if header in made else text_of(header)
                pending.append(found[header])
    return KernelSource(text, name, tuple(sorted(found.items())))


def config_header(constants: Mapping[str, Constant]) -> str:
    """Return the text of `CONFIG_HEADER` for the constants of a kernel.

    Examples
    --------
    >>> print(config_header({"DTYPE": "FLOAT16", "HIDDEN": 512, "STRICT": False}))
    #pragma once
    #include "basics.cuh"
    <BLANKLINE>
    namespace dnnffi {
    <BLANKLINE>
    struct Config
    {
        static constexpr Dtype DTYPE = FLOAT16;
        static constexpr int HIDDEN = 512;
        static constexpr bool STRICT = false;
    };
    <BLANKLINE>
    } // namespace dnnffi
    <BLANKLINE>
    """
    members = "".join(f"    {_member(name, value)}\n" for name, value in constants.items())
    text = (
        '#pragma once\n#include "basics.cuh"\n\nnamespace dnnffi {\n\n'
        f"struct Config\n{{\n{members}}};\n\n}} // namespace dnnffi\n"
    )
    if "LAYERS" in constants:  # an attribute that only a macro can leave out
        of_cluster = "__cluster_dims__(BLOCKS * LAYERS, 1, 1)" if constants["CLUSTER"] else ""
        text += f"\n#define CLUSTER_BLOCKS {of_cluster}".rstrip() + "\n"
    return text


def _member(name: str, value: Constant) -> str:
    if isinstance(value, bool):
        return f"static constexpr bool {name} = {str(value).lower()};"
    if isinstance(value, int):
        return f"static constexpr int {name} = {value};"
    if name in _ENUMS:
        return f"static constexpr {_ENUMS[name]} {name} = {value};"
    return f"using {name} = {value};"


@cache
def text_of(name: str) -> str:
    """Return a file of ``cuda/``."""
    with import_lock:  # for importlib.readers, which files() imports
        return files(__package__).joinpath("cuda", name).read_text(encoding="utf-8")
