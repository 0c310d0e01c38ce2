"""Which memory does an argument take, and is what is written apart from the rest?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dnnffi.device.arrays import address
from dnnffi.device.interface import AnyArray


class Span(NamedTuple):
    """An argument's memory: first address and bytes. No bytes for an argument that is None."""

    name: str
    address: int
    nbytes: int


def span_of(name: str, array: AnyArray) -> Span:
    """All memory between an array's elements."""
    if not array.size:
        return Span(name, address(array), 0)
    steps = [step * (count - 1) for step, count in zip(array.strides, array.shape, strict=True)]
    below = sum(min(step, 0) for step in steps)
    return Span(name, address(array) + below, sum(map(abs, steps)) + array.dtype.itemsize)


def spans_of(names: Iterable[str], arrays: Iterable[AnyArray | None]) -> list[Span]:
    """Those of arrays, without the ones that are None. There may be fewer arrays than names."""
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
