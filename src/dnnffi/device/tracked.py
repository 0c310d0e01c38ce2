"""Properties of PyTorch's tensors beside their memory: gradient, sign, layout, mode of tracing."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from dnnffi.device.torch_modes import check_not_traced, has_tangent
from dnnffi.errors import caller_level

_warned = False


def detached(name: str, value: Any) -> Any:
    """``value``, of a tensor of PyTorch what its memory alone tells.

    A tensor that requires a gradient is detached, and one that PyTorch negates lazily is negated:
    PyTorch exports its memory, which has the other sign (2.13). ``TypeError`` for a sparse tensor,
    whose memory is several, `UnsupportedError` for a tensor that is traced.
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
            f"call: use dnnffi.torch, or give {name}.detach()",
            UserWarning,
            stacklevel=caller_level(),
        )
