"""The matrix products of a small network outside its recurrent kernels, several in one launch.

A batch whose sizes were not seen before waits for the host. A call of cuBLASLt takes the host
longer than a launch, and a layer needs up to five products: here a layer's products of x are one
launch, and the gradients of all weights another. The products are those of `products.Products`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from struct import Struct
from typing import NamedTuple

from dnnffi.backends.own.recurrent.config import Kind
from dnnffi.device.interface import Kernel, Launch
from dnnffi.execution.cache import keep_newest
from dnnffi.spec.checks import ITEM_SIZES

MAX_MACS = 64_000_000
"""Multiply-adds of a launch up to which a library's algorithms gain less on the device than its
calls cost on the host."""

LEAST_POSITIONS = 64
"""Positions of a batch below which no network gets its kernel for small products compiled."""

MAX_PRODUCTS = 16
"""Products of one launch, as in ``small_products.cu``."""

THREADS = 256
SHARED_BYTES = 4 * 2 * 32 * 36 * 4
"""Bytes of shared memory of a block: the tiles of four groups of warps."""

MAX_BOUND = 64
"""Numbers of positions for which a network keeps launches."""

WHOLE, SPLIT = 64, 32
"""Rows and columns of a tile whose block sums up all of k, and of one whose warps divide k."""

MIN_WHOLE_TILES = 160
"""Tiles of 64 from which on a launch keeps all multiprocessors busy."""

_SHAPE = Struct("<10q6i")
_POSITIONS = 0
"""Stands for the number of positions, which a launch brings."""


class ProductShape(NamedTuple):
    """The struct ``ProductShape`` of ``small_products.cu``, which explains the fields."""

    a_m: int
    a_k: int
    b_k: int
    b_n: int
    c_m: int
    a_batch: int = 0
    b_batch: int = 0
    c_batch: int = 0
    a_segment: int = 0
    b_segment: int = 0
    m: int = _POSITIONS
    n: int = _POSITIONS
    k: int = _POSITIONS
    batch: int = 1
    segments: int = 1
    is_split: int = 0

    def macs(self, positions: int) -> int:
        """Return the multiply-adds of the product."""
        m, n, k = (size or positions for size in (self.m, self.n, self.k))
        return m * n * k * self.batch * self.segments

    def tiles(self, positions: int, size: int) -> int:
        """Return the tiles of ``size`` rows and columns of C."""
        m, n = (-(-(one or positions) // size) for one in (self.m, self.n))
        return m * n * self.batch


class SmallProducts:
    """Up to `MAX_PRODUCTS` products of one launch, for up to ``max_positions`` positions."""

    def __init__(self, kernel: Kernel, shapes: Sequence[ProductShape], max_positions: int) -> None:
        tiles = sum(shape.tiles(max_positions, WHOLE) for shape in shapes)
        is_split = tiles < MIN_WHOLE_TILES
        self._kernel, self._size = kernel, SPLIT if is_split else WHOLE
        divided = [shape._replace(is_split=int(is_split)) for shape in shapes]
        self.count = count = len(shapes)
        unused = MAX_PRODUCTS - count
        packed = b"".join(_SHAPE.pack(*shape) for shape in divided)
        self._packed = packed + bytes(unused * _SHAPE.size)
        self._pack = Struct(f"<4i{3 * count}q{24 * unused}x{len(self._packed)}s").pack
        # Of a product with the positions as rows of C, the tiles of one row of tiles.
        self._fixed_tiles = sum(one.tiles(1, self._size) for one in divided if one.m)
        self._tiles_per_row = sum(one.tiles(1, self._size) for one in divided if not one.m)

    def run(
        self,
        launch: Launch,
        positions: int,
        at: Sequence[tuple[int, int, int]],
        *,
        accumulate: bool = False,
    ) -> None:
        """Enqueue the products: ``at`` has the addresses of A, B and C of each."""
        rows = -(-positions // self._size)
        blocks = self._fixed_tiles + self._tiles_per_row * rows
        addresses = chain.from_iterable(at)
        products = self._pack(positions, self.count, accumulate, 0, *addresses, self._packed)
        self._kernel(
            (blocks,), (THREADS,), (products,), stream=launch.stream, shared_mem=SHARED_BYTES
        )


class LayerProducts(NamedTuple):
    """The shapes of a layer's products, each of one direction."""

    of_x: ProductShape
    dx: ProductShape
    dweights: tuple[ProductShape, ...]
    """dw_ih, then dw_hh; of a GRU in two parts, the second for n. Empty for inference."""

    @classmethod
    def of(cls, kind: Kind, inputs: int) -> LayerProducts:
        """Return those of a layer with ``inputs`` inputs."""
        hidden, padded, gates = kind.hidden, kind.padded, kind.gates
        width = (kind.saved if kind.training else gates) * padded
        matrix = hidden * inputs
        is_padded = padded != hidden
        # Gates that are padded are a batch of matrices, and in dx segments of the sum.
        batch, columns = (gates, hidden) if is_padded else (1, gates * hidden)
        of_x = ProductShape(
            a_m=inputs,
            a_k=1,
            b_k=1,
            b_n=inputs,
            c_m=width,
            b_batch=matrix,
            c_batch=padded,
            n=columns,
            k=inputs,
            batch=batch,
        )
        dx = ProductShape(
            a_m=width,
            a_k=1,
            b_k=inputs,
            b_n=1,
            c_m=inputs,
            a_segment=padded,
            b_segment=matrix,
            n=inputs,
            k=columns,
            segments=batch,
        )

        def gradient(of_gates: int, factor_columns: int, factor_stride: int) -> ProductShape:
            of_batch, rows = (of_gates, hidden) if is_padded else (1, of_gates * hidden)
            return ProductShape(
                a_m=1,
                a_k=width,
                b_k=factor_stride,
                b_n=1,
                c_m=factor_columns,
                a_batch=padded,
                c_batch=hidden * factor_columns,
                m=rows,
                n=factor_columns,
                batch=of_batch,
            )

        if not kind.training:
            return cls(of_x, dx, ())
        of_h = [2, 1] if kind.mode == "gru" else [gates]
        recurrent = [gradient(count, hidden, padded) for count in of_h]
        return cls(of_x, dx, (gradient(gates, inputs, inputs), *recurrent))


