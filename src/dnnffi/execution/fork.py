"""Plans after a fork: the driver does not work in the child, and a call says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dnnffi.errors import DnnffiError
from dnnffi.execution.cache import WeakRegistry
from dnnffi.operating_system import register_at_fork


class Guarded(Protocol):
    """A plan, or an object that plans share: each call gets the current device from it."""

    current_device: Callable[[], Any]


_alive: WeakRegistry[Guarded] = WeakRegistry()


def guard(plan: Guarded) -> None:
    """Let calls that use ``plan`` in a forked process raise `DnnffiError`."""
    _alive.add(plan)


def refuse_after_fork() -> Any:
    """Raise the error that a forked process gets instead of the current device, or of a handle."""
    raise DnnffiError(
        "this process was forked after dnnffi had used the GPU, and the driver does not work in "
        "it; start processes with the spawn or forkserver method of multiprocessing"
    )


def _refuse_in_child() -> None:
    for plan in _alive.snapshot():
        plan.current_device = refuse_after_fork


register_at_fork(after_in_child=_refuse_in_child)
