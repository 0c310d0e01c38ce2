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
"""Threads of a block, each with a unit."""


class BiasSums(NamedTuple):
    """The sums that backward kernels of a batch leave, in bytes from the reserve space.

    first : those of the first layer
    layer_stride : from a layer's to the next one's, the same for all layers; 0 with one layer
    parts : sums of each direction of a layer
    """

    first: int
    layer_stride: int
    parts: int

    @classmethod
    def of(cls, offsets: Sequence[int], parts: int) -> BiasSums:
        """Return the sums of layers, which begin at ``offsets``."""
        return cls(offsets[0], offsets[1] - offsets[0] if len(offsets) > 1 else 0, parts)


class BiasGradients:
    """The kernel of a network with its constants; ``blocks`` of it are a launch.

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
        self.blocks = layers * directions * columns * -(-spec.hidden_size // THREADS)
        self._constants = BiasGradientsParams(
            sums=0,
            d_input=0,
            d_recurrent=0,
            layers=layers,
            directions=directions,
            parts=0,
            columns=columns,
            gates=gates,
            hidden=spec.hidden_size,
            padded=padded,
            layer_sums=0,
            layer_stride=(weights[1].b_ih - first.b_ih) // size if layers > 1 else 0,
            direction_stride=first.bias_stride // size,
            accumulate=0,
        )

    def struct(self, sums: BiasSums, reserve: int, dweights: int, accumulate: bool) -> bytes:
        """Return the parameters of a launch."""
        params = self._constants._replace(
            sums=reserve + sums.first,
            d_input=dweights + self._first.b_ih,
            d_recurrent=dweights + self._first.b_hh,
            parts=sums.parts,
            layer_sums=sums.layer_stride // 4,
            accumulate=accumulate,
        )
        return struct_of(params)

    def run(
        self, launch: Launch, sums: BiasSums, reserve: int, dweights: int, accumulate: bool
    ) -> None:
        """Fill the gradients of the biases in ``dweights``, or add to them."""
        struct = self.struct(sums, reserve, dweights, accumulate)
        self._kernel((self.blocks,), (THREADS,), (struct,), stream=launch.stream)
