"""What was found out about problems? In this process, then on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from dnnffi.execution.store import Store

T = TypeVar("T")


class Findings(Generic[T]):
    """What measuring found out, by key, which is plain JSON.

    ``read`` makes a finding of what was on disk; an `AttributeError`, `KeyError`,
    `OverflowError`, `TypeError` or `ValueError` in it says that the file is none of ours.
    """

    def __init__(self, store: Store, read: Callable[..., T | None]) -> None:
        self._store = store
        self._read = read
        self._known: dict[str, T | None] = {}

    def find(self, key: Mapping[str, Any], *context: Any) -> T | None:
        """What was found out for ``key``, in this process or another."""
        name = json.dumps(key)
        if name not in self._known:
            self._known[name] = self._from_disk(key, context)
        return self._known[name]

    def _from_disk(self, key: Mapping[str, Any], context: tuple[Any, ...]) -> T | None:
        value = self._store.read(key)
        if value is None:
            return None
        try:
            return self._read(value, *context)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            self._store.warn(f"a tuning result is ignored: {error!r}")
            return None

    def keep(self, key: Mapping[str, Any], found: T, value: Any) -> None:
        """Know ``found``, and write its ``value`` to disk."""
        self._known[json.dumps(key)] = found
        self._store.write(key, value)

    def clear(self) -> None:
        """Forget what is known in this process."""
        self._known.clear()
