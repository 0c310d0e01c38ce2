"""The gradients of the biases of all layers of a network, in one launch.

Backward kernels leave sums over some rows, ``bias_sums``; these are added up here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.recurrent.kernels import bias_kernel
from dnnffi.backends.own.recurrent.layout import LayerWeights
from dnnffi.backends.own.recurrent.params import BiasGradientsParams
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.rnn import RNNSpec

THREADS = 256
"""Threads of a block."""

SHARED_BYTES = 4 * THREADS
"""Shared memory of a block: a sum of each thread."""

_MAX_SHARES = THREADS // 32
_PARTS_OF_SHARE = 4
"""Least parts of a warp, where several warps share them."""


class BiasSums(NamedTuple):
    """The sums that backward kernels of a batch leave, in bytes from the reserve space.

    first : those of the first layer
    layer_stride : from a layer's to the next one's, the same for all layers; 0 with one layer
    parts : sums of each direction of a layer
    shares : warps of a block that share the parts of a unit
    """

    first: int
    layer_stride: int
    parts: int
    shares: int

    @classmethod
    def of(cls, offsets: Sequence[int], parts: int) -> BiasSums:
        """Return the sums of layers, which begin at ``offsets``."""
        layer_stride = offsets[1] - offsets[0] if len(offsets) > 1 else 0
        shares = 1
        while shares < _MAX_SHARES and parts >= 2 * shares * _PARTS_OF_SHARE:
            shares *= 2
        return cls(offsets[0], layer_stride, parts, shares)


class BiasGradients:
    """The kernel of a network with its constants.

    Sums are [directions * parts, columns, padded] of float32 for each layer; a GRU has 4 columns.
    """

    def __init__(
        self,
        spec: RNNSpec,
        weights: list[LayerWeights],
        columns: int,
        gates: int,
        padded: int,
        memory: MemoryWithGraphs,
    ) -> None:
        self._kernel = memory.kernel(*bias_kernel(spec.dtype))
        size, layers, directions = ITEM_SIZES[spec.dtype], len(weights), spec.num_directions
        self._first = first = weights[0]
        self._columns = layers * directions * columns
        self._constants = BiasGradientsParams(
            sums=0,
            d_input=0,
            d_recurrent=0,
            layers=layers,
            directions=directions,
            parts=0,
            shares=0,
            columns=columns,
            gates=gates,
            hidden=spec.hidden_size,
            padded=padded,
            layer_sums=0,
            layer_stride=(weights[1].b_ih - first.b_ih) // size if layers > 1 else 0,
            direction_stride=first.bias_stride // size,
            accumulate=0,
        )

    def blocks(self, sums: BiasSums) -> int:
        """Return the blocks of a launch."""
        return self._columns * -(-self._constants.hidden * sums.shares // THREADS)

    def struct(self, sums: BiasSums, reserve: int, dweights: int, accumulate: bool) -> bytes:
        """Return the parameters of a launch."""
        params = self._constants._replace(
            sums=reserve + sums.first,
            d_input=dweights + self._first.b_ih,
            d_recurrent=dweights + self._first.b_hh,
            parts=sums.parts,
            shares=sums.shares,
            layer_sums=sums.layer_stride // 4,
            accumulate=accumulate,
        )
        return struct_of(params)

    def run(
        self, launch: Launch, sums: BiasSums, reserve: int, dweights: int, accumulate: bool
    ) -> None:
        """Fill the gradients of the biases in ``dweights``, or add to them."""
        sizes = (self.blocks(sums),), (THREADS,)
        struct = self.struct(sums, reserve, dweights, accumulate)
        self._kernel(*sizes, (struct,), stream=launch.stream, shared_mem=SHARED_BYTES)
