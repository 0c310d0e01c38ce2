"""Training functions of the demo's models: the loss and its gradient, an optimizer, clipping.

Array code for NumPy and CuPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from dnnffi.device.arrays import array_module
from dnnffi.device.interface import NDArray


def cross_entropy(scores: NDArray, targets: NDArray) -> tuple[NDArray, NDArray]:
    """Return the mean softmax cross-entropy over the rows in nats, and its gradient.

    ``scores`` are [rows, classes] and ``targets`` the numbers of the correct classes. The loss is
    an array without dimensions, so that the host does not wait for a GPU.
    """
    xp = array_module(scores)
    scores = scores - scores.max(axis=1, keepdims=True)
    exponentials = xp.exp(scores)
    sums = exponentials.sum(axis=1, keepdims=True)
    rows, right = xp.arange(targets.size), targets.reshape(-1)
    loss = (xp.log(sums[:, 0]) - scores[rows, right]).mean()
    gradient = exponentials / sums  # (p - one-hot) / rows
    gradient[rows, right] -= 1
    gradient /= targets.size
    return loss, gradient


class Adam:
    """Adam (Kingma and Ba, 2015), which changes a list of arrays in place."""

    def __init__(
        self, parameters: Sequence[NDArray], rate: float, beta1: float = 0.9, beta2: float = 0.99
    ) -> None:
        self.rate, self.beta1, self.beta2 = rate, beta1, beta2
        self._steps = 0
        self._parameters = list(parameters)
        self._means = [array_module(p).zeros_like(p) for p in parameters]
        self._squares = [array_module(p).zeros_like(p) for p in parameters]

    def step(self, gradients: Sequence[NDArray]) -> None:
        """Change the parameters by one step of descent along ``gradients``."""
        self._steps += 1
        # Bias correction: both running means start at zero.
        rate = self.rate * sqrt(1 - self.beta2**self._steps) / (1 - self.beta1**self._steps)
        for parameter, gradient, mean, square in zip(
            self._parameters, gradients, self._means, self._squares, strict=True
        ):
            xp = array_module(parameter)
            mean += (1 - self.beta1) * (gradient - mean)
            square += (1 - self.beta2) * (gradient * gradient - square)
            parameter -= rate * mean / (xp.sqrt(square) + 1e-8)


def clip_by_norm(gradients: Sequence[NDArray], limit: float) -> None:
    """Scale ``gradients`` in place so that their joint norm is at most ``limit``."""
    xp = array_module(gradients[0])
    norm = xp.sqrt(sum((gradient * gradient).sum() for gradient in gradients))
    scale = xp.minimum(1, limit / (norm + 1e-12))
    for gradient in gradients:
        gradient *= scale.astype(gradient.dtype)
