"""Spans of memory that arguments occupy, and the check that outputs overlap nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dnnffi.device.arrays import address
from dnnffi.device.interface import AnyArray


class Span(NamedTuple):
    """An argument's memory: first address and bytes. No bytes for an argument that is None."""

    name: str
    address: int
    nbytes: int


def span_of(name: str, array: AnyArray) -> Span:
    """Return the span from the lowest to the highest address of an array's elements."""
    if not array.size:
        return Span(name, address(array), 0)
    steps = [step * (count - 1) for step, count in zip(array.strides, array.shape, strict=True)]
    below = sum(min(step, 0) for step in steps)
    return Span(name, address(array) + below, sum(map(abs, steps)) + array.dtype.itemsize)


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
    """Raise ``ValueError`` where memory that is written is also another argument's."""
    spans = [(*span, True) for span in written] + [(*span, False) for span in read]
    spans.sort(key=lambda span: span[1])
    last_name, last_end, last_written = "", 0, False
    for name, start, nbytes, is_written in spans:
        if not nbytes:
            continue
        if start < last_end and (is_written or last_written):
            raise ValueError(f"{name} and {last_name} must not share memory: one is written")
        if start + nbytes > last_end:
            last_name, last_end, last_written = name, start + nbytes, is_written
