"""A network whose weights are on the device, run in one command buffer that is submitted once.

Buffers belong to one call at a time, which takes them and puts them back: threads need no lock.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from dnnffi.backends.rnn_interface import ResetArrays
from dnnffi.backends.vulkan.copies import Copy
from dnnffi.backends.vulkan.device import Device
from dnnffi.backends.vulkan.native import Functions
from dnnffi.backends.vulkan.packing import pack_matrix, pack_rows, unpack_matrix, vectors
from dnnffi.backends.vulkan.sequence import DirectionWeights, Sequence, State
from dnnffi.backends.vulkan.tiles import MAX_TURNS
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import NDArray
from dnnffi.errors import VulkanError
from dnnffi.execution.locks import TryLock
from dnnffi.reference.layout import Layout
from dnnffi.spec.problem import BATCH_MAJOR, PACKED, RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import lengths_to_batch_sizes

MAX_IDLE = 4
"""Sizes of sequences whose buffers are kept for a next call."""


class VulkanNetwork:
    """A network with its weights on an adapter: `dnnffi.backends.rnn_interface.PackedNetwork`."""

    def __init__(self, spec: RNNSpec, arrays: list[NDArray], device: Device) -> None:
        """Upload ``arrays``, on the host, in PyTorch's order; shapes and dtypes were checked."""
        self.spec, self.device = spec, device
        self._weights: list[DirectionWeights] = []
        parts: dict[str, Any] = {}
        for array, (layer, _, name, _) in zip(arrays, spec.parameter_shapes(), strict=True):
            if name == "w_ih" and parts:
                self._add(parts)
            parts[name] = self._upload(f"{name} of layer {layer}", array)
        self._add(parts)
        self._idle: list[Sequence] = []
        self._kept: _Kept | None = None
        self._spare: _Kept | None = None
        """The buffers for the next states to keep, if there are any."""
        self._try_lock = TryLock()

    def _add(self, parts: dict[str, Any]) -> None:
        self._weights.append(DirectionWeights(**parts))
        parts.clear()

    def _upload(self, what: str, array: NDArray) -> Any:
        data = pack_matrix(array) if array.ndim == 2 else array.astype(np.float32)
        if data.nbytes > self.device.max_binding_bytes:
            raise self.device.unsupported(
                f"{what} takes {data.nbytes} bytes; this adapter binds at most "
                f"{self.device.max_binding_bytes} (max-storage-buffer-binding-size)"
            )
        if self.device.cpu and array.ndim == 2 and vectors(array.shape[1]) >= MAX_TURNS:
            raise self.device.unsupported(
                f"{what} has rows of {array.shape[1]} elements; on a CPU they have at most "
                f"{4 * (MAX_TURNS - 1)}"
            )
        usage = self.device.usage
        buffer = self.device.buffer(
            what, data.nbytes, usage.STORAGE | usage.COPY_DST | usage.COPY_SRC
        )
        with self.device.errors(f"uploading {what}"):
            self.device.queue.write_buffer(buffer, 0, np.ascontiguousarray(data))
        return buffer, 0, data.nbytes

    def arrays(self) -> list[NDArray]:
        """Return the arrays that were packed, read from the device."""
        spec, dtype = self.spec, dtype_object(self.spec.dtype)
        found = []
        for layer, direction, name, shape in spec.parameter_shapes():
            weights = self._weights[layer * spec.num_directions + direction]
            buffer, _, nbytes = getattr(weights, name)
            with self.device.errors(f"reading {name} of layer {layer}"):
                data = self.device.queue.read_buffer(buffer, 0, nbytes)
            if len(shape) == 1:
                found.append(np.frombuffer(data, np.float32).astype(dtype))
            else:
                found.append(unpack_matrix(data, shape, dtype))
        return found

    def run(
        self,
        problem: RNNProblem,
        x: NDArray,
        h_0: NDArray | None,
        c_0: NDArray | None,
        keep: bool = False,
        resets: ResetArrays | None = None,
    ) -> tuple[NDArray, NDArray, NDArray | None]:
        """Return (y, h_n, c_n) of a problem of this spec.

        With ``keep`` it starts from the kept state unless states are given, and keeps the last one.
        """
        if not keep:
            return self._run(problem, x, h_0, c_0, keep, resets)
        with self._try_lock.take() as mine:
            if not mine:
                raise ValueError(
                    "another thread runs this context with keep_state=True; the state is of one "
                    "sequence after the other"
                )
            return self._run(problem, x, h_0, c_0, keep, resets)

    def _run(
        self,
        problem: RNNProblem,
        x: NDArray,
        h_0: NDArray | None,
        c_0: NDArray | None,
        keep: bool,
        resets: ResetArrays | None,
    ) -> tuple[NDArray, NDArray, NDArray | None]:
        device = self.device
        before = self._kept
        if keep and h_0 is None and before is not None and before.batch != problem.batch:
            raise ValueError(
                f"x has {problem.batch} rows, and the kept state {before.batch}; give initial "
                f"states, or call reset() first"
            )
        with device.errors("running {}", problem):
            sequence = self._take(problem, resets)
            copy = sequence.write_x(_time_major(problem, x))
            self._write_lengths(sequence, problem)
            if resets is None:
                self._write_states(sequence, h_0, c_0)
            else:
                self._write_resets(sequence, problem, resets, h_0, c_0)
            encoder = device.native.create_command_encoder()
            self._begin(sequence, encoder, h_0, keep)
            sequence.encode(encoder)
            kept = self._keep(sequence, encoder) if keep else None
            commands = encoder.finish()
            copy.finish()
            sequence.submit(commands)
            results = self._read(sequence, problem)
        if keep:  # not before: a call that fails leaves the kept state as it was
            self._kept, self._spare = kept, before
        self._put_back(sequence)
        return results

    def forget(self) -> None:
        """Forget the kept state."""
        self._kept = None

    def _take(self, problem: RNNProblem, resets: ResetArrays | None) -> Sequence:
        """Return buffers for a problem: those that an earlier call has put back, or new ones."""
        reset_rows = 0
        if resets is not None:
            _, h, _ = resets
            reset_rows = 1 if h is None else int(h.shape[1])
        key = problem.steps, problem.batch, problem.options.algorithm, reset_rows
        found = self._find(key)
        if found is not None:
            return found
        if self._idle:
            try:
                return Sequence(self.device, self.spec, self._weights, *key)
            except VulkanError:
                # Perhaps there is no memory because of the buffers of other sizes.
                self._idle.clear()
            # Errors of wgpu refer to themselves, and so keep the buffers made before them.
            gc.collect()
        return Sequence(self.device, self.spec, self._weights, *key)

    def _find(self, key: tuple[int, int, str, int]) -> Sequence | None:
        for one in reversed(list(self._idle)):
            if one.key == key:
                try:
                    self._idle.remove(one)
                except ValueError:  # another thread was faster
                    continue
                return one
        return None

    def _put_back(self, sequence: Sequence) -> None:
        self._idle.append(sequence)
        del self._idle[:-MAX_IDLE]

    def _write_lengths(self, sequence: Sequence, problem: RNNProblem) -> None:
        lengths = problem.row_lengths
        if lengths != sequence.row_lengths:
            sequence.write_lengths(np.array(lengths))
            sequence.row_lengths = lengths

    def _write_states(self, sequence: Sequence, h_0: NDArray | None, c_0: NDArray | None) -> None:
        write, state = self.device.queue.write_buffer, sequence.state
        if h_0 is not None:
            write(sequence.h[0], 0, _slots(pack_rows(h_0), state.h_slot))
        if c_0 is not None:
            write(sequence.c, 0, _slots(c_0.astype(np.float32), state.c_slot))

    def _write_resets(
        self,
        sequence: Sequence,
        problem: RNNProblem,
        resets: ResetArrays,
        h_0: NDArray | None,
        c_0: NDArray | None,
    ) -> None:
        """Upload the flags, and initial states, or zeros, with those that replace others."""
        flags, h, c = resets
        borders = _time_major(problem, flags[..., None] != 0)[..., 0] != 0
        sequence.write_flags(np.array(problem.row_lengths), borders)
        write, state, spec = self.device.queue.write_buffer, sequence.state, self.spec
        rows = pack_rows(_with_reset_rows(h_0, h, spec.h_shape(problem.batch)))
        table = _slots(rows, state.h_slot)
        for buffer in sequence.h:
            write(buffer, 0, table)
        if sequence.c is not None:
            rows = _with_reset_rows(c_0, c, spec.c_shape(problem.batch))
            write(sequence.c, 0, _slots(rows, state.c_slot))

    def _begin(self, sequence: Sequence, encoder: Any, h_0: NDArray | None, keep: bool) -> None:
        """Enqueue the initial states of a call that gives none: those that were kept, or zeros."""
        if h_0 is not None:
            return
        kept = self._kept if keep else None
        if kept is not None:
            kept.copy(encoder, sequence, out=False)
            return
        if sequence.reset_rows:  # zeros were uploaded with the states that replace others
            return
        encoder.clear_buffer(sequence.h[0])
        if sequence.c is not None:
            encoder.clear_buffer(sequence.c)

    def _keep(self, sequence: Sequence, encoder: Any) -> _Kept:
        kept = self._spare
        if kept is None or kept.batch != sequence.batch:
            kept = _Kept(State(self.device, self.spec, sequence.batch), self.device.functions)
        kept.copy(encoder, sequence, out=True)
        return kept

    def _read(
        self, sequence: Sequence, problem: RNNProblem
    ) -> tuple[NDArray, NDArray, NDArray | None]:
        dtype = dtype_object(self.spec.dtype)

        def take(
            y: NDArray, h_n: NDArray, c_n: NDArray | None
        ) -> tuple[NDArray, NDArray, NDArray | None]:
            with np.errstate(all="ignore"):  # float16 has infinity for larger numbers
                return (
                    _original(problem, y, dtype, sequence),
                    h_n.astype(dtype),
                    None if c_n is None else c_n.astype(dtype),
                )

        return sequence.read(take)


