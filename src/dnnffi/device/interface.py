"""Protocols of a device: arrays, memory, graphs and kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from dnnffi.runtime.kernel_cache import Headers

ALIGNMENT = 16
"""Bytes: what every kernel asks of an address at most, and every allocation has."""

AnyArray = Any
"""An array of the library that the caller computes with. Those have no static type in common."""


class ComputingArray(Protocol):
    """An array that NumPy's functions compute with: NumPy's or CuPy's, which calls return too."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""

    @property
    def dtype(self) -> Any:
        """The type of its elements."""

    @property
    def flags(self) -> Any:
        """Its layout in memory."""

    @property
    def __array_ufunc__(self) -> Any: ...

    @property
    def __dlpack_device__(self) -> Any: ...


if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers bring it, and Python 3.11 has no default

    ArrayT = TypeVar("ArrayT", bound=ComputingArray, default=Any)
else:
    from typing import TypeVar

    ArrayT = TypeVar("ArrayT", bound=ComputingArray)
"""NumPy's array or CuPy's, the same throughout a call. Other objects that a call takes have results
of another type than they are, so that type checkers do not know them."""

NDArray = np.ndarray[Any, Any]
"""An array to compute with: NumPy's, or CuPy's, which has the same methods and no static type."""


class Placement(Protocol):
    """The place of an array."""

    @property
    def ptr(self) -> int:
        """The address of its first element."""

    @property
    def device_id(self) -> int:
        """The device that has the memory."""


class Array(Protocol):
    """An array on a device, with the attributes of CuPy's that calls of a vendor's library read."""

    @property
    def data(self) -> Placement:
        """Address and device."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from an element to the next, in each dimension."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""

    @property
    def _c_contiguous(self) -> bool:
        """Whether there are no gaps: CuPy's own flag, faster than ``flags.c_contiguous``."""


class Stream(Protocol):
    """A stream of a device."""

    @property
    def ptr(self) -> int:
        """Its address; 0 is the default stream."""


class StreamAt(NamedTuple):
    """A stream of another owner, known by its address alone."""

    ptr: int


class Launch(NamedTuple):
    """The stream, device and handle of a call of an executor, which looks up no current stream.

    ``device`` is the current one. ``handle`` is the vendor's native handle, set to ``stream``, and
    ``owner`` the object that destroys it; None for backends that have none. The handle is valid
    until the thread asks for a launch on another stream, as a capture does.
    """

    stream: Stream
    device: int
    handle: Any = None
    owner: Any = None


