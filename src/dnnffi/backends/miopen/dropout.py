"""The random numbers of MIOpen's dropout, seeded anew for each forward pass.

A forward pass reads the states and leaves them as they are (3.4.0), so that two passes on the same
states drop the same values. Seeding is one kernel on the stream of the pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnffi.backends.miopen.descriptors import DropoutDescriptor
from dnnffi.backends.vendor import dropout
from dnnffi.backends.vendor.handle import Handle
from dnnffi.device.interface import Launch
from dnnffi.dropout import STATE_BYTES

_MASK = 2**64 - 1


class Generator(dropout.Generator):
    """A seeded random number generator of MIOpen on one device.

    The n-th use seeds the states with a hash of the seed and n; n is all that `save` has to keep.
    """

    _descriptor = DropoutDescriptor
    _uses = 0

    def _start(self, handle: Handle) -> None:
        # The probability does not matter to the states: descriptors bring their own.
        self._seeder = DropoutDescriptor(handle, 0.5, self._states, library=self.library)

    def begin_use(self, launch: Launch) -> None:
        seed = mixed(self.seed, self._uses)
        self._seeder.set(launch.owner, 0.5, self._states, seed, initialize=True)
        self._uses += 1

    def save(self) -> np.ndarray[Any, Any]:
        """Return the number of uses, as bytes, without waiting."""
        with self._lock:
            return np.frombuffer(self._uses.to_bytes(8, "little"), np.uint8)

    def restore(self, states: np.ndarray[Any, Any]) -> None:
        """Continue from saved states."""
        expected = STATE_BYTES["miopen"]
        if states.nbytes != expected:
            raise ValueError(f"saved states have {states.nbytes} bytes; MIOpen's have {expected}")
        with self._lock:
            self._uses = int.from_bytes(states.tobytes(), "little")

    def close(self) -> None:
        """Close the descriptors. The states go when nothing refers to them."""
        super().close()
        self._seeder.close()


def mixed(seed: int, use: int) -> int:
    """Return a seed for one use, by splitmix64: near seeds and uses share nothing."""
    value = (seed + (use + 1) * 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
