"""Remember the arrays and the calls that were seen before, with what was found out about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ref

T = TypeVar("T")

MOST_REMEMBERED = 16
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
        if len(self._found) >= MOST_REMEMBERED:
            self.clear()
        known, kept = self._found, self._kept

        def forget(gone: ref[Any]) -> None:
            known.pop(identities, None)
            kept.pop(identities, None)

        kept[identities] = [ref(array, forget) for array in arrays if array is not None]
        known[identities] = found
        return found

    def clear(self) -> None:
        """Forget all sets."""
        self._found.clear()
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._found)


Signature = tuple[Any, ...]

MOST_CALLS = 1024
"""Number of known calls at which all are forgotten."""


class KnownCall(NamedTuple, Generic[T]):
    """A call that was checked: its plan while that lives, and what else is known ``about`` it."""

    plan: ref[T]
    about: Any


class KnownCalls(Generic[T]):
    """The plans of calls that were checked, by the signature of the call.

    Plans are referred to weakly: the plan cache decides how many are kept.
    """

    def __init__(self, most: int = MOST_CALLS) -> None:
        self._most = most
        self._calls: dict[Signature, KnownCall[T]] = {}
        # The dictionary's own, because it is on the path of every call.
        self.find: Callable[[Signature], KnownCall[T] | None] = self._calls.get
        """The call with a signature, or None."""

    def add(self, signature: Signature, plan: T, about: Any = None) -> None:
        """Remember a call that has passed all checks."""
        if len(self._calls) >= self._most:
            self._calls.clear()
        self._calls[signature] = KnownCall(ref(plan), about)

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()

    def __len__(self) -> int:
        return len(self._calls)
