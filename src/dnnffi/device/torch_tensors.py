"""Checks of PyTorch's tensors (gradient, sign, layout), and of modes that record calls."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from dnnffi.errors import UnsupportedError, caller_level

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


_warned = False


def detached(name: str, value: Any) -> Any:
    """``value``, or for a tensor of PyTorch one whose memory alone holds its values.

    A tensor that requires a gradient is detached, with a warning once; one that PyTorch negates
    lazily is negated: PyTorch exports its memory, which has the other sign (2.13). ``TypeError``
    for a sparse tensor, `UnsupportedError` for a tensor that is traced.
    """
    layout = getattr(value, "layout", None)  # arrays of JAX have one too, of another kind
    if type(layout).__module__ == "torch":
        if str(layout) != "torch.strided":
            raise TypeError(
                f"{name} must be a dense tensor, of layout torch.strided; got one of {layout}: "
                f"give {name}.to_dense()"
            )
        check_not_traced(name)
        if has_tangent(value):
            _warn(name)
    if getattr(value, "requires_grad", False):
        torch = sys.modules.get("torch")
        if torch is None or torch.is_grad_enabled():
            _warn(name)
        value = value.detach()
    is_neg = getattr(value, "is_neg", None)
    return value.resolve_neg() if is_neg is not None and is_neg() else value


def _warn(name: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"{name} requires a gradient, and PyTorch's autograd does not differentiate this "
            f"call: use dnnffi.torch, or pass {name}.detach()",
            UserWarning,
            stacklevel=caller_level(),
        )
