"""Tuning results of problems on disk: what they are known by, and how one is read and checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

from dnnffi.device.interface import MemoryWithGraphs
from dnnffi.execution.cache import OnceCell
from dnnffi.execution.store import Store
from dnnffi.log import logger

MAX_CHECKED = 4
"""Candidates of a stored result that are run before it is given up: a bound for the first call."""

P = TypeVar("P")
T = TypeVar("T", bound=NamedTuple)  # fields are plain JSON, or named tuples of it


class StoredResults(ABC, Generic[P, T]):
    """Tuning results of the problems of one family on disk, each on one device.

    A family says what identifies a result, how a stored result is read and checked, and which
    results it keeps in this process.

    A stored result only orders candidates, whoever wrote it. Before one is used, it passes the
    admission of a measured candidate, and its results are compared; if that fails, the next is
    tried, `MAX_CHECKED` in all. This is done once per result and process.
    """

    def __init__(self, kind: str, memory: MemoryWithGraphs) -> None:
        self._memory = memory
        self._store = Store(kind)
        self._devices: OnceCell[int, str] = OnceCell()  # asking takes longer than all of the rest

    def is_capturing(self) -> bool:
        """Return whether the current stream is captured, so that no result can be waited for."""
        return self._memory.is_capturing(self._memory.current_stream())

    def clear(self) -> None:
        """Forget what is known in this process."""
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
