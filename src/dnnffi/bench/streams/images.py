"""Streams of image batches, as data: the image size changes with each batch, as in detection.

The network is a bottleneck of ResNet-50 on the map of one of its stages: convolutions of 1 x 1,
3 x 3 and 1 x 1 with biases, ReLU after the first two, channels last in memory.

Sizes
    Height and width are multiples of 16 pixels in the range of the stream. PyTorch keeps a plan
    for each size that a process has seen, for inference and training and with and without
    ``torch.backends.cudnn.benchmark``, and cannot forget it. So the pairs of height and width are
    divided among training and inference, the `NUM_SHARES` shares of models, and the warm-up epoch
    and the later epoch of each turn: no epoch has a size that the same library had seen before.
    The first of `dnnffi.bench.streams.problems.EPOCH_SEEDS` divides, the second draws the batches
    of an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from math import sqrt
from typing import Any, NamedTuple

from dnnffi.bench.drawing import Drawing, Draws
from dnnffi.bench.model import Problem
from dnnffi.bench.shapes import SHORT
from dnnffi.bench.streams.problems import EPOCH_SEEDS, NUM_BATCHES
from dnnffi.device.interface import NDArray
from dnnffi.spec.names import DType

NAMING = (
    "dtype, smallest-largest height and width, images, channels, inner channels, pixels of an "
    "image for one of the map, training or inference"
)
"""The parts of `ImageStream.name`, for readers of a table."""

NUM_SHARES = 2
"""Number of models whose library shares plans in a process: PyTorch's with and without search."""


class ImageBatch(NamedTuple):
    """One batch: number of images, height and width of the map that the network reads."""

    images: int
    height: int
    width: int


class ImageEpochs(NamedTuple):
    """The batches of the warm-up epoch and of the later epoch of each turn."""

    warm_up: tuple[ImageBatch, ...]
    later: tuple[tuple[ImageBatch, ...], ...]

    @property
    def is_repeated(self) -> bool:
        """Whether a turn runs its epoch once more: sizes of images recur in later epochs."""
        return True

    def of_turn(self, turn: int) -> tuple[ImageBatch, ...]:
        """Return the later epoch of a turn."""
        return self.later[turn]


class ImageData(NamedTuple):
    """Host arrays that batches are copied from, weights and biases, and the epochs."""

    x: NDArray  # enough elements for the largest batch
    dy: NDArray  # likewise
    weights: list[NDArray]  # weights [K, C, h, w] in channels last, bias [K], of each convolution
    epochs: ImageEpochs


@dataclass(frozen=True)
class ImageStream(Problem):
    """A bottleneck and the range of its images.

    smallest, largest : range of height and width of an image in pixels
    batch : images of a full batch
    channels : channels of x and y
    inner : channels between the convolutions
    stride : pixels of an image, in each direction, for one of the map
    training : forward pass with all gradients, else inference
    multiple : of height and width, in pixels
    num_batches, num_turns : batches of an epoch; later epochs
    """

    dtype: DType
    smallest: int
    largest: int
    batch: int
    channels: int
    inner: int
    stride: int
    training: bool = True
    multiple: int = 16
    num_batches: int = field(default=NUM_BATCHES, compare=False)
    num_turns: int = field(default=3, compare=False)

    @property
    def name(self) -> str:
        """The parts that `NAMING` lists."""
        return (
            f"{SHORT[self.dtype]} {self.smallest}-{self.largest} {self.batch} {self.channels} "
            f"{self.inner} {self.stride} {'training' if self.training else 'inference'}"
        )

    @property
    def kernels(self) -> tuple[tuple[int, int, int], ...]:
        """(K, C, size) of each convolution."""
        outer, inner = self.channels, self.inner
        return (inner, outer, 1), (inner, inner, 3), (outer, inner, 1)

    @property
    def max_turns(self) -> int:
        """The largest number of turns for whose epochs there are enough sizes."""
        return len(self._sides) ** 2 // (2 * NUM_SHARES) - 1

    @property
    def _sides(self) -> range:
        """Heights, and widths, of the images in pixels."""
        return range(self.smallest, self.largest + 1, self.multiple)

    def measured(self, num_batches: int, num_turns: int) -> ImageStream:
        """Return the stream with epochs of another length and number."""
        return replace(self, num_batches=num_batches, num_turns=num_turns)

    def as_json(self) -> dict[str, Any]:
        """Return the fields, for the record of a run."""
        return {"name": self.name, **vars(self), "epoch_seeds": EPOCH_SEEDS}

    def epochs(self, share: int = 0) -> ImageEpochs:
        """Draw the sizes of all epochs of a share of the models, from 0 to `NUM_SHARES` - 1."""
        sizes = Draws(EPOCH_SEEDS[0]).shuffled(list(product(self._sides, self._sides)))
        draws = Draws(EPOCH_SEEDS[1])
        num_epochs = 1 + self.num_turns
        count = 2 * NUM_SHARES * num_epochs
        if len(sizes) < count:
            raise ValueError(f"{self.name}: {len(sizes)} sizes are too few for {count} epochs")
        first = (2 * share + self.training) * num_epochs
        warm_up, *later = (
            self._epoch(draws, sizes[first + epoch :: count]) for epoch in range(num_epochs)
        )
        return ImageEpochs(warm_up, tuple(later))

    def _epoch(self, draws: Draws, sizes: list[tuple[int, int]]) -> tuple[ImageBatch, ...]:
        batches = []
        for number in range(self.num_batches):
            is_last = number == self.num_batches - 1
            images = min(self.batch, self.batch // 2 + 1) if is_last else self.batch
            height, width = sizes[draws.integer(0, len(sizes) - 1)]
            batches.append(ImageBatch(images, height // self.stride, width // self.stride))
        return tuple(batches)

    def draw(self, seed: int = 0) -> ImageData:
        """Draw normal numbers; the deviation of the weights keeps the variance after each ReLU."""
        drawing = Drawing(self.dtype, seed)
        elements = self.batch * self.channels * (self.largest // self.stride) ** 2
        weights: list[NDArray] = []
        for out_channels, channels, size in self.kernels:
            shape = out_channels, size, size, channels
            w = drawing.normal(shape, sqrt(2 / (channels * size**2)))
            weights += [w.transpose(0, 3, 1, 2), drawing.normal((out_channels,), 0.1)]
        return ImageData(
            drawing.normal((elements,)), drawing.normal((elements,)), weights, self.epochs()
        )


def _streams(channels: int, inner: int, stride: int) -> tuple[ImageStream, ...]:
    return tuple(
        ImageStream("float16", 320, 640, 8, channels, inner, stride, training)
        for training in (True, False)
    )


DETECTION = (*_streams(256, 64, 4), *_streams(1024, 256, 16))
"""Image sizes of object detection, on the maps of the first and the third stage of ResNet-50."""

TINY = (
    ImageStream("float32", 8, 48, 3, 4, 2, 4, multiple=4),
    ImageStream("float32", 8, 48, 3, 4, 2, 4, training=False, multiple=4),
)
"""Small streams for a CPU and for the tests."""

SETS: dict[str, tuple[ImageStream, ...]] = {"detection": DETECTION, "tiny": TINY}
