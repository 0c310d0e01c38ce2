"""The random numbers of cuDNN's dropout, whose states a forward pass advances."""

from __future__ import annotations

from dnnffi.backends.cudnn.descriptors import DropoutDescriptor
from dnnffi.backends.vendor import dropout
from dnnffi.backends.vendor.handle import Handle


class Generator(dropout.Generator):
    """A seeded random number generator of cuDNN on one device; each use advances its states."""

    _descriptor = DropoutDescriptor

    def _start(self, handle: Handle) -> None:
        # The probability does not matter to the states: descriptors bring their own.
        DropoutDescriptor(
            handle, 0.5, self._states, self.seed, initialize=True, library=self.library
        ).close()
