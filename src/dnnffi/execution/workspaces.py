"""Workspaces: one for each stream of a thread, shared by all plans.

A stream runs one call after the other if one thread uses it. Two threads may put the kernels of
their calls on it in turns, so each has a workspace of its own.
"""

from __future__ import annotations

from threading import get_ident

from dnnffi.device.interface import Array, Memory
from dnnffi.execution.cache import keep_newest

_MAX_STREAMS = 8
PER_THREAD_STREAM = 2
"""The address that stands for the default stream of each thread."""


class Workspaces:
    """Buffers by device, stream and thread, as large as the largest call so far needed.

    A call can replay a graph because its workspace has the same address as in the last call.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._byte = memory.dtype("uint8")
        self.buffers: dict[tuple[int, int, int], Array] = {}

    def take(self, device: int, stream: int, nbytes: int) -> Array:
        """Return the thread's buffer for a stream of the current device, until it is given back.

        It has ``nbytes`` or more. A call that is not replayed enqueues several kernels. A signal
        handler in their middle may call dnnffi on the same stream: that call gets another buffer.
        """
        buffer = self.buffers.pop((device, stream, get_ident()), None)
        if buffer is None or buffer.nbytes < nbytes:
            buffer = self._memory.empty((nbytes,), self._byte)
        return buffer

    def give_back(self, device: int, stream: int, buffer: Array) -> None:
        """Let later calls use a buffer of `take`, at the same address."""
        if stream != PER_THREAD_STREAM:
            self.buffers[device, stream, get_ident()] = buffer
            if len(self.buffers) > _MAX_STREAMS:
                keep_newest(self.buffers, _MAX_STREAMS)

    def clear(self) -> None:
        """Release all buffers."""
        self.buffers.clear()

    @property
    def nbytes(self) -> int:
        """Device memory that is held."""
        return sum(buffer.nbytes for buffer in list(self.buffers.values()))
