"""Execution of a problem in groups of rows, each of which is copied into arrays of its own.

Rows of a batch do not depend on each other. So a library that has no rows of length 0, or not as
many rows at once, runs the others, or some at a time. The results are those of one call, but for
the random numbers of dropout, which each group draws in its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate as running_sums
from itertools import groupby
from math import prod
from typing import NamedTuple

from dnnffi.backends.rnn_interface import (
    AddressExecutor,
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.interface import Launch, Memory, Stream
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import BATCH_MAJOR, PACKED, RNNProblem
from dnnffi.spec.sequences import lengths_to_batch_sizes

_ALIGNMENT_BYTES = 256


class RowGroup(NamedTuple):
    """Some rows of a batch, by their numbers in rising order, and the problem of these alone."""

    rows: tuple[int, ...]
    problem: RNNProblem


def row_groups(problem: RNNProblem, max_positions: int | None = None) -> list[RowGroup] | None:
    """Return the groups in which a library runs a problem; None if it takes the problem as it is.

    A group has no row of length 0. It has at most ``max_positions`` positions, which are the rows
    of all steps of its arrays; only a row that has more is a group of its own.

    Examples
    --------
    >>> from dnnffi.spec.rnn import RNNSpec
    >>> spec = RNNSpec(mode="gru", input_size=1, hidden_size=1)
    >>> problem = RNNProblem.dense(spec, steps=4, batch=5, lengths=[3, 0, 4, 0, 1])
    >>> [(group.rows, group.problem.lengths) for group in row_groups(problem)]
    [((0, 2, 4), (3, 4, 1))]
    >>> [group.rows for group in row_groups(problem, 8)]
    [(0, 2), (4,)]
    """
    is_small = max_positions is None or prod(problem.leading_shape) <= max_positions
    if is_small and (problem.lengths is None or min(problem.lengths) > 0):
        return None
    is_packed = problem.layout == PACKED
    groups: list[list[int]] = []
    rows: list[int] = []
    steps = positions = 0
    for row, length in enumerate(problem.row_lengths):
        if not length:
            continue
        steps = max(steps, length)
        positions = positions + length if is_packed else steps * (len(rows) + 1)
        if not rows or (max_positions is not None and positions > max_positions):
            rows, steps, positions = [], length, length
            groups.append(rows)
        rows.append(row)
    return [_group(problem, rows) for rows in groups]


def _group(problem: RNNProblem, rows: Sequence[int]) -> RowGroup:
    all_lengths = problem.row_lengths
    lengths = tuple(all_lengths[row] for row in rows)
    steps = max(lengths)
    is_full = min(lengths) == steps and problem.layout != PACKED
    of_rows = problem._replace(steps=steps, batch=len(rows), lengths=None if is_full else lengths)
    return RowGroup(tuple(rows), of_rows)


class Rectangle(NamedTuple):
    """Elements that a group's array has in common with the caller's: ``rows`` of ``width``.

    ``start`` and ``pitch`` are where the first row begins in the caller's array, and how far it is
    to the next; ``group_start`` and ``group_pitch`` the same in the group's. All are counted in
    positions, or in rows of a state.
    """

    start: int
    pitch: int
    group_start: int
    group_pitch: int
    width: int
    rows: int


def sequence_rectangles(problem: RNNProblem, group: RowGroup) -> list[Rectangle]:
    """Return the parts of x, and of what is like it, that belong to a group."""
    batch, steps = problem.batch, problem.steps
    group_batch, group_steps = group.problem.batch, group.problem.steps
    runs = list(_runs(group.rows))
    if problem.layout == PACKED:
        return list(_packed_rectangles(problem, group, runs))
    if problem.layout == BATCH_MAJOR:
        return [
            Rectangle(first * steps, steps, start * group_steps, group_steps, group_steps, count)
            for first, start, count in runs
        ]
    return [
        Rectangle(first, batch, start, group_batch, count, group_steps)
        for first, start, count in runs
    ]


def state_rectangles(problem: RNNProblem, group: RowGroup) -> list[Rectangle]:
    """Return the parts of a state [L*D, B, .] that belong to a group."""
    layers = problem.h_shape[0]
    return [
        Rectangle(first, problem.batch, start, group.problem.batch, count, layers)
        for first, start, count in _runs(group.rows)
    ]


def _runs(rows: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of consecutive rows: the first row, its index in the group, and their number."""
    for _, run in groupby(enumerate(rows), lambda pair: pair[1] - pair[0]):
        indexed = list(run)
        index, first = indexed[0]
        yield first, index, len(indexed)


