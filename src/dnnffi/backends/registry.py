"""The registry of backends, one line each, and the choice of a backend by an array."""

from __future__ import annotations

from typing import Any

from dnnffi.backends.cudnn.entry import CUDNN
from dnnffi.backends.entry import Backend
from dnnffi.backends.miopen.entry import MIOPEN
from dnnffi.backends.vulkan.entry import VULKAN
from dnnffi.device.arrays import kind
from dnnffi.device.cupy import import_cupy
from dnnffi.device.interface import Array
from dnnffi.spec.checks import check_choice

REFERENCE = Backend(name="reference", title="reference", kind="host", platform="the host")

BACKENDS = {backend.name: backend for backend in (CUDNN, MIOPEN, VULKAN, REFERENCE)}
_BY_KIND = {backend.kind: backend for backend in BACKENDS.values() if not backend.by_name}


def named(name: object) -> Backend:
    """Return the backend called ``name``; an error that names all if there is no such backend."""
    return BACKENDS[check_choice("backend", name, BACKENDS, or_none=True)]


def backend_of(name: object, x: Array, *, external: bool = False) -> Backend:
    """Return the backend called ``name``, or where it is None the one that ``x`` asks for.

    CuPy on CUDA goes to cuDNN, CuPy on ROCm to MIOpen, NumPy to the reference. Memory whose owner
    does not tell what it is (DLPack does) asks for none: ``TypeError``, or ``ImportError`` where
    the call is not on ``external`` arrays and there is no CuPy.
    """
    if name is not None:
        return named(name)
    found = kind(x)
    if found is None:
        if not external:
            import_cupy()  # as_array made no CuPy array of it
        raise TypeError(
            "backend must be named: x does not tell whose memory it is in, as DLPack does"
        )
    return _BY_KIND[found]


def kind_error(backend: Backend, name: str, array: Array) -> TypeError | None:
    """Return the error for an array in another platform's memory than the backend's, or None."""
    found: Any = kind(array)
    if found in (None, REFERENCE.kind, backend.kind):
        return None
    other = _BY_KIND[found]
    return TypeError(
        f"{name} must be an array on {backend.platform} for backend {backend.name!r}; this "
        f"{type(array).__name__} is on {other.platform}, which is for backend {other.name!r}"
    )
