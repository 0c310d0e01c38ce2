"""The executor of recurrent networks on own kernels, layer by layer, on the arrays of a call.

For each layer the products of x of all steps, then one kernel for all steps of both directions. A
backward is a kernel for all steps, then the products that give dx; the gradients of the weights are
products again, which need not wait for each other. Where one kernel has all layers at once, only
the first layer has products of x, and of dx. Nothing is kept between calls: what kernels exchange
lies in the workspace and is cleared by every call, so streams, threads, graphs and launches that
failed share no state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from dnnffi.backends.own.recurrent.dropout import STATE_BYTES, Dropout, Generator
from dnnffi.backends.own.recurrent.geometry import Geometry, Kind
from dnnffi.backends.own.recurrent.kernels import (
    LayerKernel,
    SourceAndName,
    bias_kernel,
    dropout_kernels,
    narrow_kernel,
    row_kernels,
)
from dnnffi.backends.own.recurrent.layout import (
    ArraySizes,
    Buffer,
    LayerArrays,
    LayerWeights,
    layer_weights,
)
from dnnffi.backends.own.recurrent.narrow import NarrowMatrices
from dnnffi.backends.own.recurrent.packing import Packing
from dnnffi.backends.own.recurrent.products import Products
from dnnffi.backends.own.recurrent.rows import rows_of
from dnnffi.backends.rnn_interface import (
    AddressExecutor,
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.weights import weight_layout

_THREADS = 256


class _Room(NamedTuple):
    """What the groups of a kernel need of a workspace: offsets, and bytes to be cleared."""

    exchange: int
    exchange_bytes: int
    streamed: int

    def addresses(self, workspace: int) -> tuple[int, int]:
        """Of what groups exchange, and of the weights that they stream."""
        return workspace + self.exchange, workspace + self.streamed


class _Distances(NamedTuple):
    """Elements from one layer's or direction's to the next: arrays of our own, matrices, biases."""

    arrays: int
    matrices: int
    biases: int


def kernels_beside(problem: RNNProblem, forward: Geometry) -> list[SourceAndName]:
    """The kernels that an executor launches beside those of its geometries."""
    spec, tables = problem.spec, rows_of(problem).tables
    found = []
    if problem.training and spec.bias:
        found.append(bias_kernel(spec.dtype))
    if forward.kind.narrow:
        found.append(narrow_kernel())
    if tables is not None and tables.where is not None:
        found += row_kernels(ITEM_SIZES[spec.dtype]).values()
    if problem.drops:
        found += dropout_kernels(spec.dtype)
    return found


class OwnRNNExecutor(AddressExecutor):
    """One problem on kernels of our own.

    ``library`` is the libcublasLt; ``forward`` and ``backward`` are the geometries of the kernels,
    the latter None in inference; ``generator`` has the random numbers of dropout. Raises
    `UnsupportedError` where a kernel does not fit on the device, `CublasError`, ``ValueError`` and
    ``TypeError`` for a generator, and what CuPy raises where a kernel cannot be compiled.
    """

    def __init__(
        self,
        problem: RNNProblem,
        launch: Launch,
        memory: MemoryWithGraphs,
        library: Any,
        algorithm: str,
        forward: Geometry,
        backward: Geometry | None,
        generator: Any = None,
    ) -> None:
        self.problem, self.device, self.algorithm = problem, launch.device, algorithm
        self._memory = memory
        self._kind = kind = forward.kind
        self._rows = rows = rows_of(problem)
        spec = problem.spec
        self._size = ITEM_SIZES[spec.dtype]
        self._directions = spec.num_directions
        self.weight_size: int = weight_layout(spec, "cudnn").size
        self._packing = None if rows.tables is None else Packing(rows.tables, self._size, memory)
        self._copies = self._packing is not None and self._packing.copies
        of_layers = memory, rows.batch, spec.num_directions
        self._forward_kernel = LayerKernel(forward, *of_layers)
        self._backward_kernel = None
        if backward is not None:
            self._backward_kernel = LayerKernel(backward, *of_layers)
            if spec.bias:
                self._bias_kernel = memory.kernel(*bias_kernel(spec.dtype))
        low, high = problem.options.clip or (0.0, 0.0)
        self._bounds = float(low), float(high)
        self._places = (
            *(self._packing.addresses if self._packing else (0, 0, 0)),
            *(rows.steps, rows.batch, rows.step_stride, rows.row_stride, rows.positions),
            self._directions,
        )
        self.generator = self._checked(generator) if problem.drops else None
        self._dropout = None
        if self.generator is not None:
            tables = self._places[0], self._places[2]
            self._dropout = Dropout(problem, rows, tables, self.generator, memory)
        self._weights = layer_weights(spec)
        self._sizes = ArraySizes.of(spec, kind, rows.positions)
        self._products: dict[int, Products] = {}
        try:
            for inputs in {spec.layer_input_size(layer) for layer in range(spec.num_layers)}:
                self._products[inputs] = Products(
                    library, self.device, kind, rows.positions, inputs, problem.options.math
                )
        except BaseException:
            self.close()
            raise
        self._lay_out()

    def _lay_out(self) -> None:
        """The parts of workspaces and of the reserve space."""
        spec, kind, sizes = self.problem.spec, self._kind, self._sizes
        product_bytes = max(products.workspace_bytes for products in self._products.values())
        workspace, reserve = Buffer(), Buffer()
        workspace.add(product_bytes)  # at its beginning
        self._forward_room = self._room(workspace, self._forward_kernel)
        self._narrow: NarrowMatrices | None = None
        if kind.narrow:
            self._narrow = NarrowMatrices(
                kind, self._rows.batch, self._directions, self._memory, workspace
            )
        kept = reserve if kind.training else workspace
        self._packed_x = kept.add(sizes.x if self._copies else 0)
        self._taken = kept.add(STATE_BYTES if self._dropout is not None else 0)
        if kind.training:
            self._arrays = [self._saved(reserve, layer) for layer in range(spec.num_layers)]
        else:
            gates = workspace.add(self._directions * sizes.gates)
            own_ys = self._own_ys if kind.layers == 1 else int(self._copies)
            ys = [workspace.add(sizes.y) for _ in range(min(2, own_ys))] or [0]
            self._arrays = [
                LayerArrays(gates, y=ys[layer % len(ys)]) for layer in range(spec.num_layers)
            ]
        self._forward_distances = self._distances(kind)
        if self._narrow is not None:
            between = self._narrow.stride
            self._forward_distances = [
                one._replace(matrices=between) for one in self._forward_distances
            ]
        self.reserve_bytes = reserve.nbytes
        needed = workspace.nbytes
        if self._backward_kernel is not None:
            workspace = Buffer()
            workspace.add(product_bytes)
            self._backward_room = self._room(workspace, self._backward_kernel)
            of_backward = self._backward_kernel.geometry.kind
            self._backward_distances = self._distances(of_backward)
            # A layer's dx takes the place of its dy, which its kernel has read by then.
            needs_dy = self._copies or spec.num_layers > of_backward.layers
            self._dy = workspace.add(sizes.y if needs_dy else 0)
            self._packed_dx = workspace.add(sizes.x if self._copies else 0)
            padded = max(products.padded_bytes for products in self._products.values())
            self._padded = workspace.add(padded)
            needed = max(needed, workspace.nbytes)
            workspace = Buffer()
            workspace.add(product_bytes)
            of_h = max(products.dw_hh_workspace_bytes for products in self._products.values())
            self._beside = workspace.add(of_h)
            needed = max(needed, workspace.nbytes)
        self.workspace_bytes = self.least_workspace_bytes = needed

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

    def _room(self, workspace: Buffer, kernel: LayerKernel) -> _Room:
        geometry = kernel.geometry
        nbytes = kernel.groups_at_once * geometry.exchange_bytes(self._rows.steps)
        streamed = kernel.groups_at_once * geometry.group_blocks * geometry.streamed_bytes
        return _Room(workspace.add(nbytes), nbytes, workspace.add(streamed))

    @property
    def _own_ys(self) -> int:
        """Layers whose y is not the caller's array."""
        return self.problem.spec.num_layers - 1 + self._copies

    def _saved(self, reserve: Buffer, layer: int) -> LayerArrays:
        """The parts of the reserve space of one layer."""
        assert self._backward_kernel is not None
        kind, sizes, directions = self._kind, self._sizes, self._directions
        geometry = self._backward_kernel.geometry
        self._bias_parts = geometry.groups(self._rows.batch) * geometry.bias_parts
        bias_bytes = directions * self._bias_parts * kind.saved * kind.padded * 4
        arrays = LayerArrays(
            reserve.add(directions * sizes.gates),
            reserve.add(directions * sizes.state if kind.mode == "lstm" else 0),
            reserve.add(directions * sizes.state),
            reserve.add(bias_bytes if self.problem.spec.bias else 0),
            y := reserve.add(sizes.y if layer < self._own_ys else 0),
            dropped=y,
        )
        if self._dropout is not None and kind.plain and layer < self.problem.spec.num_layers - 1:
            arrays = arrays._replace(dropped=reserve.add(sizes.y))
        return arrays

    def forward(self, launch: Launch, at: ForwardAddresses) -> None:
        spec, kind = self.problem.spec, self._kind
        kept = at.reserve if kind.training else at.workspace
        x = at.x
        if self._packing is not None and self._copies:
            x = kept + self._packed_x
            self._packing.gather(launch, at.x, x, spec.input_size)
        if self._dropout is not None:
            self._dropout.take(launch, kept + self._taken)
        for layer in range(0, spec.num_layers, kind.layers):
            weights, arrays, last = (
                self._weights[layer],
                self._arrays[layer],
                layer + kind.layers - 1,
            )
            gates, distances = kept + arrays.gates, self._forward_distances[layer]
            self._prepare(launch, layer, x, gates, at)
            y = kept + self._arrays[last].y if last < self._own_ys else at.y
            matrices = at.weights + weights.w_hh, 0, 0
            if self._narrow is not None:
                matrices = self._narrow.addresses(at.workspace, at.h_0)
            arguments = (
                gates,
                kept + arrays.c_before,
                kept + arrays.h_before,
                y,
                kept + arrays.y if kind.training else 0,
                distances.arrays,
                *matrices,
                at.weights + weights.b_ih if spec.bias else 0,
                at.weights + weights.b_hh if spec.bias else 0,
                *(self._state(array, layer) for array in (at.h_0, at.c_0, at.h_n, at.c_n)),
                *self._forward_room.addresses(at.workspace),
                *self._places,
                distances.matrices,
                distances.biases,
            )
            self._forward_kernel.run(launch, arguments, self._bounds)
            x = y
            if self._dropout is not None and layer < spec.num_layers - 1:
                x = kept + arrays.dropped
                self._dropout.drop(launch, y, x, kept + self._taken, layer)
        if self._packing is not None and self._copies:
            width = spec.hidden_size * self._directions
            self._packing.scatter(launch, x, at.y, width, self._positions)

    def _prepare(
        self, launch: Launch, layer: int, x: int, gates: int, at: ForwardAddresses
    ) -> None:
        """Enqueue what precedes the kernel of a layer of a forward."""
        weights, narrow = self._weights[layer], self._narrow
        w_hh, stride = at.weights + weights.w_hh, weights.matrix_stride
        products = self._products[self.problem.spec.layer_input_size(layer)]

        def of_x(launch: Launch) -> None:
            for direction in range(self._directions):
                w_ih = at.weights + weights.w_ih + direction * stride
                to = gates + direction * self._sizes.gates
                products.of_x(launch, x, w_ih, to, at.workspace)

        def of_h(launch: Launch) -> None:
            if layer == 0:
                self._clear(launch, at.workspace, self._forward_room)
            if narrow is not None:
                narrow.narrow(launch, w_hh, stride, at.workspace)
                if h_0 := self._state(at.h_0, layer):
                    narrow.measure(launch, h_0, at.workspace)

        if narrow is None:  # a branch takes longer than to clear
            of_x(launch)
            of_h(launch)
        else:
            self._memory.at_once(launch, [of_x, of_h])

    def backward_data(self, launch: Launch, at: BackwardDataAddresses) -> None:
        spec = self.problem.spec
        assert self._backward_kernel is not None
        self._clear(launch, at.workspace, self._backward_room)
        dy = at.dy
        if self._packing is not None and self._copies:
            dy = at.workspace + self._dy
            self._packing.gather(launch, at.dy, dy, spec.hidden_size * self._directions)
        kind = self._backward_kernel.geometry.kind
        for layer in reversed(range(0, spec.num_layers, kind.layers)):
            weights, arrays, last = (
                self._weights[layer],
                self._arrays[layer],
                layer + kind.layers - 1,
            )
            gates, distances = at.reserve + arrays.gates, self._backward_distances[layer]
            arguments = (
                gates,
                at.reserve + arrays.c_before,
                at.reserve + arrays.h_before,
                at.reserve + self._arrays[last].y if last < self._own_ys else at.y,
                at.reserve + arrays.y,
                distances.arrays,
                dy,
                at.weights + weights.w_hh,
                *(self._state(array, layer) for array in (at.dh_n, at.dc_n, at.dh_0, at.dc_0)),
                at.reserve + arrays.bias_sums if spec.bias else 0,
                *self._backward_room.addresses(at.workspace),
                *self._places,
                distances.matrices,
            )
            self._backward_kernel.run(launch, arguments, self._bounds)
            dx = at.workspace + self._dy
            if layer == 0:
                dx = at.workspace + self._packed_dx if self._copies else at.dx
            products = self._products[spec.layer_input_size(layer)]
            for direction in range(self._directions):
                w_ih = at.weights + weights.w_ih + direction * weights.matrix_stride
                of_gates = gates + direction * self._sizes.gates
                where = of_gates, w_ih, dx, at.workspace + self._padded
                products.dx(launch, self._memory, where, at.workspace, accumulate=direction > 0)
            if self._dropout is not None and layer > 0:
                self._dropout.drop(launch, dx, dx, at.reserve + self._taken, layer - 1)
            dy = dx
        if self._packing is not None and self._copies:
            self._packing.scatter(launch, dy, at.dx, spec.input_size, self._positions)

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
                products.dw_ih(launch, where, at.workspace, accumulate=accumulate)

        def of_h(launch: Launch) -> None:
            workspace = at.workspace + self._beside
            for layer, direction, gates, products in self._gradients(at.reserve):
                weights, arrays = self._weights[layer], self._arrays[layer]
                h_before = at.reserve + arrays.h_before + direction * self._sizes.state
                dw_hh = at.dweights + weights.w_hh + direction * weights.matrix_stride
                where = gates, h_before, dw_hh
                products.dw_hh(launch, where, workspace, accumulate=accumulate)

        def of_biases(launch: Launch) -> None:
            for weights, arrays in zip(self._weights, self._arrays, strict=True):
                self._bias_gradients(launch, at, weights, arrays, accumulate)

        works = [of_x, of_h, of_biases] if self.problem.spec.bias else [of_x, of_h]
        self._memory.at_once(launch, works)

    def _gradients(self, reserve: int) -> Iterator[tuple[int, int, int, Products]]:
        """Of each layer and direction: the address of the gates' gradients, and the products."""
        for layer, arrays in enumerate(self._arrays):
            products = self._products[self.problem.spec.layer_input_size(layer)]
            for direction in range(self._directions):
                gates = reserve + arrays.gates + direction * self._sizes.gates
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
        self._bias_kernel(
            (-(-self._kind.hidden // _THREADS), self._kind.saved, self._directions),
            (_THREADS,),
            (
                at.reserve + arrays.bias_sums,
                at.dweights + weights.b_ih,
                at.dweights + weights.b_hh,
                *(self._bias_parts, self._kind.hidden, self._kind.padded, self._kind.gates),
                weights.bias_stride // self._size,
                int(accumulate),
            ),
            stream=launch.stream,
        )

    def _clear(self, launch: Launch, workspace: int, room: _Room) -> None:
        """Clear what groups exchange."""
        if room.exchange_bytes:
            self._memory.clear(workspace + room.exchange, room.exchange_bytes, launch.stream)

    def _distances(self, kind: Kind) -> list[_Distances]:
        """From layer to layer where a kernel has all; else of each layer its directions'."""
        first = self._weights[0]
        found = [(0, weights.matrix_stride, weights.bias_stride) for weights in self._weights]
        if kind.layers > 1:
            second = self._weights[1]
            between = self._arrays[1].gates - self._arrays[0].gates
            found = [(between, second.w_hh - first.w_hh, second.b_ih - first.b_ih)]
        return [_Distances(*(nbytes // self._size for nbytes in one)) for one in found]

    def _state(self, array: int, layer: int) -> int:
        """A layer's part of the states of all layers, 0 where there are none."""
        hidden = self._kind.hidden
        return array and array + layer * self._directions * self._rows.batch * hidden * self._size

    @property
    def _positions(self) -> int:
        """Of the caller's array, where rows are not packed."""
        return self.problem.steps * self.problem.batch

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._products

    def close(self) -> None:
        """Release everything native. A second call does nothing."""
        while self._products:
            self._products.popitem()[1].close()
