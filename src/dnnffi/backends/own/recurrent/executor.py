"""Execution of a recurrent network by dnnffi's own kernels, layer by layer, on a call's arrays.

A forward pass runs, for each layer, the products of x of all steps, then one kernel for all steps
of both directions. A backward pass is a kernel for all steps, then the products that give dx; the
gradients of the weights are products again, which need not wait for each other. If one kernel has
all layers at once, only the first layer has products of x, and of dx. What kernels exchange is
stored in the workspace and cleared by every call; on ragged rows a forward pass may clear it in the
reserve space for its backward pass (`BufferLayout`). So streams, threads, graphs and launches that
failed share no state.

What is made once, for all sizes of a network's batches, is in `network`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dnnffi.backends.own.recurrent.bias_gradients import SHARED_BYTES, THREADS
from dnnffi.backends.own.recurrent.dropout import checked_generator
from dnnffi.backends.own.recurrent.packing import Cleared
from dnnffi.backends.own.recurrent.params import BackwardParams, ForwardParams
from dnnffi.backends.own.recurrent.products import GradientAddresses
from dnnffi.backends.own.recurrent.rows import NO_TABLES, TableAddresses, row_layout
from dnnffi.backends.rnn_interface import (
    AddressExecutor,
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.interface import Launch
from dnnffi.errors import UnsupportedError
from dnnffi.spec.problem import RNNProblem

if TYPE_CHECKING:
    from dnnffi.backends.own.recurrent.network import MatrixPlace, OwnNetwork


class BatchSizes(NamedTuple):
    """Sizes of a batch, under the names that the kernels' arguments have.

    ``step_stride`` and ``row_stride`` are in rows of a step. Of rows of unequal length they are
    those of the caller's padded arrays, 0 for layers that have others, and ``position_stride`` is
    from a step to the next in the kernels' own arrays. ``positions`` are the rows of all steps
    together.
    """

    position_stride: int
    steps: int
    batch: int
    step_stride: int
    row_stride: int
    positions: int
    directions: int


class OwnRNNExecutor(AddressExecutor):
    """One problem of an `OwnNetwork`: offsets of its arrays, and launches."""

    keeps_workspace = True

    def __init__(
        self, network: OwnNetwork, problem: RNNProblem, generator: Any, is_exact: bool
    ) -> None:
        self.problem, self.device, self.algorithm = problem, network.device, network.algorithm
        self._network, self._memory = network, network.memory
        self._weights = network.weights
        self.weight_size = network.weight_size
        self._layout = layout = row_layout(problem)
        if layout.row_kind != network.row_kind:
            raise UnsupportedError(
                "dnnffi",
                "",
                f"these kernels are for {network.row_kind} rows, not for {layout.row_kind} ones",
            )
        self._copies_x, self._copies_dx = network.copies(layout), layout.is_row_after_row
        self._directions = directions = network.directions
        self._positions = positions = layout.positions
        strides = (0, 0) if network.is_ragged else (layout.step_stride, layout.row_stride)
        self._sizes = BatchSizes(
            *(layout.step_stride, layout.steps, layout.batch, *strides, positions, directions)
        )
        self._last_sizes = self._sizes
        """Sizes for the kernels of the last layer, whose y and dy are the caller's arrays."""
        if layout.caller_strides is not None:
            step_stride, row_stride = layout.caller_strides
            self._last_sizes = self._sizes._replace(step_stride=step_stride, row_stride=row_stride)
        self._buffers = buffers = network.buffers(layout, is_exact)
        self._products = buffers.products
        self._gate_bytes = positions * network.gate_bytes  # of one direction
        self._state_bytes = positions * network.position_bytes  # of one direction
        self._layer_state_bytes = layout.batch * network.output_bytes  # of h_0, of one layer
        self.reserve_bytes = buffers.reserve_bytes
        self.workspace_bytes = self.least_workspace_bytes = buffers.workspace_bytes
        self.generator = self._dropout = None
        if problem.drops:
            self.generator = checked_generator(generator, self.device)
            assert network.dropout is not None
            self._dropout = network.dropout.bind(problem, layout, self.generator)

    def _table_addresses(self, kept: int) -> TableAddresses:
        """Return the addresses of the tables of rows of unequal length; zeros for other rows."""
        tables = self._layout.tables
        return NO_TABLES if tables is None else tables.addresses(kept + self._buffers.tables)

    def forward(self, launch: Launch, at: ForwardAddresses) -> None:
        network, buffers = self._network, self._buffers
        kept = at.reserve if network.is_training else at.workspace
        x, tables = at.x, self._table_addresses(kept)
        if self._layout.is_row_after_row:
            x = kept + buffers.copied_x
            self._begin(launch, at)
        if self._dropout is not None:
            self._dropout.take(launch, kept + buffers.taken)
        room = buffers.forward_room.addresses(at.workspace, at.reserve)
        layers, num_layers = network.layers_at_once, len(self._weights)
        for layer in range(0, num_layers, layers):
            arrays, last = buffers.arrays[layer], layer + layers - 1
            self._fill_gates(launch, layer, x, kept + arrays.gates, at)
            params = self._forward_params(layer, kept, at)
            is_last = last == num_layers - 1
            params.y = y = at.y if is_last else kept + buffers.arrays[last].y
            _set_shared(params, room, tables, self._last_sizes if is_last else self._sizes)
            buffers.forward_launches.run(launch, params)
            x = y
            if self._dropout is not None and layer < num_layers - 1:
                x = kept + arrays.dropped
                self._dropout.drop(launch, y, x, kept + buffers.taken, tables, layer)

    def _forward_params(self, layer: int, kept: int, at: ForwardAddresses) -> ForwardParams:
        """Return the arguments of the kernel of a layer, without y and those of `_set_shared`.

        ``kept`` is where the arrays of the pass begin.
        """
        network, buffers = self._network, self._buffers
        weights, arrays = self._weights[layer], buffers.arrays[layer]
        has_bias, state = network.spec.bias, layer * self._layer_state_bytes
        params = ForwardParams()
        params.gates = kept + arrays.gates
        params.c_before = kept + arrays.c_before
        params.h_before = kept + arrays.h_before
        params.layer_y = kept + arrays.y if network.is_training else 0
        strides = buffers.forward_strides[layer]
        params.layer_stride, params.matrix_stride, params.bias_stride = strides
        params.matrices = at.weights + weights.w_hh
        params.matrix_scales = params.state_scales = 0
        params.input_bias = at.weights + weights.b_ih if has_bias else 0
        params.recurrent_bias = at.weights + weights.b_hh if has_bias else 0
        params.h_0 = at.h_0 and at.h_0 + state
        params.c_0 = at.c_0 and at.c_0 + state
        params.h_n = at.h_n and at.h_n + state
        params.c_n = at.c_n and at.c_n + state
        params.clip_low, params.clip_high = network.clip
        _set_resets(params, at.resets, self._last_sizes)
        reset_state = layer * network.output_bytes * at.reset_rows
        params.reset_h = at.reset_h and at.reset_h + reset_state
        params.reset_c = at.reset_c and at.reset_c + reset_state
        params.reset_state_rows = at.reset_rows
        params.reset_scales = 0
        if buffers.narrow is not None:
            buffers.narrow.set_addresses(params, at)
        return params

    def _fill_gates(
        self, launch: Launch, layer: int, x: int, gates: int, at: ForwardAddresses
    ) -> None:
        """Enqueue the products of x, and all else that the kernel of a layer needs before it."""
        network = self._network
        works: list[Callable[[Launch], None]] = []
        if layer == 0 and network.packing is not None and not self._layout.is_row_after_row:
            works.append(partial(self._begin, at=at))
        if network.narrow is not None:
            works.append(partial(self._prepare_h, layer=layer, at=at))
        if works:
            of_x = partial(self._multiply_x, layer=layer, x=x, gates=gates, at=at)
            self._memory.at_once(launch, [of_x, *works])
            return
        self._multiply_x(launch, layer, x, gates, at)
        if layer == 0 and network.packing is None:
            self._clear(launch, self._buffers.forward_room.cleared(at.workspace, 0))

    def _begin(self, launch: Launch, at: ForwardAddresses) -> None:
        """Enqueue what a forward pass on rows of unequal length begins with."""
        network, buffers = self._network, self._buffers
        packing, kept = network.packing, at.reserve if network.is_training else at.workspace
        assert packing is not None
        tables = self._table_addresses(kept)
        of_forward, of_backward = buffers.forward_room.cleared(at.workspace, 0), (0, 0)
        if buffers.backward_room is not None and buffers.backward_room.is_reserved:
            of_backward = buffers.backward_room.cleared(0, at.reserve)
        arrays = at.x, kept + buffers.copied_x if self._copies_x else 0, at.y
        packing.begin(launch, self._layout, tables, *arrays, of_forward, of_backward, at.lengths)

    def _multiply_x(
        self, launch: Launch, layer: int, x: int, gates: int, at: ForwardAddresses
    ) -> None:
        """Enqueue the products of x that fill the gates of a layer."""
        weights, small = self._weights[layer], self._buffers.small_products
        where: list[tuple[int, int, int]] = []
        for direction in range(self._directions):
            w_ih = at.weights + weights.w_ih + direction * weights.matrix_stride
            where.append((x, w_ih, gates + direction * self._gate_bytes))
        if small is not None:
            small.of_x[layer].run(launch, self._positions, where)
            return
        products = self._products[self._network.layer_inputs[layer]]
        for one in where[:: self._network.directions_at_once]:
            products.of_x(launch, self._positions, *one, at.workspace)

    def _prepare_h(self, launch: Launch, layer: int, at: ForwardAddresses) -> None:
        """Enqueue what the recurrence of a layer in float16 reads besides the gates."""
        narrow, weights = self._buffers.narrow, self._weights[layer]
        assert narrow is not None
        if layer == 0 and self._network.packing is None:
            self._clear(launch, self._buffers.forward_room.cleared(at.workspace, 0))
        w_hh = at.weights + weights.w_hh
        narrow.narrow(launch, w_hh, weights.matrix_stride, at.workspace)
        if at.h_0:
            h_0 = at.h_0 + layer * self._layer_state_bytes
            narrow.measure(launch, h_0, at.workspace)
        if at.reset_h:
            reset_h = at.reset_h + layer * self._network.output_bytes * at.reset_rows
            narrow.measure_resets(launch, reset_h, at.reset_rows, at.workspace)

    def backward_data(self, launch: Launch, at: BackwardDataAddresses) -> None:
        self._backward_data(launch, at)
        packing = self._network.packing
        if packing is not None and self._copies_dx:
            tables = self._table_addresses(at.reserve)
            packing.scatter(
                launch, self._layout, tables, at.workspace + self._buffers.copied_dx, at.dx
            )

    def _backward_data(self, launch: Launch, at: BackwardDataAddresses) -> None:
        """Enqueue backward data. dx that is to be copied is not in the caller's array yet."""
        network, buffers = self._network, self._buffers
        launches, num_layers = buffers.backward_launches, network.spec.num_layers
        assert launches is not None
        assert buffers.backward_room is not None
        tables = self._table_addresses(at.reserve)
        if network.has_device_lengths:
            self._clear_ended(launch, at.reserve)
        if not buffers.backward_room.is_reserved:  # else the forward pass has cleared it
            self._clear(launch, buffers.backward_room.cleared(at.workspace, at.reserve))
        room = buffers.backward_room.addresses(at.workspace, at.reserve)
        dy = at.dy
        layers = launches.kernel.layers
        for layer in reversed(range(0, num_layers, layers)):
            last = layer + layers - 1
            is_last = last == num_layers - 1
            params = self._backward_params(layer, at)
            params.dy = dy
            params.y = at.y if is_last else at.reserve + buffers.arrays[last].y
            _set_shared(params, room, tables, self._last_sizes if is_last else self._sizes)
            launches.run(launch, params)
            dx = at.workspace + buffers.dy
            if layer == 0:
                dx = at.workspace + buffers.copied_dx if self._copies_dx else at.dx
            self._multiply_gates(launch, layer, dx, at)
            if self._dropout is not None and layer > 0:
                taken = at.reserve + buffers.taken
                self._dropout.drop(launch, dx, dx, taken, tables, layer - 1)
            dy = dx

    def _backward_params(self, layer: int, at: BackwardDataAddresses) -> BackwardParams:
        """Return the arguments of the kernel of a layer, without y, dy and `_set_shared`'s."""
        buffers = self._buffers
        weights, arrays = self._weights[layer], buffers.arrays[layer]
        state = layer * self._layer_state_bytes
        params = BackwardParams()
        params.gates = at.reserve + arrays.gates
        params.c_before = at.reserve + arrays.c_before
        params.h_before = at.reserve + arrays.h_before
        params.layer_y = at.reserve + arrays.y
        params.layer_stride, params.matrix_stride, _ = buffers.backward_strides[layer]
        params.matrices = at.weights + weights.w_hh
        params.dh_n = at.dh_n and at.dh_n + state
        params.dc_n = at.dc_n and at.dc_n + state
        params.dh_0 = at.dh_0 and at.dh_0 + state
        params.dc_0 = at.dc_0 and at.dc_0 + state
        params.bias_sums = at.reserve + arrays.bias_sums if self._network.spec.bias else 0
        params.clip_low, params.clip_high = self._network.clip
        _set_resets(params, at.resets, self._last_sizes)
        params.dreset_h = at.dreset_h and at.dreset_h + state
        params.dreset_c = at.dreset_c and at.dreset_c + state
        return params

    def _multiply_gates(
        self, launch: Launch, layer: int, dx: int, at: BackwardDataAddresses
    ) -> None:
        """Enqueue the products of the gradients of a layer's gates that fill ``dx``."""
        network, buffers, weights = self._network, self._buffers, self._weights[layer]
        gates = at.reserve + buffers.arrays[layer].gates
        for direction in range(self._directions):
            w_ih = at.weights + weights.w_ih + direction * weights.matrix_stride
            where = gates + direction * self._gate_bytes, w_ih, dx
            accumulate = direction > 0
            if buffers.small_products is not None:
                of_layer = buffers.small_products.dx[layer]
                of_layer.run(launch, self._positions, [where], accumulate=accumulate)
                continue
            self._products[network.layer_inputs[layer]].dx(
                *(launch, self._memory, self._positions),
                (*where, at.workspace + buffers.padded),
                *(at.workspace,),
                accumulate=accumulate,
            )

    def backward_weights(
        self, launch: Launch, at: BackwardWeightsAddresses, accumulate: bool = False
    ) -> None:
        of_biases = None
        if self.problem.spec.bias:
            of_biases = partial(self._bias_gradients, at=at, accumulate=accumulate)
        self._backward_weights(launch, at, accumulate, of_biases)

    def backward(
        self,
        launch: Launch,
        data: BackwardDataAddresses,
        weights: BackwardWeightsAddresses,
        accumulate: bool = False,
    ) -> None:
        if self._network.finish_kernel is None or not self._copies_dx:
            super().backward(launch, data, weights, accumulate)
            return
        self._backward_data(launch, data)
        finish = partial(self._finish, data=data, weights=weights, accumulate=accumulate)
        self._backward_weights(launch, weights, accumulate, finish)

    def _backward_weights(
        self,
        launch: Launch,
        at: BackwardWeightsAddresses,
        accumulate: bool,
        of_biases: Callable[[Launch], None] | None,
    ) -> None:
        """Enqueue backward weights; ``of_biases`` enqueues the gradients of the biases."""
        network, buffers, positions = self._network, self._buffers, self._positions
        xs = [at.reserve + buffers.copied_x if self._copies_x else at.x]
        xs += [at.reserve + arrays.dropped for arrays in buffers.arrays[:-1]]
        at_once = 1 if buffers.small_products is not None else network.directions_at_once
        found = [self._matrix_addresses(at, xs, place) for place in network.matrices[::at_once]]

        def enqueue_dw_ih(launch: Launch) -> None:
            for layer, gates, x, dw_ih, _, _ in found:
                products = buffers.products[network.layer_inputs[layer]]
                where = gates, x, dw_ih
                products.dw_ih(launch, positions, where, at.workspace, accumulate=accumulate)

        def enqueue_dw_hh(launch: Launch) -> None:
            workspace = at.workspace + buffers.beside
            for layer, gates, _, _, h_before, dw_hh in found:
                products = buffers.products[network.layer_inputs[layer]]
                where = gates, h_before, dw_hh
                products.dw_hh(launch, positions, where, workspace, accumulate=accumulate)

        def enqueue_both(launch: Launch) -> None:
            assert buffers.small_products is not None
            buffers.small_products.dweights(launch, positions, found, accumulate=accumulate)

        works: list[Callable[[Launch], None]] = [enqueue_dw_ih, enqueue_dw_hh]
        if buffers.small_products is not None:
            works = [enqueue_both]
        if of_biases is not None:
            works.append(of_biases)
        self._memory.at_once(launch, works)

    def _matrix_addresses(
        self, at: BackwardWeightsAddresses, xs: list[int], place: MatrixPlace
    ) -> GradientAddresses:
        """Return the addresses for the gradients of the matrices of a layer and direction.

        ``xs`` has the address of the input of each layer.
        """
        layer, direction, w_ih, w_hh = place
        arrays = self._buffers.arrays[layer]
        return GradientAddresses(
            layer=layer,
            gates=at.reserve + arrays.gates + direction * self._gate_bytes,
            x=xs[layer],
            dw_ih=at.dweights + w_ih,
            h_before=at.reserve + arrays.h_before + direction * self._state_bytes,
            dw_hh=at.dweights + w_hh,
        )

    def _clear_ended(self, launch: Launch, reserve: int) -> None:
        """Enqueue the clearing of what products read past the ends of rows, and no kernel writes.

        The products of the gradients, and sums over all positions, read the gates; these sums also
        read the states and the inputs of layers.
        """
        network, packing = self._network, self._network.packing
        assert packing is not None
        of_layers = self._buffers.arrays
        arrays = [(reserve + one.dropped, network.output_bytes) for one in of_layers[:-1]]
        for of_layer in of_layers:
            for direction in range(self._directions):
                gates = reserve + of_layer.gates + direction * self._gate_bytes
                state = reserve + of_layer.h_before + direction * self._state_bytes
                arrays += [(gates, network.gate_bytes), (state, network.position_bytes)]
        packing.clear_ended(launch, self._layout, self._table_addresses(reserve), arrays)

    def _bias_gradients(
        self, launch: Launch, at: BackwardWeightsAddresses, accumulate: bool
    ) -> None:
        """Enqueue the gradients of the biases of all layers."""
        gradients = self._network.bias_gradients
        assert gradients is not None
        gradients.run(launch, self._buffers.bias_sums, at.reserve, at.dweights, accumulate)

    def _finish(
        self,
        launch: Launch,
        data: BackwardDataAddresses,
        weights: BackwardWeightsAddresses,
        accumulate: bool,
    ) -> None:
        """Enqueue the gradients of the biases and the copy of dx to the caller, in one launch."""
        kernel, packing = self._network.finish_kernel, self._network.packing
        gradients, buffers = self._network.bias_gradients, self._buffers
        assert kernel is not None
        assert packing is not None
        assert gradients is not None
        tables = self._table_addresses(data.reserve)
        where = self._layout, tables, data.workspace + buffers.copied_dx, data.dx
        copy_blocks, copy = packing.padded_copy(*where)
        of_weights = weights.reserve, weights.dweights, accumulate
        biases = gradients.struct(buffers.bias_sums, *of_weights)
        blocks = gradients.blocks(buffers.bias_sums) + copy_blocks
        kernel(
            (blocks,), (THREADS,), (biases + copy,), stream=launch.stream, shared_mem=SHARED_BYTES
        )

    def _clear(self, launch: Launch, cleared: Cleared) -> None:
        """Clear what groups exchange."""
        address, nbytes = cleared
        if nbytes:
            self._memory.clear(address, nbytes, launch.stream)

    def close(self) -> None:
        """Do nothing: the network holds the native resources, for all sizes."""


def _set_shared(
    params: ForwardParams | BackwardParams,
    room: tuple[int, int],
    tables: TableAddresses,
    sizes: BatchSizes,
) -> None:
    """Set the arguments that forward and backward kernels have in common.

    ``room`` has the addresses of what groups exchange, and of weights that they stream.
    """
    params.exchange, params.streamed = room
    params.lengths, params.caller_rows, params.first_positions, params.step_offsets = tables
    params.position_stride = sizes.position_stride
    params.steps, params.batch = sizes.steps, sizes.batch
    params.step_stride, params.row_stride = sizes.step_stride, sizes.row_stride
    params.positions, params.directions = sizes.positions, sizes.directions


def _set_resets(params: ForwardParams | BackwardParams, address: int, callers: BatchSizes) -> None:
    """Set the flags of resets, in the layout of the caller's x, whose sizes are ``callers``."""
    params.resets = address
    params.reset_step_stride, params.reset_row_stride = callers.step_stride, callers.row_stride
