"""Modes of PyTorch in which a call on tensors cannot run as usual: compiling, tracing, forward AD.

Nothing here imports PyTorch: a mode can be on only after the program has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from dnnffi.errors import UnsupportedError

_Function = TypeVar("_Function", bound=Callable[..., Any])

_uncompiled: dict[Any, Any] = {}


def is_compiling() -> bool:
    """Whether the caller is being compiled by ``torch.compile``, instead of run."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    asks = getattr(compiler, "is_dynamo_compiling", None)
    return asks is not None and asks()


def uncompiled(function: _Function) -> _Function:
    """Return ``function`` as ``torch.compiler.disable`` wraps it: compiled code breaks there.

    It is wrapped when a caller is compiled, and not before: wrapping imports the compiler, which
    takes seconds.
    """
    found = _uncompiled.get(function)
    if found is None:
        found = _uncompiled[function] = sys.modules["torch"].compiler.disable(function)
    return found


def check_not_traced(name: str) -> None:
    """Raise `UnsupportedError` while ``torch.jit.trace`` runs, about the tensor called ``name``.

    It records operations of PyTorch alone: results of dnnffi would be constants of the trace.
    """
    jit = getattr(sys.modules.get("torch"), "jit", None)
    if jit is not None and jit.is_tracing():
        raise UnsupportedError(
            "dnnffi",
            "",
            f"{name} is a tensor in torch.jit.trace, which cannot record a call of dnnffi and "
            f"would keep its results as constants. Trace the rest of the model without this call",
        )


def has_tangent(tensor: Any) -> bool:
    """Whether a tensor carries a tangent of PyTorch's forward-mode differentiation."""
    autograd = getattr(sys.modules.get("torch"), "autograd", None)
    forward_ad = getattr(autograd, "forward_ad", None)
    return forward_ad is not None and forward_ad.unpack_dual(tensor).tangent is not None
