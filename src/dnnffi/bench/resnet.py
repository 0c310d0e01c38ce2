"""ResNet-18 and ResNet-50 as data, from which every model of them is made.

He et al., 2015: https://arxiv.org/abs/1512.03385. A bias stands where they normalise the batch, as
is left of it when it is folded for inference. The stride of a block of three convolutions is in its
3 x 3 one, as in PyTorch's. Behind the first convolution is one of 3 x 3 with stride 2 where they
have a max pool of that size: dnnffi has no pooling, and array code would be measured in its place.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

COLOURS = 3
KINDS = 1000  # of pictures in ImageNet


class Conv(NamedTuple):
    """A convolution with a bias. Its weights are number ``2 * number`` of all, its bias the next.

    Zeros around the picture keep its size but for the stride.
    """

    number: int
    in_channels: int
    out_channels: int
    kernel: int
    stride: int = 1

    @property
    def padding(self) -> int:
        """Zeros on each side."""
        return self.kernel // 2

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """[K, C, kernel, kernel]."""
        return (self.out_channels, self.in_channels, self.kernel, self.kernel)


class Block(NamedTuple):
    """Convolutions one behind the other, with a ReLU behind each.

    With ``residual`` the block's input is added in front of the last ReLU, behind the convolution
    ``around`` if there is one.
    """

    convs: tuple[Conv, ...]
    residual: bool = True
    around: Conv | None = None


class ResNet(NamedTuple):
    """Blocks; the mean of each channel; a matrix of scores, kept as a convolution of 1 x 1.

    ``convs`` are all convolutions in the order of their numbers, the scores' last.
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
    """The network ``arch`` with ``width`` channels behind its first convolution; theirs has 64."""
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