def _packed_rectangles(
    problem: RNNProblem, group: RowGroup, runs: list[tuple[int, int, int]]
) -> Iterator[Rectangle]:
    """Yield the parts of packed rows: one for consecutive steps with the same number of rows."""
    sizes = lengths_to_batch_sizes(problem.row_lengths)
    group_sizes = lengths_to_batch_sizes(group.problem.row_lengths)
    start = group_start = 0
    # The group may have fewer steps than the batch.
    for (size, group_size), steps in groupby(zip(sizes, group_sizes, strict=False)):
        num_steps = len(list(steps))
        for first, index, count in runs:
            width = min(count, size - first)
            if width > 0:
                yield Rectangle(
                    start + first, size, group_start + index, group_size, width, num_steps
                )
        start += num_steps * size
        group_start += num_steps * group_size


class _Copies:
    """Copies between the caller's array and the one of a group, by ``rectangles``.

    A position, or a row of a state, has ``nbytes`` bytes. An array may be missing: address 0.
    """

    def __init__(self, rectangles: Iterable[Rectangle], nbytes: int, memory: Memory) -> None:
        self._copy_rows = memory.copy_rows
        self._in_bytes = [
            Rectangle._make([*(nbytes * count for count in one[:-1]), one.rows])
            for one in rectangles
        ]

    def gather(self, stream: Stream, array: int, of_group: int) -> None:
        """Enqueue the copies to the group's array."""
        if not array:
            return
        for start, pitch, group_start, group_pitch, width, rows in self._in_bytes:
            ends = of_group + group_start, group_pitch, array + start, pitch
            self._copy_rows(*ends, width, rows, stream)

    def scatter(self, stream: Stream, array: int, of_group: int) -> None:
        """Enqueue the copies from the group's array."""
        if not array:
            return
        for start, pitch, group_start, group_pitch, width, rows in self._in_bytes:
            ends = array + start, pitch, of_group + group_start, group_pitch
            self._copy_rows(*ends, width, rows, stream)


class GroupArrays(NamedTuple):
    """Addresses of the arrays of a group in the workspace.

    dx shares the memory of x, dh_n that of h_n, and dc_n that of c_n: no call uses both.
    ``workspace`` is the one of the group's executor.
    """

    x: int
    y: int
    dy: int
    h_0: int
    h_n: int
    dh_0: int
    c_0: int
    c_n: int
    dc_0: int
    workspace: int


class _Part:
    """A group: its executor, and the copies and offsets of its arrays."""

    def __init__(
        self, problem: RNNProblem, group: RowGroup, executor: AddressExecutor, memory: Memory
    ) -> None:
        self.executor = executor
        item, of_group = ITEM_SIZES[problem.spec.dtype], group.problem
        sequences, states = sequence_rectangles(problem, group), state_rectangles(problem, group)
        self.x = _Copies(sequences, problem.x_shape[-1] * item, memory)
        self.y = _Copies(sequences, problem.y_shape[-1] * item, memory)
        self.h = _Copies(states, problem.h_shape[-1] * item, memory)
        self.c = _Copies(states, problem.c_shape[-1] * item, memory)
        x, y, h, c = (
            _aligned(prod(shape) * item)
            for shape in (of_group.x_shape, of_group.y_shape, of_group.h_shape, of_group.c_shape)
        )
        c *= of_group.spec.has_cell
        is_training = of_group.training
        sizes = x, y, y * is_training, h, h, h * is_training, c, c, c * is_training
        self._offsets = tuple(running_sums(sizes, initial=0))
        self.workspace_bytes = self._offsets[-1] + executor.workspace_bytes

    def arrays(self, workspace: int) -> GroupArrays:
        """Return the addresses of the group's arrays."""
        return GroupArrays(*(workspace + offset for offset in self._offsets))


