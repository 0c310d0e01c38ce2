"""The part of a depthwise convolution that one thread computes, and that of one block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dnnffi.backends.own.depthwise.axis import Axis


class Tile(NamedTuple):
    """Outputs of a thread, down and across; ``many`` planes of a block or channels of a thread."""

    down: int
    across: int
    many: int


def fewest_idle(axis: Axis, sizes: Sequence[int]) -> int:
    """Return the size of a tile with the fewest outputs beyond the image, the first of equals."""
    unit = 1 if axis.forward else axis.stride
    fitting = [-(-size // unit) * unit for size in sizes if size < axis.outputs + unit]
    least = [-(-axis.outputs // unit) * unit]
    return min(fitting or least, key=lambda size: -(-axis.outputs // size) * size)
