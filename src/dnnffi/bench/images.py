"""The image CNNs that are measured, as data.

Symbols: N pictures, C channels, V kinds of pictures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import NamedTuple

from dnnffi.bench.drawing import Drawing
from dnnffi.bench.model import Problem
from dnnffi.bench.resnet import COLOURS, ResNet, resnet
from dnnffi.bench.shapes import SHORT
from dnnffi.device.arrays import in_layout
from dnnffi.device.interface import NDArray
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST

NAMING = (
    "network, dtype, pictures in a batch, their height and width, channels after the first "
    "convolution, channels first or last in memory"
)
"""The parts of `ImageShape.name`, for readers of a table."""

# Scale of the last weights of a residual block: without normalisation, float16 would overflow.
_ADDED = 0.25


class ImageData(NamedTuple):
    """Host arrays of one problem, which all its models share."""

    x: NDArray  # [N, C, H, W], in the shape's layout
    weights: list[NDArray]  # weights and bias of each convolution, weights in the shape's layout
    dy: NDArray  # [N, V]


@dataclass(frozen=True)
class ImageShape(Problem):
    """One problem: a network of `dnnffi.bench.resnet` and the size of its pictures.

    arch : "resnet18" or "resnet50"
    layout : "channels_first" or "channels_last", of pictures and weights in memory
    batch : number of pictures
    size : height and width of a picture in pixels
    width : channels of the first convolution's output
    training : whether training is measured besides inference
    """

    arch: str
    dtype: str
    layout: str
    batch: int
    size: int
    width: int = 64
    training: bool = field(default=True, compare=False)

    @property
    def name(self) -> str:
        """Network, dtype, batch, size, width and memory layout."""
        return (
            f"{self.arch} {SHORT[self.dtype]} {self.batch} {self.size} {self.width} "
            f"{self.layout.removeprefix('channels_')}"
        )

    @property
    def network(self) -> ResNet:
        """The network."""
        return resnet(self.arch, self.width)

    @property
    def channels_last(self) -> bool:
        """Whether the channels are innermost in memory."""
        return self.layout == CHANNELS_LAST

    def draw(self, seed: int = 0) -> ImageData:
        """Draw normal numbers; the deviation of the weights keeps the variance after each ReLU."""
        network, drawing = self.network, Drawing(self.dtype, seed)
        added = {block.convs[-1] for block in network.blocks if block.residual}
        weights: list[NDArray] = []
        x = drawing.normal((self.batch, COLOURS, self.size, self.size))
        for conv in network.convs:
            deviation = sqrt(2 / (conv.in_channels * conv.kernel**2))
            if conv in added:
                deviation *= _ADDED
            w = drawing.normal(conv.weight_shape, deviation)
            weights.append(in_layout(w, channels_last=self.channels_last))
            weights.append(drawing.normal((conv.out_channels,), 0.1))
        dy = drawing.normal((self.batch, network.scores.out_channels))
        return ImageData(in_layout(x, channels_last=self.channels_last), weights, dy)


# The sizes of fastrnns, in the faster layout for each dtype.
IMAGENET = tuple(
    ImageShape(arch, dtype, layout, 32, 224)
    for arch in ("resnet18", "resnet50")
    for dtype, layout in (("float32", CHANNELS_FIRST), ("float16", CHANNELS_LAST))
)

# Small networks for a CPU and for the tests.
TINY = (
    ImageShape("resnet18", "float32", CHANNELS_FIRST, 2, 8, width=4),
    ImageShape("resnet50", "float32", CHANNELS_LAST, 2, 8, width=2),
)

SETS: dict[str, tuple[ImageShape, ...]] = {"imagenet": IMAGENET, "tiny": TINY}
