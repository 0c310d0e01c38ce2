"""The matrix products of a layer outside its kernels: of all steps at once, by cuBLASLt.

Gates are stored side by side in the arrays of the kernels, each padded to whole octets of units. If
that makes a difference, the products of a layer are a batch, one for each gate. Else those of both
directions are a batch, but for dx, which is their sum.
"""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.backends.cublas.product import (
    MAX_CHOSEN,
    Algorithms,
    Matrix,
    RowsProduct,
    RowsProducts,
)
from dnnffi.backends.own.recurrent.config import Kind
from dnnffi.device.interface import Launch, Memory
from dnnffi.execution.cache import keep_newest
from dnnffi.spec.checks import ITEM_SIZES


class Operands(NamedTuple):
    """The matrices of a product C = A B, or of ``batch`` products, as each lies in memory."""

    a: Matrix
    b: Matrix
    c: Matrix
    batch: int = 1


def directions_at_once(kind: Kind, directions: int) -> int:
    """Return the directions whose products are one batch."""
    return directions if kind.padded == kind.hidden else 1


def layer_products(
    kind: Kind, inputs: int, directions: int = 1, matrix_stride: int = 0
) -> dict[str, Operands]:
    """Return the products of a layer with ``inputs`` inputs by name.

    They are "of_x", and for training "dx", "dw_ih", "dw_hh" and of a GRU "dw_hh_n": n's product of
    h has a column of its own, the last. The matrices of "dx" have as many rows as the gradients of
    the gates have columns, padded ones included. "dx" is of one direction, the others of as many as
    are given, at most `directions_at_once`: the matrices of a direction lie ``matrix_stride``
    elements after those of the one before.
    """
    hidden, padded = kind.hidden, kind.padded
    width = (kind.saved if kind.training else kind.gates) * padded
    follows = None if directions > 1 else 0  # arrays with a row for each position
    x, h = Matrix(None, inputs), Matrix(None, hidden, padded, follows)

    def matrices(gates: int, columns: int) -> Matrix:
        """Return the matrices of ``gates`` gates, as the flat weights have them."""
        if padded == hidden:
            return Matrix(gates * hidden, columns, batch_stride=matrix_stride)
        return Matrix(hidden, columns, batch_stride=hidden * columns)

    def of_gates(gates: int, *, transposed: bool) -> tuple[Matrix, int]:
        """Return the first gates of all positions, and the batch that they form."""
        if padded == hidden:
            return Matrix(None, gates * hidden, width, follows, transposed), directions
        return Matrix(None, hidden, width, padded, transposed), gates

    def gradients(gates: int, factor: Matrix) -> Operands:
        """Return the gradients of the matrices of ``gates`` gates, from the gates' and a factor."""
        left, batch = of_gates(gates, transposed=True)
        return Operands(left, factor, matrices(gates, factor.columns), batch)

    filled, batch = of_gates(kind.gates, transposed=False)
    w_ih = matrices(kind.gates, inputs)._replace(transposed=True)
    found = {"of_x": Operands(x, w_ih, filled, batch)}
    if kind.training:
        columns = kind.gates * padded
        of_dx = Matrix(None, columns, leading=width)
        found["dx"] = Operands(of_dx, Matrix(columns, inputs), x)
        found["dw_ih"] = gradients(kind.gates, x)
        found["dw_hh"] = gradients(2 if kind.mode == "gru" else kind.gates, h)
        if kind.mode == "gru":
            found["dw_hh_n"] = gradients(1, h)
    return found


def n_gate_bytes(kind: Kind) -> tuple[int, int] | None:
    """Return the bytes to the gradients of a GRU's "dw_hh_n", in the gates and in dw_hh."""
    if kind.mode != "gru":
        return None
    size = ITEM_SIZES[kind.dtype]
    return 3 * kind.padded * size, 2 * kind.hidden**2 * size


class GradientAddresses(NamedTuple):
    """The addresses that the gradients of the matrices of a layer and direction need."""

    layer: int
    gates: int
    x: int
    dw_ih: int
    h_before: int
    dw_hh: int


