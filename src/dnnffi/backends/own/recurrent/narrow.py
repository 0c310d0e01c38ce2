"""Compute what a float32 forward kernel with recurrent products in float16 needs first.

The recurrent matrices of its layer in float16, and how large the rows of h_0 are: see
``narrow.cuh``.
"""

from __future__ import annotations

from dnnffi.backends.own.recurrent.geometry import Kind
from dnnffi.backends.own.recurrent.kernels import narrow_kernel
from dnnffi.backends.own.recurrent.layout import Buffer
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.spec.checks import ITEM_SIZES

_WARPS = 8  # of a block, each of which has a row


class NarrowMatrices:
    """Those of one layer at a time, of all directions, in a part of a workspace.

    ``batch`` rows have a state. Raises what CuPy raises where the kernel cannot be compiled.
    """

    def __init__(
        self, kind: Kind, batch: int, directions: int, memory: MemoryWithGraphs, workspace: Buffer
    ) -> None:
        self._kind, self._directions, self._batch = kind, directions, batch
        self._rows = kind.gates * kind.hidden
        self._size = ITEM_SIZES[kind.dtype]
        self._kernel = memory.kernel(*narrow_kernel())
        self._matrices = workspace.add(directions * self.stride * ITEM_SIZES[kind.factors])
        self._scales = workspace.add(directions * self._rows * self._size)
        self._of_states = workspace.add(directions * batch * self._size)

    @property
    def stride(self) -> int:
        """Elements from the matrices of one direction to those of the next."""
        return self._rows * self._kind.padded

    def addresses(self, workspace: int, h_0: int) -> tuple[int, int, int]:
        """Of the matrices, of what their rows were divided by, and the same of those of h_0."""
        of_states = workspace + self._of_states if h_0 else 0
        return workspace + self._matrices, workspace + self._scales, of_states

    def narrow(self, launch: Launch, w_hh: int, matrix_stride: int, workspace: int) -> None:
        """Enqueue the conversion; ``matrix_stride`` bytes lie between two directions' matrices."""
        to = workspace + self._matrices, workspace + self._scales
        self._run(launch, w_hh, to, self._rows, self._directions, matrix_stride // self._size)

    def measure(self, launch: Launch, h_0: int, workspace: int) -> None:
        """Enqueue the search for the largest of each row of h_0, the layer's states."""
        self._run(launch, h_0, (0, workspace + self._of_states), self._directions * self._batch)

    def _run(
        self,
        launch: Launch,
        source: int,
        targets: tuple[int, int],
        rows: int,
        directions: int = 1,
        stride: int = 0,
    ) -> None:
        sizes = rows, directions, self._kind.hidden, self._kind.padded, stride
        blocks = -(-rows * directions // _WARPS)
        self._kernel((blocks,), (32 * _WARPS,), (source, *targets, *sizes), stream=launch.stream)
