"""Copies of an image into a larger one with zeros around it, and out of one, by rows.

MIOpen pads both sides of an image alike, and dnnffi has no kernels on ROCm: for asymmetric padding
the rows of the image are copied by the HIP runtime (``hipMemcpy2DAsync``).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.device.interface import MemoryWithGraphs, Stream
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.conv_padding import PaddedImage
from dnnffi.spec.layouts import packed_strides


class _Axis(NamedTuple):
    """A dimension of the image: its size, and bytes to the next position in either image."""

    size: int
    step: int
    padded_step: int


class ImageCopyByRows:
    """Copies between the image of a problem and a padded image of ``nbytes`` bytes."""

    def __init__(self, image: PaddedImage, memory: MemoryWithGraphs) -> None:
        self._memory = memory
        self._image = image
        itemsize = ITEM_SIZES[image.problem.spec.dtype]
        self.nbytes = image.padded_bytes
        last = image.problem.channels_last
        steps, padded_steps = (
            [step * itemsize for step in packed_strides(shape, last)]
            for shape in (image.shape, image.padded_shape)
        )
        pairs = zip(image.offset, padded_steps[2:], strict=True)
        self._start = sum(offset * step for offset, step in pairs)
        axes = _merged(map(_Axis, image.shape, steps, padded_steps))
        self._width = itemsize
        if axes and axes[-1].step == axes[-1].padded_step == itemsize:
            self._width *= axes.pop().size
        rows = max(axes, key=lambda axis: axis.size, default=_Axis(1, self._width, self._width))
        self._rows = rows
        self._others = [axis for axis in axes if axis is not rows]

    def before(self, stream: Stream, at: ConvAddresses, padded: int) -> ConvAddresses:
        """Enqueue the copy of an image that is read to address ``padded``.

        Returns the addresses of the convolution on the padded image.
        """
        if not self._image.is_result:
            self._memory.clear(padded, self.nbytes, stream)
            self._copy(stream, getattr(at, self._image.operand), padded)
        return at._replace(**{self._image.operand: padded})

    def after(self, stream: Stream, at: ConvAddresses, padded: int) -> None:
        """Enqueue the copy of an image that was written to address ``padded``."""
        if self._image.is_result:
            self._copy(stream, at.result, padded)

    def _copy(self, stream: Stream, image: int, padded: int) -> None:
        """Copy the image to its place in the padded image, or back."""
        _, pitch, padded_pitch = self._rows
        for offset, padded_offset in self._offsets():
            ends = (image + offset, pitch), (padded + self._start + padded_offset, padded_pitch)
            (target, target_pitch), (source, source_pitch) = (
                ends if self._image.is_result else ends[::-1]
            )
            self._memory.copy_rows(
                *(target, target_pitch, source, source_pitch, self._width, self._rows.size),
                stream,
            )

    def _offsets(self) -> Iterator[tuple[int, int]]:
        """Yield where each block of rows begins in either image, in bytes."""
        for position in product(*(range(axis.size) for axis in self._others)):
            pairs = list(zip(position, self._others, strict=True))
            yield (
                sum(index * axis.step for index, axis in pairs),
                sum(index * axis.padded_step for index, axis in pairs),
            )


def _merged(axes: Iterator[_Axis]) -> list[_Axis]:
    """Return the dimensions outermost first, those that are one dimension in both images joined."""
    merged: list[_Axis] = []
    for axis in sorted(axes, key=lambda axis: (-axis.step, -axis.padded_step)):
        if axis.size == 1:
            continue
        outer = merged[-1] if merged else None
        if (
            outer is not None
            and outer.step == axis.size * axis.step
            and outer.padded_step == axis.size * axis.padded_step
        ):
            merged[-1] = axis._replace(size=outer.size * axis.size)
        else:
            merged.append(axis)
    return merged
