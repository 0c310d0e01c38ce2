"""Remember which arrays were seen before, and the facts that were found out about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")

MAX_REMEMBERED = 16
"""Number of remembered sets of arrays at which all are forgotten."""


class Remembered(Generic[T]):
    """Findings about sets of arrays, for as long as all of them live.

    Callers use the same buffers many times, and checking them takes longer than a C call. A set is
    known by the identities of its arrays, ``tuple(map(id, arrays))``. They are referred to weakly,
    so that nothing here keeps an array of a caller alive. A set is forgotten with its first array
    that is collected, before another object can have the same identity.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, ...], T] = {}
        self._kept: dict[tuple[int, ...], list[ref[Any]]] = {}
        # The dictionary's own, because it is on the path of every call.
        self.find: Callable[[tuple[int, ...]], T | None] = self._found.get
        """Return the finding about arrays with these identities, or None."""

    def add(self, identities: tuple[int, ...], arrays: tuple[Any, ...], found: T) -> T:
        """Remember the facts ``found`` about ``arrays``, of which some may be None."""
        if len(self._found) >= MAX_REMEMBERED:
            self.clear()
        known, kept = self._found, self._kept

        def forget(gone: ref[Any]) -> None:
            known.pop(identities, None)
            kept.pop(identities, None)

        references = [ref(array, forget) for array in arrays if array is not None]
        known[identities] = found  # first: what `clear` leaves without references would stay
        kept[identities] = references
        return found

    def clear(self) -> None:
        """Forget all sets."""
        self._found.clear()
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._found)
