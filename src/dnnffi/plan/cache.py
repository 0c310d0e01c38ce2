"""A bounded cache of plans, safe to use from several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class PlanCache(Generic[T]):
    """Keeps the ``capacity`` plans used last. Dropped plans close when nothing uses them."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._plans: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The plan for ``key``, made by ``make()`` if there is none."""
        plans = self._plans
        with self._lock:
            if key in plans:
                plans.move_to_end(key)
                return plans[key]
        # Made outside the lock: making one may take long, and another thread may need a third.
        plan = make()
        with self._lock:
            plan = plans.setdefault(key, plan)
            plans.move_to_end(key)
            while len(plans) > self.capacity:
                plans.popitem(last=False)
        return plan

    def find(self, key: Hashable) -> T | None:
        """The plan for ``key``, or None. The hot path: one look-up, and no order kept."""
        return self._plans.get(key)

    def clear(self) -> None:
        """Forget all plans."""
        with self._lock:
            self._plans.clear()

    def __len__(self) -> int:
        return len(self._plans)
