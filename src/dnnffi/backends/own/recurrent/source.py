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
