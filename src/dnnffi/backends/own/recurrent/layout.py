"""Offsets of an executor's arrays in the flat weights, the workspace and the reserve space."""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import weight_layout

_ALIGNMENT = 256


class Buffer:
    """A buffer whose parts are laid out one after the other; ``nbytes`` is its size so far."""

    __slots__ = ("nbytes",)

    def __init__(self) -> None:
        self.nbytes = 0

    def add(self, nbytes: int) -> int:
        """Return the offset of a new part."""
        at = self.nbytes
        self.nbytes = at + (nbytes + _ALIGNMENT - 1 & -_ALIGNMENT)
        return at

    def add_all(self, *sizes: int) -> list[int]:
        """Return the offsets of new parts, one after the other, as `add` does for each."""
        at, found = self.nbytes, []
        for nbytes in sizes:
            found.append(at)
            at += nbytes + _ALIGNMENT - 1 & -_ALIGNMENT
        self.nbytes = at
        return found


class LayerWeights(NamedTuple):
    """Offsets, in bytes, of the weights of a layer's first direction in the flat weights.

    The strides, in bytes, are from there to the second direction. Offsets of absent biases are 0.
    """

    w_ih: int
    w_hh: int
    b_ih: int
    b_hh: int
    matrix_stride: int
    bias_stride: int


def layer_weights(spec: RNNSpec) -> list[LayerWeights]:
    """Return the weights of each layer, in cuDNN's layout without projections."""
    size, each = ITEM_SIZES[spec.dtype], spec.arrays_per_direction
    offsets = [block.offset * size for block in weight_layout(spec, "cudnn").blocks()]
    found = []
    for first in range(0, len(offsets), each * spec.num_directions):
        # The arrays of a direction are in order in both parts, matrices and biases.
        here = (*offsets[first : first + each], 0, 0)[:4]
        there = (*offsets[first + each : first + 2 * each], 0, 0)[:4]
        strides = (there[1] - here[1], there[3] - here[3]) if spec.bidirectional else (0, 0)
        found.append(LayerWeights._make((*here, *strides)))
    return found


class LayerArrays(NamedTuple):
    """Offsets of what one layer leaves, in bytes; its directions follow each other.

    gates : [D, positions, columns, padded]: the products of x, then what a training forward pass
        saves, then the gradients of the gates
    c_before, h_before : [D, positions, padded]: the state before each step; in training
    bias_sums : float32 [D * parts, columns, padded]: what a backward kernel leaves of the biases
    y : [positions, D * H], except of the last layer, whose y is the caller's array. After the
        other arrays, so that these lie at constant distances from layer to layer
    dropped : y as the next layer reads it: in y's place, unless the backward pass needs y too, as
        that of a plain cell does
    """

    gates: int
    c_before: int = 0
    h_before: int = 0
    bias_sums: int = 0
    y: int = 0
    dropped: int = 0
