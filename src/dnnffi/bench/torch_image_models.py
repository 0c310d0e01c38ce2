"""Image CNNs of PyTorch: eager, traced, with a search for algorithms, and in a CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from dnnffi.bench.creator import Creator
from dnnffi.bench.images import ImageData, ImageShape
from dnnffi.bench.model import ModelDef
from dnnffi.bench.resnet import Conv, ResNet
from dnnffi.bench.torch_models import PLACES, device, in_a_graph, old_jit
from dnnffi.device.interface import NDArray

_FUNCTIONS: Any = torch.nn.functional


def scores(network: ResNet, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the scores [N, V] of pictures [N, C, H, W]."""

    def convolve(conv: Conv, x: torch.Tensor) -> torch.Tensor:
        w, bias = weights[2 * conv.number : 2 * conv.number + 2]
        return _FUNCTIONS.conv2d(x, w, bias, conv.stride, conv.padding)

    for block in network.blocks:
        residual = x
        if block.around is not None:
            residual = convolve(block.around, x)
        for conv in block.convs:
            x = convolve(conv, x)
            if conv is block.convs[-1] and block.residual:
                x += residual
            x = _FUNCTIONS.relu(x, inplace=True)
    matrix, bias = weights[-2:]
    return _FUNCTIONS.linear(x.mean((2, 3)), matrix.flatten(1), bias)


def eager(
    shape: ImageShape,
    data: ImageData,
    place: str,
    training: bool,
    *,
    search: bool = False,
    trace: bool = False,
) -> ModelDef:
    """Make a model of PyTorch's functions.

    search : value of ``torch.backends.cudnn.benchmark``
    trace : whether the network is traced by ``torch.jit.trace``
    """
    cudnn: Any = torch.backends.cudnn
    network = shape.network
    order = torch.channels_last if shape.channels_last else torch.contiguous_format

    def upload(array: NDArray, gradient: bool = False) -> torch.Tensor:
        # A copy, also on a CPU: models share no arrays.
        made = torch.tensor(array, device=device(place))
        if made.ndim == 4:
            made = made.contiguous(memory_format=order)
        return made.requires_grad_(gradient)

    x, weights = upload(data.x), [upload(array, training) for array in data.weights]

    def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return scores(network, x, weights)

    if trace:
        with old_jit():
            run = torch.jit.trace(run, (x, *weights), check_trace=False)

    def forward() -> tuple[torch.Tensor]:
        # The switch applies to the whole process.
        cudnn.benchmark = search
        return (run(x, *weights),)

    if not training:
        return ModelDef(forward)
    dy = upload(data.dy)

    def backward(outputs: tuple[torch.Tensor]) -> list[torch.Tensor]:
        cudnn.benchmark = search
        return list(torch.autograd.grad(outputs, weights, dy))

    return ModelDef(forward, backward)


def captured(shape: ImageShape, data: ImageData, place: str, training: bool) -> ModelDef:
    """Make the model with the search for algorithms, as one CUDA graph."""
    return in_a_graph(eager(shape, data, place, training, search=True))


CREATORS = (
    Creator("torch eager", "torch", eager, places=PLACES),
    Creator("torch benchmark", "torch", partial(eager, search=True), places=PLACES[1:]),
    Creator("torch traced", "torch", partial(eager, trace=True), places=PLACES),
    Creator("torch graph", "torch", captured, places=PLACES[1:], captures=True),
)
