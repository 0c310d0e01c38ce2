"""Random number states of dropout in the memory of a device, used in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from dnnffi.backends.vendor.descriptors.dropout import DropoutDescriptor, states_size
from dnnffi.backends.vendor.handle import Handle, current_launch, launch_on
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.device.arrays import to_host
from dnnffi.device.interface import AnyArray, Launch, Memory, Stream
from dnnffi.execution.cache import OnceCell
from dnnffi.execution.locks import new_lock


class StatesInOrder(ABC):
    """Random numbers whose states are in the memory of one device.

    Each forward pass in training with dropout uses them, so uses must not overlap: `in_order` holds
    a lock and lets the stream wait for the last use if that was on another one. Waiting is only
    legal between uses in the same capture state (both outside graph capture, or both in one
    capture), so only then is it done; as in PyTorch, nothing else may use the generator on other
    streams while a capture is under way.
    """

    _states: AnyArray

    def __init__(self, memory: Memory, device: int) -> None:
        self.device = device
        self._memory = memory
        self._lock = new_lock()

    def _begin(self, stream: Stream) -> None:
        """Let uses wait for the work on ``stream`` that fills the states; the device is current."""
        memory = self._memory
        self._event = memory.new_event()
        self._stream = stream
        self._capture = memory.capture_id(stream)
        memory.record(self._event, stream)

    @abstractmethod
    def _launch(self, stream: Stream) -> Launch:
        """Return a launch on a stream of the device."""

    def in_order(self, launch: Launch, call: Callable[[], object]) -> None:
        """Run ``call``, which enqueues one use of the states on the stream of ``launch``."""
        memory = self._memory
        with self._lock:
            capture = memory.capture_id(launch.stream)
            if capture == self._capture and launch.stream.ptr != self._stream.ptr:
                memory.wait(launch.stream, self._event)
            self._stream, self._capture = launch.stream, capture
            try:
                self.begin_use(launch)
                call()
            finally:
                memory.record(self._event, launch.stream)

    def begin_use(self, launch: Launch) -> None:  # noqa: B027 - a vendor may need nothing
        """Enqueue what has to precede a pass, so that it draws other numbers than the last one.

        `in_order` does so before ``call``; a call of several passes does before each other one.
        """

    def _on_current_stream(self, call: Callable[[], object]) -> None:
        """Run ``call`` in order, on the stream that is the current one of the device."""
        with self._memory.use(self.device):
            self.in_order(self._launch(self._memory.current_stream()), call)

    def save(self) -> np.ndarray[Any, Any]:
        """Return the states as bytes on the host. Waits for the current stream."""
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


class Generator(StatesInOrder):
    """A seeded random number generator of a vendor on one device."""

    _descriptor: ClassVar[type[DropoutDescriptor]]

    def __init__(self, library: VendorLibrary, device: int, seed: int) -> None:
        super().__init__(library.memory, device)
        self.library = library
        self.seed = seed
        self._descriptors: OnceCell[float, DropoutDescriptor] = OnceCell()
        memory = library.memory
        with memory.use(device):
            launch = current_launch(library)
            size = states_size(library, launch.owner)
            self._states = memory.zeros((size,), memory.dtype("uint8"))
            self._start(launch.owner)
            self._begin(launch.stream)

    @abstractmethod
    def _start(self, handle: Handle) -> None:
        """Seed the states, or prepare what seeds them before each use (`begin_use`)."""

    def descriptor(self, dropout: float, handle: Handle) -> DropoutDescriptor:
        """Return the descriptor for a probability, on these states. The generator owns it."""
        return self._descriptors.get(
            dropout,
            lambda: self._descriptor(
                handle, dropout, self._states, self.seed, library=self.library
            ),
        )

    def _launch(self, stream: Stream) -> Launch:
        return launch_on(self.library, self.device, stream)

    def close(self) -> None:
        """Close the descriptors. The states go when nothing refers to them."""
        for descriptor in self._descriptors.values():
            descriptor.close()
        self._descriptors.clear()
