"""Matrix products that a layer needs apart from its kernels: of all steps at once, by cuBLASLt.

Gates lie side by side in the arrays of our own, each padded to whole octets of units. Where that
makes a difference, the products of a layer are a batch, one for each gate.
"""

from __future__ import annotations

from typing import Any

from dnnffi.backends.cublas.product import Matrix, MatrixProduct
from dnnffi.backends.own.recurrent.geometry import Kind
from dnnffi.device.interface import Launch, Memory
from dnnffi.spec.checks import ITEM_SIZES


class Products:
    """The products of layers with ``inputs`` inputs, each of one direction, on addresses.

    ``workspace_bytes`` is what each of them needs at most, and ``dw_hh_workspace_bytes`` what the
    gradients of the recurrent weights do. Raises as `MatrixProduct`.
    """

    def __init__(
        self, library: Any, device: int, kind: Kind, positions: int, inputs: int, math: str
    ) -> None:
        self._kind = kind
        self._positions = positions
        self._inputs = inputs
        self._width = (kind.saved if kind.training else kind.gates) * kind.padded
        self._made: list[MatrixProduct] = []

        def product(a: Matrix, b: Matrix, c: Matrix, batch: int) -> MatrixProduct:
            made = MatrixProduct(library, device, a, b, c, kind.dtype, math=math, batch=batch)
            self._made.append(made)
            return made

        self.dw_hh_workspace_bytes = 0
        x = Matrix(positions, inputs)
        try:
            gates, batch = self._gates(kind.gates, transposed=False)
            matrices = self._matrices(kind.gates, inputs)._replace(transposed=True)
            self._of_x = product(x, matrices, gates, batch)
            if kind.training:
                gates = Matrix(positions, kind.gates * kind.padded, leading=self._width)
                self._dx = product(gates, Matrix(kind.gates * kind.padded, inputs), x, 1)
                self._dw_ih = product(*self._gradients(kind.gates, x))
                h = Matrix(positions, kind.hidden, leading=kind.padded)
                self._dw_hh = product(*self._gradients(2 if kind.mode == "gru" else kind.gates, h))
                of_h = [self._dw_hh]
                if kind.mode == "gru":
                    self._dw_hh_n = product(*self._gradients(1, h))
                    of_h.append(self._dw_hh_n)
                self.dw_hh_workspace_bytes = max(made.workspace_bytes for made in of_h)
        except BaseException:
            self.close()
            raise
        self.workspace_bytes = max(made.workspace_bytes for made in self._made)

    def _gates(self, count: int, *, transposed: bool) -> tuple[Matrix, int]:
        """The first gates of all positions, and the batch that they form."""
        kind, positions, width = self._kind, self._positions, self._width
        if kind.padded == kind.hidden:
            return Matrix(positions, count * kind.hidden, width, transposed=transposed), 1
        return Matrix(positions, kind.hidden, width, kind.padded, transposed), count

    def _matrices(self, gates: int, columns: int) -> Matrix:
        """The matrices of ``gates`` gates, as they lie in the flat weights."""
        kind = self._kind
        if kind.padded == kind.hidden:
            return Matrix(gates * kind.hidden, columns)
        return Matrix(kind.hidden, columns, batch_stride=kind.hidden * columns)

    def _gradients(self, gates: int, factor: Matrix) -> tuple[Matrix, Matrix, Matrix, int]:
        """The gradients of the matrices of ``gates`` gates, from the gates' and a factor."""
        of_gates, batch = self._gates(gates, transposed=True)
        return of_gates, factor, self._matrices(gates, factor.columns), batch

    def of_x(self, launch: Launch, x: int, w_ih: int, gates: int, workspace: int) -> None:
        """Fill the gates with the products of x."""
        self._of_x.run(launch, x, w_ih, gates, workspace)

    def dx(
        self,
        launch: Launch,
        memory: Memory,
        at: tuple[int, int, int, int],
        workspace: int,
        *,
        accumulate: bool,
    ) -> None:
        """dx from (gradients of the gates, w_ih, dx, room for padded matrices)."""
        gates, w_ih, dx, padded = at
        kind = self._kind
        if kind.padded != kind.hidden:
            # The matrices of all gates with as many rows as the gradients have columns.
            row = self._inputs * ITEM_SIZES[kind.dtype]
            memory.clear(padded, self.padded_bytes, launch.stream)
            for gate in range(kind.gates):
                source = w_ih + gate * kind.hidden * row
                target = padded + gate * kind.padded * row
                memory.copy(target, source, kind.hidden * row, launch.stream)
            w_ih = padded
        self._dx.run(launch, gates, w_ih, dx, workspace, accumulate=accumulate)

    @property
    def padded_bytes(self) -> int:
        """Bytes of the padded matrices, 0 where nothing has to be padded."""
        kind = self._kind
        if kind.padded == kind.hidden:
            return 0
        return kind.gates * kind.padded * self._inputs * ITEM_SIZES[kind.dtype]

    def dw_ih(
        self, launch: Launch, at: tuple[int, int, int], workspace: int, *, accumulate: bool
    ) -> None:
        """(gradients of the gates, x) to dw_ih; ``at`` has these three addresses."""
        self._dw_ih.run(launch, *at, workspace, accumulate=accumulate)

    def dw_hh(
        self, launch: Launch, at: tuple[int, int, int], workspace: int, *, accumulate: bool
    ) -> None:
        """(gradients of the gates, h before each step) to dw_hh.

        ``workspace`` has ``dw_hh_workspace_bytes``: it may run beside `dw_ih`.
        """
        gates, h_before, dw_hh = at
        self._dw_hh.run(launch, gates, h_before, dw_hh, workspace, accumulate=accumulate)
        kind = self._kind
        if kind.mode == "gru":  # n's product of h has a column of its own, the last
            size = ITEM_SIZES[kind.dtype]
            gates += 3 * kind.padded * size
            dw_hh += 2 * kind.hidden**2 * size
            self._dw_hh_n.run(launch, gates, h_before, dw_hh, workspace, accumulate=accumulate)

    def close(self) -> None:
        """Release the products. A second call does nothing."""
        while self._made:
            self._made.pop().close()
