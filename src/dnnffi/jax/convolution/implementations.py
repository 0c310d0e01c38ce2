"""The implementations of a convolution, and the choice of one for a call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dnnffi.convolution.backend import conv_backends
from dnnffi.jax.arrays import platform_of
from dnnffi.jax.convolution.engine import CudnnEngine, Engine, ReferenceEngine
from dnnffi.jax.convolution.handlers import Handlers
from dnnffi.jax.primitives import Implementation
from dnnffi.spec.checks import check_choice

LAX = "lax"


def _cudnn() -> Engine:
    # XLA has the memory of arrays. What executors keep is memory of the device runtime.
    backend = conv_backends.external("cudnn")
    return CudnnEngine(backend.library, backend.tuner)


# Registered when this is imported: programs from disk find their handlers by name.
IMPLEMENTATIONS = {
    implementation.name: implementation
    for implementation in (
        Implementation("cudnn", "cuda", Handlers("dnnffi_cudnn_conv", "CUDA", _cudnn)),
        Implementation(
            "reference", "cpu", Handlers("dnnffi_reference_conv", "cpu", ReferenceEngine)
        ),
    )
}
NAMES = (*IMPLEMENTATIONS, LAX)


def implementation_of(name: object, operands: Iterable[Any]) -> Implementation | None:
    """Return the implementation of a name, or for where ``operands`` are; None for JAX's own."""
    if name is None:
        return IMPLEMENTATIONS["cudnn"] if platform_of(operands) == "cuda" else None
    name = check_choice("implementation", name, NAMES, or_none=True)
    if name == LAX:
        return None
    IMPLEMENTATIONS[name].check_there()
    return IMPLEMENTATIONS[name]
