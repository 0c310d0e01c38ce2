"""The matrix products of a layer outside its kernels: of all steps at once, by cuBLASLt.

Gates are stored side by side in the arrays of the kernels, each padded to whole octets of units. If
that makes a difference, the products of a layer are a batch, one for each gate.
"""

from __future__ import annotations

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


class Products:
    """Products of layers with ``inputs`` inputs, each of one direction, on addresses.

    They are ready for any number of positions: `bind` chooses their algorithms. ``of_network`` has
    all products of a network.
    """

    def __init__(self, of_network: RowsProducts, kind: Kind, inputs: int) -> None:
        self._kind, self._inputs = kind, inputs
        self._width = (kind.saved if kind.training else kind.gates) * kind.padded
        self._row_bytes = inputs * ITEM_SIZES[kind.dtype]

        def product(a: Matrix, b: Matrix, c: Matrix, batch: int) -> RowsProduct:
            return of_network.product(a, b, c, batch=batch)

        x, h = Matrix(None, inputs), Matrix(None, kind.hidden, leading=kind.padded)
        gates, batch = self._gates(kind.gates, transposed=False)
        matrices = self._matrices(kind.gates, inputs)._replace(transposed=True)
        self._of_x = product(x, matrices, gates, batch)
        self._training: dict[str, RowsProduct] = {}
        if kind.training:
            width = kind.gates * kind.padded
            gates = Matrix(None, width, leading=self._width)
            of_h = 2 if kind.mode == "gru" else kind.gates
            self._training = {
                "dx": product(gates, Matrix(width, inputs), x, 1),
                "dw_ih": product(*self._gradients(kind.gates, x)),
                "dw_hh": product(*self._gradients(of_h, h)),
            }
            if kind.mode == "gru":  # n's product of h has a column of its own, the last
                self._training["dw_hh_n"] = product(*self._gradients(1, h))
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

    def _gates(self, count: int, *, transposed: bool) -> tuple[Matrix, int]:
        """The first gates of all positions, and the batch that they form."""
        kind, width = self._kind, self._width
        if kind.padded == kind.hidden:
            return Matrix(None, count * kind.hidden, width, transposed=transposed), 1
        return Matrix(None, kind.hidden, width, kind.padded, transposed), count

    def _matrices(self, gates: int, columns: int) -> Matrix:
        """The matrices of ``gates`` gates, as the flat weights have them."""
        kind = self._kind
        if kind.padded == kind.hidden:
            return Matrix(gates * kind.hidden, columns)
        return Matrix(kind.hidden, columns, batch_stride=kind.hidden * columns)

    def _gradients(self, gates: int, factor: Matrix) -> tuple[Matrix, Matrix, Matrix, int]:
        """The gradients of the matrices of ``gates`` gates, from the gates' and a factor."""
        of_gates, batch = self._gates(gates, transposed=True)
        return of_gates, factor, self._matrices(gates, factor.columns), batch


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
        size = ITEM_SIZES[kind.dtype]
        self._n_gate: tuple[int, int] | None = None
        """Bytes to the gradients of n's product of h, in the gates and in dw_hh, of a GRU."""
        if kind.mode == "gru":
            self._n_gate = 3 * kind.padded * size, 2 * kind.hidden**2 * size
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
