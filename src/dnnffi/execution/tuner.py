"""What is fastest for a problem? Known in this process, then from disk, or measured now."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

from dnnffi.device.interface import MemoryWithGraphs
from dnnffi.execution.cache import Once
from dnnffi.execution.store import Store

P = TypeVar("P")
T = TypeVar("T", bound=NamedTuple)  # of what is plain JSON, or named tuples of it


class Tuner(ABC, Generic[P, T]):
    """What measuring found out about problems, each on one device.

    A family says how it measures a problem, what that is known by, and how a finding is read.
    """

    def __init__(self, kind: str, memory: MemoryWithGraphs) -> None:
        self._memory = memory
        self._store = Store(kind)
        self._known: dict[str, T | None] = {}
        self._devices: Once[int, str] = Once()  # asking takes longer than all of the rest

    def find(self, problem: P, device: int) -> T | None:
        """What was found out before, in this process or another."""
        key = self._key(problem, device)
        name = json.dumps(key)
        try:
            return self._known[name]
        except KeyError:
            found = self._known[name] = self._from_disk(key, problem)
            return found

    def measure(self, problem: P, device: int) -> T | None:
        """Measure now, and keep what was found out."""
        found = self._measured(problem, device)
        if found is not None:
            key = self._key(problem, device)
            self._known[json.dumps(key)] = found
            self._store.write(key, found._asdict())
        return found

    def clear(self) -> None:
        """Forget what is known in this process."""
        self._known.clear()
        self._devices.clear()

    def _key(self, problem: P, device: int) -> dict[str, Any]:
        name = self._devices.get(device, lambda: self._memory.device_name(device))
        return {"device": name, **self._about(problem)}

    def _from_disk(self, key: dict[str, Any], problem: P) -> T | None:
        value = self._store.read(key)
        if value is None:
            return None
        try:
            return self._read(value, problem)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            self._store.warn(f"a tuning result is ignored: {error!r}")
            return None

    @abstractmethod
    def _measured(self, problem: P, device: int) -> T | None:
        """What measuring finds out; None where nothing ran."""

    @abstractmethod
    def _about(self, problem: P) -> dict[str, Any]:
        """What a finding is known by beside the device, as plain JSON."""

    @abstractmethod
    def _read(self, value: Any, problem: P) -> T | None:
        """The finding in what was on disk. Raises, as it comes, for what is none of ours."""
