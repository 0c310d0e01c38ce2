"""The random numbers of dropout as a user holds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, Self, get_args

import numpy as np

from dnnffi.execution.cache import OnceCell
from dnnffi.spec.checks import check_integer, shown
from dnnffi.spec.names import BackendName

STATE_BYTES = {"reference": 32, "miopen": 8, "own": 16}
"""Bytes of saved states, by backend or by the algorithm "own". cuDNN's depend on the device."""

_PLACE = re.compile(
    rf"(?P<backend>{'|'.join(get_args(BackendName))}) device \d+"
    r"(, algorithm '(?P<algorithm>own)')?( with an allocator)?"
)


class Generator(Protocol):
    """A backend's random numbers: states that can be saved and restored."""

    def save(self) -> np.ndarray[Any, Any]:
        """Return the states as bytes on the host."""

    def restore(self, states: np.ndarray[Any, Any]) -> None:
        """Continue from saved states."""


class _Use(NamedTuple):
    """The place where a state is used, and the generator there."""

    place: str
    generator: Generator


class DropoutState:
    """A seeded stream of random numbers for dropout; each forward pass in training advances it.

    The same seed and the same calls give the same results. The first use binds it to a backend, a
    device, the algorithm "own" if named, and calls with or without an allocator: make one for each.
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
        self._used: OnceCell[None, _Use] = OnceCell()
        # Set for a state that was restored, until its first use.
        self._place: str | None = None
        self._states: np.ndarray[Any, Any] | None = None

    def generator(self, place: str, make: Callable[[int], Any]) -> Any:
        """Return the backend's generator at ``place``, made by ``make(seed)`` on the first use."""
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
        """Return a state that continues the saved one, bound to the same place and kind of device.

        Raises ``TypeError``, ``ValueError`` for what `save` did not give. How many bytes the states
        of cuDNN have is known on their device only, and checked there at the first use.

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
        state._place = place = saved["place"]
        if (place is None) != (saved["states"] is None):
            raise ValueError("saved must have both 'place' and 'states', or None for both")
        if place is not None:
            states = _checked_states(state.seed, place, saved["states"])
            state._states = np.frombuffer(states, np.uint8)
        return state

    def __reduce__(self) -> tuple[object, ...]:
        # A generator has a lock, and on a device memory: what is saved of it goes on by itself.
        return type(self).restore, (self.save(),)

    def __repr__(self) -> str:
        use = self._used.find(None)
        place = self._place if use is None else use.place
        return f"DropoutState(seed={self.seed}, {place or 'not used yet'})"


def _checked_states(seed: int, place: object, states: Any) -> bytes:
    """``states`` as bytes; an error if a generator at ``place`` cannot have saved them."""
    if not isinstance(place, str):
        raise TypeError(f"saved['place'] must be a str or None; got {type(place).__name__}")
    known = _PLACE.fullmatch(place)
    if known is None:
        raise ValueError(
            f"saved['place'] must be like 'reference device 0', as of DropoutState.save; "
            f"got {place!r}"
        )
    try:
        raw = memoryview(states).tobytes()
    except TypeError:
        raise TypeError(
            f"saved['states'] must be bytes or None; got {type(states).__name__}"
        ) from None
    kind = known["algorithm"] or known["backend"]
    expected = STATE_BYTES.get(kind)
    if not raw or expected not in (None, len(raw)):
        wanted = "bytes" if expected is None else f"{expected} bytes"
        raise ValueError(f"saved['states'] of {place} must have {wanted}; got {len(raw)}")
    # What a generator would take, and draw other numbers or fail later.
    if kind == "reference" and not raw[16] % 2:
        raise ValueError(f"saved['states'] of {place} are damaged: the increment must be odd")
    if kind == "own" and int.from_bytes(raw[:8], "little") != seed:
        raise ValueError(f"saved['states'] of {place} are those of another seed than {seed}")
    if kind == "miopen" and raw[7] >= 128:
        raise ValueError(f"saved['states'] of {place} are damaged: more than 2**63 uses")
    return raw