class Memory(Protocol):
    """Device memory with the arrays of one library, as calls of a vendor's library use it."""

    kind: str  # "cuda" or "rocm"
    ndarray: Any

    def empty(self, shape: Any, dtype: Any, /) -> Array:
        """Return a new contiguous array."""

    def zeros(self, shape: Any, dtype: Any, /) -> Array:
        """Return a new contiguous array of zeros."""

    def current_device(self) -> int:
        """Return the number of the current device."""

    def current_stream(self) -> Stream:
        """Return the current stream."""

    def pairs(
        self, shape: tuple[int, ...], other: tuple[int, ...], dtype: Any
    ) -> Callable[[], tuple[Array, Array]]:
        """Return a function that makes two new arrays of these shapes, faster than one by one."""

    def clear(self, address: int, nbytes: int, stream: Stream) -> None:
        """Fill device memory with zeros, in the order of ``stream``."""

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        """Copy device memory, in the order of ``stream``."""

    def copy_rows(
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        stream: Stream,
    ) -> None:
        """Copy rows of ``width`` bytes in device memory, in the order of ``stream``.

        A pitch is the bytes from the beginning of a row to that of the next.
        """

    def device_count(self) -> int:
        """Return the number of devices."""

    def use(self, device: int) -> AbstractContextManager[Any]:
        """Return a context in which ``device`` is the current device."""

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype object of "float16", "bfloat16", "float32", "float64" or "uint8"."""

    def architecture(self, device: int) -> Architecture:
        """Compute capability and multiprocessors of ``device``."""

    def new_event(self) -> Any:
        """Return an event that orders streams and takes no times."""

    def record(self, event: Any, stream: Stream) -> None:
        """Record ``event`` on ``stream``."""

    def wait(self, stream: Stream, event: Any) -> None:
        """Let ``stream`` wait for ``event``, without the host waiting."""

    def capture_id(self, stream: Stream) -> int:
        """Return the number of the graph capture that ``stream`` is in, 0 where it is in none."""

    def is_capturing(self, stream: Stream) -> bool:
        """Whether a graph is being captured on ``stream``."""

    def beside_capture(self) -> AbstractContextManager[None]:
        """Return a context in which a thread that captures a stream may allocate and make objects.

        They are not in the graph. CUDA else refuses, and ends the capture.
        """


class MemoryWithGraphs(Memory, Protocol):
    """Device memory with the capabilities of CUDA: kernels, captures, times.

    `dnnffi.device.memory.DeviceMemory` has them for the arrays of every library. On ROCm most
    raise `UnsupportedError`.
    """

    def empty_strided(
        self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...], nbytes: int
    ) -> Array:
        """Return a new array with strides (in bytes) that leave no gaps."""

    def kernel_problem(self) -> str:
        """Return why no kernel can be compiled, to follow "our own kernels"; empty if one can."""

    def kernel(
        self,
        source: str,
        name: str,
        headers: Headers = (),
        *,
        cooperative: bool = False,
        shared_bytes: int = 0,
    ) -> Kernel:
        """Return a function of a CUDA source, compiled for the current device.

        ``headers`` are those that the source includes. With ``cooperative`` all blocks of a launch
        are on the device at the same time. ``shared_bytes`` are the most that a launch will ask
        for.
        """

    def shared_bytes(self, device: int) -> int:
        """Return the bytes of shared memory that a block may request on ``device``."""

    def l2_bytes(self, device: int) -> int:
        """Return the bytes of the L2 cache of ``device``."""

    def blocks_at_once(self, kernel: Kernel, threads: int, shared_bytes: int) -> int:
        """Return the number of blocks of a kernel that the current device can hold at once."""

    def cluster_counts(self, device: int) -> tuple[int, ...]:
        """Return how many clusters of 1, 2, ... 8 blocks ``device`` can hold at once.

        Of blocks that have a multiprocessor each. Empty where it has no clusters, or where that
        cannot be found out.
        """

    def constant(self, values: np.ndarray[Any, Any]) -> Array:
        """Return a new array of these values, which is filled when this returns."""

    def capture(self, record: Callable[[Stream], object]) -> Graph:
        """Return what ``record(stream)`` enqueues on a separate stream, as a graph; nothing runs.

        That stream is the current one meanwhile.
        """

    def at_once(self, launch: Launch, works: Sequence[Callable[[Launch], object]]) -> None:
        """Enqueue works that need not wait for each other: in a capture as branches of the graph.

        Each work runs on the stream of the launch that it gets. All run after the work that is
        already on the stream of ``launch``, and before any that is enqueued later.
        """

    def elapsed(self, calls: Callable[[], object]) -> float:
        """Return the milliseconds that ``calls()`` takes on the current stream. Waits for it."""

    def scratch(self) -> AbstractContextManager[Any]:
        """Return a context whose allocations go back to the driver at its end.

        The user's allocator makes none of them. At the end the current stream has been waited for.
        """

    def device_name(self, device: int) -> str:
        """Return the device's name and its driver's version, to which measured times belong."""


class Kernel(Protocol):
    """A compiled kernel."""

    def __call__(
        self,
        blocks: tuple[int, ...],
        threads: tuple[int, ...],
        arguments: tuple[float | bytes, ...],
        /,
        *,
        stream: Stream,
        shared_mem: int = 0,
    ) -> None:
        """Enqueue it. ``arguments`` are numbers of 64 bits each, and structs as their bytes."""


class Graph(Protocol):
    """Captured work, to be launched any number of times."""

    nbytes: int
    """Device memory that it holds, as far as it could be seen."""

    launches: int
    """Number of launches; fewer if old launches no longer count."""

    executor: Any
    """The executor whose calls were captured; kept alive, since they may need its kernels."""

    handle: Any
    """The handle that they were captured with; kept alive, since they may need its memory."""

    def launch(self, stream: Stream) -> None:
        """Enqueue the work on ``stream``."""


class Architecture(NamedTuple):
    """The properties of a GPU that the rule for the algorithm needs."""

    major: int
    minor: int
    multiprocessors: int
