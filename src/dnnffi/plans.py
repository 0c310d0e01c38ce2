"""The plans that the functions keep, of networks and of convolutions."""

from __future__ import annotations

from operator import add
from typing import Any

from dnnffi.convolution.engines import all_conv_engines
from dnnffi.rnn.engines import HeldMemory, all_engines


def cached_plans() -> tuple[Any, ...]:
    """The plans that the functions keep for problems they have seen; each has a ``report()``."""
    engines: tuple[Any, ...] = (*all_engines(), *all_conv_engines())
    return tuple(plan for engine in engines for plan in engine.plans.values())


def held_memory() -> dict[str, HeldMemory]:
    """Device memory in bytes that all plans hold between calls, by backend that was used.

    Of the functions' plans and of those that users hold: ``workspaces`` (those of convolutions
    too), ``graphs`` as far as it could be seen, ``copies``. The reserve space of an `RNNPlan` is
    its own, see its ``report()``.
    """
    found: dict[str, HeldMemory] = {}
    for engine in all_engines():
        before = found.get(engine.name, HeldMemory())
        found[engine.name] = HeldMemory(*map(add, before, engine.held_memory()))
    return found


def clear_plans() -> None:
    """Forget these plans, and what was measured in this process. What is on disk stays."""
    engines: tuple[Any, ...] = (*all_engines(), *all_conv_engines())
    for engine in engines:
        engine.clear()
