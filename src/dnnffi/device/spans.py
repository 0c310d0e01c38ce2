"""Which memory does an argument take, and is what is written apart from the rest?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """An argument's memory: first address and bytes. No bytes for an argument that is None."""

    name: str
    address: int
    nbytes: int


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
