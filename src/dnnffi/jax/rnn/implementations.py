"""The implementations of a recurrent network, and the choice of one for a call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dnnffi.backends.registry import named
from dnnffi.errors import LibraryNotFoundError, UnsupportedError
from dnnffi.jax.arrays import platform_of
from dnnffi.jax.rnn.engine import Engine, ReferenceEngine, VendorEngine
from dnnffi.jax.rnn.handlers import Handlers
from dnnffi.jax.rnn.operation import Implementation, warn_of_scan
from dnnffi.rnn.backend import rnn_backends
from dnnffi.spec.checks import check_choice
from dnnffi.spec.problem import RNNProblem

SCAN = "scan"


def _cudnn() -> Engine:
    # XLA has the memory of arrays. What executors keep is memory of the device runtime.
    backend = rnn_backends.external("cudnn")
    return VendorEngine(named("cudnn"), backend.library, backend.tuner)


def _miopen() -> Engine:
    entry = named("miopen")
    assert entry.load is not None
    # Nothing here needs an array: XLA has the memory.
    return VendorEngine(entry, entry.load().without_cupy())


# Registered when this is imported: programs from disk find their handlers by name.
IMPLEMENTATIONS = {
    implementation.name: implementation
    for implementation in (
        Implementation(
            *("cudnn", "cuda", Handlers("dnnffi_cudnn", "CUDA", _cudnn)),
            has_resets=True,
            has_device_lengths=True,
        ),
        Implementation("miopen", "rocm", Handlers("dnnffi_miopen", "ROCM", _miopen), "miopen"),
        Implementation(
            *("reference", "cpu", Handlers("dnnffi_reference", "cpu", ReferenceEngine)),
            has_resets=True,
        ),
    )
}
NAMES = (*IMPLEMENTATIONS, SCAN)


def implementation_of(
    name: object, problem: RNNProblem | None, operands: Iterable[Any]
) -> Implementation | None:
    """Return the implementation to run ``problem``, None for the scan.

    ``problem`` is None where only the scan can: where no row has a step.
    """
    if name is None:
        if problem is None or platform_of(operands) != "cuda":
            return None
        implementation = IMPLEMENTATIONS["cudnn"]
        try:
            implementation.handlers.decide(problem)
        except (LibraryNotFoundError, UnsupportedError) as error:
            warn_of_scan(problem, error)
            return None
        return implementation
    name = check_choice("implementation", name, NAMES, or_none=True)
    if name == SCAN or problem is None:
        return None
    implementation = IMPLEMENTATIONS[name]
    if problem.has_resets and not implementation.has_resets:
        limit = f"cannot reset states within a sequence; implementation {SCAN!r} can"
        raise UnsupportedError(f"implementation {name!r}", "", limit)
    if problem.has_device_lengths and not implementation.has_device_lengths:
        limit = f"takes lengths as integers of the host; implementation {SCAN!r} has others"
        raise UnsupportedError(f"implementation {name!r}", "", limit)
    implementation.check_there()
    return implementation
