"""Plans after a fork: the driver does not work in the child, and a call says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

from dnnffi.backends.vendor.handle import refuse_after_fork


class Guarded(Protocol):
    """A plan that asks for the current device at every call."""

    current_device: Callable[[], Any]


_alive: WeakSet[Guarded] = WeakSet()


def guard(plan: Guarded) -> None:
    """Let calls of ``plan`` in a forked process raise `DnnffiError`."""
    _alive.add(plan)


def _refuse_in_child() -> None:
    for plan in list(_alive):
        plan.current_device = refuse_after_fork


os.register_at_fork(after_in_child=_refuse_in_child)
