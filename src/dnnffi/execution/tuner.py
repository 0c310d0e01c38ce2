"""Tuning results of problems: known in this process, checked anew from disk, or measured now."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

from dnnffi.device.interface import MemoryWithGraphs
from dnnffi.execution.cache import Once
from dnnffi.execution.store import Store
from dnnffi.log import logger

MAX_CHECKED = 4
"""Candidates of a stored result that are run before it is given up: a bound for the first call."""

P = TypeVar("P")
T = TypeVar("T", bound=NamedTuple)  # fields are plain JSON, or named tuples of it


class Tuner(ABC, Generic[P, T]):
    """Tuning results of the problems of one family, each on one device.

    A family says how it measures a problem, what identifies a result, and how a stored result is
    read and checked.

    A stored result only orders candidates, whoever wrote it. Before one is used, it passes the
    admission of a measured candidate, and its results are compared; if that fails, the next is
    tried, `MAX_CHECKED` in all. This is done once per result and process.
    """

    def __init__(self, kind: str, memory: MemoryWithGraphs) -> None:
        self._memory = memory
        self._store = Store(kind)
        self._results: dict[str, T | None] = {}
        self._devices: Once[int, str] = Once()  # asking takes longer than all of the rest

    def find(self, problem: P, device: int) -> T | None:
        """Return the result of this process or, checked now, of another; None if there is none.

        While the current stream is captured, nothing can be run and stored results are not used; a
        later call finds them.
        """
        key = self._key(problem, device)
        name = json.dumps(key)
        try:
            return self._results[name]
        except KeyError:
            pass
        if self.is_capturing():
            return None
        # A measurement of another thread, which ended meanwhile, is kept.
        return self._results.setdefault(name, self._from_disk(key, problem, device))

    def is_capturing(self) -> bool:
        """Return whether the current stream is captured, so that no result can be waited for."""
        return self._memory.is_capturing(self._memory.current_stream())

    def measure(self, problem: P, device: int) -> T | None:
        """Measure now, and keep the result."""
        found = self._measured(problem, device)
        if found is not None:
            self._keep(problem, device, found)
        return found

    def _keep(self, problem: P, device: int, found: T) -> None:
        """Keep a result in this process and on disk."""
        key = self._key(problem, device)
        self._results[json.dumps(key)] = found
        self._store.write(key, found._asdict())

    def clear(self) -> None:
        """Forget what is known in this process."""
        self._results.clear()
        self._devices.clear()

    def _key(self, problem: P, device: int) -> dict[str, Any]:
        name = self._devices.get(device, lambda: self._memory.device_name(device))
        return {"device": name, **self._about(problem)}

    def _from_disk(self, key: dict[str, Any], problem: P, device: int) -> T | None:
        value = self._store.read(key)
        if value is None:
            return None
        try:
            found = self._read(value, problem)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            self._store.warn(f"a tuning result is ignored: {error!r}")
            return None
        if found is None:
            return None
        checked = self._checked(found, problem, device)
        outcome = "is used" if checked is not None else "is not used: no candidate passed"
        logger.info("the result of an earlier process for %s %s", problem, outcome)
        return checked

    @abstractmethod
    def _measured(self, problem: P, device: int) -> T | None:
        """Measure the candidates; None if none of them ran."""

    @abstractmethod
    def _about(self, problem: P) -> dict[str, Any]:
        """Return what identifies a result in addition to the device, as plain JSON."""

    @abstractmethod
    def _read(self, value: Any, problem: P) -> T | None:
        """Return the result that was stored as ``value``; None if another version wrote it.

        Raises one of the errors that `_from_disk` catches if it is malformed.
        """

    @abstractmethod
    def _checked(self, found: T, problem: P, device: int) -> T | None:
        """Return a stored result with candidates that were admitted and compared; None if none is.

        Runs and waits on the current stream.
        """
