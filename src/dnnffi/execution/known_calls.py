"""Known calls: find the plan of a call like an earlier one, and skip most checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ref

T = TypeVar("T")
Signature = tuple[Any, ...]

MOST_CALLS = 1024
"""Calls that are known before they are forgotten all at once."""


class KnownCall(NamedTuple, Generic[T]):
    """A call that was checked: its plan while that lives, and what else is known ``about`` it."""

    plan: ref[T]
    about: Any


class KnownCalls(Generic[T]):
    """The plans of calls that were checked, by all that was checked of them.

    Plans are referred to weakly: how many there are is the plan cache's business.
    """

    def __init__(self, most: int = MOST_CALLS) -> None:
        self._most = most
        self._known: dict[Signature, KnownCall[T]] = {}
        # The dictionary's own, because it is on the path of every call.
        self.find: Callable[[Signature], KnownCall[T] | None] = self._known.get
        """The call with a signature, or None."""

    def add(self, signature: Signature, plan: T, about: Any = None) -> None:
        """Know a call from now on. It has passed all checks."""
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[signature] = KnownCall(ref(plan), about)

    def clear(self) -> None:
        """Forget all calls."""
        self._known.clear()

    def __len__(self) -> int:
        return len(self._known)
