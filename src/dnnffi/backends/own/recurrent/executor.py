"""Execution of a recurrent network by our own kernels, layer by layer, on the arrays of a call.

For each layer the products of x of all steps, then one kernel for all steps of both directions. A
backward pass is a kernel for all steps, then the products that give dx; the gradients of the
weights are products again, which need not wait for each other. If one kernel has all layers at
once, only the first layer has products of x, and of dx. Nothing is kept between calls: what kernels
exchange is stored in the workspace and cleared by every call, so streams, threads, graphs and
launches that failed share no state.

`OwnNetwork` has what is made once for a network; `OwnNetwork.bind` adds the sizes of a batch, which
takes arithmetic alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from dnnffi.backends.own.recurrent.dropout import (
    STATE_BYTES,
    DropoutKernels,
    Generator,
)
from dnnffi.backends.own.recurrent.geometry import Geometry
from dnnffi.backends.own.recurrent.kernels import (
    LayerKernel,
    LayerLaunches,
    SourceAndName,
    begin_kernels,
    bias_kernel,
    dropout_kernels,
    narrow_kernel,
    row_kernels,
    table_kernel,
)
from dnnffi.backends.own.recurrent.layout import (
    Buffer,
    LayerArrays,
    LayerWeights,
    layer_weights,
)
from dnnffi.backends.own.recurrent.narrow import NarrowKernel, NarrowMatrices
from dnnffi.backends.own.recurrent.packing import Cleared, Packing
from dnnffi.backends.own.recurrent.products import BoundProducts, Products
from dnnffi.backends.own.recurrent.rows import row_layout
from dnnffi.backends.rnn_interface import (
    AddressExecutor,
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.errors import UnsupportedError
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.weights import weight_layout

_THREADS = 256


class _Room(NamedTuple):
    """What the groups of a kernel need of a workspace: offsets, and bytes to be cleared."""

    exchange: int
    exchange_bytes: int
    streamed: int

    @classmethod
    def of(cls, launches: LayerLaunches, workspace: Buffer) -> _Room:
        """Return new parts of a workspace."""
        nbytes = launches.exchange_bytes
        exchange, streamed = workspace.add_all(nbytes, launches.streamed_bytes)
        return cls(exchange, nbytes, streamed)

    def addresses(self, workspace: int) -> tuple[int, int]:
        """Of what groups exchange, and of the weights that they stream."""
        return workspace + self.exchange, workspace + self.streamed

    def cleared(self, workspace: int) -> Cleared:
        """What is to be cleared before the kernel."""
        return Cleared(workspace + self.exchange, self.exchange_bytes)


class OwnNetwork:
    """A network on our own kernels, on one device, ready for any sizes.

    ``problem`` is one of its problems; its batch, steps and lengths do not matter, but whether rows
    have unequal lengths. ``library`` is the libcublasLt; ``forward`` and ``backward`` are the
    geometries of the kernels, the latter None for inference. Raises `UnsupportedError` if a kernel
    cannot be compiled or does not fit on the device, and `CublasError`.
    """

    def __init__(
        self,
        problem: RNNProblem,
        device: int,
        memory: MemoryWithGraphs,
        library: Any,
        algorithm: str,
        forward: Geometry,
        backward: Geometry | None,
    ) -> None:
        self.device, self.memory, self.algorithm = device, memory, algorithm
        self.kind = kind = forward.kind
        self.spec = spec = problem.spec
        self.item_bytes = ITEM_SIZES[spec.dtype]
        low, high = problem.options.clip or (0.0, 0.0)
        self.bounds = float(low), float(high)
        self.weight_size: int = weight_layout(spec, "cudnn").size
        self.weights = layer_weights(spec)
        self.packing = Packing(self.item_bytes, memory) if kind.packed else None
        self.forward_kernel = LayerKernel(forward, memory)
        self.backward_kernel = None
        self.bias_kernel = None
        if backward is not None:
            self.backward_kernel = LayerKernel(backward, memory)
            if spec.bias:
                self.bias_kernel = memory.kernel(*bias_kernel(spec.dtype))
        self.narrow = NarrowKernel(kind, spec.num_directions, memory) if kind.narrow else None
        self.dropout = DropoutKernels(spec.dtype, memory) if problem.drops else None
        # What follows is the same for all sizes, and not to be computed anew for each.
        self.position_bytes = kind.padded * self.item_bytes
        """Bytes of the units of one position in arrays of the kernels."""
        columns = kind.saved if kind.training else kind.gates
        self.gate_bytes = columns * self.position_bytes
        self.is_packed, self.is_training = kind.packed, kind.training
        self.layers_at_once = kind.layers
        self.has_saved_cell = kind.mode == "lstm"
        self.keeps_dropped = kind.plain
        self.bias_part_bytes = spec.num_directions * kind.saved * kind.padded * 4
        self.layer_inputs = [spec.layer_input_size(layer) for layer in range(spec.num_layers)]
        size = self.item_bytes
        self.strides = [
            (0, one.matrix_stride // size, one.bias_stride // size) for one in self.weights
        ]
        """Elements between the arrays, matrices and biases of two directions, for each layer."""
        self.output_bytes = spec.hidden_size * spec.num_directions * self.item_bytes
        self.input_bytes = spec.input_size * self.item_bytes
        self.products: dict[int, Products] = {}
        try:
            for inputs in dict.fromkeys(map(spec.layer_input_size, range(spec.num_layers))):
                self.products[inputs] = Products(
                    library, device, kind, inputs, problem.options.math
                )
        except BaseException:
            self.close()
            raise

    def check(self, problem: RNNProblem) -> None:
        """Raise `UnsupportedError` if the rows of a problem do not fit on the device."""
        sizes = problem.batch, self.spec.num_directions, problem.steps
        for kernel in (self.forward_kernel, self.backward_kernel):
            if kernel is not None:
                kernel.bind(*sizes)

    def bind(
        self, problem: RNNProblem, launch: Launch, generator: Any = None, *, is_exact: bool = False
    ) -> OwnRNNExecutor:
        """Return the executor of a problem of this network, with any sizes.

        ``generator`` has the random numbers of dropout. With ``is_exact`` the algorithms of matrix
        products are chosen for these sizes, which asks cuBLASLt; else for the next power of two.
        Raises `UnsupportedError` if the sizes do not fit on the device, ``ValueError`` and
        ``TypeError`` for a generator.
        """
        return OwnRNNExecutor(self, problem, generator, is_exact)

    def close(self) -> None:
        """Release everything native. A second call does nothing."""
        while self.products:
            self.products.popitem()[1].close()


def kernels_beside(problem: RNNProblem, forward: Geometry) -> list[SourceAndName]:
    """The kernels of an `OwnNetwork` that have no geometry."""
    spec = problem.spec
    found = []
    if problem.training and spec.bias:
        found.append(bias_kernel(spec.dtype))
    if forward.kind.narrow:
        found.append(narrow_kernel())
    if forward.kind.packed:
        item_bytes = ITEM_SIZES[spec.dtype]
        found += [table_kernel(), *row_kernels(item_bytes).values()]
        found += begin_kernels(item_bytes).values()
    if problem.drops:
        found += dropout_kernels(spec.dtype)
    return found


class OwnRNNExecutor(AddressExecutor):
    """One problem of an `OwnNetwork`: offsets of its arrays, and launches."""

    keeps_workspace = True

    def __init__(
        self, network: OwnNetwork, problem: RNNProblem, generator: Any, is_exact: bool
    ) -> None:
        self.problem, self.device, self.algorithm = problem, network.device, network.algorithm
        self._network, self._memory = network, network.memory
        self._kind = network.kind
        self._weights = network.weights
        self.weight_size = network.weight_size
        self._layout = layout = row_layout(problem)
        if (layout.tables is not None) != network.is_packed:
            rows = "full" if network.is_packed else "ragged"
            raise UnsupportedError("dnnffi", "", f"these kernels are not for {rows} rows")
        self._copies = layout.caller_strides is not None
        spec = problem.spec
        self._directions = directions = spec.num_directions
        self._num_own_ys = spec.num_layers - 1 + self._copies
        """Layers whose y is not the caller's array."""
        sizes = layout.batch, directions, layout.steps
        self._forward_launches = network.forward_kernel.bind(*sizes)
        self._backward_launches = None
        if network.backward_kernel is not None:
            self._backward_launches = network.backward_kernel.bind(*sizes)
        self._bounds = network.bounds
        self._positions = positions = layout.positions
        self._sizes = (
            *(layout.steps, layout.batch, layout.step_stride, layout.row_stride),
            *(positions, directions),
        )
        self.generator = self._dropout = None
        if problem.drops:
            self.generator = self._checked(generator)
            assert network.dropout is not None
            self._dropout = network.dropout.bind(problem, layout, self.generator)
        max_positions = positions if is_exact else 1 << (positions - 1).bit_length()
        self._products = {
            inputs: products.bind(max_positions) for inputs, products in network.products.items()
        }
        self._gate_bytes = positions * network.gate_bytes  # of one direction
        self._state_bytes = positions * network.position_bytes  # of one direction
        self._layer_state_bytes = layout.batch * network.output_bytes  # of h_0, of one layer
        self._lay_out()

    def _lay_out(self) -> None:
        """Lay out the parts of workspaces and of the reserve space."""
        network, layout, products = self._network, self._layout, self._products.values()
        num_layers, directions = len(self._weights), self._directions
        output_bytes = self._positions * network.output_bytes
        input_bytes = self._positions * network.input_bytes if self._copies else 0
        product_bytes = max([one.workspace_bytes for one in products])
        workspace, reserve = Buffer(), Buffer()
        workspace.add(product_bytes)  # at its beginning
        self._forward_room = _Room.of(self._forward_launches, workspace)
        self._narrow: NarrowMatrices | None = None
        if network.narrow is not None:
            self._narrow = network.narrow.bind(layout.batch, workspace)
        kept = reserve if network.is_training else workspace
        self._tables = self._packed_x = self._taken = 0
        if layout.tables is not None:
            self._tables, self._packed_x = kept.add_all(layout.tables.nbytes, input_bytes)
        if self._dropout is not None:
            self._taken = kept.add(STATE_BYTES)
        if self._backward_launches is not None:
            self._arrays = self._saved(reserve, self._backward_launches, output_bytes)
        else:
            gates = workspace.add(directions * self._gate_bytes)
            own_ys = self._num_own_ys if network.layers_at_once == 1 else int(self._copies)
            ys = [workspace.add(output_bytes) for _ in range(min(2, own_ys))] or [0]
            self._arrays = [
                LayerArrays(gates, y=ys[layer % len(ys)]) for layer in range(num_layers)
            ]
        self._forward_strides = self._strides(network.layers_at_once)
        self.reserve_bytes = reserve.nbytes
        needed = workspace.nbytes
        if self._backward_launches is not None:
            workspace = Buffer()
            workspace.add(product_bytes)
            self._backward_room = _Room.of(self._backward_launches, workspace)
            layers = self._backward_launches.kernel.layers
            self._backward_strides = self._strides(layers)
            # A layer's dx takes the place of its dy, which its kernel has read by then.
            needs_dy = self._copies or num_layers > layers
            self._dy, self._packed_dx, self._padded = workspace.add_all(
                output_bytes if needs_dy else 0,
                input_bytes,
                max([one.padded_bytes for one in products]),
            )
            needed = max(needed, workspace.nbytes)
            workspace = Buffer()
            beside_bytes = max([one.dw_hh_workspace_bytes for one in products])
            _, self._beside = workspace.add_all(product_bytes, beside_bytes)
            needed = max(needed, workspace.nbytes)
        self.workspace_bytes = self.least_workspace_bytes = needed

    def _saved(
        self, reserve: Buffer, launches: LayerLaunches, output_bytes: int
    ) -> list[LayerArrays]:
        """The parts of the reserve space of each layer."""
        network, directions = self._network, self._directions
        self._bias_parts = launches.groups * launches.kernel.bias_parts
        bias_bytes = network.bias_part_bytes * self._bias_parts if network.spec.bias else 0
        gate_bytes, state_bytes = directions * self._gate_bytes, directions * self._state_bytes
        cell_bytes = state_bytes if network.has_saved_cell else 0
        num_layers = len(self._weights)
        found = []
        for layer in range(num_layers):
            y_bytes = output_bytes if layer < self._num_own_ys else 0
            gates, c_before, h_before, bias_sums, y = reserve.add_all(
                gate_bytes, cell_bytes, state_bytes, bias_bytes, y_bytes
            )
            dropped = y
            if self._dropout is not None and network.keeps_dropped and layer < num_layers - 1:
                dropped = reserve.add(output_bytes)
            found.append(LayerArrays(gates, c_before, h_before, bias_sums, y, dropped))
        return found

    def _strides(self, layers: int) -> list[tuple[int, int, int]]:
        """Elements between the arrays, matrices and biases that a kernel reads of each layer.

        From layer to layer if a kernel has several; else from direction to direction.
        """
        network = self._network
        if layers == 1:
            return network.strides
        first, second = self._weights[:2]
        between = self._arrays[1].gates - self._arrays[0].gates
        size = network.item_bytes
        matrices, biases = second.w_hh - first.w_hh, second.b_ih - first.b_ih
        return [(between // size, matrices // size, biases // size)]

    def _checked(self, generator: Any) -> Generator:
        """The generator of a problem that drops; ``ValueError``, ``TypeError`` for another."""
        if generator is None:
            raise ValueError("generator: a problem with dropout needs random numbers")
        if not isinstance(generator, Generator):
            raise TypeError(
                f"generator must be that of our own kernels, a {Generator.__module__}.Generator; "
                f"got a {type(generator).__module__}.{type(generator).__name__}"
            )
        if generator.device != self.device:
            raise ValueError(
                f"generator must be on the executor's device, {self.device}; "
                f"it is on {generator.device}"
            )
        return generator

    def _table_addresses(self, kept: int) -> tuple[int, int, int]:
        """The addresses of the tables of packed rows; zeros for dense rows."""
        tables = self._layout.tables
        return (0, 0, 0) if tables is None else tables.addresses(kept + self._tables)

    def forward(self, launch: Launch, at: ForwardAddresses) -> None:
        network = self._network
        kept = at.reserve if network.is_training else at.workspace
        x, layout, weights_at = at.x, self._layout, at.weights
        tables = self._table_addresses(kept)
        if network.packing is not None:
            if self._copies:
                x = kept + self._packed_x
            width, cleared = network.spec.input_size, self._forward_room.cleared(at.workspace)
            network.packing.begin(launch, layout, tables[0], at.x, x, width, cleared)
        if self._dropout is not None:
            self._dropout.take(launch, kept + self._taken)
        has_bias, layers, last_layer = network.spec.bias, network.layers_at_once, len(self._weights)
        room = self._forward_room.addresses(at.workspace)
        for layer in range(0, last_layer, layers):
            weights, arrays, last = self._weights[layer], self._arrays[layer], layer + layers - 1
            gates, state = kept + arrays.gates, layer * self._layer_state_bytes
            between_layers, between_matrices, between_biases = self._forward_strides[layer]
            self._prepare(launch, layer, x, gates, at)
            y = kept + self._arrays[last].y if last < self._num_own_ys else at.y
            matrices = weights_at + weights.w_hh, 0, 0
            if self._narrow is not None:
                matrices = self._narrow.addresses(at.workspace, at.h_0)
                between_matrices = self._narrow.narrow_kernel.stride
            arguments = (
                gates,
                kept + arrays.c_before,
                kept + arrays.h_before,
                y,
                kept + arrays.y if network.is_training else 0,
                between_layers,
                *matrices,
                weights_at + weights.b_ih if has_bias else 0,
                weights_at + weights.b_hh if has_bias else 0,
                at.h_0 and at.h_0 + state,
                at.c_0 and at.c_0 + state,
                at.h_n and at.h_n + state,
                at.c_n and at.c_n + state,
                *room,
                *tables,
                *self._sizes,
                between_matrices,
                between_biases,
            )
            self._forward_launches.run(launch, arguments, self._bounds)
            x = y
            if self._dropout is not None and layer < last_layer - 1:
                x = kept + arrays.dropped
                of_rows = tables[0], tables[2]
                self._dropout.drop(launch, y, x, kept + self._taken, of_rows, layer)
        if network.packing is not None and self._copies:
            width = network.spec.hidden_size * self._directions
            steps = self.problem.steps
            network.packing.scatter(launch, layout, tables[0], x, at.y, width, steps)

    def _prepare(
        self, launch: Launch, layer: int, x: int, gates: int, at: ForwardAddresses
    ) -> None:
        """Enqueue what precedes the kernel of a layer of a forward pass."""
        if self._narrow is not None:
            of_x = partial(self._multiply_x, layer=layer, x=x, gates=gates, at=at)
            self._memory.at_once(launch, [of_x, partial(self._prepare_h, layer=layer, at=at)])
        else:  # a branch takes longer than to clear
            self._multiply_x(launch, layer, x, gates, at)
            self._prepare_h(launch, layer, at)

    def _multiply_x(
        self, launch: Launch, layer: int, x: int, gates: int, at: ForwardAddresses
    ) -> None:
        """Enqueue the products of x that fill the gates of a layer."""
        weights, products = self._weights[layer], self._products[self._network.layer_inputs[layer]]
        for direction in range(self._directions):
            w_ih = at.weights + weights.w_ih + direction * weights.matrix_stride
            to = gates + direction * self._gate_bytes
            products.of_x(launch, self._positions, x, w_ih, to, at.workspace)

    def _prepare_h(self, launch: Launch, layer: int, at: ForwardAddresses) -> None:
        """Enqueue what the recurrence of a layer reads besides the gates."""
        narrow, weights = self._narrow, self._weights[layer]
        if layer == 0 and self._network.packing is None:
            self._clear(launch, self._forward_room.cleared(at.workspace))
        if narrow is not None:
            w_hh = at.weights + weights.w_hh
            narrow.narrow(launch, w_hh, weights.matrix_stride, at.workspace)
            if at.h_0:
                h_0 = at.h_0 + layer * self._layer_state_bytes
                narrow.measure(launch, h_0, at.workspace)

    def backward_data(self, launch: Launch, at: BackwardDataAddresses) -> None:
        network, layout = self._network, self._layout
        spec, launches = network.spec, self._backward_launches
        assert launches is not None
        tables = self._table_addresses(at.reserve)
        dy, cleared = at.dy, self._backward_room.cleared(at.workspace)
        if network.packing is not None and self._copies:
            dy = at.workspace + self._dy
            width = spec.hidden_size * self._directions
            network.packing.gather(launch, layout, tables[0], at.dy, dy, width, cleared)
        else:
            self._clear(launch, cleared)
        layers = launches.kernel.layers
        for layer in reversed(range(0, spec.num_layers, layers)):
            weights, arrays, last = self._weights[layer], self._arrays[layer], layer + layers - 1
            gates, state = at.reserve + arrays.gates, layer * self._layer_state_bytes
            between_layers, between_matrices, _ = self._backward_strides[layer]
            arguments = (
                gates,
                at.reserve + arrays.c_before,
                at.reserve + arrays.h_before,
                at.reserve + self._arrays[last].y if last < self._num_own_ys else at.y,
                at.reserve + arrays.y,
                between_layers,
                dy,
                at.weights + weights.w_hh,
                at.dh_n and at.dh_n + state,
                at.dc_n and at.dc_n + state,
                at.dh_0 and at.dh_0 + state,
                at.dc_0 and at.dc_0 + state,
                at.reserve + arrays.bias_sums if spec.bias else 0,
                *self._backward_room.addresses(at.workspace),
                *tables,
                *self._sizes,
                between_matrices,
            )
            launches.run(launch, arguments, self._bounds)
            dx = at.workspace + self._dy
            if layer == 0:
                dx = at.workspace + self._packed_dx if self._copies else at.dx
            products = self._products[network.layer_inputs[layer]]
            for direction in range(self._directions):
                w_ih = at.weights + weights.w_ih + direction * weights.matrix_stride
                of_gates = gates + direction * self._gate_bytes
                where = of_gates, w_ih, dx, at.workspace + self._padded
                products.dx(
                    *(launch, self._memory, self._positions, where, at.workspace),
                    accumulate=direction > 0,
                )
            if self._dropout is not None and layer > 0:
                of_rows = tables[0], tables[2]
                taken = at.reserve + self._taken
                self._dropout.drop(launch, dx, dx, taken, of_rows, layer - 1)
            dy = dx
        if network.packing is not None and self._copies:
            steps = self.problem.steps
            network.packing.scatter(launch, layout, tables[0], dy, at.dx, spec.input_size, steps)

    def backward_weights(
        self, launch: Launch, at: BackwardWeightsAddresses, accumulate: bool = False
    ) -> None:
        xs = [at.reserve + self._packed_x if self._copies else at.x]
        xs += [at.reserve + arrays.dropped for arrays in self._arrays[:-1]]

        def of_x(launch: Launch) -> None:
            for layer, direction, gates, products in self._gradients(at.reserve):
                weights = self._weights[layer]
                dw_ih = at.dweights + weights.w_ih + direction * weights.matrix_stride
                where = gates, xs[layer], dw_ih
                products.dw_ih(launch, self._positions, where, at.workspace, accumulate=accumulate)

        def of_h(launch: Launch) -> None:
            workspace = at.workspace + self._beside
            for layer, direction, gates, products in self._gradients(at.reserve):
                weights, arrays = self._weights[layer], self._arrays[layer]
                h_before = at.reserve + arrays.h_before + direction * self._state_bytes
                dw_hh = at.dweights + weights.w_hh + direction * weights.matrix_stride
                where = gates, h_before, dw_hh
                products.dw_hh(launch, self._positions, where, workspace, accumulate=accumulate)

        def of_biases(launch: Launch) -> None:
            for weights, arrays in zip(self._weights, self._arrays, strict=True):
                self._bias_gradients(launch, at, weights, arrays, accumulate)

        works = [of_x, of_h, of_biases] if self.problem.spec.bias else [of_x, of_h]
        self._memory.at_once(launch, works)

    def _gradients(self, reserve: int) -> Iterator[tuple[int, int, int, BoundProducts]]:
        """Of each layer and direction: the address of the gates' gradients, and the products."""
        for layer, arrays in enumerate(self._arrays):
            products = self._products[self._network.layer_inputs[layer]]
            for direction in range(self._directions):
                gates = reserve + arrays.gates + direction * self._gate_bytes
                yield layer, direction, gates, products

    def _bias_gradients(
        self,
        launch: Launch,
        at: BackwardWeightsAddresses,
        weights: LayerWeights,
        arrays: LayerArrays,
        accumulate: bool,
    ) -> None:
        """Of both directions of a layer."""
        assert self._network.bias_kernel is not None
        self._network.bias_kernel(
            (-(-self._kind.hidden // _THREADS), self._kind.saved, self._directions),
            (_THREADS,),
            (
                at.reserve + arrays.bias_sums,
                at.dweights + weights.b_ih,
                at.dweights + weights.b_hh,
                *(self._bias_parts, self._kind.hidden, self._kind.padded, self._kind.gates),
                weights.bias_stride // self._network.item_bytes,
                int(accumulate),
            ),
            stream=launch.stream,
        )

    def _clear(self, launch: Launch, cleared: Cleared) -> None:
        """Clear what groups exchange."""
        if cleared.nbytes:
            self._memory.clear(*cleared, launch.stream)

    def close(self) -> None:
        """Nothing native is held: the network keeps it for all sizes."""
