"""Buffers, bindings and dispatches of a sequence of T steps and B rows.

The state of a layer and direction alternates between two buffers, a step reading one and writing
the other. If a buffer of all steps is larger than the adapter binds, the sequence is run
in chunks of steps, still in one command buffer. On the device sequences are [T, B, .], and rows are
filled up to a multiple of four elements.

With resets, the states that replace others are stored after the B rows of each layer and
direction, in both buffers of h and in that of c.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dnnffi.backends.vulkan import shaders
from dnnffi.backends.vulkan.copies import Copy
from dnnffi.backends.vulkan.device import MAX_STEPS, Device, Pipeline
from dnnffi.backends.vulkan.native import READ, WRITE
from dnnffi.backends.vulkan.packing import vectors
from dnnffi.backends.vulkan.shaders import MAX_GROUPS, PROJECTION, RESET, RUNS, Step
from dnnffi.backends.vulkan.tiles import MAX_TURNS, Tile, fits_whole, max_whole_steps, tiles_of
from dnnffi.device.interface import NDArray
from dnnffi.spec.rnn import RNNSpec

T = TypeVar("T")
Bound = tuple[Any, int, int]  # a buffer, and the offset and bytes of the part that is bound
Groups = tuple[int, int, int]


class DirectionWeights(NamedTuple):
    """The weights of a layer and direction, each a whole buffer; None for absent ones."""

    w_ih: Bound
    w_hh: Bound
    b_ih: Bound | None = None
    b_hh: Bound | None = None
    w_hr: Bound | None = None


class _Kernel(NamedTuple):
    pipeline: Pipeline
    groups: Groups


class _Chunk(NamedTuple):
    """Steps of a layer and direction that are run after one product of their inputs.

    ``steps`` are their numbers in the chunk, in the order in which they are run. ``product``,
    ``step`` and ``projection`` are bind groups, the latter two by the buffer that the state is
    read from.
    """

    steps: range
    product_groups: Groups
    product: Any
    step: tuple[Any, ...]
    projection: tuple[Any, ...]


class _Direction(NamedTuple):
    """A layer and direction: its kernels, and its chunks in the order in which they are run."""

    product: Pipeline
    step: _Kernel
    projection: _Kernel | None
    chunks: tuple[_Chunk, ...]


def up(number: int, multiple: int) -> int:
    """Return ``number`` rounded up to a multiple of ``multiple``."""
    return -(-number // multiple) * multiple


class State:
    """The states of all layers and directions of B rows: h, and c of an LSTM, a slot for each.

    ``h_bytes`` and ``c_bytes`` of a slot are the states of the batch. ``h_read`` and ``c_read``
    include the states of ``reset_rows`` further rows, which replace others.
    """

    def __init__(self, device: Device, spec: RNNSpec, batch: int, reset_rows: int = 0) -> None:
        self.batch = batch
        self.count = spec.num_layers * spec.num_directions
        h_row, c_row = 16 * vectors(spec.output_size), 4 * spec.hidden_size
        self.h_bytes, self.c_bytes = batch * h_row, batch * c_row
        self.h_read, self.c_read = (batch + reset_rows) * h_row, (batch + reset_rows) * c_row
        self.h_slot = up(self.h_read, device.alignment)
        self.c_slot = up(self.c_read, device.alignment) if spec.has_cell else 0
        self._device = device

    def h_buffer(self) -> Any:
        """Return a new buffer for h."""
        return self._buffer("h", self.h_slot)

    def c_buffer(self) -> Any:
        """Return a new buffer for c, or None for networks without c."""
        return self._buffer("c", self.c_slot) if self.c_slot else None

    def _buffer(self, what: str, slot: int) -> Any:
        usage = self._device.usage
        return self._device.buffer(
            what, self.count * slot, usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        )


class Sequence:
    """The buffers of sequences of T steps and B rows, and what runs on them; one call at a time.

    ``reset_rows`` is the number of rows of the states that replace others, 1 or B; 0 for calls
    without resets. Raises `UnsupportedError` naming what the adapter or the algorithm cannot do.
    """

    def __init__(
        self,
        device: Device,
        spec: RNNSpec,
        weights: list[DirectionWeights],
        steps: int,
        batch: int,
        algorithm: str,
        reset_rows: int = 0,
    ) -> None:
        self.key = steps, batch, algorithm, reset_rows
        self.device, self.spec = device, spec
        self.steps, self.batch, self.reset_rows = steps, batch, reset_rows
        self.row_lengths: tuple[int, ...] | None = None
        """The lengths that were uploaded last."""
        self.state = State(device, spec, batch, reset_rows)
        self.x_width = 4 * vectors(spec.input_size)
        self.y_width = 4 * vectors(spec.output_size * spec.num_directions)
        self._columns = spec.num_gates * spec.hidden_size
        self._tiles = tiles_of(
            cpu=device.cpu,
            subgroup=device.subgroup,
            hidden_size=spec.hidden_size,
            source=vectors(spec.output_size),
            steps=steps,
            batch=batch,
        )
        self.whole = self._is_whole(algorithm)
        self.chunk = self._chunk_steps()
        self.starts = range(0, steps, self.chunk)
        self._make_buffers()
        self._directions = [self._direction(k, one) for k, one in enumerate(weights)]
        turns = len(self.starts) if self.whole else steps
        self.last = turns % 2
        """Index of the buffer of h that has the states after the last step."""

    def _is_whole(self, algorithm: str) -> bool:
        spec, tiles = self.spec, self._tiles
        fits = not spec.proj_size and fits_whole(
            tiles.whole, spec.num_gates, vectors(spec.output_size)
        )
        if algorithm == "persistent" and not fits:
            raise self.device.unsupported(
                f"algorithm 'persistent' keeps the state of a workgroup's rows in its memory, and "
                f"has no projection; it does not run {spec}; 'stepwise' does"
            )
        preferred = tiles.prefers_whole and self.steps > 1
        return fits and (algorithm == "persistent" or (algorithm == "auto" and preferred))

    def _chunk_steps(self) -> int:
        """Return the steps of a chunk, whose parts of buffers are within the adapter's limit.

        A whole sequence on a CPU has at most as many as a dispatch runs.
        """
        most, rows = self.device.max_binding_bytes, 4 * self.batch
        widths = {
            "the gates": self._columns,
            "y": self.y_width,
            "x": self.x_width,
        }
        largest = max(widths, key=lambda name: widths[name])
        bound, turns = most // (rows * widths[largest]), MAX_STEPS
        if self.whole and self.device.cpu:
            hidden, source = self.spec.hidden_size, vectors(self.spec.output_size)
            has_resets = self.reset_rows > 0
            turns = max_whole_steps(self._tiles.whole, hidden, source, has_resets=has_resets)
        steps = min(self.steps, turns, bound)
        if steps < self.steps:
            # A part begins at a multiple of the alignment.
            unit = 1
            for width in (self.x_width, self.y_width):
                aligned = self.device.alignment // gcd(self.device.alignment, rows * width)
                unit = max(unit, aligned)  # powers of two
            steps -= steps % unit
        if steps < 1 and turns < bound:
            raise self.device.unsupported(
                f"loops of algorithm 'persistent' have at most {MAX_TURNS} turns on a CPU, too "
                f"few for steps of {self.spec}; 'stepwise' runs it"
            )
        if steps < 1:
            raise self.device.unsupported(
                f"{largest} of a few steps of {self.batch} rows takes more than the {most} bytes "
                f"that this adapter binds (max-storage-buffer-binding-size); run fewer rows at once"
            )
        return steps

    def _make_buffers(self) -> None:
        device, spec, usage = self.device, self.spec, self.device.usage
        storage = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        rows, lengths = 4 * self.steps * self.batch, up(4 * self.batch, device.alignment)
        self.length_slot = lengths
        self.y_bytes = rows * self.y_width
        self._h_all = self.state.count * self.state.h_slot
        self._c_all = self.state.count * self.state.c_slot
        self._x_bytes = rows * self.x_width
        self.x = device.buffer("x", self._x_bytes, storage)
        self._upload = device.buffer(  # mapped between calls
            "x on the host", self._x_bytes, usage.COPY_SRC | usage.MAP_WRITE, mapped=True
        )
        count = min(2, spec.num_layers)
        self._ys = [device.buffer("y", self.y_bytes, storage) for _ in range(count)]
        gates = 4 * self.chunk * self.batch * self._columns
        self._gates = device.buffer("the gates", gates, storage)
        self.h = self.state.h_buffer(), self.state.h_buffer()
        self.c = self.state.c_buffer()
        self._hidden = None
        if spec.proj_size:
            self._hidden_bytes = 16 * self.batch * vectors(spec.hidden_size)
            self._hidden = device.buffer("what is projected", self._hidden_bytes, storage)
        self.lengths = device.buffer("lengths", lengths * len(self.starts), storage)
        self.flags = None
        if self.reset_rows:
            self._check_reset_states()
            self.flag_slot = up(4 * self.chunk * self.batch, device.alignment)
            flags = spec.num_directions * len(self.starts) * self.flag_slot
            self.flags = device.buffer("resets", flags, storage)
        self.results = device.buffer(
            "the results",
            self.y_bytes + self._h_all + self._c_all,
            usage.COPY_DST | usage.MAP_READ,
        )

    def _check_reset_states(self) -> None:
        most, nbytes = self.device.max_binding_bytes, max(self.state.h_read, self.state.c_read)
        if nbytes > most:
            raise self.device.unsupported(
                f"the states of {self.batch} rows and {self.reset_rows} of reset_to take {nbytes} "
                f"bytes; this adapter binds at most {most} (max-storage-buffer-binding-size); give "
                f"reset_to with one row for all, or run fewer rows at once"
            )

    def _direction(self, k: int, weights: DirectionWeights) -> _Direction:
        spec, tiles = self.spec, self._tiles
        layer, direction = divmod(k, spec.num_directions)
        half, projected = spec.dtype == "float16", bool(spec.proj_size)
        source = vectors(spec.output_size)
        in_width = self.x_width if layer == 0 else self.y_width
        text = shaders.product(in_width // 4, self._columns, half, spec.bias, tiles.product)
        names = ("w", "x", "out", *(("bias",) if spec.bias else ()))
        product = self.device.pipeline(text, names)
        kernel = Step(
            mode=spec.mode,
            units=spec.hidden_size,
            source=source,
            state=source,
            half=half,
            bias=spec.bias,
            tile=tiles.whole if self.whole else tiles.step,
            y_width=self.y_width,
            y_offset=direction * spec.output_size,
            projected=projected,
            whole=self.whole,
            reverse=self.whole and direction == 1,
            resets=self.reset_rows > 0,
        )
        step, projection = self._kernel(kernel), None
        if projected:
            projection = self._kernel(
                kernel._replace(
                    mode=PROJECTION,
                    units=spec.proj_size,
                    source=vectors(spec.hidden_size),
                    projected=False,
                    resets=False,
                )
            )
        chunks = [
            self._chunk(layer, k, weights, start, product, step, projection)
            for start in self.starts
        ]
        if direction == 1:
            chunks.reverse()
        return _Direction(product, step, projection, tuple(chunks))

    def _kernel(self, kernel: Step) -> _Kernel:
        pipeline = self.device.pipeline(shaders.step(kernel), kernel.bindings())
        columns = 1 if kernel.whole else kernel.units
        return _Kernel(pipeline, _groups(kernel.tile, columns, self.batch))

    def _chunk(
        self,
        layer: int,
        k: int,
        weights: DirectionWeights,
        start: int,
        product: Pipeline,
        step: _Kernel,
        projection: _Kernel | None,
    ) -> _Chunk:
        batch, state = self.batch, self.state
        steps = min(self.chunk, self.steps - start)

        def part(buffer: Any, width: int) -> Bound:
            return buffer, 4 * start * batch * width, 4 * steps * batch * width

        read = part(self.x, self.x_width)
        if layer > 0:
            read = part(self._ys[(layer - 1) % 2], self.y_width)
        gates = (self._gates, 0, 4 * steps * batch * self._columns)
        parts: dict[str, Bound | None] = {"x": read, "gates": gates, "out": gates}
        parts["y"] = part(self._ys[layer % 2], self.y_width)
        index = start // self.chunk
        parts["lengths"] = self.lengths, index * self.length_slot, 4 * batch
        parts["now"] = self.device.steps, 0, 4
        if self.flags is not None:
            slot = k % self.spec.num_directions * len(self.starts) + index
            parts["flags"] = self.flags, slot * self.flag_slot, 4 * steps * batch
        if self.c is not None:
            parts["c"] = self.c, k * state.c_slot, state.c_read
        if self._hidden is not None:
            parts["hidden"] = self._hidden, 0, self._hidden_bytes
        of_product = product.bind({**parts, "w": weights.w_ih, "bias": weights.b_ih})
        h = [(one, k * state.h_slot, state.h_bytes) for one in self.h]
        of_step, of_projection = [], []
        for here, there in (h, reversed(h)):
            source = *here[:2], state.h_read
            parts.update(w=weights.w_hh, bias=weights.b_hh, source=source, state=there)
            of_step.append(step.pipeline.bind(parts))
            if projection is not None:
                parts.update(w=weights.w_hr, source=parts["hidden"], before=here)
                of_projection.append(projection.pipeline.bind(parts))
        order = range(steps)
        if k % self.spec.num_directions:
            order = range(steps - 1, -1, -1)
        groups = _groups(self._tiles.product, self._columns, steps * batch)
        return _Chunk(order, groups, of_product, tuple(of_step), tuple(of_projection))

    def write_lengths(self, lengths: NDArray) -> None:
        """Upload the lengths [B] of the rows, for each chunk those left from its first step."""
        table = np.zeros((len(self.starts), self.length_slot // 4), np.uint32)
        for index, start in enumerate(self.starts):
            table[index, : self.batch] = np.maximum(lengths - start, 0)
        self.device.queue.write_buffer(self.lengths, 0, table)

    def write_flags(self, lengths: NDArray, resets: NDArray) -> None:
        """Upload the flags of each direction, from lengths [B] and resets [T, B] of bool.

        ``resets[t]`` cuts between steps t - 1 and t: step t reads the state of a reset in the first
        direction, step t - 1 in the reverse direction. Resets past the end of a row are ignored.
        """
        runs = np.arange(self.steps)[:, None] < lengths
        forward = runs & resets
        reverse = np.concatenate([forward[1:], np.zeros_like(forward[:1])])
        directions = self.spec.num_directions
        table = np.zeros((directions, len(self.starts), self.flag_slot // 4), np.uint32)
        for direction, borders in enumerate((forward, reverse)[:directions]):
            flags = RUNS * runs.astype(np.uint32) + RESET * borders.astype(np.uint32)
            for index, start in enumerate(self.starts):
                part = flags[start : start + self.chunk]
                table[direction, index, : part.size] = part.ravel()
        self.device.queue.write_buffer(self.flags, 0, table)

    def write_x(self, x: NDArray) -> Copy:
        """Begin to copy x [T, B, I] to where the device reads it; ended before `submit`."""
        functions, width = self.device.functions, x.shape[-1]
        rows = functions.view(self._upload, WRITE, self._x_bytes)
        rows = rows.reshape(self.steps, self.batch, self.x_width)
        if width < self.x_width:
            rows[..., width:] = 0
        return Copy(rows[..., :width], x, self)

    def encode(self, encoder: Any) -> None:
        """Record all layers, and the copies of x and of their results."""
        functions = self.device.functions
        functions.copy(encoder, self._upload, self.x, 0, self._x_bytes)
        run = functions.begin_pass(encoder)
        set_bind_group, set_pipeline = functions.set_bind_group, functions.set_pipeline
        dispatch, offsets, null = functions.dispatch, self.device.step_offsets, functions.null
        for direction in self._directions:
            step, projection, turn = direction.step, direction.projection, 0
            of_step = step.pipeline.native._internal
            for chunk in direction.chunks:
                set_pipeline(run, direction.product.native._internal)
                set_bind_group(run, 0, chunk.product._internal, 0, null)
                dispatch(run, *chunk.product_groups)
                set_pipeline(run, of_step)
                groups = [group._internal for group in chunk.step]
                if self.whole:
                    set_bind_group(run, 0, groups[turn], 1, offsets)
                    dispatch(run, *step.groups)
                    turn = 1 - turn
                elif projection is None:
                    across, down, deep = step.groups
                    for t in chunk.steps:
                        set_bind_group(run, 0, groups[turn], 1, offsets + t)
                        dispatch(run, across, down, deep)
                        turn = 1 - turn
                else:
                    of_projection = projection.pipeline.native._internal
                    projected = [group._internal for group in chunk.projection]
                    for t in chunk.steps:
                        set_pipeline(run, of_step)
                        set_bind_group(run, 0, groups[turn], 1, offsets + t)
                        dispatch(run, *step.groups)
                        set_pipeline(run, of_projection)
                        set_bind_group(run, 0, projected[turn], 1, offsets + t)
                        dispatch(run, *projection.groups)
                        turn = 1 - turn
        functions.end_pass(run)
        y = self._ys[(self.spec.num_layers - 1) % 2]
        functions.copy(encoder, y, self.results, 0, self.y_bytes)
        functions.copy(encoder, self.h[self.last], self.results, self.y_bytes, self._h_all)
        if self.c is not None:
            at = self.y_bytes + self._h_all
            functions.copy(encoder, self.c, self.results, at, self._c_all)

    def submit(self, commands: Any) -> None:
        """Let the device read x, and run what was recorded."""
        self.device.functions.unmap(self._upload)
        self.device.queue.submit([commands])

    def read(self, take: Callable[[NDArray, NDArray, NDArray | None], T]) -> T:
        """Wait, and return ``take(y, h, c)``, whose arguments are valid in that call only.

        y is [T, B, .], h and c are [L*D, B, .]; c is None for networks without c.
        """
        functions = self.device.functions
        asked = [(self.results, READ), (self._upload, WRITE)]
        functions.map(self.device.native, asked, self.device.polls)
        nbytes = self.y_bytes + self._h_all + self._c_all
        taken = take(*self._views(functions.view(self.results, READ, nbytes)))
        # Not after an error: a helper may still copy. The buffers are not used again.
        functions.unmap(self.results)
        return taken

    def _views(self, data: NDArray) -> tuple[NDArray, NDArray, NDArray | None]:
        spec, state, batch = self.spec, self.state, self.batch
        y_size, count = self.y_bytes // 4, state.count
        states = y_size + self._h_all // 4
        y = data[:y_size].reshape(self.steps, batch, self.y_width)
        y = y[..., : spec.output_size * spec.num_directions]
        h = data[y_size:states].reshape(count, -1)[:, : state.h_bytes // 4]
        h = h.reshape(count, batch, -1)[..., : spec.output_size]
        if not self._c_all:
            return y, h, None
        c = data[states:].reshape(count, -1)[:, : state.c_bytes // 4]
        return y, h, c.reshape(count, batch, -1)


def _groups(tile: Tile, columns: int, rows: int) -> Groups:
    """Return the workgroups of a dispatch over ``columns`` by ``rows``."""
    across = -(-columns // (tile.lanes * tile.columns))
    down = -(-rows // tile.rows)
    return across, min(down, MAX_GROUPS), -(-down // MAX_GROUPS)
