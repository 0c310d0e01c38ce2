"""ResNet-18 and ResNet-50 as data, from which all their models are made.

He et al., 2015: https://arxiv.org/abs/1512.03385. Two things differ from the paper:

* A bias takes the place of batch normalisation, as when it is folded for inference.
* A 3 x 3 convolution with stride 2 takes the place of the max pool after the first convolution.
  dnnffi has no pooling, and array code would be measured in its place.

In a block of three convolutions the 3 x 3 one has the stride, as in PyTorch.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

COLOURS = 3
KINDS = 1000  # of pictures in ImageNet


class Conv(NamedTuple):
    """A convolution with a bias.

    In the list of all weights, its weights have the index ``2 * number`` and its bias the next one.
    Its padding keeps the size of the picture, divided by the stride.
    """

    number: int
    in_channels: int
    out_channels: int
    kernel: int
    stride: int = 1

    @property
    def padding(self) -> int:
        """Rows and columns of zeros on each side."""
        return self.kernel // 2

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape [K, C, kernel, kernel]."""
        return (self.out_channels, self.in_channels, self.kernel, self.kernel)


class Block(NamedTuple):
    """A chain of convolutions, each followed by a ReLU.

    With ``residual``, the block's input is added before the last ReLU, after the convolution
    ``around`` if it is not None.
    """

    convs: tuple[Conv, ...]
    residual: bool = True
    around: Conv | None = None


class ResNet(NamedTuple):
    """Blocks, then the mean of each channel, then a matrix of scores as a 1 x 1 convolution.

    ``convs`` has all convolutions in the order of their numbers; the scores' is the last one.
    """

    convs: tuple[Conv, ...]
    blocks: tuple[Block, ...]

    @property
    def scores(self) -> Conv:
        """The matrix of scores."""
        return self.convs[-1]


# Blocks of each stage, and whether a block has three convolutions or two.
ARCHS = {"resnet18": ((2, 2, 2, 2), False), "resnet50": ((3, 4, 6, 3), True)}


@cache
def resnet(arch: str, width: int) -> ResNet:
    """Return the network ``arch``; its first convolution has ``width`` channels (paper: 64)."""
    stages, bottleneck = ARCHS[arch]
    made: list[Conv] = []

    def conv(*sizes: int) -> Conv:
        made.append(Conv(len(made), *sizes))
        return made[-1]

    blocks = [Block((conv(COLOURS, width, 7, 2), conv(width, width, 3, 2)), residual=False)]
    channels = width
    for stage, count in enumerate(stages):
        inner = width << stage
        outer = 4 * inner if bottleneck else inner
        for number in range(count):
            stride = 2 if stage and not number else 1
            if bottleneck:
                sizes = [(channels, inner, 1), (inner, inner, 3, stride), (inner, outer, 1)]
            else:
                sizes = [(channels, inner, 3, stride), (inner, outer, 3)]
            convs = tuple(conv(*one) for one in sizes)
            changes = stride > 1 or channels != outer
            around = conv(channels, outer, 1, stride) if changes else None
            blocks.append(Block(convs, around=around))
            channels = outer
    conv(channels, KINDS, 1)
    return ResNet(tuple(made), tuple(blocks))
