"""The plans that the functions keep, of networks and of convolutions."""

from __future__ import annotations

from typing import Any

from dnnffi.plan.conv import all_conv_engines
from dnnffi.plan.engines import all_engines


def cached_plans() -> tuple[Any, ...]:
    """The plans that the functions keep for problems they have seen; each has a ``report()``."""
    engines: tuple[Any, ...] = (*all_engines(), *all_conv_engines())
    return tuple(plan for engine in engines for plan in engine.plans.values())


def clear_plans() -> None:
    """Forget these plans, and what was measured in this process. What is on disk stays."""
    engines: tuple[Any, ...] = (*all_engines(), *all_conv_engines())
    for engine in engines:
        engine.clear()