class _Kept:
    """The states that a call left for the next one, in buffers of their own."""

    def __init__(self, state: State, functions: Functions) -> None:
        self.batch = state.batch
        self._state, self._functions = state, functions
        self._h, self._c = state.h_buffer(), state.c_buffer()

    def copy(self, encoder: Any, sequence: Sequence, *, out: bool) -> None:
        """Enqueue copies into the buffers of a call, or with ``out`` from them."""
        pairs = [(self._h, sequence.h[sequence.last if out else 0]), (self._c, sequence.c)]
        for (own, other), parts in zip(pairs, self._parts(sequence), strict=True):
            if own is None:
                continue
            for own_offset, other_offset, nbytes in parts:
                source, target = (own, own_offset), (other, other_offset)
                if out:
                    source, target = target, source
                self._functions.copy(encoder, source[0], *target, nbytes, source[1])

    def _parts(self, sequence: Sequence) -> tuple[list[tuple[int, int, int]], ...]:
        """Return the parts of h and of c to copy: offset here, offset in the sequence, bytes.

        The slots of a sequence with resets also contain states that replace others. They must not
        be overwritten.
        """
        own, other = self._state, sequence.state
        if not sequence.reset_rows:
            return [(0, 0, own.count * own.h_slot)], [(0, 0, own.count * own.c_slot)]
        slots = range(own.count)
        return (
            [(k * own.h_slot, k * other.h_slot, own.h_bytes) for k in slots],
            [(k * own.c_slot, k * other.c_slot, own.c_bytes) for k in slots],
        )


