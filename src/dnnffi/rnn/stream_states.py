"""The states of an `RNNStream`: in device memory, in NumPy's arrays, and on a Vulkan adapter.

Each class owns the states of all rows. It runs a part of the sequences from them, for all rows or
for some, and a call that fails leaves them as they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from dnnffi.device.arrays import array_module, as_array
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.external.host import allocated_copy
from dnnffi.device.interface import AnyArray, Array, Stream
from dnnffi.device.spans import check_apart, check_writable, span_of, written_span
from dnnffi.errors import UnsupportedError
from dnnffi.execution.remembered import Remembered
from dnnffi.rnn import functions
from dnnffi.rnn.backend import DeviceRNNBackend, RNNBackend
from dnnffi.rnn.call import CallArrays
from dnnffi.rnn.executor_plan import WITHOUT_RESETS, ExecutorPlan
from dnnffi.rnn.packed import PackedRNN
from dnnffi.spec.options import DEFAULTS, RNNOptions
from dnnffi.spec.problem import BATCH_MAJOR, RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.weights import RNNWeights

Rows = tuple[int, ...] | None
"""Distinct rows of the batch; None for all of them in order."""

Values = tuple[AnyArray | None, AnyArray | None]
"""States h and c of some rows, [L, 1, .] for all of them or [L, rows, .]; None for zeros."""


class States(Protocol):
    """The states of all rows of a stream."""

    def plan(self, problem: RNNProblem) -> Any:
        """Prepare calls of these sizes."""

    def run(
        self, x: AnyArray, rows: Rows, plan: Any, y_shape: tuple[int, ...], out: AnyArray | None
    ) -> AnyArray:
        """Advance the states of ``rows`` by x, [rows, I] or a sequence; return y, or ``out``."""

    def array(self, name: str, value: object, shape: tuple[int, ...]) -> AnyArray:
        """Return ``value`` as an array that the states can be set to; errors name the argument."""

    def write(self, rows: Rows, values: Values) -> None:
        """Replace the states of ``rows``."""

    def read(self) -> tuple[AnyArray, ...]:
        """Return copies of h and, with a cell, of c."""

    def report(self, plan: Any) -> str:
        """Say what runs calls of these sizes."""


# In device memory


class RowRange(NamedTuple):
    """``length`` consecutive rows from ``row`` of the batch, and from ``place`` of a selection."""

    row: int
    place: int
    length: int


def row_ranges(rows: Iterable[int]) -> list[RowRange]:
    """Return a selection of rows as ranges, each of which is one copy."""
    ranges: list[RowRange] = []
    for place, row in enumerate(rows):
        if ranges and row == ranges[-1].row + ranges[-1].length:
            ranges[-1] = ranges[-1]._replace(length=ranges[-1].length + 1)
        else:
            ranges.append(RowRange(row, place, 1))
    return ranges


class _BufferPair:
    """Two buffers for the states of the same rows: a call reads one and writes the other.

    Kernels and libraries read h_0 while they write h_n, so that these cannot be one buffer. The
    addresses never change, so that the graphs of a size stay valid.
    """

    def __init__(self, backend: DeviceRNNBackend, spec: RNNSpec, batch: int) -> None:
        memory, dtype = backend.memory, backend.memory.dtype(spec.dtype)
        shapes = [spec.h_shape(batch), *([spec.c_shape(batch)] if spec.has_cell else [])]
        self._arrays = [[memory.empty(shape, dtype) for shape in shapes] for _ in range(2)]
        addresses = [[array.data.ptr for array in arrays] for arrays in self._arrays]
        self.current, self.next = ((at[0], at[1] if spec.has_cell else 0) for at in addresses)
        """The addresses of h and c that have the states, and of those that the next call writes."""

    def flip(self) -> None:
        """Make the buffers that the last call wrote the current ones."""
        self.current, self.next = self.next, self.current


class _Checked(NamedTuple):
    """The addresses of x and y, which were checked, and the shape of y."""

    x: int
    y: int
    y_shape: tuple[int, ...]


class DeviceStates:
    """States in device memory, for a backend with a library.

    ``_home`` has the states of all rows. A call for some rows gathers theirs into ``_selected``,
    where they stay while calls name the same rows. They are copied back when ``_home`` is needed.
    """

    def __init__(
        self,
        backend: DeviceRNNBackend,
        weights: RNNWeights,
        batch: int,
        device: int,
        options: RNNOptions,
    ) -> None:
        spec = weights.spec
        self._backend, self._spec, self._batch, self._device = backend, spec, batch, device
        self._memory = memory = backend.memory
        self._ndarray = memory.ndarray
        item_bytes = memory.dtype(spec.dtype).itemsize
        self._row_bytes = [spec.output_size * item_bytes]
        if spec.has_cell:
            self._row_bytes.append(spec.hidden_size * item_bytes)
        self._weights: Array = backend.native(weights, spec)
        plan = self.plan(RNNProblem.dense(spec, steps=1, batch=batch, options=options))
        self._parts = plan.parts
        self._weights_at = plan.arguments.weights(self._weights)
        self._arguments = plan.arguments
        self._call = CallArrays(backend, spec, device, plan.accepts, None, None, None, [])
        self._checked: Remembered[_Checked] = Remembered()
        """The arrays x and ``out`` of earlier calls."""
        self._rows: Rows = None
        """The rows whose states are in ``_selected``."""
        self._is_newer = False
        """Whether the states in ``_selected`` are newer than those in ``_home``."""
        self._selected: _BufferPair | None = None
        with memory.use(device):
            self._home = _BufferPair(backend, spec, batch)
            self.write(None, (None, None))

    def plan(self, problem: RNNProblem) -> ExecutorPlan:
        plan = self._backend.plan(problem, self._device, None)
        plan.finder.complete()
        return plan

    def run(
        self,
        x: AnyArray,
        rows: Rows,
        plan: ExecutorPlan,
        y_shape: tuple[int, ...],
        out: AnyArray | None,
    ) -> AnyArray:
        parts = plan.parts
        if parts.current_device() != self._device:
            with self._memory.use(self._device):
                return self.run(x, rows, plan, y_shape, out)
        y = out
        identities = id(x), id(out)
        known = self._checked.find(identities)
        if known is None or known.y_shape != y_shape:
            taken = x if plan.accepts(x, x.shape) else self._call.array("x", x, x.shape)
            if out is None:
                y = parts.empty(y_shape, parts.dtype)
                known = _Checked(taken.data.ptr, y.data.ptr, y_shape)
            else:
                known = _Checked(taken.data.ptr, self._checked_out(taken, out, y_shape), y_shape)
                if taken is x:
                    self._checked.add(identities, (x, out), known)
        pair = self._home if rows is None and self._rows is None else self._buffers_of(rows)
        (h_0, c_0), (h_n, c_n) = pair.current, pair.next
        stream = parts.current_stream()
        self._check_capture(stream)
        arrays = known.x, known.y, h_0, h_n, c_0, c_n, self._weights_at
        rest = 0, *WITHOUT_RESETS, 0
        self._is_newer = pair is not self._home  # first: an interrupt may come after the flip
        plan.launch_forward(plan.next_route(), stream, False, arrays, rest, keeps_workspace=True)
        pair.flip()
        return y

    def _checked_out(self, x: AnyArray, out: AnyArray, y_shape: tuple[int, ...]) -> int:
        """Return the address of ``out``."""
        y = out if out.__class__ is self._ndarray else as_array("out", out)
        _check_shape(y, y_shape)
        address = self._arguments.address("out", y, y.size)
        check_writable("out", y)
        check_apart([span_of("out", y)], [span_of("x", x), span_of("weights", self._weights)])
        return address

    def array(self, name: str, value: object, shape: tuple[int, ...]) -> AnyArray:
        return self._call.array(name, value, shape)

    def write(self, rows: Rows, values: Values) -> None:
        memory = self._memory
        self._parts.current_device()  # refuses in a forked process
        with memory.use(self._device):
            stream = memory.current_stream()
            self._check_capture(stream)
            if rows is not None:
                self._copy_back(stream)
            self._rows, self._is_newer = None, False
            ranges = row_ranges(range(self._batch) if rows is None else rows)
            for target, row_bytes, value in zip(
                self._home.current, self._row_bytes, values, strict=False
            ):
                if value is None:
                    self._clear(target, row_bytes, ranges, stream)
                else:
                    self._set(target, row_bytes, ranges, value, stream)

    def _clear(self, target: int, row_bytes: int, ranges: list[RowRange], stream: Stream) -> None:
        layers, batch = self._spec.num_layers, self._batch
        if ranges[0].length == batch:
            self._memory.clear(target, layers * batch * row_bytes, stream)
            return
        for layer in range(layers):
            for row, _, length in ranges:
                begin = target + (layer * batch + row) * row_bytes
                self._memory.clear(begin, length * row_bytes, stream)

    def _set(
        self,
        target: int,
        row_bytes: int,
        ranges: list[RowRange],
        value: AnyArray,
        stream: Stream,
    ) -> None:
        given, layers = value.shape[1], self._spec.num_layers
        if given == 1:  # the same for each row
            rows = [row + i for row, _, length in ranges for i in range(length)]
            ranges = [RowRange(row, 0, 1) for row in rows]
        for row, place, length in ranges:
            self._memory.copy_rows(
                target + row * row_bytes,
                self._batch * row_bytes,
                value.data.ptr + place * row_bytes,
                given * row_bytes,
                length * row_bytes,
                layers,
                stream,
            )

    def read(self) -> tuple[AnyArray, ...]:
        memory, spec = self._memory, self._spec
        self._parts.current_device()  # refuses in a forked process
        with memory.use(self._device):
            stream = memory.current_stream()
            self._check_capture(stream)
            self._copy_back(stream)
            dtype, copies = memory.dtype(spec.dtype), []
            shapes = spec.h_shape(self._batch), spec.c_shape(self._batch)
            # As many as there are states: one without a cell.
            for source, shape, _ in zip(self._home.current, shapes, self._row_bytes, strict=False):
                copy = memory.empty(shape, dtype)
                memory.copy(copy.data.ptr, source, copy.nbytes, stream)
                copies.append(copy)
        return tuple(copies)

    def report(self, plan: ExecutorPlan) -> str:
        return plan.report()

    def _buffers_of(self, rows: Rows) -> _BufferPair:
        """Return the buffers with the current states of ``rows``."""
        if rows is not None and rows == self._rows:
            assert self._selected is not None
            return self._selected
        stream = self._memory.current_stream()
        self._check_capture(stream)
        self._copy_back(stream)
        self._rows = None
        if rows is None:
            return self._home
        selected = self._selected
        if selected is None:
            selected = self._selected = _BufferPair(self._backend, self._spec, self._batch)
        self._copy(rows, selected.current, stream, is_gather=True)
        self._rows, self._is_newer = rows, False
        return selected

    def _copy_back(self, stream: Stream) -> None:
        """Bring the states of all rows up to date in ``_home``."""
        if self._is_newer and self._rows is not None and self._selected is not None:
            self._copy(self._rows, self._selected.current, stream, is_gather=False)
            self._is_newer = False

    def _copy(
        self, rows: tuple[int, ...], selected: tuple[int, int], stream: Stream, *, is_gather: bool
    ) -> None:
        """Enqueue the copies between ``_home`` and the buffers of a selection of rows."""
        homes, layers = self._home.current, self._spec.num_layers
        for row, place, length in row_ranges(rows):
            for home, other, row_bytes in zip(homes, selected, self._row_bytes, strict=False):
                at_home = home + row * row_bytes, self._batch * row_bytes
                in_selection = other + place * row_bytes, len(rows) * row_bytes
                target, source = (in_selection, at_home) if is_gather else (at_home, in_selection)
                self._memory.copy_rows(*target, *source, length * row_bytes, layers, stream)

    def _check_capture(self, stream: Stream) -> None:
        """Refuse a stream that the caller captures: which buffer has the states is known here."""
        if stream.ptr and self._memory.is_capturing(stream):
            raise UnsupportedError(
                "RNNStream",
                "",
                "a capture cannot record its calls, which alternate between two buffers of the "
                "state; capture an RNNPlan, with h_0 and h_n of your own",
            )


# On the host


class HostStates:
    """States in arrays of the module that made the weights, for the reference.

    The functions run it: they keep the plans. If it ``is_embedded``, new arrays that `run` returns
    are in memory of the user's allocator.
    """

    def __init__(
        self,
        backend: RNNBackend,
        weights: RNNWeights,
        batch: int,
        options: RNNOptions,
        *,
        is_embedded: bool = False,
    ) -> None:
        spec = weights.spec
        self._is_embedded = is_embedded
        self._spec, self._weights = spec, weights
        changed = set(options._asdict().items()) - set(DEFAULTS._asdict().items())
        self._options: Any = dict(changed) or None
        self._function = getattr(functions, spec.mode)
        self._call = CallArrays(backend, spec, 0, _takes_nothing, None, None, None, [])
        self._module = module = self._module_of(weights)
        self._dtype = dtype = dtype_object(spec.dtype)
        shapes = [spec.h_shape(batch), *([spec.c_shape(batch)] if spec.has_cell else [])]
        # Replaced as a whole: an interrupt finds h and c of the same step.
        self._states: tuple[AnyArray, ...] = tuple(module.zeros(shape, dtype) for shape in shapes)

    def _module_of(self, weights: RNNWeights) -> Any:
        return array_module(weights._buffer)

    def plan(self, problem: RNNProblem) -> RNNProblem:
        return problem

    def run(
        self,
        x: AnyArray,
        rows: Rows,
        plan: RNNProblem,
        y_shape: tuple[int, ...],
        out: AnyArray | None,
    ) -> AnyArray:
        if x.__class__ is not np.ndarray or x.dtype != self._dtype or self._module is not np:
            x = self.array("x", x, x.shape)
        target = None if out is None else self._checked_out(x, out, y_shape)
        sequence = x if x.ndim == 3 else x[None]
        y, after = self._run(sequence, rows, plan)
        if y.shape != y_shape:
            y = y[0]
        if target is not None:
            target[...] = y
        elif self._is_embedded:
            y = allocated_copy(y)  # the allocator may fail, which leaves the states as they were
        self._replace(rows, after if isinstance(after, tuple) else (after,))
        return y if target is None else out

    def _run(self, sequence: AnyArray, rows: Rows, problem: RNNProblem) -> tuple[Any, Any]:
        return self._function(
            *(sequence, self._states_of(rows), self._weights),
            batch_first=problem.layout == BATCH_MAJOR,
            backend="reference",
            options=self._options,
        )

    def _states_of(self, rows: Rows) -> Any:
        found = self._states
        if rows is not None:
            found = tuple(one.take(list(rows), axis=1) for one in found)
        return found if self._spec.has_cell else found[0]

    def _replace(self, rows: Rows, after: tuple[AnyArray, ...]) -> None:
        """Replace the states of ``rows`` by copies, since the user may change y, a view of them."""
        new = []
        for state, value in zip(self._states, after, strict=True):
            if rows is None and value.shape == state.shape:
                new.append(value.copy())
                continue
            copy = state.copy()
            copy[:, slice(None) if rows is None else list(rows)] = value
            new.append(copy)
        self._states = tuple(new)

    def _checked_out(self, x: AnyArray, out: AnyArray, y_shape: tuple[int, ...]) -> AnyArray:
        y, dtype = as_array("out", out), self._spec.dtype
        self._check_module("out", y)
        _check_shape(y, y_shape)
        if y.dtype.name != dtype:
            raise TypeError(f"out must have dtype {dtype}; got {y.dtype.name}")
        if not y.flags.c_contiguous:
            raise ValueError(f"out must be contiguous; its strides are {y.strides}")
        weights = span_of("weights", self._weights._buffer)
        check_apart([written_span("out", y)], [span_of("x", x), weights])
        return y

    def array(self, name: str, value: object, shape: tuple[int, ...]) -> AnyArray:
        array = self._call.array(name, value, shape)
        self._check_module(name, array)
        return array

    def _check_module(self, name: str, array: AnyArray) -> None:
        found, expected = array_module(array), self._module
        if found is not expected:
            raise TypeError(
                f"{name} must be an array of {expected.__name__}, as the states are; "
                f"got one of {found.__name__}"
            )

    def write(self, rows: Rows, values: Values) -> None:
        given = values[: len(self._states)]
        self._replace(rows, tuple(self._module.zeros(()) if one is None else one for one in given))

    def read(self) -> tuple[AnyArray, ...]:
        return tuple(one.copy() for one in self._states)

    def report(self, plan: RNNProblem) -> str:
        return f"{plan}\nthe NumPy reference; there is nothing to choose"


class PackedStates(HostStates):
    """States of a packed network: on its device, and copies on the host.

    While calls advance all rows, each begins with the states on the device.
    """

    def __init__(
        self,
        backend: RNNBackend,
        weights: RNNWeights,
        batch: int,
        options: RNNOptions,
        packed: PackedRNN,
    ) -> None:
        super().__init__(backend, weights, batch, options)
        self._packed = packed
        self._is_on_device = False
        """Whether the states on the device are those of all rows."""

    def _module_of(self, weights: RNNWeights) -> Any:
        return np

    def _run(self, sequence: AnyArray, rows: Rows, problem: RNNProblem) -> tuple[Any, Any]:
        # Until the call is done: after an interrupt the copies on the host are the states.
        is_on_device, self._is_on_device = self._is_on_device, False
        return self._packed.run(
            sequence,
            None if rows is None and is_on_device else self._states_of(rows),
            batch_first=problem.layout == BATCH_MAJOR,
            keep_state=rows is None,
            options=self._options,
        )

    def _replace(self, rows: Rows, after: tuple[AnyArray, ...]) -> None:
        super()._replace(rows, after)
        self._is_on_device = rows is None

    def write(self, rows: Rows, values: Values) -> None:
        super().write(rows, values)
        self._is_on_device = False

    def report(self, plan: RNNProblem) -> str:
        return f"{plan}\n{self._packed.device}, with the weights on the device"


def _check_shape(out: AnyArray, y_shape: tuple[int, ...]) -> None:
    if tuple(out.shape) != y_shape:
        raise ValueError(f"out must have shape {y_shape}; got {tuple(out.shape)}")


def _takes_nothing(array: object, shape: tuple[int, ...]) -> bool:
    """Let `CallArrays` check each array."""
    return False