class NetworkProducts:
    """The small products of a network, whose layers have ``layer_inputs`` inputs."""

    def __init__(
        self, kernel: Kernel, kind: Kind, layer_inputs: Sequence[int], directions: int
    ) -> None:
        self._kernel, self._kind, self._directions = kernel, kind, directions
        self._layers = [LayerProducts.of(kind, inputs) for inputs in layer_inputs]
        self._macs = macs_per_position(self._layers, directions)
        self._bound: dict[int, BoundProducts] = {}

    def are_small(self, positions: int) -> bool:
        """Whether the largest launch has at most `MAX_MACS` multiply-adds."""
        return positions * self._macs <= MAX_MACS

    def bind(self, max_positions: int) -> BoundProducts:
        """Return the launches for up to ``max_positions`` positions, which are kept."""
        found = self._bound.get(max_positions)
        if found is None:
            made = BoundProducts(
                *(self._kernel, self._kind, self._layers, self._directions, max_positions)
            )
            found = self._bound.setdefault(max_positions, made)
            keep_newest(self._bound, MAX_BOUND)
        return found


class BoundProducts:
    """The launches of the small products of a network.

    ``of_x`` and ``dx`` have one for each layer, the former of all directions, the latter of one.
    ``dweights`` have the gradients of all layers and directions, in this order.
    """

    def __init__(
        self,
        kernel: Kernel,
        kind: Kind,
        layers: Sequence[LayerProducts],
        directions: int,
        max_positions: int,
    ) -> None:
        def launch(shapes: Sequence[ProductShape]) -> SmallProducts:
            return SmallProducts(kernel, shapes, max_positions)

        self.of_x = [launch([layer.of_x] * directions) for layer in layers]
        self.dx: list[SmallProducts] = []
        self.dweights: list[SmallProducts] = []
        self.n_gate: tuple[int, int] | None = None
        """Bytes to the gradients of n's product of h, in the gates and in dw_hh, of a GRU."""
        if kind.training:
            self.dx = [launch([layer.dx]) for layer in layers]
            per_launch = MAX_PRODUCTS // len(layers[0].dweights)
            shapes = [layer.dweights for layer in layers for _ in range(directions)]
            for first in range(0, len(shapes), per_launch):
                self.dweights.append(launch(sum(shapes[first : first + per_launch], ())))
            if kind.mode == "gru":
                size = ITEM_SIZES[kind.dtype]
                self.n_gate = 3 * kind.padded * size, 2 * kind.hidden**2 * size


def can_be_small(kind: Kind, layer_inputs: Sequence[int]) -> bool:
    """Whether a network may have batches with small products: those of `LEAST_POSITIONS`."""
    layers = [LayerProducts.of(kind, inputs) for inputs in layer_inputs]
    return LEAST_POSITIONS * macs_per_position(layers, 1) <= MAX_MACS


def macs_per_position(layers: Sequence[LayerProducts], directions: int) -> int:
    """Return the multiply-adds of the largest launch of a network, for each position."""
    of_x = directions * max(layer.of_x.macs(1) for layer in layers)
    of_weights = sum(shape.macs(1) for layer in layers for shape in layer.dweights)
    return max(of_x, directions * of_weights)