def _with_reset_rows(first: NDArray | None, others: NDArray | None, shape: Any) -> NDArray:
    """Return initial states of ``shape`` [L*D, B, .] in float32, then rows that replace others."""
    if others is None:
        others = np.zeros((shape[0], 1, shape[2]), np.float32)
    if first is None:
        first = np.zeros(shape, np.float32)
    return np.concatenate([first, others], axis=1, dtype=np.float32)


def _slots(array: NDArray, slot: int) -> NDArray:
    """Return [L*D, B, .] with each [B, .] filled up to ``slot`` bytes."""
    table = np.zeros((array.shape[0], slot // 4), np.float32)
    table[:, : array[0].size] = array.reshape(array.shape[0], -1)
    return table


def _layout(problem: RNNProblem, x: NDArray) -> Layout:
    return Layout.of(np, x.shape, False, None, lengths_to_batch_sizes(problem.row_lengths))


def _time_major(problem: RNNProblem, x: NDArray) -> NDArray:
    if problem.layout == PACKED:
        return _layout(problem, x).time_major(x)
    return x.swapaxes(0, 1) if problem.layout == BATCH_MAJOR else x


def _original(problem: RNNProblem, y: NDArray, dtype: np.dtype[Any], owner: Any) -> NDArray:
    """Return a copy of y [T, B, .], whose memory ``owner`` has, in the layout of x."""
    if problem.layout == PACKED:
        return _layout(problem, y).original(y).astype(dtype)
    if problem.layout == BATCH_MAJOR:
        y = y.swapaxes(0, 1)
    copy = np.empty(y.shape, dtype)
    Copy(copy, y, owner).finish()
    return copy
