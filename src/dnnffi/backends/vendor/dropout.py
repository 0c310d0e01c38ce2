"""What the vendors' random numbers of dropout share: states in device memory, used in order."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from dnnffi.backends.vendor.descriptors.dropout import DropoutDescriptor
from dnnffi.backends.vendor.handle import Handle, handle_for
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.device.interface import Array


class Generator(ABC):
    """A seeded random number generator of a vendor on one device.

    Each training forward with dropout uses its states, so uses must not overlap. As a context
    manager around such a call it holds a lock and lets the current stream wait for the last use if
    that was on another stream. Waiting is only legal between uses in the same capture state (both
    outside graph capture, or both in one capture), so only then is it done; as in PyTorch, nothing
    else may use the generator on other streams while a capture is under way.
    """

    _descriptor: ClassVar[type[DropoutDescriptor]]

    def __init__(self, library: VendorLibrary, device: int, seed: int) -> None:
        self.library = library
        self.device = device
        self.seed = seed
        memory = library.memory
        with memory.use(device):
            handle = handle_for(library, device)
            size = self._states_size(handle)
            self._states: Array = memory.zeros((size,), memory.dtype("uint8"))
            self._start(handle)
            self._event = memory.new_event()
            self._stream = memory.current_stream()
            self._capture = memory.capture_id(self._stream)
            memory.record(self._event, self._stream)
        self._lock = threading.Lock()
        self._descriptors: dict[float, DropoutDescriptor] = {}

    @abstractmethod
    def _states_size(self, handle: Handle) -> int:
        """Bytes of the states."""

    @abstractmethod
    def _start(self, handle: Handle) -> None:
        """Seed the states."""

    def descriptor(self, dropout: float) -> DropoutDescriptor:
        """The dropout descriptor for a probability, on these states. Owned by the generator."""
        with self._lock:
            if dropout not in self._descriptors:
                handle = handle_for(self.library, self.device)
                self._descriptors[dropout] = self._descriptor(
                    handle, dropout, self._states, self.seed, library=self.library
                )
            return self._descriptors[dropout]

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            memory = self.library.memory
            stream = memory.current_stream()
            capture = memory.capture_id(stream)
            if capture == self._capture and stream.ptr != self._stream.ptr:
                memory.wait(stream, self._event)
            self._stream, self._capture = stream, capture
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self.library.memory.record(self._event, self._stream)
        finally:
            self._lock.release()

    @abstractmethod
    def save(self) -> np.ndarray[Any, Any]:
        """The states as bytes on the host."""

    @abstractmethod
    def restore(self, states: np.ndarray[Any, Any]) -> None:
        """Continue from saved states."""

    def close(self) -> None:
        """Close the descriptors. The states go when nothing refers to them."""
        with self._lock:
            while self._descriptors:
                self._descriptors.popitem()[1].close()
