"""Helpers of the autograd functions of networks and of convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dnnffi.errors import UnsupportedError

Gradients = Callable[[Sequence[Any]], Sequence[Any]]
"""Computes gradients, as tensors, of the gradients of a call's results."""


def recorded(gradients: Gradients, given: Sequence[Any], others: Sequence[Any]) -> Sequence[Any]:
    """Return ``gradients(given)`` in a backward pass that autograd records.

    Autograd records with ``create_graph=True``. The gradients depend on ``given`` and ``others``;
    their derivative with respect to either raises `UnsupportedError`.
    """
    return _FirstDerivative.apply(gradients, len(given), *given, *others)


class _FirstDerivative(torch.autograd.Function):  # type: ignore[misc]
    """The backward pass of a call, where autograd records it.

    ``once_differentiable`` of PyTorch would miss the dependence on ``others`` where the gradients
    of the results are constants.
    """

    @staticmethod
    def forward(ctx: Any, gradients: Gradients, count: int, *tensors: Any) -> tuple[Any, ...]:
        return tuple(gradients(tensors[:count]))

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        raise UnsupportedError(
            "dnnffi.torch",
            "",
            "it has no second derivatives: the libraries give first ones only",
        )


def has_tangents(tensors: Sequence[Tensor | None]) -> bool:
    """Whether one of the tensors carries a tangent of forward-mode differentiation."""
    forward_ad = torch.autograd.forward_ad
    if forward_ad._current_level < 0:
        return False
    given = (tensor for tensor in tensors if tensor is not None)
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in given)


def has_saved_tensor_hooks() -> bool:
    """Whether hooks decide what a backward pass gets for a saved tensor, as in a checkpoint."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def runs_in_backward() -> bool:
    """Whether this thread runs a backward pass of PyTorch."""
    return bool(torch._C._current_graph_task_id() != -1)


def keeps_graph() -> bool:
    """Whether the backward pass that runs was asked for with ``retain_graph=True``."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())
