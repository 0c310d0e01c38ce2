"""Shapes and strides of a convolution's operands, as the engines of cuDNN like to see them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from dnnffi.spec.layouts import is_packed, packed_strides


class Layout(NamedTuple):
    """Shape and strides of an array; strides count elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def packed(cls, shape: Sequence[int], *, channels_last: bool = False) -> Layout:
        """Return the layout of an array [N, C, ...] without gaps."""
        shape = tuple(shape)
        return cls(shape, packed_strides(shape, channels_last))


class Geometry(NamedTuple):
    """A convolution without the operations that are fused to it.

    The layouts of ``x``, ``w`` and ``y``, their dtype, and stride, padding and dilation for each
    spatial dimension. Groups follow from the channels of ``x`` and ``w``.
    """

    x: Layout
    w: Layout
    y: Layout
    dtype: str
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def of_rank_two(self) -> Geometry:
        """Return the same geometry with at least two spatial dimensions.

        1-D gets a dimension of size 1 in front: engines are made for two and three. Only the
        description changes, nothing is copied.
        """
        if len(self.stride) > 1:
            return self
        x, w, y = (with_height(layout) for layout in (self.x, self.w, self.y))
        return self._replace(
            x=x,
            w=w,
            y=y,
            stride=(1, *self.stride),
            padding=(0, *self.padding),
            dilation=(1, *self.dilation),
        )

    @property
    def channels_last(self) -> bool:
        """Whether an operand has channels last, where the strides can tell."""
        return any(
            is_packed(*layout, True) and not is_packed(*layout, False)
            for layout in (self.x, self.w, self.y)
        )


def is_dense(layout: Layout) -> bool:
    """Whether the elements fill their memory, in whatever order of dimensions."""
    span = 1 + sum((n - 1) * s for n, s in zip(layout.shape, layout.strides, strict=True))
    return span == prod(layout.shape)


def canonical(layout: Layout, channels_last: bool) -> Layout:
    """Return the same memory with the strides by which an engine knows a layout.

    A dimension of 1 has any stride in an array, but engines look at all of them. Where both orders
    describe the memory, ``channels_last`` decides.
    """
    if layout.strides == packed_strides(layout.shape, channels_last):
        return layout
    for last in (channels_last, not channels_last):
        if is_packed(*layout, last):
            return Layout(layout.shape, packed_strides(layout.shape, last))
    strides = tuple(
        stride if size > 1 else max(stride, 1)
        for size, stride in zip(layout.shape, layout.strides, strict=True)
    )
    return Layout(layout.shape, strides)


def with_height(layout: Layout) -> Layout:
    """[N, C, W] as [N, C, 1, W]."""
    n, c, size = layout.shape
    n_stride, c_stride, stride = layout.strides
    return Layout((n, c, 1, size), (n_stride, c_stride, max(size * stride, 1), stride))
