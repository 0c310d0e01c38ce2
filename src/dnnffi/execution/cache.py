"""Objects made once and shared, safe between threads, signal handlers and forks, without locks.

Each change is one step of a dictionary or a set, which nothing interrupts. Objects are made outside
of any lock, because making one may take long, need another or be interrupted by a handler that
needs the same: of those that are made at once, the first to be ready is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import ref

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class OnceCell(Generic[K, T]):
    """One object for each key, made at its first use."""

    def __init__(self) -> None:
        self._made: dict[K, T] = {}
        # The dictionary's own, because it is on the path of every call.
        self.find: Callable[[K], T | None] = self._made.get
        """The object for a key, or None."""

    def get(self, key: K, make: Callable[[], T]) -> T:
        """Return the object for ``key``, one for all callers; ``make()`` makes a missing one."""
        found = self._made.get(key)
        return self._made.setdefault(key, make()) if found is None else found

    def values(self) -> list[T]:
        """Return the objects, oldest first."""
        return list(self._made.values())

    def drop(self, key: K, made: T) -> None:
        """Forget ``made``, unless there is another object for ``key`` by now."""
        if key in self._made and self._made[key] is made:  # without a call, so that it is one step
            del self._made[key]

    def clear(self) -> None:
        """Forget all objects."""
        self._made.clear()

    def __len__(self) -> int:
        return len(self._made)


class PlanCache(OnceCell[Hashable, T]):
    """The plans of the ``capacity`` newest keys. Dropped plans close when nothing uses them.

    Plans are dropped by age and not by last use: recording each use would cost time in every call,
    and making a plan again takes little.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the plan for ``key``, made by ``make()`` if there is none."""
        found = self._made.get(key)
        return self.add(key, make()) if found is None else found

    def add(self, key: Hashable, made: T) -> T:
        """Keep and return ``made``, or return the plan that another thread has added by now."""
        plan = self._made.setdefault(key, made)
        if len(self._made) > self.capacity:
            keep_newest(self._made, self.capacity)
        return plan

    def values(self) -> list[T]:
        """Return the plans, each once whatever its keys, oldest first."""
        return list({id(one): one for one in super().values()}.values())


def keep_newest(kept: dict[K, T], count: int) -> None:
    """Drop all but the ``count`` entries that were added last."""
    while len(kept) > count:
        try:
            oldest = next(iter(kept))
        except (RuntimeError, StopIteration):  # another thread changed it just now
            continue
        kept.pop(oldest, None)


class WeakRegistry(Generic[T]):
    """Weak references to objects, each dropped when its object is collected."""

    def __init__(self) -> None:
        self._references: set[ref[T]] = set()

    def add(self, one: T) -> None:
        """Refer to ``one`` until it is collected."""
        self._references.add(ref(one, self._references.discard))

    def snapshot(self) -> list[T]:
        """Return the objects that are alive, in no order."""
        return [one for reference in list(self._references) if (one := reference()) is not None]
