"""A small convolutional network that classifies pictures.

dnnffi computes the convolutions and their gradients. The rest is array code for NumPy and CuPy.

Symbols: N pictures, C channels, V classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

import dnnffi
from dnnffi.cli.learning import cross_entropy
from dnnffi.device.interface import NDArray


class ConvModel:
    """The model's parameters, its loss and the gradients.

    The network has 3 x 3 convolutions, then the mean of each channel, then a matrix of scores. All
    convolutions but the first halve the size of the picture. ``parameters`` are the weights and
    bias of each convolution, then those of the matrix, [V, C] and [V].
    """

    def __init__(
        self,
        xp: ModuleType,
        channels: Sequence[int],
        kinds: int,
        backend: str,
        rng: np.random.Generator,
    ) -> None:
        """Draw the parameters on the host; ``xp`` is ``numpy`` or ``cupy``.

        ``channels`` are those of the picture and of the output of each convolution.
        """
        self.backend = backend
        self.strides = [1, *(2,) * (len(channels) - 2)]
        self.parameters: list[NDArray] = []

        def draw(shape: tuple[int, ...]) -> None:
            # He et al., 2015: keeps the variance after a ReLU.
            bound = (2 / np.prod(shape[1:])) ** 0.5
            self.parameters.append(xp.asarray((rng.normal(size=shape) * bound).astype("float32")))
            self.parameters.append(xp.zeros(shape[0], "float32"))

        for few, many in pairwise(channels):
            draw((many, few, 3, 3))
        draw((kinds, channels[-1]))

    def scores(self, pictures: NDArray) -> NDArray:
        """Return a score for each class: [N, V] for pictures [N, C, H, W]."""
        return self._scores(self._features(pictures)[-1])

    def loss_and_gradients(
        self, pictures: NDArray, targets: NDArray
    ) -> tuple[NDArray, list[NDArray]]:
        """Return the loss in nats, and its gradients in the order of ``parameters``.

        ``targets`` are the numbers of the correct classes [N]. The loss is an array without
        dimensions, so that the host does not wait for a GPU.
        """
        features = self._features(pictures)
        loss, d_scores = cross_entropy(self._scores(features[-1]), targets)

        last = features[-1]
        gradients = [d_scores.T @ last.mean(axis=(2, 3)), d_scores.sum(axis=0)]
        pixels = last.shape[2] * last.shape[3]
        dy = (d_scores @ self.parameters[-2])[:, :, None, None] / pixels
        for layer in reversed(range(len(self.strides))):
            x, y, w = features[layer], features[layer + 1], self.parameters[2 * layer]
            dy = dy * (y > 0)  # gradient of the ReLU, broadcast to the shape of y
            dw = dnnffi.conv_backward_weights(dy, x, w.shape, **self._keywords(layer))
            gradients = [dw, dnnffi.conv_backward_bias(dy), *gradients]
            if layer:  # the gradient of the pictures is not needed
                dy = dnnffi.conv_backward_data(dy, w, x.shape, **self._keywords(layer))
        return loss, gradients

    def _features(self, pictures: NDArray) -> list[NDArray]:
        """Return the pictures and the output of each convolution."""
        features = [pictures]
        for layer in range(len(self.strides)):
            w, bias = self.parameters[2 * layer : 2 * layer + 2]
            y = dnnffi.conv(features[-1], w, bias, activation="relu", **self._keywords(layer))
            features.append(y)
        return features

    def _keywords(self, layer: int) -> dict[str, Any]:
        return {"stride": self.strides[layer], "padding": 1, "backend": self.backend}

    def _scores(self, features: NDArray) -> NDArray:
        return features.mean(axis=(2, 3)) @ self.parameters[-2].T + self.parameters[-1]
