"""Dropout between the layers of dnnffi's own kernels: the same random numbers are drawn twice.

Nothing but a seed and a number is kept: a forward pass writes them into its reserve space, and its
backward pass draws the same masks from them again. `dnnffi.reference.dropout` draws them in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnffi import dropout
from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.recurrent.kernels import dropout_kernels
from dnnffi.backends.own.recurrent.params import DropParams, TakeMasksParams
from dnnffi.backends.own.recurrent.rows import NO_TABLES, RowLayout, TableAddresses
from dnnffi.backends.vendor.dropout import StatesInOrder
from dnnffi.device.interface import Launch, MemoryWithGraphs, Stream
from dnnffi.reference.dropout import dropped_below
from dnnffi.spec.problem import RNNProblem

STATE_BYTES = dropout.STATE_BYTES["own"]
"""The seed, and how many masks were drawn: two unsigned integers of 64 bits."""

_MAX_THREADS = 256
_MAX_BLOCKS = 2**16 - 1  # in the second and third dimension


class Generator(StatesInOrder):
    """The random numbers of the kernels' dropout on a device. A forward pass advances them."""

    def __init__(self, memory: MemoryWithGraphs, device: int, seed: int) -> None:
        super().__init__(memory, device)
        with memory.use(device):
            self._states = memory.constant(np.array([seed, 0], np.uint64).view(np.uint8))
            self._begin(memory.current_stream())

    @property
    def address(self) -> int:
        """Address of the state in device memory."""
        return int(self._states.data.ptr)

    def _launch(self, stream: Stream) -> Launch:
        return Launch(stream, self.device)


def checked_generator(generator: Any, device: int) -> Generator:
    """Return the generator of a problem that drops. `ValueError` or `TypeError` for another one."""
    if generator is None:
        raise ValueError("generator: a problem with dropout needs random numbers")
    if not isinstance(generator, Generator):
        raise TypeError(
            f"generator must be a {Generator.__module__}.Generator, made for dnnffi's own kernels; "
            f"got a {type(generator).__module__}.{type(generator).__name__}"
        )
    if generator.device != device:
        raise ValueError(
            f"generator must be on the executor's device, {device}; it is on {generator.device}"
        )
    return generator


class DropoutKernels:
    """The compiled kernels of networks of one dtype that drop."""

    def __init__(self, dtype: str, memory: MemoryWithGraphs) -> None:
        self.take, self.drop = (memory.kernel(*one) for one in dropout_kernels(dtype))

    def bind(self, problem: RNNProblem, layout: RowLayout, generator: Generator) -> Dropout:
        """Return the dropout of a problem."""
        return Dropout(self, problem, layout, generator)


class Dropout:
    """Dropout between the layers of one problem.

    ``tables`` of its calls say where rows of unequal length are; rows with strides need none.
    """

    def __init__(
        self,
        kernels: DropoutKernels,
        problem: RNNProblem,
        layout: RowLayout,
        generator: Generator,
    ) -> None:
        spec = problem.spec
        self._take, self._drop = kernels.take, kernels.drop
        self._state = generator.address
        self._masks = spec.num_layers - 1
        # Rows with strides need no tables. What is dropped past the ends of such rows is not read
        # before a backward pass clears it.
        self._has_strides = layout.row_stride > 0
        units = spec.hidden_size * spec.num_directions
        groups = -(-units // 4)
        threads = min(-(-groups // 32) * 32, _MAX_THREADS)
        self._threads = (threads,)
        self._blocks = (
            -(-groups // threads),
            min(layout.batch, _MAX_BLOCKS),
            min(layout.steps, _MAX_BLOCKS),
        )
        self._params = DropParams(
            source=0,
            target=0,
            taken=0,
            **NO_TABLES._asdict(),
            mask=0,
            steps=layout.steps,
            batch=layout.batch,
            step_stride=layout.step_stride,
            row_stride=layout.row_stride,
            units=units,
            dropped_below=dropped_below(problem.dropout),
            scale=0.0 if problem.dropout == 1 else 1 / (1 - problem.dropout),
        )

    def take(self, launch: Launch, taken: int) -> None:
        """Enqueue the copy of the state to ``taken`` for a forward pass, and advance the state."""
        params = TakeMasksParams(state=self._state, taken=taken, masks=self._masks)
        self._take((1,), (1,), (struct_of(params),), stream=launch.stream)

    def drop(
        self,
        launch: Launch,
        source: int,
        target: int,
        taken: int,
        tables: TableAddresses,
        layer: int,
    ) -> None:
        """Enqueue dropout of ``source``, of the shape of a layer's y, by the mask of that y."""
        at = NO_TABLES if self._has_strides else tables
        params = self._params._replace(
            source=source,
            target=target,
            taken=taken,
            lengths=at.lengths,
            caller_rows=at.caller_rows,
            first_positions=at.first_positions,
            step_offsets=at.step_offsets,
            mask=layer,
        )
        self._drop(self._blocks, self._threads, (struct_of(params),), stream=launch.stream)
