"""Device memory through CuPy: its allocator, streams, graphs and kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from dnnffi.device.branches import Branches, Work
from dnnffi.device.driver import capture_id
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.graphs import (
    CudaGraph,
    NullStream,
    StepGraph,
    recording,
    refuse_in_capture,
    uncollected,
)
from dnnffi.device.interface import AnyArray, Architecture, Array, Graph, Launch, Stream
from dnnffi.errors import UnsupportedError
from dnnffi.importing import import_lock
from dnnffi.runtime.cuda.driver import DeviceAttributes, load_driver
from dnnffi.runtime.kernels import Kernel, process_kernels

# With CuPy's extra "ctk", as the extras of dnnffi: without it CuPy needs an installed CUDA toolkit.
INSTALL_CUPY = (
    "pip install 'cupy-cuda13x[ctk]' (CUDA 12: 'cupy-cuda12x[ctk]'; ROCm 7: cupy-rocm-7-0)"
)

_ALIGNMENT = 256  # bytes, as the driver aligns allocations


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
        self._branches = Branches(cupy)
        self._attributes: dict[int, DeviceAttributes] = {}
        self.kind = "rocm" if cupy.cuda.runtime.is_hip else "cuda"
        self.ndarray: Any = cupy.ndarray
        # The class itself allocates, at four fifths of the cost of cupy.empty.
        self.empty: Callable[..., Array] = cupy.ndarray
        self.zeros: Callable[..., Array] = cupy.zeros
        self.current_device: Callable[[], int] = cupy.cuda.runtime.getDevice
        self.current_stream: Callable[[], Stream] = cupy.cuda.get_current_stream

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
    ) -> AnyArray:
        return self.ndarray(shape, dtype, self._cupy.cuda.alloc(nbytes), strides)

    def clear(self, address: int, nbytes: int, stream: Stream) -> None:
        self._cupy.cuda.runtime.memsetAsync(address, 0, nbytes, stream.ptr)

    def device_count(self) -> int:
        return self._cupy.cuda.runtime.getDeviceCount()

    def use(self, device: int) -> AbstractContextManager[Any]:
        return self._cupy.cuda.Device(device)

    def dtype(self, name: str) -> np.dtype[Any]:
        return dtype_object(name)

    def architecture(self, device: int) -> Architecture:
        attributes = self._attributes_of(device)
        return Architecture(*attributes.compute_capability, attributes.num_multiprocessors)

    def new_event(self) -> Any:
        return self._cupy.cuda.Event(disable_timing=True)

    def record(self, event: Any, stream: Stream) -> None:
        event.record(stream)

    def wait(self, stream: Stream, event: Any) -> None:
        self._cupy.cuda.runtime.streamWaitEvent(stream.ptr, event.ptr)

    def capture_id(self, stream: Stream) -> int:
        return capture_id(stream.ptr) if self.is_capturing(stream) else 0

    def is_capturing(self, stream: Stream) -> bool:
        # The null stream cannot be captured; asking about it may disturb another's capture.
        at = stream.ptr
        refuse_in_capture(at)
        return bool(at and self.kind == "cuda" and self._cupy.cuda.runtime.streamIsCapturing(at))

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        runtime = self._cupy.cuda.runtime
        runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDeviceToDevice, stream.ptr)

    def kernel(
        self, source: str, name: str, *, cooperative: bool = False, shared_bytes: int = 0
    ) -> Kernel:
        if self.kind != "cuda":
            raise UnsupportedError("dnnffi", "", "our own kernels run on CUDA only; this is ROCm")
        return process_kernels().get(
            *(source, name, self.current_device()),
            cooperative=cooperative,
            shared_bytes=shared_bytes,
        )

    def shared_bytes(self, device: int) -> int:
        return self._attributes_of(device).shared_bytes

    def l2_bytes(self, device: int) -> int:
        return self._attributes_of(device).l2_bytes

    def blocks_at_once(self, kernel: Any, threads: int, shared_bytes: int) -> int:
        attributes = self._attributes_of(self.current_device())
        each: int = kernel.blocks_per_multiprocessor(threads, shared_bytes)
        return each * attributes.num_multiprocessors

    def _attributes_of(self, device: int) -> DeviceAttributes:
        """Attributes of a device, asked for once: CuPy needs a millisecond for all properties."""
        if self.kind == "cuda":
            return load_driver().attributes(device)
        found = self._attributes.get(device)
        if found is None:
            read = self._cupy.cuda.runtime.getDeviceProperties(device)
            found = self._attributes[device] = DeviceAttributes(
                compute_capability=(read["major"], read["minor"]),
                num_multiprocessors=read["multiProcessorCount"],
                shared_bytes=read["sharedMemPerBlock"],
                l2_bytes=read["l2CacheSize"],
            )
        return found

    def constant(self, values: np.ndarray[Any, Any]) -> Array:
        array: Array = self._cupy.asarray(values)
        self._cupy.cuda.get_current_stream().synchronize()
        return array

    def capture(self, record: Callable[[Stream], object]) -> Graph:
        runtime = self._cupy.cuda.runtime
        null = self._null_stream()
        free, _ = runtime.memGetInfo()
        # A stream of our own: the caller's may be the null stream, which cannot be captured. Kept,
        # because a library may remember it.
        stream = getattr(self._local, "capture_stream", None)
        if stream is None or stream.device_id != self.current_device():
            stream = self._local.capture_stream = self._cupy.cuda.Stream(non_blocking=True)
        with recording(stream), stream, uncollected():
            try:
                stream.begin_capture(runtime.streamCaptureModeThreadLocal)
                record(stream)
            except BaseException:
                with suppress(runtime.CUDARuntimeError):
                    stream.end_capture()
                raise
            graph = stream.end_capture()
        graph.upload(stream)
        stream.synchronize()
        return CudaGraph(graph, null, max(0, free - runtime.memGetInfo()[0]))

    def at_once(self, launch: Launch, works: Sequence[Work]) -> None:
        self._branches.run(launch, works)

    def capture_step(self, step: Callable[[], Any]) -> StepGraph:
        cupy = self._cupy
        step()
        stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
        # What the step allocates is to be at its address in every launch: a pool of its own.
        with stream, cupy.cuda.using_allocator(pool.malloc):
            # Relaxed, because the pool has to ask the driver for memory.
            try:
                stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
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
        return self._cupy.cuda.get_elapsed_time(start, end)

    @contextmanager
    def scratch(self) -> Iterator[None]:
        pool = self._cupy.cuda.MemoryPool()
        try:
            with self._cupy.cuda.using_allocator(pool.malloc):
                yield
        finally:
            self._cupy.cuda.get_current_stream().synchronize()
            pool.free_all_blocks()

    def device_name(self, device: int) -> str:
        name = self._cupy.cuda.runtime.getDeviceProperties(device)["name"].decode(errors="replace")
        return f"{name}, driver {_driver_version(self._cupy)}"


@cache
def _driver_version(cupy: Any) -> str:
    try:
        return Path("/sys/module/nvidia/version").read_text(errors="replace").strip()
    except OSError:
        return f"API {cupy.cuda.runtime.driverGetVersion()}"


@cache
def cupy_memory() -> CupyMemory:
    """The one `CupyMemory`. Raises ``ImportError`` naming the install command without CuPy."""
    return CupyMemory()


def import_cupy() -> Any:
    """CuPy, or an ``ImportError`` that says how to install it."""
    try:
        with import_lock:
            import cupy
    except ImportError as error:
        raise ImportError(
            f"CuPy is needed for GPU arrays, unless options['allocator'] makes the results. "
            f"Install: {INSTALL_CUPY}"
        ) from error
    return cupy
