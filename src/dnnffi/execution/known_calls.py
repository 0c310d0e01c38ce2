"""Known calls: find the plan of a call like an earlier one, and skip most checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ref

T = TypeVar("T")
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
