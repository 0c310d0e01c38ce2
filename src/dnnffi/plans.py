"""The plans that the functions keep, of networks and of convolutions."""

from __future__ import annotations

from operator import add
from typing import Any

from dnnffi.backends.resources import used_resources
from dnnffi.convolution.backend import conv_backends
from dnnffi.rnn.backend import HeldMemory, rnn_backends


def cached_plans() -> tuple[Any, ...]:
    """Return the plans that the functions keep for known problems; each has a ``report()``.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> y = dnnffi.conv(np.ones((1, 1, 3)), np.ones((1, 1, 2)))
    >>> any("[1, 1, 3]" in plan.report() for plan in dnnffi.cached_plans())
    True
    """
    backends: tuple[Any, ...] = (*rnn_backends.used(), *conv_backends.used())
    return tuple(plan for backend in backends for plan in backend.plans.values())


def held_memory() -> dict[str, HeldMemory]:
    """Return the device memory in bytes that all plans hold between calls, by backend.

    Of the functions' plans and of those that users hold: ``workspaces`` (those of convolutions
    too), ``graphs`` as far as it could be seen, ``copies``. The reserve space of an `RNNPlan` is
    its own, see its ``report()``.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> y = dnnffi.conv(np.ones((1, 1, 3)), np.ones((1, 1, 2)))
    >>> dnnffi.held_memory()["reference"]  # which has no device
    HeldMemory(workspaces=0, graphs=0, copies=0)
    """
    parts = [(one.name, HeldMemory(copies=one.copied_bytes())) for one in rnn_backends.used()]
    for one in used_resources():
        parts.append((one.backend.name, HeldMemory(one.workspaces.nbytes, one.graphs.nbytes)))
    found: dict[str, HeldMemory] = {}
    for name, held in parts:
        found[name] = HeldMemory(*map(add, found.get(name, HeldMemory()), held))
    return found


def clear_plans() -> None:
    """Forget all cached plans and what was measured in this process, but nothing on disk.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> y = dnnffi.conv(np.ones((1, 1, 3)), np.ones((1, 1, 2)))
    >>> dnnffi.clear_plans()
    >>> dnnffi.cached_plans()
    ()
    """
    backends: tuple[Any, ...] = (*rnn_backends.used(), *conv_backends.used())
    for backend in backends:
        backend.clear()
