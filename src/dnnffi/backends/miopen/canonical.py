"""Rewrite a problem as the convolution in two or three dimensions that MIOpen computes.

A transposed convolution exchanges forward and backward data of the ordinary one with the same
weights; one spatial dimension gets another of size 1 in front, which moves nothing in memory.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from dnnffi.spec.conv_problem import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, ConvProblem


class Direction(NamedTuple):
    """One of MIOpen's three operations: the name in its functions, and their operands.

    ``operands`` are the two tensors that it reads, in the order of its functions, and the one that
    it writes, each "x", "w" or "y" of the ordinary convolution; ``searched`` is their order in the
    functions of find mode.
    """

    name: str
    operands: tuple[str, str, str]
    searched: tuple[str, str, str]


FORWARD_CALLS = Direction("Forward", ("w", "x", "y"), ("x", "w", "y"))
DATA_CALLS = Direction("BackwardData", ("y", "w", "x"), ("y", "w", "x"))
WEIGHTS_CALLS = Direction("BackwardWeights", ("y", "x", "w"), ("y", "x", "w"))


class Canonical(NamedTuple):
    """A request to the library; hashable. Problems with the same share what was measured."""

    direction: Direction
    dtype: str
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    """Sizes of x, w and y, of two or three spatial dimensions."""
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    channels_last: bool
    deterministic: bool

    @classmethod
    def of(cls, problem: ConvProblem) -> Canonical:
        """Return the ordinary convolution that computes a problem."""
        spec = problem.spec
        x, y = problem.x_shape, problem.y_shape
        direction = {
            FORWARD: FORWARD_CALLS,
            BACKWARD_DATA: DATA_CALLS,
            BACKWARD_WEIGHTS: WEIGHTS_CALLS,
        }[problem.operation]
        if spec.transposed:
            x, y = y, x
            exchanged = {FORWARD_CALLS: DATA_CALLS, DATA_CALLS: FORWARD_CALLS}
            direction = exchanged.get(direction, direction)

        def shape(sizes: tuple[int, ...]) -> tuple[int, ...]:
            return (*sizes[:2], 1, *sizes[2:]) if spec.rank == 1 else sizes

        def each(values: tuple[int, ...], filler: int) -> tuple[int, ...]:
            return (filler, *values) if spec.rank == 1 else values

        return cls(
            direction,
            spec.dtype,
            (shape(x), shape(spec.weight_shape), shape(y)),
            each(spec.padding_before, 0),
            each(spec.stride, 1),
            each(spec.dilation, 1),
            spec.groups,
            problem.channels_last,
            problem.options.deterministic,
        )


def channel_matrix(
    shape: tuple[int, ...], channels_last: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return contiguous 4-D shapes for an array [N, C, ...] without gaps and for its bias [C]."""
    batch, channels, *sizes = shape
    positions = prod(sizes)
    matrix = (batch * positions, channels, 1, 1)
    if not channels_last:
        matrix = (batch, channels, positions, 1)
    return matrix, (1, channels, 1, 1)
