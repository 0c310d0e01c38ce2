"""The random numbers of dropout as a user holds them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, Self

import numpy as np

from dnnffi.spec.checks import check_integer


class Generator(Protocol):
    """A backend's random numbers: states that can be saved and restored."""

    def save(self) -> np.ndarray[Any, Any]:
        """The states as bytes on the host."""

    def restore(self, states: np.ndarray[Any, Any]) -> None:
        """Continue from saved states."""


class DropoutState:
    """A seeded stream of random numbers for dropout; each training forward moves it on.

    The same seed and the same calls give the same results. It binds to the backend and device of
    its first use and stays there: make one for each. On a GPU, uses on several streams are ordered
    by events, without the host waiting. Raises ``TypeError``, ``ValueError`` for a seed that is
    not an integer from 0 to 2**64 - 1.
    """

    def __init__(self, seed: int) -> None:
        seed = check_integer("seed", seed)
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed must be from 0 to 2**64 - 1; got {seed}")
        self.seed = seed
        self._place: str | None = None
        self._generator: Any = None
        self._states: np.ndarray[Any, Any] | None = None
        self._lock = threading.Lock()

    def generator(self, place: str, make: Callable[[int], Any]) -> Any:
        """The backend's generator at ``place``, made by ``make(seed)`` on the first use."""
        with self._lock:
            if self._place is not None and self._place != place:
                raise ValueError(
                    f"dropout_state belongs to {self._place} and cannot be used on {place}; "
                    f"make one for each backend and device"
                )
            if self._generator is None:
                generator = make(self.seed)
                if self._states is not None:
                    generator.restore(self._states)
                    self._states = None
                self._generator, self._place = generator, place
            return self._generator

    def save(self) -> dict[str, Any]:
        """Everything that `restore` needs, as plain values. Waits for the GPU."""
        with self._lock:
            states = self._states if self._generator is None else self._generator.save()
            return {
                "seed": self.seed,
                "place": self._place,
                "states": None if states is None else states.tobytes(),
            }

    @classmethod
    def restore(cls, saved: dict[str, Any]) -> Self:
        """A state that goes on where the saved one was, on the same backend and kind of device."""
        state = cls(saved["seed"])
        state._place = saved["place"]
        if saved["states"] is not None:
            state._states = np.frombuffer(saved["states"], np.uint8)
        return state

    def __repr__(self) -> str:
        return f"DropoutState(seed={self.seed}, {self._place or 'not used yet'})"
