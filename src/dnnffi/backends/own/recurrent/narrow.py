"""Conversion of recurrent matrices to float16, for forward passes in float32 that multiply float16.

The conversion precedes the kernel of a layer, together with the search for the largest element of
each row of h_0: see ``narrow.cu``.
"""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.recurrent.config import Kind
from dnnffi.backends.own.recurrent.kernels import narrow_kernel
from dnnffi.backends.own.recurrent.layout import Buffer
from dnnffi.backends.own.recurrent.params import ForwardParams, NarrowParams
from dnnffi.backends.rnn_interface import ForwardAddresses
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.spec.checks import ITEM_SIZES

_WARPS = 8  # of a block, each of which converts a row


class NarrowKernel:
    """The compiled kernel, for layers of one kind; ready for any number of rows.

    Raises `UnsupportedError` if it cannot be compiled.
    """

    def __init__(self, kind: Kind, directions: int, memory: MemoryWithGraphs) -> None:
        self.kind, self.directions = kind, directions
        self.rows = kind.gates * kind.hidden
        self.item_bytes = ITEM_SIZES[kind.dtype]
        self.stride = self.rows * kind.padded
        """Elements from the matrices of one direction to those of the next."""
        self.kernel = memory.kernel(*narrow_kernel())

    def bind(self, batch: int, workspace: Buffer) -> NarrowMatrices:
        """Return the matrices of one layer at a time, in new parts of a workspace."""
        return NarrowMatrices(
            self,
            batch,
            workspace.add(self.directions * self.stride * ITEM_SIZES[self.kind.factors]),
            workspace.add(self.directions * self.rows * self.item_bytes),
            workspace.add(self.directions * batch * self.item_bytes),
            workspace.add(self.directions * batch * self.item_bytes) if self.kind.resets else 0,
        )


class NarrowMatrices(NamedTuple):
    """Matrices of one layer, of all directions, at offsets (in bytes) in a workspace.

    matrices : float16 [directions, gates * hidden, padded]
    scales : float32 [directions, gates * hidden], what the rows of the matrices were divided by
    state_scales : float32 [directions, batch], the same of the rows of h_0
    reset_scales : float32 [directions, batch or 1], of the states of resets
    """

    narrow_kernel: NarrowKernel
    batch: int
    matrices: int
    scales: int
    state_scales: int
    reset_scales: int

    def set_addresses(self, params: ForwardParams, at: ForwardAddresses) -> None:
        """Let the kernel of a layer read these matrices, with their scales, and those of states."""
        params.matrices = at.workspace + self.matrices
        params.matrix_stride = self.narrow_kernel.stride
        params.matrix_scales = at.workspace + self.scales
        params.state_scales = at.workspace + self.state_scales if at.h_0 else 0
        params.reset_scales = at.workspace + self.reset_scales if at.reset_h else 0

    def narrow(self, launch: Launch, w_hh: int, matrix_stride: int, workspace: int) -> None:
        """Enqueue the conversion; ``matrix_stride`` bytes lie between two directions' matrices."""
        kernel = self.narrow_kernel
        to = workspace + self.matrices, workspace + self.scales
        stride = matrix_stride // kernel.item_bytes
        self._run(launch, w_hh, to, kernel.rows, kernel.directions, stride)

    def measure(self, launch: Launch, h_0: int, workspace: int) -> None:
        """Enqueue the search for the largest element of each row of h_0, the layer's states."""
        rows = self.narrow_kernel.directions * self.batch
        self._run(launch, h_0, (0, workspace + self.state_scales), rows)

    def measure_resets(self, launch: Launch, reset_h: int, rows: int, workspace: int) -> None:
        """Enqueue the search in the layer's states of resets, of ``rows`` rows a direction."""
        all_rows = self.narrow_kernel.directions * rows
        self._run(launch, reset_h, (0, workspace + self.reset_scales), all_rows)

    def _run(
        self,
        launch: Launch,
        source: int,
        targets: tuple[int, int],
        rows: int,
        directions: int = 1,
        stride: int = 0,
    ) -> None:
        kind = self.narrow_kernel.kind
        params = NarrowParams(
            matrices=source,
            narrow=targets[0],
            scales=targets[1],
            rows=rows,
            directions=directions,
            hidden=kind.hidden,
            padded=kind.padded,
            stride=stride,
        )
        blocks = -(-rows * directions // _WARPS)
        self.narrow_kernel.kernel(
            (blocks,), (32 * _WARPS,), (struct_of(params),), stream=launch.stream
        )
