"""The random numbers of cuDNN's dropout, whose states a forward moves on."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnffi.backends.cudnn.descriptors import DropoutDescriptor
from dnnffi.backends.vendor import dropout
from dnnffi.backends.vendor.handle import Handle
from dnnffi.device.arrays import to_host


class Generator(dropout.Generator):
    """A seeded random number generator of cuDNN on one device; each use advances its states."""

    _descriptor = DropoutDescriptor

    def _start(self, handle: Handle) -> None:
        # The probability does not matter to the states: descriptors bring their own.
        DropoutDescriptor(
            handle, 0.5, self._states, self.seed, initialize=True, library=self.library
        ).close()

    def save(self) -> np.ndarray[Any, Any]:
        """The states, copied to the host. Waits for the current stream."""
        saved = []
        self._on_current_stream(lambda: saved.append(np.array(to_host(self._states))))
        return saved[0]

    def restore(self, states: np.ndarray[Any, Any]) -> None:
        """Continue from saved states."""
        if states.nbytes != self._states.nbytes:
            raise ValueError(
                f"saved states have {states.nbytes} bytes; this device's have {self._states.nbytes}"
            )
        self._on_current_stream(lambda: self._states.set(states))
