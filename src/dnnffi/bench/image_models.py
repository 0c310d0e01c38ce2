"""Image CNNs on `dnnffi.conv`: CuPy arrays on a GPU, NumPy arrays elsewhere."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import dnnffi
from dnnffi.bench.array_models import array_package
from dnnffi.bench.creator import Creator
from dnnffi.bench.images import ImageData, ImageShape
from dnnffi.bench.model import ModelDef
from dnnffi.bench.relu import relu_backward
from dnnffi.bench.resnet import Block, Conv
from dnnffi.device.arrays import in_layout
from dnnffi.device.cupy import cupy_memory
from dnnffi.device.interface import NDArray
from dnnffi.spec.names import Activation

Options = dict[str, Any] | None


class _Saved(NamedTuple):
    """State saved by a forward pass for the gradients."""

    maps: list[list[NDArray]]  # of each block: its input and the output of each convolution
    means: NDArray  # [N, C, 1, 1]


class _Network:
    """A network with its weights: a forward pass, and gradients written by hand."""

    def __init__(
        self, xp: ModuleType, shape: ImageShape, weights: list[NDArray], options: Options
    ) -> None:
        self._xp = xp
        self._net = shape.network
        self._options = options
        self.weights = weights

    def forward(self, x: NDArray, keep: bool) -> tuple[NDArray, _Saved]:
        """Return the scores [N, V] of pictures [N, C, H, W], and the state that `gradients` needs.

        Without ``keep``, only the input of the next convolution is kept.
        """
        saved: list[list[NDArray]] = []
        for block in self._net.blocks:
            maps = [x] if keep else None
            x = self._block(block, x, maps)
            if maps is not None:
                saved.append(maps)
        means = x.mean(axis=(2, 3), keepdims=True)
        scores = self._conv(self._net.scores, means).reshape(len(means), -1)
        return scores, _Saved(saved, means)

    def gradients(self, saved: _Saved, dy: NDArray) -> list[NDArray]:
        """Return the gradients of sum(dy * scores) for the weights and biases, in their order.

        ``saved`` can be used once: the maps of a block are dropped after it.
        """
        found: list[Any] = [None] * len(self.weights)
        d_scores = dy.reshape(*dy.shape, 1, 1)
        d_means = self._backward(self._net.scores, saved.means, d_scores, found)
        height, width = saved.maps[-1][-1].shape[2:]
        terms = [d_means / (height * width)]
        for block in reversed(self._net.blocks):
            maps = saved.maps.pop()
            terms = self._block_backward(block, maps, terms, found, first=not saved.maps)
        return found

    def _conv(
        self,
        conv: Conv,
        x: NDArray,
        residual: NDArray | None = None,
        activation: Activation | None = None,
    ) -> NDArray:
        w, bias = self.weights[2 * conv.number : 2 * conv.number + 2]
        return dnnffi.conv(
            x, w, bias, residual=residual, activation=activation, **self._keywords(conv)
        )

    def _keywords(self, conv: Conv) -> dict[str, Any]:
        return {"stride": conv.stride, "padding": conv.padding, "options": self._options}

    def _block(self, block: Block, x: NDArray, kept: list[NDArray] | None) -> NDArray:
        residual = None
        if block.residual:
            residual = x if block.around is None else self._conv(block.around, x)
        for conv in block.convs:
            last = conv is block.convs[-1]
            x = self._conv(conv, x, residual if last else None, "relu")
            if kept is not None:
                kept.append(x)
        return x

    def _block_backward(
        self,
        block: Block,
        maps: list[NDArray],
        terms: list[NDArray],
        found: list[Any],
        *,
        first: bool,
    ) -> list[NDArray]:
        """Return the terms of the gradient of the block's input, given those of its output.

        The input of the first block is the pictures, whose gradient is not needed.
        """
        dy = added = relu_backward(self._xp, maps[-1], *terms)
        dx: Any = None
        for number in reversed(range(len(block.convs))):
            x, wanted = maps[number], not first or number > 0
            dx = self._backward(block.convs[number], x, dy, found, wanted=wanted)
            if number:
                dy = relu_backward(self._xp, x, dx)
        if not block.residual:
            return [dx]
        if block.around is not None:
            added = self._backward(block.around, maps[0], added, found)
        return [dx, added]

    def _backward(
        self, conv: Conv, x: NDArray, dy: NDArray, found: list[Any], *, wanted: bool = True
    ) -> Any:
        """Return the gradient of x if it is wanted; write that of the weights to ``found``."""
        w, keywords = self.weights[2 * conv.number], self._keywords(conv)
        found[2 * conv.number] = dnnffi.conv_backward_weights(dy, x, w.shape, **keywords)
        found[2 * conv.number + 1] = dnnffi.conv_backward_bias(dy)
        return dnnffi.conv_backward_data(dy, w, x.shape, **keywords) if wanted else None


def functions(
    shape: ImageShape, data: ImageData, place: str, training: bool, *, options: Options = None
) -> ModelDef:
    """Make a model of ``dnnffi.conv``, with bias, residual and ReLU in its calls, and gradients."""
    xp = array_package(place)

    def upload(array: NDArray) -> NDArray:
        array = xp.asarray(array)
        return in_layout(array, channels_last=shape.channels_last) if array.ndim > 1 else array

    network = _Network(xp, shape, [upload(array) for array in data.weights], options)
    dy = xp.asarray(data.dy)

    def backward(outputs: tuple[NDArray, _Saved]) -> list[NDArray]:
        return network.gradients(outputs[1], dy)

    return ModelDef(
        partial(network.forward, upload(data.x), training), backward if training else None
    )


def tuned(shape: ImageShape, data: ImageData, place: str, training: bool) -> ModelDef:
    """Make the model of `functions` with tuned algorithms; the first calls tune them."""
    model = functions(shape, data, place, training, options={"tune": "now"})
    model.once()
    return model


def captured(shape: ImageShape, data: ImageData, place: str, training: bool) -> ModelDef:
    """Make the tuned model as one CUDA graph: the forward pass, with gradients in training."""
    model = tuned(shape, data, place, training)
    graph = cupy_memory().capture_step(model.once)
    return ModelDef.of_graph(graph.launch, graph.result)


CREATORS = (
    Creator("dnnffi", "array", functions),
    Creator("dnnffi tuned", "array", tuned, places=("gpu",)),
    Creator("dnnffi captured", "array", captured, places=("gpu",), captures=True),
)
