"""Sources of the recurrent kernels: the enumerators of their `Config`, and a kernel in a file."""

from __future__ import annotations

from collections.abc import Mapping

from dnnffi.backends.own import source
from dnnffi.backends.own.source import Constant, KernelFolder, KernelSource

FOLDER = KernelFolder(
    "dnnffi.backends.own.recurrent",
    config_include="modes.cuh",
    enums={"DTYPE": "Dtype", "FACTORS": "Dtype", "CELL": "CellMode", "CLIP": "Clip"},
)


def kernel_source(file: str, name: str, constants: Mapping[str, Constant]) -> KernelSource:
    """Return the source of the kernel ``name`` in ``file`` of the folder ``cuda``."""
    return source.kernel_source(FOLDER, file, name, constants)


def config_header(constants: Mapping[str, Constant]) -> str:
    """Return the text of ``kernel_config.cuh`` for the constants of a kernel.

    Examples
    --------
    >>> print(config_header({"DTYPE": "FLOAT16", "CELL": "LSTM"}))
    #pragma once
    #include "modes.cuh"
    <BLANKLINE>
    namespace dnnffi {
    <BLANKLINE>
    struct Config
    {
        static constexpr Dtype DTYPE = FLOAT16;
        static constexpr CellMode CELL = LSTM;
    };
    <BLANKLINE>
    } // namespace dnnffi
    <BLANKLINE>
    """
    return source.config_header(FOLDER, constants)