class GroupedRNNExecutor(AddressExecutor):
    """One problem on executors of groups of its rows, one after the other.

    ``make`` makes the executor of a group's problem. The workspace has the arrays of a group, and
    the reserve space a part for each group.
    """

    def __init__(
        self,
        problem: RNNProblem,
        groups: Sequence[RowGroup],
        make: Callable[[RNNProblem], AddressExecutor],
        memory: Memory,
    ) -> None:
        self.problem, self._memory = problem, memory
        self._parts: list[_Part] = []
        try:
            for group in groups:
                self._parts.append(_Part(problem, group, make(group.problem), memory))
        except BaseException:
            self.close()
            raise
        executors = [part.executor for part in self._parts]
        first = executors[0]
        self.device, self.algorithm = first.device, first.algorithm
        self.weight_size, self.generator = first.weight_size, first.generator
        self.workspace_bytes = max(part.workspace_bytes for part in self._parts)
        self.least_workspace_bytes = self.workspace_bytes
        sizes = [_aligned(one.reserve_bytes) for one in executors]
        *self._reserves, self.reserve_bytes = running_sums(sizes, initial=0)
        item = ITEM_SIZES[problem.spec.dtype]
        self._x_bytes, self._y_bytes, self._h_bytes, self._c_bytes = (
            prod(shape) * item
            for shape in (problem.x_shape, problem.y_shape, problem.h_shape, problem.c_shape)
        )
        self._has_empty_rows = sum(len(group.rows) for group in groups) < problem.batch
        self._has_padding = self._has_empty_rows or any(
            group.problem.steps < problem.steps for group in groups
        )

    def forward(self, launch: Launch, at: ForwardAddresses) -> None:
        stream = launch.stream
        self._fill(stream, at.y, self._y_bytes, (at.h_0, at.h_n), (at.c_0, at.c_n))
        for part, reserve in zip(self._parts, self._reserves, strict=True):
            if self.generator is not None and part is not self._parts[0]:
                self.generator.begin_use(launch)
            arrays = part.arrays(at.workspace)
            part.x.gather(stream, at.x, arrays.x)
            part.h.gather(stream, at.h_0, arrays.h_0)
            part.c.gather(stream, at.c_0, arrays.c_0)
            of_group = ForwardAddresses(
                x=arrays.x,
                y=arrays.y,
                h_0=at.h_0 and arrays.h_0,
                h_n=at.h_n and arrays.h_n,
                c_0=at.c_0 and arrays.c_0,
                c_n=at.c_n and arrays.c_n,
                weights=at.weights,
                workspace=arrays.workspace,
                reserve=at.reserve and at.reserve + reserve,
            )
            part.executor.forward(launch, of_group)
            part.y.scatter(stream, at.y, arrays.y)
            part.h.scatter(stream, at.h_n, arrays.h_n)
            part.c.scatter(stream, at.c_n, arrays.c_n)

    def backward_data(self, launch: Launch, at: BackwardDataAddresses) -> None:
        stream = launch.stream
        self._fill(stream, at.dx, self._x_bytes, (at.dh_n, at.dh_0), (at.dc_n, at.dc_0))
        for part, reserve in zip(self._parts, self._reserves, strict=True):
            arrays = part.arrays(at.workspace)
            part.y.gather(stream, at.y, arrays.y)
            part.y.gather(stream, at.dy, arrays.dy)
            part.h.gather(stream, at.h_0, arrays.h_0)
            part.h.gather(stream, at.dh_n, arrays.h_n)
            part.c.gather(stream, at.c_0, arrays.c_0)
            part.c.gather(stream, at.dc_n, arrays.c_n)
            of_group = BackwardDataAddresses(
                y=arrays.y,
                h_0=at.h_0 and arrays.h_0,
                c_0=at.c_0 and arrays.c_0,
                weights=at.weights,
                dy=arrays.dy,
                dh_n=at.dh_n and arrays.h_n,
                dc_n=at.dc_n and arrays.c_n,
                dx=arrays.x,
                dh_0=at.dh_0 and arrays.dh_0,
                dc_0=at.dc_0 and arrays.dc_0,
                workspace=arrays.workspace,
                reserve=at.reserve + reserve,
            )
            part.executor.backward_data(launch, of_group)
            part.x.scatter(stream, at.dx, arrays.x)
            part.h.scatter(stream, at.dh_0, arrays.dh_0)
            part.c.scatter(stream, at.dc_0, arrays.dc_0)

    def backward_weights(
        self, launch: Launch, at: BackwardWeightsAddresses, accumulate: bool = False
    ) -> None:
        stream, is_added = launch.stream, accumulate
        for part, reserve in zip(self._parts, self._reserves, strict=True):
            arrays = part.arrays(at.workspace)
            part.x.gather(stream, at.x, arrays.x)
            part.y.gather(stream, at.y, arrays.y)
            part.h.gather(stream, at.h_0, arrays.h_0)
            of_group = BackwardWeightsAddresses(
                x=arrays.x,
                h_0=at.h_0 and arrays.h_0,
                y=arrays.y,
                dweights=at.dweights,
                workspace=arrays.workspace,
                reserve=at.reserve + reserve,
            )
            part.executor.backward_weights(launch, of_group, is_added)
            is_added = True

    def close(self) -> None:
        """Close the executors of the groups."""
        for part in self._parts:
            part.executor.close()

    def _fill(
        self,
        stream: Stream,
        padded: int,
        nbytes: int,
        h: tuple[int, int],
        c: tuple[int, int],
    ) -> None:
        """Fill results as if no row had a step: y or dx with zeros, a state with its source."""
        memory = self._memory
        if self._has_padding:
            memory.clear(padded, nbytes, stream)
        if self._has_empty_rows:
            for (source, target), nbytes in ((h, self._h_bytes), (c, self._c_bytes)):
                if target and source:
                    memory.copy(target, source, nbytes, stream)
                elif target:
                    memory.clear(target, nbytes, stream)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
