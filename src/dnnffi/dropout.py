"""The random numbers of dropout as a user holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from dnnffi.execution.cache import Once
from dnnffi.spec.checks import check_integer, shown


class Generator(Protocol):
    """A backend's random numbers: states that can be saved and restored."""

    def save(self) -> np.ndarray[Any, Any]:
        """The states as bytes on the host."""

    def restore(self, states: np.ndarray[Any, Any]) -> None:
        """Continue from saved states."""


class _Use(NamedTuple):
    """Where a state is used, and the generator there."""

    place: str
    generator: Generator


class DropoutState:
    """A seeded stream of random numbers for dropout; each training forward moves it on.

    The same seed and the same calls give the same results. It binds to the backend and device of
    its first use, and to the algorithm "own" if that was named, and stays there: make one for each.
    On a GPU, uses on several streams are ordered by events, without the host waiting. Raises
    ``TypeError``, ``ValueError`` for a seed that is not an integer from 0 to 2**64 - 1.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=2)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> x = np.ones((5, 2, 3), np.float32)
    >>> first, second = (
    ...     dnnffi.gru_forward(x, None, weights, dropout=0.5, dropout_state=state)[0]
    ...     for state in (dnnffi.DropoutState(seed=7), dnnffi.DropoutState(seed=7))
    ... )
    >>> np.array_equal(first, second)
    True
    """

    def __init__(self, seed: int) -> None:
        seed = check_integer("seed", seed)
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed must be from 0 to 2**64 - 1; got {shown(seed)}")
        self.seed = seed
        self._used: Once[None, _Use] = Once()
        # Of a state that was restored, until its first use.
        self._place: str | None = None
        self._states: np.ndarray[Any, Any] | None = None

    def generator(self, place: str, make: Callable[[int], Any]) -> Any:
        """The backend's generator at ``place``, made by ``make(seed)`` on the first use."""
        self._check(self._place, place)
        use = self._used.get(None, lambda: _Use(place, self._begun(make)))
        self._check(use.place, place)
        self._states = None
        return use.generator

    def _begun(self, make: Callable[[int], Any]) -> Any:
        generator, states = make(self.seed), self._states
        if states is not None:
            generator.restore(states)
        return generator

    def _check(self, own: str | None, place: str) -> None:
        if own not in (None, place):
            raise ValueError(
                f"dropout_state belongs to {own} and cannot be used on {place}; make one for each"
            )

    def save(self) -> dict[str, Any]:
        """Everything that `restore` needs, as plain values. Waits for the GPU.

        Examples
        --------
        >>> import dnnffi
        >>> dnnffi.DropoutState(seed=7).save()
        {'seed': 7, 'place': None, 'states': None}
        """
        states = self._states  # first: it goes once there is a generator
        use = self._used.find(None)
        if use is not None:
            states = use.generator.save()
        return {
            "seed": self.seed,
            "place": self._place if use is None else use.place,
            "states": None if states is None else states.tobytes(),
        }

    @classmethod
    def restore(cls, saved: dict[str, Any]) -> Self:
        """A state that goes on where the saved one was, on the same backend and kind of device.

        Raises ``TypeError``, ``ValueError`` for what `save` did not give.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=2)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> def forward(state):
        ...     x = np.ones((5, 2, 3), np.float32)
        ...     return dnnffi.gru_forward(x, None, weights, dropout=0.5, dropout_state=state)[0]
        >>> state = dnnffi.DropoutState(seed=7)
        >>> first, saved, second = forward(state), state.save(), forward(state)
        >>> np.array_equal(forward(dnnffi.DropoutState.restore(saved)), second)
        True
        """
        if not isinstance(saved, Mapping):
            raise TypeError(
                f"saved must be a dict of DropoutState.save; got {type(saved).__name__}"
            )
        if missing := [name for name in ("seed", "place", "states") if name not in saved]:
            raise ValueError(f"saved must be a dict of DropoutState.save; it has no {missing[0]!r}")
        state = cls(saved["seed"])
        state._place = saved["place"]
        if saved["states"] is not None:
            state._states = np.frombuffer(saved["states"], np.uint8)
        return state

    def __reduce__(self) -> tuple[object, ...]:
        # A generator has a lock, and on a device memory: what is saved of it goes on by itself.
        return type(self).restore, (self.save(),)

    def __repr__(self) -> str:
        use = self._used.find(None)
        place = self._place if use is None else use.place
        return f"DropoutState(seed={self.seed}, {place or 'not used yet'})"
