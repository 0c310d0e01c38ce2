"""Spans of memory that arguments occupy, and the check that outputs overlap nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from dnnffi.device.arrays import address
from dnnffi.device.interface import AnyArray

MAX_OVERLAP_CANDIDATES = 1_000_000
"""Candidate solutions that NumPy tries to find a byte that two arrays share.

The problem is NP-hard, but arrays whose dimensions are nested take a few candidates.
"""


class Elements(NamedTuple):
    """The places of an array's elements: address of the first one, and strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's description. NumPy reads no memory by it, which may be that of a device."""
        return {
            "shape": self.shape,
            "strides": self.strides,
            "typestr": f"|V{self.itemsize}",
            "data": (self.address, True),
            "version": 3,
        }


class Span(NamedTuple):
    """An argument's memory: first address and bytes. No bytes for an argument that is None.

    ``elements`` are given for an array that may have gaps; without them every byte counts.
    """

    name: str
    address: int
    nbytes: int
    elements: Elements | None = None


def span_of(name: str, array: AnyArray) -> Span:
    """Return the span from the lowest to the highest address of an array's elements."""
    first = address(array)
    if not array.size:
        return Span(name, first, 0)
    if array.flags.c_contiguous:
        return Span(name, first, array.nbytes)
    shape, strides, itemsize = tuple(array.shape), tuple(array.strides), array.dtype.itemsize
    steps = [step * (count - 1) for step, count in zip(strides, shape, strict=True)]
    below = sum(min(step, 0) for step in steps)
    elements = Elements(first, shape, strides, itemsize)
    return Span(name, first + below, sum(map(abs, steps)) + itemsize, elements)


def check_writable(name: str, array: AnyArray) -> None:
    """Raise ``ValueError`` for an array that says that it is read-only; CuPy's do not tell."""
    if not getattr(array.flags, "writeable", True):
        raise ValueError(f"{name} must be writable; it is read-only")


def written_span(name: str, array: AnyArray) -> Span:
    """Return the span of an array that a call writes.

    Raises ``ValueError`` if it says that it is read-only, or if two of its elements share memory,
    as in arrays of ``as_strided`` and ``broadcast_to``.
    """
    check_writable(name, array)
    span = span_of(name, array)
    if not array.flags.c_contiguous and _overlaps_itself(array, span.nbytes):
        raise ValueError(
            f"{name} must not overlap itself: it is written; it has shape {tuple(array.shape)} and "
            f"strides {tuple(array.strides)}"
        )
    return span


def _overlaps_itself(array: AnyArray, nbytes: int) -> bool:
    """Whether two elements of an array, which spans ``nbytes``, share memory."""
    item = array.dtype.itemsize
    pairs = zip(array.strides, array.shape, strict=True)
    steps = sorted((abs(step), count) for step, count in pairs if count > 1)
    extent = item
    for step, count in steps:
        if step < extent:
            break
        extent += step * (count - 1)
    else:
        return False  # each dimension steps over all that is inside
    if array.size == 0:
        return False
    if nbytes < array.size * item:
        return True
    # Dimensions that interleave: there are no more elements than memory, so they can be counted.
    offsets = np.zeros(1, np.int64)
    for step, count in steps:
        offsets = (offsets[:, None] + step * np.arange(count)).reshape(-1)
    return bool((np.diff(np.sort(offsets)) < item).any())


def spans_of(names: Iterable[str], arrays: Iterable[AnyArray | None]) -> list[Span]:
    """Return the spans of arrays that are not None. There may be fewer arrays than names."""
    pairs = zip(names, arrays, strict=False)
    return [span_of(name, array) for name, array in pairs if array is not None]


def check_apart(written: Iterable[Span], read: Iterable[Span]) -> None:
    """Raise ``ValueError`` where memory that is written is also another argument's.

    An argument may be in gaps of another.
    """
    spans = [(span, True) for span in written] + [(span, False) for span in read]
    spans.sort(key=lambda pair: pair[0].address)
    before: list[tuple[Span, bool]] = []
    for span, is_written in spans:
        if not span.nbytes:
            continue
        before = [pair for pair in before if pair[0].address + pair[0].nbytes > span.address]
        for other, other_is_written in before:
            if is_written or other_is_written:
                _check_apart(span, other)
        before.append((span, is_written))


def _check_apart(span: Span, other: Span) -> None:
    """Raise ``ValueError`` unless no byte is in both of two spans that intersect."""
    names = f"{span.name} and {other.name}"
    if span.elements is not None or other.elements is not None:
        one, two = (np.asarray(each.elements or _all_bytes(each)) for each in (span, other))
        try:
            # NumPy's annotation has no numbers of candidates.
            most: Any = MAX_OVERLAP_CANDIDATES
            if not np.shares_memory(one, two, max_work=most):
                return
        except np.exceptions.TooHardError:
            raise ValueError(
                f"{names} must be in separate memory: one is written, and with strides "
                f"{one.strides} and {two.strides} it takes too long to find out whether they share "
                f"any; copy one of them"
            ) from None
    raise ValueError(f"{names} must not share memory: one is written")


def _all_bytes(span: Span) -> Elements:
    return Elements(span.address, (span.nbytes,), (1,), 1)
