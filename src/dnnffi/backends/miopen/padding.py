"""Zeros past the end of each row, which MIOpen does not write.

It leaves garbage there: its batch-major layout is transposed as a whole, and lengths that are not
descending are sorted (3.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.descriptors import TensorDescriptor
from dnnffi.backends.miopen.library import Library
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import BATCH_MAJOR, RNNProblem


class Rectangle(NamedTuple):
    """The steps from ``start`` to the end, of the rows from ``first`` to ``last`` - 1."""

    first: int
    last: int
    start: int


def rectangles(lengths: Sequence[int], steps: int) -> list[Rectangle]:
    """Return the padding of a batch as few rectangles as cover it: never more than rows.

    All rows from ``first`` to ``last`` have ended at ``start``, so that each rectangle but the
    widest ones lies on what a wider one leaves over.
    """
    found: list[Rectangle] = []
    todo = [(0, len(lengths), steps)]
    while todo:
        first, last, covered = todo.pop()
        start = max(lengths[first:last])
        if start < covered:
            found.append(Rectangle(first, last, start))
        begin = None
        for row in range(first, last + 1):
            ends_earlier = row < last and lengths[row] < start
            if ends_earlier and begin is None:
                begin = row
            elif not ends_earlier and begin is not None:
                todo.append((begin, row, start))
                begin = None
    return found


_ZERO = ffi.new("float *", 0.0)


class Padding:
    """The padding of ``y`` or ``dx`` of a problem, ``width`` elements a step."""

    def __init__(
        self, library: Library, problem: RNNProblem, width: int, own: Callable[[Any], Any]
    ) -> None:
        self._library = library
        self._problem = problem
        dtype, steps, batch = problem.spec.dtype, problem.steps, problem.batch
        self._parts = []
        for first, last, start in rectangles(problem.row_lengths, steps):
            rows, ended = last - first, steps - start
            if problem.layout == BATCH_MAJOR:
                shape, strides = (rows, ended, width), (steps * width, width, 1)
                offset = (first * steps + start) * width
            else:
                shape, strides = (ended, rows, width), (batch * width, width, 1)
                offset = (start * batch + first) * width
            part = own(TensorDescriptor(dtype, shape, strides, library=library))
            self._parts.append((part.pointer, offset * ITEM_SIZES[dtype]))

    def zero(self, handle: Any, address: int) -> None:
        """Queue the zeros (``miopenSetTensor``), into the array at ``address``."""
        for part, offset in self._parts:
            at = address + offset
            self._library.call("miopenSetTensor", handle, part, at, _ZERO, problem=self._problem)
