"""The one file that knows CuPy, NumPy and DLPack: address, stream, dtype, allocation.

Vendor rooms read arrays through five attributes that CuPy's ``ndarray`` has: ``data.ptr``,
``size``, ``shape``, ``dtype`` and ``_c_contiguous`` (CuPy's own flag behind
``flags.c_contiguous``, at a fifth of its cost).
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = Any
"""A NumPy or CuPy array; neither has a common static type."""

INSTALL_CUPY = "pip install cupy-cuda13x (CUDA 12: cupy-cuda12x; ROCm 7: cupy-rocm-7-0)"

_ALIGNMENT = 256  # bytes, as the driver aligns allocations

# DLPack device types (dlpack.h): kDLCPU, kDLCUDA, kDLCUDAHost, kDLCUDAManaged, kDLROCM
_DLPACK_CPU = 1
DLPACK_CUDA = (2, 13)
DLPACK_ROCM = 10


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

    def capture_step(self, step: Callable[[], Any]) -> StepGraph:
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


class CupyMemory:
    """Device memory through CuPy, on CUDA or ROCm: its allocator, its current device and stream.

    CuPy has the same names for both. What is said of ROCm was read in CuPy's documentation and not
    run: there is no graph capture.
    """

    def __init__(self) -> None:
        cupy = import_cupy()
        self._cupy = cupy
        self._local = threading.local()
        self._null_streams: dict[int, NullStream] = {}
        self.kind = "rocm" if cupy.cuda.runtime.is_hip else "cuda"
        self.ndarray: Any = cupy.ndarray
        # The class itself allocates, at four fifths of the cost of cupy.empty.
        self.empty: Callable[..., Array] = cupy.ndarray
        self.zeros: Callable[..., Array] = cupy.zeros
        self.current_device: Callable[[], int] = cupy.cuda.runtime.getDevice
        self.current_stream: Callable[[], Any] = cupy.cuda.get_current_stream

    def pairs(
        self, shape: tuple[int, ...], other: tuple[int, ...], dtype: Any
    ) -> Callable[[], tuple[Array, Array]]:
        # One allocation: two states are kept and dropped together as a rule.
        second = -(-prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        nbytes = second + prod(other) * dtype.itemsize
        alloc, ndarray = self._cupy.cuda.alloc, self.ndarray

        def pair() -> tuple[Array, Array]:
            block = alloc(nbytes)
            return ndarray(shape, dtype, block), ndarray(other, dtype, block + second)

        return pair

    def empty_strided(
        self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...], nbytes: int
    ) -> Array:
        return self.ndarray(shape, dtype, self._cupy.cuda.alloc(nbytes), strides)

    def add_epilogue(
        self, y: Array, residual: Array | None, alpha: float, bias: Array | None, relu: bool
    ) -> None:
        kernel = _epilogue_kernel(
            compute_dtype(y.dtype).name, residual is not None, bias is not None, relu
        )
        given = [y]
        if residual is not None:
            given += [residual, alpha]
        if bias is not None:
            given.append(bias.reshape(-1, *(1,) * (y.ndim - 2)))
        kernel(*given, y)

    def clear(self, address: int, nbytes: int) -> None:
        self._cupy.cuda.runtime.memsetAsync(address, 0, nbytes, self.current_stream().ptr)

    def device_count(self) -> int:
        count: int = self._cupy.cuda.runtime.getDeviceCount()
        return count

    def use(self, device: int) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._cupy.cuda.Device(device)
        return context

    def dtype(self, name: str) -> np.dtype[Any]:
        return dtype_object(name)

    def architecture(self, device: int) -> Architecture:
        properties = self._cupy.cuda.runtime.getDeviceProperties(device)
        return Architecture(
            properties["major"], properties["minor"], properties["multiProcessorCount"]
        )

    def new_event(self) -> Any:
        return self._cupy.cuda.Event(disable_timing=True)

    def record(self, event: Any, stream: Any) -> None:
        event.record(stream)

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def capture_id(self, stream: Any) -> int:
        return capture_id(stream.ptr) if self.is_capturing(stream) else 0

    def is_capturing(self, stream: Any) -> bool:
        # The null stream cannot be captured; asking about it may disturb another's capture.
        return bool(stream.ptr and self.kind == "cuda" and stream.is_capturing())

    def copy(self, target: int, source: int, nbytes: int) -> None:
        runtime = self._cupy.cuda.runtime
        kind = runtime.memcpyDeviceToDevice
        runtime.memcpyAsync(target, source, nbytes, kind, self.current_stream().ptr)

    def kernel(self, source: str, name: str) -> Kernel:
        made = _raw_kernel(source, name)
        made.compile()  # not first in a capture
        return made  # type: ignore[no-any-return]

    def capture(self, record: Callable[[], object]) -> Graph:
        runtime = self._cupy.cuda.runtime
        null = self._null_stream()
        free, _ = runtime.memGetInfo()
        # A stream of our own: the caller's may be the null stream, which cannot be captured. Kept,
        # because a library may remember it.
        stream = getattr(self._local, "capture_stream", None)
        if stream is None or stream.device_id != self.current_device():
            stream = self._local.capture_stream = self._cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture(runtime.streamCaptureModeThreadLocal)
            try:
                record()
            except BaseException:
                with suppress(runtime.CUDARuntimeError):
                    stream.end_capture()
                raise
            graph = stream.end_capture()
        graph.upload(stream)
        stream.synchronize()
        return CudaGraph(graph, null, max(0, free - runtime.memGetInfo()[0]))

    def capture_step(self, step: Callable[[], Any]) -> StepGraph:
        cupy = self._cupy
        step()
        stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
        # What the step allocates is to be at its address in every launch: a pool of its own.
        with stream, cupy.cuda.using_allocator(pool.malloc):
            # Relaxed, because the pool has to ask the driver for memory.
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
            try:
                result = step()
            except BaseException:
                with suppress(cupy.cuda.runtime.CUDARuntimeError):
                    stream.end_capture()
                raise
            graph = stream.end_capture()
        return StepGraph(graph, result, (pool, stream, step))

    def _null_stream(self) -> NullStream:
        """That of the current device."""
        device = self.current_device()
        if device not in self._null_streams:
            word, memset = self._cupy.cuda.Memory(4), self._cupy.cuda.runtime.memsetAsync
            null = NullStream(lambda: memset(word.ptr, 0, 4, 0))
            self._null_streams.setdefault(device, null)
        return self._null_streams[device]

    def elapsed(self, calls: Callable[[], object]) -> float:
        start, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        start.record()
        calls()
        end.record()
        end.synchronize()
        milliseconds: float = self._cupy.cuda.get_elapsed_time(start, end)
        return milliseconds

    @contextmanager
    def scratch(self) -> Iterator[None]:
        pool = self._cupy.cuda.MemoryPool()
        try:
            with self._cupy.cuda.using_allocator(pool.malloc):
                yield
        finally:
            self.current_stream().synchronize()
            pool.free_all_blocks()

    def device_name(self, device: int) -> str:
        name = self._cupy.cuda.runtime.getDeviceProperties(device)["name"].decode()
        return f"{name}, driver {_driver_version(self._cupy)}"


class NullStream:
    """The rows of graphs on a device's legacy null stream, which are kept short.

    Of different graphs of a vendor's kernels, with nothing else between them on that stream, each
    begins late, by a microsecond for every one in the row. ``work``, whatever it is, ends the row.
    Threads count together; a count that one of them loses makes a row longer.
    """

    _MOST_IN_A_ROW = 3  # different ones: a step of one network's functions pays nothing

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._length = 0
        self.row = 0
        """The number of the row. A graph that was launched in it does not make it longer."""

    def lengthen(self) -> int:
        """Make room for another graph in the row, or begin a new one; returns its number."""
        if self._length >= self._MOST_IN_A_ROW:  # above it where two threads were here at once
            self._work()
            self._length = 0
            self.row += 1
        self._length += 1
        return self.row


class CudaGraph:
    """A CUDA graph that CuPy captured."""

    def __init__(self, graph: Any, null: NullStream, nbytes: int) -> None:
        self._graph = graph
        self._null = null
        self._row = -1
        self.nbytes = nbytes
        self.launches = 0
        self.executor: Any = None

    def launch(self, stream: Any) -> None:
        self.launches += 1
        if not stream.ptr and self._row != self._null.row:
            self._row = self._null.lengthen()
        self._graph.launch(stream)


class StepGraph:
    """A captured step: `launch` runs it again. Keeps alive what the step refers to."""

    def __init__(self, graph: Any, result: Any, kept: object) -> None:
        self._graph = graph
        self._kept = kept
        self.result = result

    def launch(self) -> Any:
        """Enqueue the step on the current stream; returns what it returned at the capture.

        Raises ``ValueError`` once the plan that captured it is closed.
        """
        if self._graph is None:
            raise ValueError("the plan of this graph is closed")
        self._graph.launch()
        return self.result

    def close(self) -> None:
        """Let go of the graph and its memory."""
        self._graph = self._kept = self.result = None


@cache
def _epilogue_kernel(compute: str, residual: bool, bias: bool, relu: bool) -> Any:
    """The kernel of `CupyMemory.add_epilogue`, computing in ``compute``."""
    given = ["T a", f"T z, {compute} alpha" if residual else "", "T b" if bias else ""]
    ctype = {"float32": "float", "float64": "double"}[compute]
    parts = [
        f"({ctype})a",
        f"alpha * ({ctype})z" if residual else "",
        f"({ctype})b" if bias else "",
    ]
    value = " + ".join(part for part in parts if part)
    return import_cupy().ElementwiseKernel(
        ", ".join(part for part in given if part),
        "T y",
        # NaN stays.
        f"{ctype} v = {value}; y = (T)({'v < 0 ? 0 : v' if relu else 'v'});",
        "dnnffi_epilogue",
    )


@cache
def _raw_kernel(source: str, name: str) -> Any:
    return import_cupy().RawKernel(source, name)


@cache
def _driver_version(cupy: Any) -> str:
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return f"API {cupy.cuda.runtime.driverGetVersion()}"


def capture_id(stream: int) -> int:
    """The number of the CUDA graph capture that a stream is in, 0 where it is in none."""
    # CuPy tells whether a stream is captured, not in which capture; the driver does.
    driver = ctypes.CDLL("libcuda.so.1")
    status, number = ctypes.c_int(), ctypes.c_ulonglong()
    result = driver.cuStreamGetCaptureInfo_v2(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None
    )
    if result:
        raise RuntimeError(f"cuStreamGetCaptureInfo_v2 returned {result}")
    return number.value if status.value else 0


@cache
def cupy_memory() -> CupyMemory:
    """The one `CupyMemory`. Raises ``ImportError`` naming the install command without CuPy."""
    return CupyMemory()


def import_cupy() -> Any:
    """CuPy, or an ``ImportError`` that says how to install it."""
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            f"CuPy is needed for GPU arrays, unless options['allocator'] makes the results. "
            f"Install: {INSTALL_CUPY}"
        ) from error
    return cupy


@cache
def dtype_object(name: str) -> np.dtype[Any]:
    """The NumPy dtype called ``name``; bfloat16 comes from the package ml_dtypes."""
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError(
                "bfloat16 needs the package ml_dtypes. Install: pip install ml_dtypes"
            ) from error
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What the reference computes in: float32 for the two types of 16 bits, else the dtype."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def _cupy_if_imported() -> Any:
    # An array of a module that was never imported cannot have been passed.
    return sys.modules.get("cupy")


def array_module(array: Array) -> ModuleType:
    """``numpy`` or ``cupy``, whichever made ``array``."""
    cupy = _cupy_if_imported()
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy  # type: ignore[no-any-return]
    return np


_array_classes: set[type] = set()  # those seen: `as_array` is on the path of every call


def as_array(name: str, value: object) -> Array:
    """``value`` as a NumPy or CuPy array, without a copy.

    Takes NumPy and CuPy arrays, and objects with DLPack or ``__cuda_array_interface__`` (PyTorch,
    JAX, Numba). Without CuPy, arrays on a device become `dnnffi.foreign.DeviceArray`, which only
    calls with an allocator take. Raises ``TypeError`` naming the argument for anything else.
    """
    if value.__class__ in _array_classes:
        return value
    cupy = _cupy_if_imported()
    if (
        isinstance(value, np.ndarray)
        or (cupy is not None and isinstance(value, cupy.ndarray))
        or is_foreign(value.__class__)
    ):
        _array_classes.add(value.__class__)
        return value
    # DLPack first: its producer orders the streams by an event, the other protocol may wait.
    device_of = getattr(value, "__dlpack_device__", None)
    if device_of is not None:
        device_type, _ = device_of()
        if device_type == _DLPACK_CPU:
            return np.from_dlpack(_detached(value))
        if device_type in (*DLPACK_CUDA, DLPACK_ROCM):
            return _on_device(name, value, "from_dlpack")
    if hasattr(value, "__cuda_array_interface__"):
        return _on_device(name, value, "asarray")
    raise TypeError(
        f"{name} must be a NumPy or CuPy array, or an object with DLPack or "
        f"__cuda_array_interface__; got {type(value).__name__}"
    )


def _on_device(name: str, value: Any, function: str) -> Array:
    """``value`` by a function of CuPy; without CuPy as what stands in for its array."""
    try:
        cupy = import_cupy()
    except ImportError:
        from dnnffi.foreign import device_array

        return device_array(name, value)
    return getattr(cupy, function)(_detached(value))


def _detached(value: Any) -> Any:
    # PyTorch exports no tensor that requires a gradient.
    return value.detach() if getattr(value, "requires_grad", False) else value


def kind(array: Array) -> str | None:
    """Where an array lives: "host", "cuda" or "rocm"; None on a device that it does not name."""
    found = _kind_of_class(array.__class__)
    return array.kind if found is None else found


@cache
def _kind_of_class(array_class: type) -> str | None:
    cupy = _cupy_if_imported()
    if cupy is not None and issubclass(array_class, cupy.ndarray):
        return "rocm" if cupy.cuda.runtime.is_hip else "cuda"
    return None if is_foreign(array_class) else "host"


def is_foreign(array_class: type) -> bool:
    """Whether it is the class of device arrays without CuPy."""
    foreign = sys.modules.get("dnnffi.foreign")
    return foreign is not None and issubclass(array_class, foreign.DeviceArray)


def doubled(array: Array) -> Array:
    """``array`` in float64 where the reference can compute on it: on the host if not by CuPy."""
    return (to_host(array) if is_foreign(array.__class__) else array).astype("float64")


def place(array: Array) -> str:
    """The memory that holds an array: "host", "cuda:0", "rocm:1"."""
    found = kind(array)
    return found if found == "host" else f"{found}:{array.data.device_id}"


def in_layout(array: Array, *, channels_last: bool) -> Array:
    """``array`` [N, C, ...] without gaps, the channels innermost or not; a copy where needed."""
    xp = array_module(array)
    if not channels_last:
        return xp.ascontiguousarray(array)
    return xp.moveaxis(xp.ascontiguousarray(xp.moveaxis(array, 1, -1)), -1, 1)


def to_host(array: Array) -> np.ndarray[Any, Any]:
    """A NumPy copy or view of ``array``."""
    if isinstance(array, np.ndarray):
        return array
    return array.get()  # type: ignore[no-any-return]


def address(array: Array) -> int:
    """The address of the first element of a NumPy or CuPy array."""
    # NumPy makes ``data`` a buffer, which bfloat16 cannot be in.
    pointer: int = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    return pointer


def array_over(arrays: Sequence[Array], start: int, size: int) -> Array | None:
    """A flat array of ``size`` elements from address ``start`` over the memory of ``arrays``.

    It keeps ``arrays`` alive. The caller has checked that they cover it. None where that memory
    has no one owner that NumPy could take a view of.
    """
    first = arrays[0]
    if isinstance(first, np.ndarray):
        root = _root(first)
        if not root.flags.c_contiguous or any(_root(array) is not root for array in arrays):
            return None
        # In bytes: the owner may have another dtype, and its length need not be whole elements.
        offset = start - root.ctypes.data
        nbytes = size * first.dtype.itemsize
        raw = root.reshape(-1).view(np.uint8)[offset : offset + nbytes]
        return raw.view(first.dtype)
    if is_foreign(first.__class__):
        from dnnffi.foreign.array import array_over as over

        return over(arrays, start, size)
    cupy = import_cupy()
    owner = tuple(arrays)
    bytes_ = size * first.dtype.itemsize
    memory = cupy.cuda.UnownedMemory(start, bytes_, owner, first.data.device_id)
    return cupy.ndarray((size,), first.dtype, cupy.cuda.MemoryPointer(memory, 0))


def _root(array: Array) -> Array:
    """The NumPy array that owns the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
