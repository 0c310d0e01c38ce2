"""Models of image streams on PyTorch's tensors: PyTorch's convolutions and `dnnffi.torch.conv`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

import dnnffi.torch
from dnnffi.bench.creator import Creator
from dnnffi.bench.streams.images import ImageBatch, ImageData, ImageStream
from dnnffi.bench.streams.model import BENCHMARK, EAGER, TORCH_FUNCTIONS, StreamModel
from dnnffi.bench.streams.torch_models import stream_model
from dnnffi.bench.torch_models import PLACES, tensor

Convolution = Callable[..., torch.Tensor]
"""A function ``conv(x, w, bias, padding=...)``."""


class Loaded(NamedTuple):
    """The tensors of a batch, channels last in memory."""

    x: torch.Tensor  # [N, C, H, W]
    dy: torch.Tensor | None  # likewise; None in inference


def loader(
    stream: ImageStream, data: ImageData, place: str, training: bool
) -> Callable[[ImageBatch], Loaded]:
    """Return a function that copies a batch out of tensors on the device."""
    all_x, all_dy = tensor(data.x, place, False), tensor(data.dy, place, False)

    def cut(source: torch.Tensor, batch: ImageBatch) -> torch.Tensor:
        shape = batch.images, batch.height, batch.width, stream.channels
        size = batch.images * batch.height * batch.width * stream.channels
        return source[:size].clone().reshape(shape).permute(0, 3, 1, 2)

    def load(batch: ImageBatch) -> Loaded:
        x = cut(all_x, batch).requires_grad_(training)
        return Loaded(x, cut(all_dy, batch) if training else None)

    return load


def model(
    stream: ImageStream,
    data: ImageData,
    place: str,
    training: bool,
    *,
    conv: Convolution = torch.nn.functional.conv2d,
    search: bool = False,
) -> StreamModel:
    """Make a model with ``conv``; ``search`` is ``torch.backends.cudnn.benchmark``."""
    cudnn: Any = torch.backends.cudnn
    weights = [_upload(array, place).requires_grad_(training) for array in data.weights]
    w1, b1, w2, b2, w3, b3 = weights

    def forward(loaded: Loaded) -> torch.Tensor:
        cudnn.benchmark = search  # the switch applies to the whole process
        first = torch.relu_(conv(loaded.x, w1, b1))
        second = torch.relu_(conv(first, w2, b2, padding=1))
        return conv(second, w3, b3)

    return stream_model(loader(stream, data, place, training), forward, weights, training)


def _upload(array: Any, place: str) -> torch.Tensor:
    """Return a copy on the device, channels last in memory."""
    if array.ndim == 1:
        return tensor(array, place, False)
    return tensor(array.transpose(0, 2, 3, 1), place, False).permute(0, 3, 1, 2)


CREATORS = (
    Creator(EAGER, "torch", model, places=PLACES, always=True),
    Creator(
        BENCHMARK, "torch", partial(model, search=True), places=PLACES[1:], always=True, share=1
    ),
    Creator(
        TORCH_FUNCTIONS,
        "torch",
        partial(model, conv=dnnffi.torch.conv),
        places=PLACES,
        always=True,
        tunes=True,
    ),
)
