"""Installed wheels, read from their metadata: for which CUDA they are, and which others fit them.

NVIDIA's wheels for CUDA 12 and for CUDA 13 contain the same files, so a wheel for the other version
breaks the one that is installed. The install hints of error messages and of ``dnnffi info``
therefore name one version where it is known. Nothing is imported: PyTorch and JAX take seconds, and
load libraries into the process.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from dnnffi.importing import import_lock

CUDA_MAJORS = (13, 12)
"""The major versions of CUDA that dnnffi's extras are for, the newest first."""

_HINT = re.compile(r"(pip install )(\S+) \(CUDA 12: ([^;)]+)[^)]*\)")
_TORCH_REQUIREMENT = re.compile(r"nvidia-cudnn-cu(\d+)")


def _metadata() -> Any:
    """Return ``importlib.metadata``, imported with the parser that it loads for the first file."""
    with import_lock:
        import email.parser  # noqa: F401
        from importlib import metadata
    return metadata


def version(name: str) -> str:
    """Return the version of the distribution ``name``, or an empty text if it is not installed."""
    metadata = _metadata()
    try:
        return metadata.version(name) or ""  # None for a folder that lost its metadata
    except metadata.PackageNotFoundError:
        return ""


def cuda_of_jax() -> int | None:
    """Return the major version of CUDA that JAX's plugin is for; None without a plugin."""
    return _installed("jax-cuda{}-plugin")


def cuda_of_torch() -> int | None:
    """Return the major version of CUDA that PyTorch is for; None for a build for the CPU or ROCm.

    The wheels of PyTorch's own index name it in the version ("2.13.0+cu130"). Those of PyPI
    require NVIDIA's wheels.
    """
    build = version("torch").partition("+")[2]
    if build:
        named = re.match(r"cu(\d\d)\d", build)
    else:
        named = _TORCH_REQUIREMENT.search(" ".join(_requirements("torch")))
    return int(named[1]) if named else None


def _requirements(name: str) -> list[str]:
    metadata = _metadata()
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def cuda_major() -> int | None:
    """Return the major version of CUDA that the installed wheels are for; None without any.

    CuPy and cuDNN are asked before PyTorch and JAX.
    """
    return (
        _installed("cupy-cuda{}x")
        or _installed("nvidia-cudnn-cu{}")
        or cuda_of_torch()
        or cuda_of_jax()
    )


def _installed(pattern: str) -> int | None:
    return next((major for major in CUDA_MAJORS if version(pattern.format(major))), None)


@cache  # an error that is caught may be raised in each call
def fitting_installed(hint: str) -> str:
    """Reduce an install hint for both versions of CUDA to the one of the installed wheels."""
    return fitting(hint, cuda_major())


def fitting(hint: str, major: int | None) -> str:
    """Reduce an install hint for both versions of CUDA to the one for ``major``.

    Examples
    --------
    >>> fitting("pip install nvidia-cudnn-cu13 (CUDA 12: nvidia-cudnn-cu12)", 12)
    'pip install nvidia-cudnn-cu12'
    """
    found = _HINT.fullmatch(hint)
    if found is None or major not in CUDA_MAJORS:
        return hint
    command, newest, older = found.groups()
    return command + (older if major == CUDA_MAJORS[1] else newest)
