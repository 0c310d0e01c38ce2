"""A bounded cache of plans, safe to use from several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class PlanCache(Generic[T]):
    """Keeps the ``capacity`` newest plans. Dropped plans close when nothing uses them.

    The newest and not those used last: keeping that order would cost every call, and making a plan
    again costs less than a millisecond.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._plans: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()
        # The dictionary's own, because it is on the path of every call.
        self.find: Callable[[Hashable], T | None] = self._plans.get
        """The plan for a key, or None."""

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The plan for ``key``, made by ``make()`` if there is none."""
        plan = self._plans.get(key)
        if plan is not None:
            return plan
        # Made outside the lock: making one may take long, and another thread may need a third.
        plan = make()
        with self._lock:
            plan = self._plans.setdefault(key, plan)
            while len(self._plans) > self.capacity:
                self._plans.popitem(last=False)
        return plan

    def values(self) -> list[T]:
        """The plans, oldest first."""
        with self._lock:
            return list(self._plans.values())

    def clear(self) -> None:
        """Forget all plans."""
        with self._lock:
            self._plans.clear()

    def __len__(self) -> int:
        return len(self._plans)
