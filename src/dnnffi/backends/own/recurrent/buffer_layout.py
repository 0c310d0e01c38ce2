"""Offsets of the arrays of a network in its workspace and reserve space, for sizes up to a bound.

Batches of a stream rarely have the same sizes twice. Offsets are computed for bounds of which there
are few, so that a batch of new sizes finds its own: the buffers are up to an eighth larger than the
batch needs, and an allocator finds buffers of the same sizes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dnnffi.backends.own.recurrent import products, small_products
from dnnffi.backends.own.recurrent.bias_gradients import BiasSums
from dnnffi.backends.own.recurrent.dropout import STATE_BYTES
from dnnffi.backends.own.recurrent.kernels import LayerLaunches
from dnnffi.backends.own.recurrent.layout import Buffer, LayerArrays
from dnnffi.backends.own.recurrent.narrow import NarrowMatrices
from dnnffi.backends.own.recurrent.packing import Cleared
from dnnffi.backends.own.recurrent.rows import RowLayout, table_bytes

if TYPE_CHECKING:
    from dnnffi.backends.own.recurrent.network import OwnNetwork

MAX_LAYOUTS = 256
"""Layouts that a network keeps."""

MAX_RESERVED_EXCHANGE_BYTES = 4 << 20
"""Limit of what the groups of a backward kernel exchange through the reserve space, which is held
from a forward pass to its backward pass. More is exchanged through the workspace, at the cost of a
launch that clears it."""


def bound(count: int) -> int:
    """Return the least of eight bounds between two powers of two that is not below ``count``.

    >>> [bound(count) for count in (1, 15, 17, 100, 104, 105, 128, 129)]
    [1, 15, 18, 104, 104, 112, 128, 144]
    """
    step = 1 << max(0, (count - 1).bit_length() - 4)
    return -(-count // step) * step


class Bounds(NamedTuple):
    """Sizes for which buffers are laid out: the most positions and steps, and all else exactly.

    ``copies``: whether x is copied from the caller's array, which is padded then.
    """

    batch: int
    max_positions: int
    max_steps: int
    copies: bool

    @classmethod
    def exactly(cls, layout: RowLayout, copies: bool) -> Bounds:
        """Return the sizes of a batch."""
        return cls(layout.batch, layout.positions, layout.steps, copies)

    @classmethod
    def above(cls, layout: RowLayout, copies: bool) -> Bounds:
        """Return the bounds that a batch shares with others."""
        return cls(layout.batch, bound(layout.positions), bound(layout.steps), copies)


class Room(NamedTuple):
    """Parts of buffers for the groups of a kernel: offsets, and bytes to be cleared.

    ``streamed`` is an offset in a workspace. So is ``exchange``, unless ``is_reserved``: then it is
    one in the reserve space, and the forward pass clears what the backward kernel exchanges there.
    """

    exchange: int
    exchange_bytes: int
    streamed: int
    is_reserved: bool = False

    @classmethod
    def of(cls, launches: LayerLaunches, workspace: Buffer, reserve: Buffer | None = None) -> Room:
        """Return new parts of a workspace, and of a reserve space if one is given."""
        nbytes = launches.exchange_bytes
        exchange = (workspace if reserve is None else reserve).add(nbytes)
        streamed = workspace.add(launches.streamed_bytes)
        return cls(exchange, nbytes, streamed, reserve is not None)

    def addresses(self, workspace: int, reserve: int) -> tuple[int, int]:
        """Return the addresses of the exchange, and of the weights that groups stream."""
        start = reserve if self.is_reserved else workspace
        return start + self.exchange, workspace + self.streamed

    def cleared(self, workspace: int, reserve: int) -> Cleared:
        """Return the memory that is to be cleared before the kernel."""
        start = reserve if self.is_reserved else workspace
        return start + self.exchange, self.exchange_bytes


class BufferLayout:
    """Offsets, in bytes, of all parts of the buffers of a batch, and the launches of its groups.

    ``products`` have algorithms for up to ``max_positions`` positions; there are none if the
    products are ``small_products``, which need no memory. Raises `UnsupportedError` if the groups
    do not fit on the device.
    """

    def __init__(
        self, network: OwnNetwork, bounds: Bounds, max_positions: int, *, is_small: bool
    ) -> None:
        # The network, which keeps this, is not kept here: a cycle would outlive it.
        spec = network.spec
        sizes = bounds.batch, spec.num_directions, bounds.max_steps
        self.forward_launches = network.forward_kernel.bind(*sizes)
        self.backward_launches: LayerLaunches | None = None
        if network.backward_kernel is not None:
            self.backward_launches = network.backward_kernel.bind(*sizes)
        self.small_products: small_products.BoundProducts | None = None
        self.products: dict[int, products.BoundProducts] = {}
        if is_small:
            assert network.small_products is not None
            self.small_products = network.small_products.bind(max_positions)
        else:
            for inputs, unbound in network.products.items():
                self.products[inputs] = unbound.bind(max_positions)
        self._output_bytes = bounds.max_positions * network.output_bytes
        self._input_bytes = bounds.max_positions * network.input_bytes if bounds.copies else 0
        of_all = self.products.values()
        self._product_bytes = max((one.workspace_bytes for one in of_all), default=0)
        workspace, reserve = Buffer(), Buffer()
        workspace.add(self._product_bytes)  # at its beginning
        self._lay_out_forward(network, bounds, workspace, reserve)
        self.workspace_bytes = workspace.nbytes
        self.backward_room: Room | None = None
        if self.backward_launches is not None:
            needed = self._lay_out_backward(network, bounds, self.backward_launches, reserve)
            self.workspace_bytes = max(self.workspace_bytes, needed)
        self.reserve_bytes = reserve.nbytes

    def _lay_out_forward(
        self, network: OwnNetwork, bounds: Bounds, workspace: Buffer, reserve: Buffer
    ) -> None:
        self.forward_room = Room.of(self.forward_launches, workspace)
        self.narrow: NarrowMatrices | None = None
        if network.narrow is not None:
            self.narrow = network.narrow.bind(bounds.batch, workspace)
        kept = reserve if network.is_training else workspace
        self.tables = self.copied_x = self.taken = 0
        if network.is_ragged:
            tables = table_bytes(bounds.max_steps, bounds.batch)
            self.tables, self.copied_x = kept.add_all(tables, self._input_bytes)
        if network.dropout is not None:
            self.taken = kept.add(STATE_BYTES)
        gate_bytes = network.spec.num_directions * bounds.max_positions * network.gate_bytes
        if self.backward_launches is not None:
            self.arrays = self._saved(network, bounds, gate_bytes, reserve, self.backward_launches)
        else:
            gates = workspace.add(gate_bytes)
            own_ys = network.spec.num_layers - 1 if network.layers_at_once == 1 else 0
            ys = [workspace.add(self._output_bytes) for _ in range(min(2, own_ys))] or [0]
            layers = range(network.spec.num_layers)
            self.arrays = [LayerArrays(gates, y=ys[layer % len(ys)]) for layer in layers]
        self.forward_strides = self._strides(network, network.layers_at_once)

    def _saved(
        self,
        network: OwnNetwork,
        bounds: Bounds,
        gate_bytes: int,
        reserve: Buffer,
        launches: LayerLaunches,
    ) -> list[LayerArrays]:
        """Return the parts of the reserve space of each layer."""
        spec = network.spec
        bias_parts = launches.groups * launches.kernel.bias_parts
        bias_bytes = network.bias_part_bytes * bias_parts if spec.bias else 0
        state_bytes = spec.num_directions * bounds.max_positions * network.position_bytes
        cell_bytes = state_bytes if network.has_saved_cell else 0
        found: list[LayerArrays] = []
        for layer in range(spec.num_layers):
            y_bytes = self._output_bytes if layer < spec.num_layers - 1 else 0
            gates, c_before, h_before, bias_sums, y = reserve.add_all(
                gate_bytes, cell_bytes, state_bytes, bias_bytes, y_bytes
            )
            dropped = y
            if (
                network.dropout is not None
                and network.keeps_dropped
                and layer < spec.num_layers - 1
            ):
                dropped = reserve.add(self._output_bytes)
            found.append(LayerArrays(gates, c_before, h_before, bias_sums, y, dropped))
        self.bias_sums = BiasSums.of([one.bias_sums for one in found], bias_parts)
        return found

    def _lay_out_backward(
        self, network: OwnNetwork, bounds: Bounds, launches: LayerLaunches, reserve: Buffer
    ) -> int:
        """Lay out the workspaces of both backward calls; return the bytes of the larger one."""
        of_all, layers = self.products.values(), launches.kernel.layers
        workspace = Buffer()
        workspace.add(self._product_bytes)
        # The kernel that begins a forward pass on ragged rows clears this for the backward pass.
        # For layers at once every launch needs it cleared, and it is large.
        is_reserved = (
            network.is_ragged
            and layers == 1
            and launches.exchange_bytes <= MAX_RESERVED_EXCHANGE_BYTES
        )
        self.backward_room = Room.of(launches, workspace, reserve if is_reserved else None)
        self.backward_strides = self._strides(network, layers)
        # A layer's dx takes the place of its dy, which its kernel has read by then. dy of the last
        # layer is the caller's.
        between_bytes = self._output_bytes if network.spec.num_layers > layers else 0
        self.dy, self.padded = workspace.add_all(
            between_bytes, max((one.padded_bytes for one in of_all), default=0)
        )
        beside = Buffer()
        beside_bytes = max((one.dw_hh_workspace_bytes for one in of_all), default=0)
        _, self.beside = beside.add_all(self._product_bytes, beside_bytes)
        # dx may be copied while the products of the weights run: it is after their parts.
        workspace.nbytes = max(workspace.nbytes, beside.nbytes)
        self.copied_dx = workspace.add(0 if network.has_device_lengths else self._input_bytes)
        return workspace.nbytes

    def _strides(self, network: OwnNetwork, layers: int) -> list[tuple[int, int, int]]:
        """Return the elements between the arrays, matrices and biases that a kernel reads.

        They are from layer to layer if a kernel has several; else from direction to direction, and
        0 for the arrays.
        """
        if layers == 1:
            return network.strides
        first, second = network.weights[:2]
        between = self.arrays[1].gates - self.arrays[0].gates
        size = network.item_bytes
        matrices, biases = second.w_hh - first.w_hh, second.b_ih - first.b_ih
        return [(between // size, matrices // size, biases // size)]
