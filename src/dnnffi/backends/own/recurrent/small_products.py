"""The matrix products of a small network outside its recurrent kernels, several in one launch.

A batch whose sizes were not seen before waits for the host. A call of cuBLASLt takes the host
longer than a launch, and a layer needs up to five products: here a layer's products of x are one
launch, and the gradients of all weights another. The products are those of `products.Products`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from struct import Struct
from typing import NamedTuple, Self

from dnnffi.backends.cublas.product import Matrix
from dnnffi.backends.own.recurrent.config import Kind
from dnnffi.backends.own.recurrent.products import (
    GradientAddresses,
    Operands,
    layer_products,
    n_gate_bytes,
)
from dnnffi.backends.own.source import Constant
from dnnffi.device.interface import Kernel, Launch
from dnnffi.execution.cache import keep_newest

MAX_MACS = 64_000_000
"""Multiply-adds of a launch up to which a library's algorithms gain less on the device than its
calls cost on the host."""

MIN_POSITIONS = 64
"""A network gets a kernel for small products if those of this many positions are small."""

MAX_PRODUCTS = 16
"""Products of one launch."""

MAX_BOUND = 64
"""Numbers of positions for which a network keeps launches."""

WHOLE_TILE, SPLIT_TILE = 64, 32
"""Rows and columns of a tile whose block sums up all of k, and of one whose warps divide k."""

MIN_WHOLE_TILES = 160
"""Tiles of `WHOLE_TILE` from which on a launch keeps all multiprocessors busy."""

_THREADS = 256
_SPLIT_GROUPS = 4  # of warps, among which k is divided
_ROW_WORDS = 32  # 32-bit words of k that a tile of A or B has at a time
_ROW_STRIDE = _ROW_WORDS + 4  # words, in shared memory: no two of eight rows in the same banks
_SHARED_BYTES = 4 * _SPLIT_GROUPS * 2 * SPLIT_TILE * _ROW_STRIDE

CONSTANTS: dict[str, Constant] = {
    "THREADS": _THREADS,
    "MAX_PRODUCTS": MAX_PRODUCTS,
    "WHOLE_TILE": WHOLE_TILE,
    "SPLIT_TILE": SPLIT_TILE,
    "SPLIT_GROUPS": _SPLIT_GROUPS,
    "ROW_WORDS": _ROW_WORDS,
    "ROW_STRIDE": _ROW_STRIDE,
    "SHARED_BYTES": _SHARED_BYTES,
}
"""Constants of ``small_products.cu`` besides those of the dtype."""

_SHAPE = Struct("<10q6i")
_POSITIONS = 0
"""Placeholder for the number of positions, which a launch provides."""


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

    @classmethod
    def of(cls, product: Operands) -> Self:
        """Return the shape of a product."""
        (a_m, a_k), (b_k, b_n), (c_m, _) = map(_strides, product[:3])
        (m, k), (_, n) = product.a.shape, product.b.shape
        batch = {
            f"{name}_batch": one.batch_stride or 0
            for name, one in zip("abc", product[:3], strict=True)
        }
        sizes = {"m": m or _POSITIONS, "n": n or _POSITIONS, "k": k or _POSITIONS}
        return cls(a_m, a_k, b_k, b_n, c_m, batch=product.batch, **batch, **sizes)

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
        tiles = sum(shape.tiles(max_positions, WHOLE_TILE) for shape in shapes)
        is_split = tiles < MIN_WHOLE_TILES
        self._kernel, self._size = kernel, SPLIT_TILE if is_split else WHOLE_TILE
        divided = [shape._replace(is_split=int(is_split)) for shape in shapes]
        self.count = count = len(shapes)
        unused = MAX_PRODUCTS - count
        packed = b"".join(_SHAPE.pack(*shape) for shape in divided)
        self._packed = packed + bytes(unused * _SHAPE.size)
        self._pack = Struct(f"<2i{3 * count}q{24 * unused}x{len(self._packed)}s").pack
        # A product whose m is the number of positions has rows of tiles; others, a fixed number.
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
        products = self._pack(positions, accumulate, *addresses, self._packed)
        self._kernel(
            (blocks,), (_THREADS,), (products,), stream=launch.stream, shared_mem=_SHARED_BYTES
        )


def _strides(matrix: Matrix) -> tuple[int, int]:
    """Return the elements between the rows, and the columns, of a matrix as a product takes it."""
    line = matrix.leading or matrix.columns
    return (1, line) if matrix.transposed else (line, 1)


class LayerShapes(NamedTuple):
    """The shapes of a layer's products, each of one direction.

    ``dx`` is None and ``dweights`` is empty for inference. The latter are dw_ih, then dw_hh, which
    of a GRU has two parts.
    """

    of_x: ProductShape
    dx: ProductShape | None
    dweights: tuple[ProductShape, ...]

    @classmethod
    def of(cls, kind: Kind, inputs: int) -> Self:
        """Return the shapes of a layer with ``inputs`` inputs."""
        products = layer_products(kind, inputs)
        of_x, dx = ProductShape.of(products.pop("of_x")), products.pop("dx", None)
        dweights = tuple(map(ProductShape.of, products.values()))
        return cls(of_x, dx and _shape_of_dx(dx, kind), dweights)


def _shape_of_dx(product: Operands, kind: Kind) -> ProductShape:
    """Return the shape of dx: the sum over padded gates has a segment for each."""
    if kind.padded == kind.hidden:
        return ProductShape.of(product)
    a, b = product.a._replace(columns=kind.hidden), product.b._replace(rows=kind.hidden)
    shape = ProductShape.of(product._replace(a=a, b=b))
    between = {"a_segment": kind.padded, "b_segment": kind.hidden * b.columns}
    return shape._replace(segments=kind.gates, **between)


class NetworkProducts:
    """The small products of a network, whose layers have ``layer_inputs`` inputs."""

    def __init__(
        self, kernel: Kernel, kind: Kind, layer_inputs: Sequence[int], directions: int
    ) -> None:
        self._kernel, self._kind, self._directions = kernel, kind, directions
        self._layers = [LayerShapes.of(kind, inputs) for inputs in layer_inputs]
        self._macs = macs_per_position(self._layers, directions)
        self._bound: dict[int, BoundProducts] = {}

    def are_small(self, positions: int) -> bool:
        """Whether the largest launch has at most `MAX_MACS` multiply-adds."""
        return positions * self._macs <= MAX_MACS

    def bind(self, max_positions: int) -> BoundProducts:
        """Return the launches for up to ``max_positions`` positions, which are kept."""
        found = self._bound.get(max_positions)
        if found is None:
            arguments = self._kernel, self._kind, self._layers, self._directions, max_positions
            found = self._bound.setdefault(max_positions, BoundProducts(*arguments))
            keep_newest(self._bound, MAX_BOUND)
        return found


class BoundProducts:
    """The launches of the small products of a network.

    ``of_x`` and ``dx`` have one for each layer, the former of all directions, the latter of one.
    """

    def __init__(
        self,
        kernel: Kernel,
        kind: Kind,
        layers: Sequence[LayerShapes],
        directions: int,
        max_positions: int,
    ) -> None:
        def launch(shapes: Sequence[ProductShape]) -> SmallProducts:
            return SmallProducts(kernel, shapes, max_positions)

        self.of_x = [launch([layer.of_x] * directions) for layer in layers]
        self.dx = [launch([layer.dx]) for layer in layers if layer.dx is not None]
        self._n_gate = n_gate_bytes(kind)
        self._dweights: list[SmallProducts] = []
        if kind.training:
            per_launch = MAX_PRODUCTS // len(layers[0].dweights)
            shapes = [layer.dweights for layer in layers for _ in range(directions)]
            for first in range(0, len(shapes), per_launch):
                of_launch = chain.from_iterable(shapes[first : first + per_launch])
                self._dweights.append(launch(list(of_launch)))

    def dweights(
        self,
        launch: Launch,
        positions: int,
        at: Sequence[GradientAddresses],
        *,
        accumulate: bool,
    ) -> None:
        """Enqueue the gradients of all matrices, by layer and direction."""
        where: list[tuple[int, int, int]] = []
        for _, gates, x, dw_ih, h_before, dw_hh in at:
            where += (gates, x, dw_ih), (gates, h_before, dw_hh)
            if self._n_gate is not None:
                of_gates, of_dw_hh = self._n_gate
                where.append((gates + of_gates, h_before, dw_hh + of_dw_hh))
        first = 0
        for products in self._dweights:
            end = first + products.count
            products.run(launch, positions, where[first:end], accumulate=accumulate)
            first = end


def can_be_small(kind: Kind, layer_inputs: Sequence[int]) -> bool:
    """Whether a network may have batches with small products: those of `MIN_POSITIONS`."""
    layers = [LayerShapes.of(kind, inputs) for inputs in layer_inputs]
    return MIN_POSITIONS * macs_per_position(layers, 1) <= MAX_MACS


def macs_per_position(layers: Sequence[LayerShapes], directions: int) -> int:
    """Return the multiply-adds of the largest launch of a network, for each position."""
    of_x = directions * max(layer.of_x.macs(1) for layer in layers)
    of_weights = sum(shape.macs(1) for layer in layers for shape in layer.dweights)
    return max(of_x, directions * of_weights)
