"""What does dnnffi ask of a device? The protocols of arrays, memory, graphs and kernels.

Vendor rooms read arrays through five attributes that CuPy's ``ndarray`` has: ``data.ptr``,
``size``, ``shape``, ``dtype`` and ``_c_contiguous`` (CuPy's own flag behind
``flags.c_contiguous``, at a fifth of its cost).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = Any
"""A NumPy or CuPy array; neither has a common static type."""


class Memory(Protocol):
    """What a vendor room needs to know of the memory that its library computes on."""

    kind: str  # "cuda" or "rocm"
    ndarray: Any

    def empty(self, shape: Any, dtype: Any, /) -> Array:
        """A new contiguous array."""

    def zeros(self, shape: Any, dtype: Any, /) -> Array:
        """A new contiguous array of zeros."""

    def current_device(self) -> int:
        """The number of the current device."""

    def current_stream(self) -> Any:
        """The current stream: an object with ``ptr``."""

    def pairs(
        self, shape: tuple[int, ...], other: tuple[int, ...], dtype: Any
    ) -> Callable[[], tuple[Array, Array]]:
        """What makes two new arrays of these shapes, cheaper than one by one."""

    def clear(self, address: int, nbytes: int) -> None:
        """Fill device memory with zeros, in the order of the current stream."""

    def device_count(self) -> int:
        """How many devices there are."""

    def use(self, device: int) -> AbstractContextManager[Any]:
        """A context in which ``device`` is the current device."""

    def dtype(self, name: str) -> np.dtype[Any]:
        """The dtype object of "float16", "bfloat16", "float32", "float64" or "uint8"."""

    def architecture(self, device: int) -> Architecture:
        """Compute capability and multiprocessors of ``device``."""

    def new_event(self) -> Any:
        """An event that orders streams and takes no times."""

    def record(self, event: Any, stream: Any) -> None:
        """Record ``event`` on ``stream``."""

    def wait(self, stream: Any, event: Any) -> None:
        """Let ``stream`` wait for ``event``, without the host waiting."""

    def capture_id(self, stream: Any) -> int:
        """The number of the graph capture that ``stream`` is in, 0 where it is in none."""

    def is_capturing(self, stream: Any) -> bool:
        """Whether a graph is being captured on ``stream``."""


class MemoryWithGraphs(Memory, Protocol):
    """What tuning, replaying and convolutions need besides."""

    def empty_strided(
        self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...], nbytes: int
    ) -> Array:
        """A new array with strides (in bytes) that leave no gaps."""

    def add_epilogue(
        self, y: Array, residual: Array | None, alpha: float, bias: Array | None, relu: bool
    ) -> None:
        """Replace ``y`` [N, K, ...] by relu(y + alpha*residual + bias), of what there is."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy device memory, in the order of the current stream."""

    def kernel(self, source: str, name: str) -> Kernel:
        """A function of a CUDA source, compiled for the current device."""

    def capture(self, record: Callable[[], object]) -> Graph:
        """What ``record()`` enqueues on the current stream, as a graph; nothing of it runs."""

    def capture_step(self, step: Callable[[], Any]) -> Any:
        """What ``step()`` enqueues on the current stream, with the memory that it allocates."""

    def elapsed(self, calls: Callable[[], object]) -> float:
        """Milliseconds that the current stream takes for ``calls()``. Waits for it."""

    def scratch(self) -> AbstractContextManager[Any]:
        """A context whose allocations go back to the driver at its end."""

    def device_name(self, device: int) -> str:
        """The device, driver and array library that measured times belong to."""


Kernel = Callable[[tuple[int, ...], tuple[int, ...], tuple[int, ...]], None]
"""Runs with (blocks, threads of a block, arguments) on the current stream. The arguments are
addresses and integers of 64 bits."""


class Graph(Protocol):
    """Captured work, to be launched any number of times."""

    nbytes: int
    """Device memory that it holds, as far as it could be seen."""

    launches: int
    """How often it was launched; less where old launches no longer count."""

    executor: Any
    """Whose calls were captured; kept alive, since they may need its kernels."""

    def launch(self, stream: Any) -> None:
        """Enqueue the work on ``stream``."""


class Architecture(NamedTuple):
    """What the rule for the algorithm asks of a GPU."""

    major: int
    minor: int
    multiprocessors: int
