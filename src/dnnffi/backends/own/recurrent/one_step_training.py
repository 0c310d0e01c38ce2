"""Training of networks with a single step: the forward pass of `one_step`, and a backward pass.

A backward kernel computes the gradients of the gates of a layer, each cell alone
(``one_step_gradients.cu``); matrix products give the rest, as branches of a graph if the call is
captured. The reserve space has the state of dropout, and for each layer ``saved``, the gradients of
its products of x and, of a GRU, those of h_0 in the shapes of that file, sums for the biases, and y
unless the layer is the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from dnnffi.backends.cublas.product import Algorithms, Matrix, RowsProduct, RowsProducts
from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.recurrent.bias_gradients import BiasGradients, BiasSums
from dnnffi.backends.own.recurrent.config import Kind
from dnnffi.backends.own.recurrent.dropout import STATE_BYTES, DropoutKernels, checked_generator
from dnnffi.backends.own.recurrent.kernels import (
    bias_kernel,
    dropout_kernels,
    one_step_gradients_kernel,
)
from dnnffi.backends.own.recurrent.layout import Buffer
from dnnffi.backends.own.recurrent.one_step import (
    MAX_ROWS,
    Division,
    OneStepLayers,
    OneStepNetwork,
)
from dnnffi.backends.own.recurrent.params import OneStepGradientsParams
from dnnffi.backends.own.recurrent.rows import NO_TABLES, row_layout
from dnnffi.backends.own.source import Constant, KernelSource
from dnnffi.backends.rnn_interface import (
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.branches import Work
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.spec.problem import RNNProblem

UNITS, ROWS, WARPS = 32, 32, 8
"""Units, rows and warps of a block of the backward kernel; a lane has a unit."""

CONSTANTS: dict[str, Constant] = {"UNITS": UNITS, "ROWS": ROWS, "WARPS": WARPS}
"""Constants of ``one_step_gradients.cu`` besides those of the cell."""

_ROW_BOUNDS = tuple(1 << bits for bits in range((MAX_ROWS - 1).bit_length() + 1))
"""The largest numbers of rows of batches that share algorithms of matrix products."""


class ProductAlgorithms(NamedTuple):
    """Algorithms of `LayerProducts` for a number of rows."""

    data: Algorithms
    weights: Algorithms


class LayerProducts(NamedTuple):
    """The products of a backward pass for a factor [batch, columns], x or h_0, and its matrices.

    data : the gradient of x or h_0, from those of the gates and the matrices
    weights : the gradients of the matrices
    """

    data: RowsProduct
    weights: RowsProduct

    @classmethod
    def of(cls, products: RowsProducts, gates: int, columns: int) -> LayerProducts:
        """Return the products of matrices [gates, columns], of all gates."""
        of_gates, factor = Matrix(None, gates), Matrix(None, columns)
        matrices = Matrix(gates, columns)
        transposed = of_gates._replace(transposed=True)
        return cls(
            products.product(of_gates, matrices, factor),
            products.product(transposed, factor, matrices),
        )

    def choose(self, rows: int) -> ProductAlgorithms:
        """Return the algorithms for up to ``rows`` rows; the library is asked once for a number."""
        return ProductAlgorithms(self.data.choose(rows), self.weights.choose(rows))


class LayerRoom(NamedTuple):
    """Offsets of what a layer has in the reserve space, in bytes.

    The gradients of both products are the same array, unless the layer is a GRU's.
    """

    saved: int
    d_x_products: int
    d_h_products: int
    bias_sums: int
    y: int


class ProductRoom(NamedTuple):
    """Offsets of the workspaces of products that may run at the same time."""

    dx: int
    dh_0: int
    dw_ih: int
    dw_hh: int


def training_kernels(problem: RNNProblem, kind: Kind) -> Iterator[KernelSource]:
    """Yield the kernels of an `OneStepTrainingNetwork` besides those of its divisions."""
    yield one_step_gradients_kernel(kind, CONSTANTS)
    if problem.spec.bias:
        yield bias_kernel(problem.spec.dtype)
    if problem.drops:
        yield from dropout_kernels(problem.spec.dtype)


class OneStepTrainingNetwork(OneStepNetwork):
    """A network on these kernels, ready for any number of rows, in training.

    ``library`` is the libcublasLt. Raises `UnsupportedError` if a kernel cannot be compiled, and
    `CublasError`.
    """

    def __init__(
        self,
        problem: RNNProblem,
        device: int,
        memory: MemoryWithGraphs,
        library: Any,
        algorithm: str,
        of_layers: Sequence[Division],
    ) -> None:
        super().__init__(problem, device, memory, algorithm, of_layers)
        self.memory, self.kind = memory, of_layers[0].kind
        spec, kind = self.spec, self.kind
        self.gradients_kernel = memory.kernel(*one_step_gradients_kernel(kind, CONSTANTS))
        self.bias_gradients: BiasGradients | None = None
        if spec.bias:
            weights = [layer.weights for layer in self.layers]
            sizes = kind.saved, kind.gates, kind.hidden
            self.bias_gradients = BiasGradients(spec, weights, *sizes, memory)
        self.dropout = DropoutKernels(spec.dtype, memory) if problem.drops else None
        self._all_products = RowsProducts(library, device, spec.dtype, math=problem.options.math)
        columns = {spec.hidden_size, *(one.inputs for one in of_layers)}
        gates = kind.gates * kind.hidden
        self.products = {
            each: LayerProducts.of(self._all_products, gates, each) for each in columns
        }
        # A batch with a new number of rows then asks the library for nothing.
        for products in self.products.values():
            for rows in _ROW_BOUNDS:
                products.choose(rows)

    def bind(
        self, problem: RNNProblem, launch: Launch, generator: Any = None, *, is_exact: bool = False
    ) -> OneStepTrainingExecutor:
        """Return the executor of a problem of one step; ``generator`` is for dropout.

        With ``is_exact`` the algorithms of matrix products are chosen for these sizes, which asks
        cuBLASLt; else they are those of the next power of two.
        """
        self.check(problem)
        return OneStepTrainingExecutor(self, problem, generator, is_exact)

    def close(self) -> None:
        """Release everything native. A second call does nothing."""
        self._all_products.close()


class OneStepTrainingExecutor(OneStepLayers):
    """A problem of one step on these kernels, in training."""

    keeps_workspace = True

    def __init__(
        self,
        network: OneStepTrainingNetwork,
        problem: RNNProblem,
        generator: Any,
        is_exact: bool,
    ) -> None:
        super().__init__(network, problem)
        self._network, self._memory = network, network.memory
        batch = problem.batch
        max_rows = batch if is_exact else 1 << (batch - 1).bit_length()
        self._chosen = {
            columns: products.choose(max_rows) for columns, products in network.products.items()
        }
        kind, size = network.kind, network.item_bytes
        self._direction_bytes = batch * kind.hidden * size  # of states
        self._gate_bytes = kind.gates * self._direction_bytes  # of a direction
        self._row_blocks = -(-batch // ROWS)
        reserve, workspace = Buffer(), Buffer()
        self._taken = reserve.add(STATE_BYTES if problem.drops else 0)
        self._rooms = [self._room_of(reserve, layer) for layer in range(problem.spec.num_layers)]
        self._bias_sums = BiasSums.of([room.bias_sums for room in self._rooms], self._row_blocks)
        of_h = self._chosen[kind.hidden]
        of_x = [self._chosen[layer.division.inputs] for layer in self._layers]
        self._dy = workspace.add(self._state_bytes if problem.spec.num_layers > 1 else 0)
        self._product_room = ProductRoom(
            dx=workspace.add(max(one.data.workspace_bytes for one in of_x)),
            dh_0=workspace.add(of_h.data.workspace_bytes),
            dw_ih=workspace.add(max(one.weights.workspace_bytes for one in of_x)),
            dw_hh=workspace.add(of_h.weights.workspace_bytes),
        )
        self.reserve_bytes = reserve.nbytes
        self.workspace_bytes = self.least_workspace_bytes = workspace.nbytes
        self._dropout = None
        if problem.drops:
            assert network.dropout is not None
            self.generator = checked_generator(generator, self.device)
            layout = row_layout(problem)
            self._dropout = network.dropout.bind(problem, layout, self.generator)

    def _room_of(self, reserve: Buffer, layer: int) -> LayerRoom:
        """Return the arrays of a layer: y last, so that sums of biases are equally far apart."""
        kind, directions = self._network.kind, self._sizes[1]
        gate_bytes = directions * self._gate_bytes
        sums = directions * self._row_blocks * kind.saved * kind.hidden * 4
        saved, d_x_products, d_h_products, bias_sums, y = reserve.add_all(
            directions * kind.saved * self._direction_bytes,
            gate_bytes,
            gate_bytes if kind.mode == "gru" else 0,
            sums if self.problem.spec.bias else 0,
            self._state_bytes if layer < self.problem.spec.num_layers - 1 else 0,
        )
        return LayerRoom(
            saved, d_x_products, d_h_products if kind.mode == "gru" else d_x_products, bias_sums, y
        )

    def forward(self, launch: Launch, at: ForwardAddresses) -> None:
        x, last, taken = at.x, len(self._layers) - 1, at.reserve + self._taken
        if self._dropout is not None:
            self._dropout.take(launch, taken)
        for layer, room in enumerate(self._rooms):
            y = at.y if layer == last else at.reserve + room.y
            self._run_layer(launch, layer, x, y, at, at.reserve + room.saved)
            if self._dropout is not None and layer < last:
                self._dropout.drop(launch, y, y, taken, NO_TABLES, layer)
            x = y

    def backward_data(self, launch: Launch, at: BackwardDataAddresses) -> None:
        self._backward_data(launch, at, [])

    def backward_weights(
        self, launch: Launch, at: BackwardWeightsAddresses, accumulate: bool = False
    ) -> None:
        self._memory.at_once(launch, self._works_of_weights(at, accumulate))

    def backward(
        self,
        launch: Launch,
        data: BackwardDataAddresses,
        weights: BackwardWeightsAddresses,
        accumulate: bool = False,
    ) -> None:
        self._backward_data(launch, data, self._works_of_weights(weights, accumulate))

    def _backward_data(
        self, launch: Launch, at: BackwardDataAddresses, beside: Sequence[Work]
    ) -> None:
        """Enqueue backward data; ``beside`` are works that wait for the gradients of all gates.

        Only a layer's dx precedes the layer below. All else waits, and then runs at the same time.
        """
        dy = at.dy
        for layer in reversed(range(1, len(self._layers))):
            self._run_gradients(launch, layer, dy, at)
            # A layer's dx takes the place of its dy, which its kernel has read by then.
            dx = at.workspace + self._dy
            self._dx(launch, layer, dx, at)
            dy = dx
        self._run_gradients(launch, 0, dy, at)
        works: list[Work] = [partial(self._dx, layer=0, dx=at.dx, at=at)]
        if at.dh_0:
            works.append(partial(self._dh_0, at=at))
        self._memory.at_once(launch, [*works, *beside])

    def _run_gradients(
        self, launch: Launch, layer: int, dy: int, at: BackwardDataAddresses
    ) -> None:
        """Enqueue the gradients of the gates of a layer."""
        room, states, kind = self._rooms[layer], layer * self._state_bytes, self._network.kind
        batch, directions = self._sizes
        before = {"lstm": at.c_0, "gru": at.h_0}.get(kind.mode, 0)
        params = OneStepGradientsParams(
            saved=at.reserve + room.saved,
            before=before and before + states,
            dy=dy,
            dh_n=at.dh_n and at.dh_n + states,
            dc_n=at.dc_n and at.dc_n + states,
            d_x_products=at.reserve + room.d_x_products,
            d_h_products=at.reserve + room.d_h_products,
            dh_0=at.dh_0 and at.dh_0 + states,
            dc_0=at.dc_0 and at.dc_0 + states,
            bias_sums=at.reserve + room.bias_sums if self.problem.spec.bias else 0,
            batch=batch,
            directions=directions,
            hidden=kind.hidden,
            clip_low=self._clip[0],
            clip_high=self._clip[1],
        )
        self._network.gradients_kernel(
            (-(-kind.hidden // UNITS) * self._row_blocks * directions,),
            (32 * WARPS,),
            (struct_of(params),),
            stream=launch.stream,
            shared_mem=4 * WARPS * kind.saved * UNITS,
        )

    def _dx(self, launch: Launch, layer: int, dx: int, at: BackwardDataAddresses) -> None:
        """Enqueue dx of a layer: the sum over its directions, then dropout of the layer below."""
        of_layer, room = self._layers[layer], self._rooms[layer]
        columns, weights = of_layer.division.inputs, of_layer.weights
        product, chosen = self._network.products[columns].data, self._chosen[columns].data
        for direction in range(self._sizes[1]):
            gates = at.reserve + room.d_x_products + direction * self._gate_bytes
            w_ih = at.weights + weights.w_ih + direction * weights.matrix_stride
            product.run(
                *(launch, self._sizes[0], chosen, (gates, w_ih, dx)),
                at.workspace + self._product_room.dx,
                accumulate=direction > 0,
            )
        if self._dropout is not None and layer > 0:
            taken = at.reserve + self._taken
            self._dropout.drop(launch, dx, dx, taken, NO_TABLES, layer - 1)

    def _dh_0(self, launch: Launch, at: BackwardDataAddresses) -> None:
        """Enqueue dh_0 of all layers. For a GRU the kernel has stored the other part there."""
        kind = self._network.kind
        product, chosen = self._network.products[kind.hidden].data, self._chosen[kind.hidden].data
        for layer, (of_layer, room) in enumerate(zip(self._layers, self._rooms, strict=True)):
            weights, dh_0 = of_layer.weights, at.dh_0 + layer * self._state_bytes
            for direction in range(self._sizes[1]):
                gates = at.reserve + room.d_h_products + direction * self._gate_bytes
                w_hh = at.weights + weights.w_hh + direction * weights.matrix_stride
                where = gates, w_hh, dh_0 + direction * self._direction_bytes
                product.run(
                    *(launch, self._sizes[0], chosen, where),
                    at.workspace + self._product_room.dh_0,
                    accumulate=kind.mode == "gru",
                )

    def _works_of_weights(self, at: BackwardWeightsAddresses, accumulate: bool) -> list[Work]:
        """Return works that may run at once: the gradients of w_ih, of w_hh and of the biases."""
        works: list[Work] = [
            partial(self._dw_ih, at=at, accumulate=accumulate),
            partial(self._dw_hh, at=at, accumulate=accumulate),
        ]
        gradients = self._network.bias_gradients
        if gradients is not None:
            where = self._bias_sums, at.reserve, at.dweights, accumulate
            works.append(lambda launch: gradients.run(launch, *where))
        return works

    def _dw_ih(self, launch: Launch, at: BackwardWeightsAddresses, accumulate: bool) -> None:
        """Enqueue the gradients of the matrices of x of all layers."""
        x = at.x
        for of_layer, room in zip(self._layers, self._rooms, strict=True):
            columns, weights = of_layer.division.inputs, of_layer.weights
            product, chosen = self._network.products[columns].weights, self._chosen[columns].weights
            for direction in range(self._sizes[1]):
                gates = at.reserve + room.d_x_products + direction * self._gate_bytes
                dw_ih = at.dweights + weights.w_ih + direction * weights.matrix_stride
                product.run(
                    *(launch, self._sizes[0], chosen, (gates, x, dw_ih)),
                    at.workspace + self._product_room.dw_ih,
                    accumulate=accumulate,
                )
            x = at.reserve + room.y

    def _dw_hh(self, launch: Launch, at: BackwardWeightsAddresses, accumulate: bool) -> None:
        """Enqueue the gradients of the recurrent matrices, which are zeros if h_0 is."""
        kind = self._network.kind
        product, chosen = self._network.products[kind.hidden], self._chosen[kind.hidden]
        matrix_bytes = kind.gates * kind.hidden**2 * self._network.item_bytes
        for layer, (of_layer, room) in enumerate(zip(self._layers, self._rooms, strict=True)):
            weights = of_layer.weights
            for direction in range(self._sizes[1]):
                dw_hh = at.dweights + weights.w_hh + direction * weights.matrix_stride
                if not at.h_0:
                    if not accumulate:
                        self._memory.clear(dw_hh, matrix_bytes, launch.stream)
                    continue
                gates = at.reserve + room.d_h_products + direction * self._gate_bytes
                h_0 = at.h_0 + layer * self._state_bytes + direction * self._direction_bytes
                product.weights.run(
                    *(launch, self._sizes[0], chosen.weights, (gates, h_0, dw_hh)),
                    at.workspace + self._product_room.dw_hh,
                    accumulate=accumulate,
                )
