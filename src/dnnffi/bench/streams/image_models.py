"""Models of image streams on `dnnffi.conv`: CuPy arrays on a GPU, NumPy arrays elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import dnnffi
from dnnffi.bench.array_models import array_package
from dnnffi.bench.creator import Creator
from dnnffi.bench.relu import relu_backward
from dnnffi.bench.streams.images import ImageBatch, ImageData, ImageStream
from dnnffi.bench.streams.model import FUNCTIONS, TUNED, Results, StreamModel, descend
from dnnffi.device.interface import NDArray


class Loaded(NamedTuple):
    """The arrays of a batch, channels last in memory."""

    x: NDArray  # [N, C, H, W]
    dy: Any  # likewise; None in inference


def loader(
    xp: ModuleType, stream: ImageStream, data: ImageData, training: bool
) -> Callable[[ImageBatch], Loaded]:
    """Return a function that copies a batch out of arrays on the device."""
    all_x, all_dy = xp.asarray(data.x), xp.asarray(data.dy)

    def cut(source: NDArray, batch: ImageBatch) -> NDArray:
        shape = batch.images, batch.height, batch.width, stream.channels
        size = batch.images * batch.height * batch.width * stream.channels
        array: NDArray = source[:size].copy().reshape(shape).transpose(0, 3, 1, 2)
        return array

    def load(batch: ImageBatch) -> Loaded:
        return Loaded(cut(all_x, batch), cut(all_dy, batch) if training else None)

    return load


def functions(
    stream: ImageStream,
    data: ImageData,
    place: str,
    training: bool,
    *,
    options: Any = None,
) -> StreamModel:
    """Make a model of `dnnffi.conv`, with bias and ReLU in its calls, and its gradients."""
    xp = array_package(place)
    weights = [_upload(xp, array) for array in data.weights]
    gradients = [xp.zeros_like(array) for array in weights]
    (w1, b1), (w2, b2), (w3, b3) = zip(weights[::2], weights[1::2], strict=True)
    conv = partial(dnnffi.conv, options=options)
    conv_data = partial(dnnffi.conv_backward_data, options=options)
    conv_weights = partial(dnnffi.conv_backward_weights, options=options)

    def forward(x: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        first = conv(x, w1, b1, activation="relu")
        second = conv(first, w2, b2, padding=1, activation="relu")
        return first, second, conv(second, w3, b3)

    def train(loaded: Loaded) -> Results:
        nonlocal gradients
        for weight, gradient in zip(weights, gradients, strict=True):
            descend(xp, weight, gradient)
        x, dy = loaded.x, loaded.dy
        first, second, y = forward(x)
        d_second = relu_backward(xp, second, conv_data(dy, w3, second.shape))
        d_first = relu_backward(xp, first, conv_data(d_second, w2, first.shape, padding=1))
        dx = conv_data(d_first, w1, x.shape)
        gradients = [
            conv_weights(d_first, x, w1.shape),
            dnnffi.conv_backward_bias(d_first),
            conv_weights(d_second, first, w2.shape, padding=1),
            dnnffi.conv_backward_bias(d_second),
            conv_weights(dy, second, w3.shape),
            dnnffi.conv_backward_bias(dy),
        ]
        return Results(y, dx, gradients)

    def infer(loaded: Loaded) -> Results:
        return Results(forward(loaded.x)[-1])

    return StreamModel(loader(xp, stream, data, training), train if training else infer)


def _upload(xp: ModuleType, array: NDArray) -> Any:
    """Return a copy on the device, in the same memory layout."""
    if array.ndim == 1:
        return xp.array(array)
    return xp.array(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


CREATORS = (
    Creator(FUNCTIONS, "array", functions, always=True, tunes=True),
    Creator(TUNED, "array", partial(functions, options={"tune": "now"}), tunes=True),
)
