"""A recurrent network on dnnffi's own kernels: what is made once, for all sizes of its batches.

`OwnNetwork.bind` adds the sizes of a batch, which takes arithmetic alone once cuBLASLt has chosen
algorithms for such sizes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dnnffi.backends.cublas.product import RowsProducts
from dnnffi.backends.own.recurrent.bias_gradients import BiasGradients
from dnnffi.backends.own.recurrent.buffer_layout import MAX_LAYOUTS, Bounds, BufferLayout
from dnnffi.backends.own.recurrent.config import KernelConfig
from dnnffi.backends.own.recurrent.dropout import DropoutKernels
from dnnffi.backends.own.recurrent.executor import OwnRNNExecutor
from dnnffi.backends.own.recurrent.kernels import (
    LayerKernel,
    begin_kernels,
    bias_kernel,
    device_length_kernels,
    dropout_kernels,
    finish_kernel,
    narrow_kernel,
    row_kernels,
    small_products_kernel,
    table_kernel,
)
from dnnffi.backends.own.recurrent.layout import layer_weights
from dnnffi.backends.own.recurrent.narrow import NarrowKernel
from dnnffi.backends.own.recurrent.packing import Packing
from dnnffi.backends.own.recurrent.products import Products, directions_at_once
from dnnffi.backends.own.recurrent.rows import RowLayout
from dnnffi.backends.own.recurrent.small_products import NetworkProducts, can_be_small
from dnnffi.backends.own.source import KernelSource
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.execution.cache import keep_newest
from dnnffi.spec.checks import INT32_MAX, ITEM_SIZES
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.weights import weight_layout


class MatrixPlace(NamedTuple):
    """Bytes from the flat weights to the matrices of a layer and direction."""

    layer: int
    direction: int
    w_ih: int
    w_hh: int


class OwnNetwork:
    """A network on dnnffi's own kernels, on one device, ready for any sizes.

    ``problem`` is one of its problems; its batch, steps and lengths do not matter, but whether rows
    have unequal lengths. ``library`` is the libcublasLt; ``forward`` and ``backward`` configure the
    kernels, the latter None for inference. Raises `UnsupportedError` if a kernel cannot be compiled
    or does not fit on the device, and `CublasError`.
    """

    def __init__(
        self,
        problem: RNNProblem,
        device: int,
        memory: MemoryWithGraphs,
        library: Any,
        algorithm: str,
        forward: KernelConfig,
        backward: KernelConfig | None,
    ) -> None:
        self.device, self.memory, self.algorithm = device, memory, algorithm
        self.kind = kind = forward.kind
        self.spec = spec = problem.spec
        self.directions = spec.num_directions
        self.item_bytes = ITEM_SIZES[spec.dtype]
        low, high = problem.options.clip or (0.0, 0.0)
        self.clip = float(low), float(high)
        self.weight_size: int = weight_layout(spec, "cudnn").size
        self.weights = layer_weights(spec)
        self.output_bytes = spec.hidden_size * self.directions * self.item_bytes
        self.input_bytes = spec.input_size * self.item_bytes
        self.row_kind = "packed" if kind.packed else "ragged" if kind.ragged else "full"
        self.has_device_lengths = problem.has_device_lengths
        self.packing: Packing | None = None
        if kind.ragged:
            self.packing = Packing(
                *(self.item_bytes, self.input_bytes, self.output_bytes, memory),
                has_device_lengths=self.has_device_lengths,
            )
        self.forward_kernel = LayerKernel(forward, memory)
        self.backward_kernel = None
        self.bias_gradients: BiasGradients | None = None
        self.finish_kernel = None
        if backward is not None:
            self.backward_kernel = LayerKernel(backward, memory)
            if spec.bias:
                sizes = kind.saved, kind.gates, kind.padded
                self.bias_gradients = BiasGradients(spec, self.weights, *sizes, memory)
                if kind.ragged and not self.has_device_lengths:
                    self.finish_kernel = memory.kernel(*finish_kernel(spec.dtype))
        self.narrow = NarrowKernel(kind, self.directions, memory) if kind.narrow else None
        self.dropout = None
        if problem.drops:
            if any(one is not None and one.kind.layers > 1 for one in (forward, backward)):
                raise ValueError("layers that run at once have no dropout between them")
            self.dropout = DropoutKernels(spec.dtype, memory)
        # Constants for all sizes: a new size does not compute them again.
        self.position_bytes = kind.padded * self.item_bytes
        """Bytes of the units of one position in arrays of the kernels."""
        columns = kind.saved if kind.training else kind.gates
        self.gate_bytes = columns * self.position_bytes
        self.is_ragged, self.is_training = kind.ragged, kind.training
        self.layers_at_once = kind.layers
        self.has_saved_cell = kind.mode == "lstm"
        self.keeps_dropped = kind.plain
        self.bias_part_bytes = self.directions * kind.saved * kind.padded * 4
        self.layer_inputs = [spec.layer_input_size(layer) for layer in range(spec.num_layers)]
        size = self.item_bytes
        self.strides = [
            (0, one.matrix_stride // size, one.bias_stride // size) for one in self.weights
        ]
        """Elements between two directions' arrays (0), matrices and biases, for each layer."""
        self.matrices = [
            MatrixPlace(layer, direction, *(at + direction * one.matrix_stride for at in one[:2]))
            for layer, one in enumerate(self.weights)
            for direction in range(self.directions)
        ]
        self._all_products = RowsProducts(library, device, spec.dtype, math=problem.options.math)
        self.directions_at_once = directions_at_once(kind, self.directions)
        self.products = {
            inputs: Products(
                self._all_products, kind, inputs, self.directions_at_once, one.matrix_stride // size
            )
            for inputs, one in dict(zip(self.layer_inputs, self.weights, strict=True)).items()
        }
        self.small_products: NetworkProducts | None = None
        if can_be_small(kind, self.layer_inputs):
            kernel = memory.kernel(*small_products_kernel(spec.dtype, is_strict=kind.strict))
            self.small_products = NetworkProducts(kernel, kind, self.layer_inputs, self.directions)
        self._buffers: dict[Bounds, BufferLayout] = {}

    def check(self, problem: RNNProblem) -> None:
        """Raise `UnsupportedError` if the rows of a problem do not fit on the device."""
        sizes = problem.batch, self.directions, problem.steps
        for kernel in (self.forward_kernel, self.backward_kernel):
            if kernel is not None:
                kernel.bind(*sizes)

    def bind(
        self, problem: RNNProblem, launch: Launch, generator: Any = None, *, is_exact: bool = False
    ) -> OwnRNNExecutor:
        """Return the executor of a problem of this network, with any sizes.

        ``generator`` has the random numbers of dropout. With ``is_exact`` the algorithms of matrix
        products are chosen for these sizes, which asks cuBLASLt, and buffers are as large as these
        need; else the algorithms are those of the next power of two (see `buffers`).
        Raises `UnsupportedError` if the sizes do not fit on the device, ``ValueError`` and
        ``TypeError`` for a generator.
        """
        return OwnRNNExecutor(self, problem, generator, is_exact)

    def copies(self, layout: RowLayout) -> bool:
        """Whether x of a batch is copied: to other places, or for sums over all positions."""
        is_copied = self.is_training or not self.has_device_lengths
        return layout.caller_strides is not None and is_copied

    def buffers(self, layout: RowLayout, is_exact: bool) -> BufferLayout:
        """Return the layout of the buffers of a batch.

        Unless ``is_exact`` it is shared by all sizes up to the same `Bounds`, and kept.
        """
        copies = self.copies(layout)
        if is_exact:
            bounds = Bounds.exactly(layout, copies)
            return BufferLayout(self, bounds, layout.positions, is_small=False)
        bounds = Bounds.above(layout, copies)
        found = self._buffers.get(bounds)
        if found is None:
            max_positions = min(1 << (layout.positions - 1).bit_length(), INT32_MAX)
            small = self.small_products
            is_small = small is not None and small.are_small(bounds.max_positions)
            made = BufferLayout(self, bounds, max_positions, is_small=is_small)
            found = self._buffers.setdefault(bounds, made)
            keep_newest(self._buffers, MAX_LAYOUTS)
        return found

    def close(self) -> None:
        """Release everything native. A second call does nothing."""
        self._all_products.close()


def kernels_beside(problem: RNNProblem, forward: KernelConfig) -> list[KernelSource]:
    """Return the kernels of an `OwnNetwork` that have no `KernelConfig`."""
    spec = problem.spec
    found = []
    if problem.training and spec.bias:
        found.append(bias_kernel(spec.dtype))
        if forward.kind.ragged and not problem.has_device_lengths:
            found.append(finish_kernel(spec.dtype))
    if forward.kind.narrow:
        found.append(narrow_kernel())
    if forward.kind.ragged:
        item_bytes = ITEM_SIZES[spec.dtype]
        has_device_lengths = problem.has_device_lengths
        table = table_kernel(has_device_lengths=has_device_lengths)
        of_rows = row_kernels(item_bytes, has_device_lengths=has_device_lengths)
        found += [table, *of_rows.values()]
        of_begin = device_length_kernels if has_device_lengths else begin_kernels
        found += of_begin(item_bytes).values()
    if problem.drops:
        found += dropout_kernels(spec.dtype)
    kind = forward.kind
    layer_inputs = [spec.layer_input_size(layer) for layer in range(spec.num_layers)]
    if can_be_small(kind, layer_inputs):
        found.append(small_products_kernel(spec.dtype, is_strict=kind.strict))
    return found
