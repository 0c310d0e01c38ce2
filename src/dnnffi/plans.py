"""The plans that the functions keep, of networks and of convolutions."""

from __future__ import annotations

from operator import add
from typing import Any

from dnnffi.convolution.backend import used_conv_backends
from dnnffi.rnn.backend import HeldMemory, used_backends


def cached_plans() -> tuple[Any, ...]:
    """The plans that the functions keep for problems they have seen; each has a ``report()``."""
    backends: tuple[Any, ...] = (*used_backends(), *used_conv_backends())
    return tuple(plan for backend in backends for plan in backend.plans.values())


def held_memory() -> dict[str, HeldMemory]:
    """Device memory in bytes that all plans hold between calls, by backend that was used.

    Of the functions' plans and of those that users hold: ``workspaces`` (those of convolutions
    too), ``graphs`` as far as it could be seen, ``copies``. The reserve space of an `RNNPlan` is
    its own, see its ``report()``.
    """
    found: dict[str, HeldMemory] = {}
    for backend in used_backends():
        before = found.get(backend.name, HeldMemory())
        found[backend.name] = HeldMemory(*map(add, before, backend.held_memory()))
    return found


def clear_plans() -> None:
    """Forget these plans, and what was measured in this process. What is on disk stays."""
    backends: tuple[Any, ...] = (*used_backends(), *used_conv_backends())
    for backend in backends:
        backend.clear()
