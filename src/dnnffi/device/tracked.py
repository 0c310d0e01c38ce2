"""Does PyTorch track the gradient of what a caller gave? It ends here, and that is said once."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from dnnffi.errors import caller_level

_warned = False


def detached(name: str, value: Any) -> Any:
    """``value``, of a tensor that requires a gradient the part that PyTorch exports."""
    if not getattr(value, "requires_grad", False):
        return value
    torch = sys.modules.get("torch")
    if torch is None or torch.is_grad_enabled():
        _warn(name)
    return value.detach()


def _warn(name: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"{name} requires a gradient, and PyTorch's autograd does not go back through this "
            f"call: use dnnffi.torch, or give {name}.detach() (said once)",
            UserWarning,
            stacklevel=caller_level(),
        )
