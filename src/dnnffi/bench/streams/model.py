"""A model of a stream: a function that makes the arrays of a batch, and one that runs on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from dnnffi.bench.kernels import elementwise
from dnnffi.device.interface import NDArray

FUNCTIONS = "dnnffi"
TUNED = "dnnffi tuned"
TUNED_PLAN = "tuned plan"
TORCH_FUNCTIONS = "dnnffi torch"
MODULE_PADDED, MODULE_PACKED = "dnnffi torch module padded", "dnnffi torch module packed"
PADDED, PACKED = "torch padded", "torch packed"
EAGER, BENCHMARK = "torch eager", "torch benchmark"
JAX_BUCKETS = "jax scan buckets"
JAX_SCAN = "jax scan"
TORCHRL_PAD, TORCHRL_TF32, TORCHRL_BF16 = (
    "torchrl pad",
    "torchrl triton tf32",
    "torchrl triton bf16",
)

LEARNING_RATE = 1e-6
"""Step size of the gradient descent: small enough that all numbers stay in float16's range."""


def with_resets(model: str, rate: float) -> str:
    """Return the name of a model that resets states at the share ``rate`` of the steps.

    Examples
    --------
    >>> with_resets("dnnffi", 0.01)
    'dnnffi resets 1%'
    """
    return f"{model} resets {rate:.0%}"


class Results(NamedTuple):
    """Results of a batch: y, and in training the gradients of sum(dy * y).

    dweights : `RNNWeights`, or arrays in PyTorch's order
    """

    y: Any  # [T, B, H], or [N, C, H, W] for images
    dx: Any = None  # in the shape of x
    dweights: Any = None


class StreamModel(NamedTuple):
    """A network with its weights.

    load : makes the arrays of a batch, each in a new allocation. Elements of dy after the end of a
        row are zeros, so that all models of a stream have the same gradients.
    step : in training, first w -= LEARNING_RATE * g in place, with g of the batch before. Then the
        forward pass and the gradients of x and the weights; in inference the forward pass alone.
    reset_rate : the share of the steps at which states are reset
    """

    load: Callable[[Any], Any]
    step: Callable[[Any], Any]
    reset_rate: float = 0.0


def descend(xp: ModuleType, weights: NDArray, gradient: NDArray) -> None:
    """Compute ``weights -= LEARNING_RATE * gradient`` in place, on a GPU in one kernel."""
    if xp is np:
        weights -= (LEARNING_RATE * gradient).astype(weights.dtype)
        return
    _descend(xp)(gradient, LEARNING_RATE, weights)


@cache
def _descend(cupy: Any) -> Any:
    text = "w = (T)((A)w - (A)rate * (A)g);"
    return elementwise(cupy, "dnnffi_descend", "T g, float64 rate", "T w", text)