class Products:
    """Products of layers with ``inputs`` inputs on addresses, those of the first direction.

    They are ready for any number of positions: `bind` chooses their algorithms. ``of_network`` has
    all products of a network. Those of ``directions`` are a batch: see `layer_products`.
    """

    def __init__(
        self,
        of_network: RowsProducts,
        kind: Kind,
        inputs: int,
        directions: int,
        matrix_stride: int,
    ) -> None:
        self._kind = kind
        self._row_bytes = inputs * ITEM_SIZES[kind.dtype]
        self._training = {
            name: of_network.product(*one[:3], batch=one.batch)
            for name, one in layer_products(kind, inputs, directions, matrix_stride).items()
        }
        self._of_x = self._training.pop("of_x")
        self._bound: dict[int, BoundProducts] = {}

    def bind(self, max_positions: int) -> BoundProducts:
        """Return the products with algorithms for up to ``max_positions`` positions.

        Raises as `RowsProduct.choose`.
        """
        found = self._bound.get(max_positions)
        if found is None:
            of_training = {
                name: (product, product.choose(max_positions))
                for name, product in self._training.items()
            }
            of_x = self._of_x, self._of_x.choose(max_positions)
            made = BoundProducts(self._kind, self._row_bytes, of_x, of_training)
            found = self._bound.setdefault(max_positions, made)
            keep_newest(self._bound, MAX_CHOSEN)
        return found


_Chosen = tuple[RowsProduct, Algorithms]


class BoundProducts:
    """The products of `Products` with algorithms for a number of positions.

    ``workspace_bytes`` is what each of them needs at most, and ``dw_hh_workspace_bytes`` what the
    gradients of the recurrent weights need. ``padded_bytes`` is the size of the padded matrices, 0
    if nothing has to be padded.
    """

    def __init__(
        self, kind: Kind, row_bytes: int, of_x: _Chosen, of_training: dict[str, _Chosen]
    ) -> None:
        self._kind, self._row_bytes = kind, row_bytes
        self._of_x = of_x
        self._of_training = of_training
        needed = {name: chosen.workspace_bytes for name, (_, chosen) in of_training.items()}
        self.workspace_bytes: int = max(of_x[1].workspace_bytes, *needed.values(), 0)
        of_h = [nbytes for name, nbytes in needed.items() if name.startswith("dw_hh")]
        self.dw_hh_workspace_bytes = max(of_h, default=0)
        self._n_gate = n_gate_bytes(kind)
        is_padded = kind.padded != kind.hidden
        self.padded_bytes = kind.gates * kind.padded * row_bytes if is_padded else 0

    def of_x(
        self, launch: Launch, positions: int, x: int, w_ih: int, gates: int, workspace: int
    ) -> None:
        """Fill the gates with the products of x."""
        product, chosen = self._of_x
        product.run(launch, positions, chosen, (x, w_ih, gates), workspace)

    def dx(
        self,
        launch: Launch,
        memory: Memory,
        positions: int,
        at: tuple[int, int, int, int],
        workspace: int,
        *,
        accumulate: bool,
    ) -> None:
        """Fill dx: ``at`` has the addresses of the gradients of the gates, w_ih, dx, and padding.

        The last is that of ``padded_bytes`` bytes for padded matrices.
        """
        gates, w_ih, dx, padded = at
        kind = self._kind
        if self.padded_bytes:
            # The matrices of all gates with as many rows as the gradients have columns.
            memory.clear(padded, self.padded_bytes, launch.stream)
            for gate in range(kind.gates):
                source = w_ih + gate * kind.hidden * self._row_bytes
                target = padded + gate * kind.padded * self._row_bytes
                memory.copy(target, source, kind.hidden * self._row_bytes, launch.stream)
            w_ih = padded
        product, chosen = self._of_training["dx"]
        product.run(launch, positions, chosen, (gates, w_ih, dx), workspace, accumulate=accumulate)

    def dw_ih(
        self,
        launch: Launch,
        positions: int,
        at: tuple[int, int, int],
        workspace: int,
        *,
        accumulate: bool,
    ) -> None:
        """Fill dw_ih: ``at`` has the addresses of the gradients of the gates, x and dw_ih."""
        product, chosen = self._of_training["dw_ih"]
        product.run(launch, positions, chosen, at, workspace, accumulate=accumulate)

    def dw_hh(
        self,
        launch: Launch,
        positions: int,
        at: tuple[int, int, int],
        workspace: int,
        *,
        accumulate: bool,
    ) -> None:
        """Fill dw_hh: ``at`` has the gradients of the gates, h before each step, and dw_hh.

        ``workspace`` has ``dw_hh_workspace_bytes``: it may run at the same time as `dw_ih`.
        """
        product, chosen = self._of_training["dw_hh"]
        product.run(launch, positions, chosen, at, workspace, accumulate=accumulate)
        if self._n_gate is not None:
            (gates, h_before, dw_hh), (of_gates, of_dw_hh) = at, self._n_gate
            at = gates + of_gates, h_before, dw_hh + of_dw_hh
            product, chosen = self._of_training["dw_hh_n"]
            product.run(launch, positions, chosen, at, workspace, accumulate=accumulate)
