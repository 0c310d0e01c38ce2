"""What is device memory through CuPy? Its allocator, streams, graphs and kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from dnnffi.device.driver import capture_id
from dnnffi.device.dtypes import compute_dtype, dtype_object
from dnnffi.device.graphs import CudaGraph, NullStream, StepGraph
from dnnffi.device.interface import Architecture, Array, Graph, Kernel

INSTALL_CUPY = "pip install cupy-cuda13x (CUDA 12: cupy-cuda12x; ROCm 7: cupy-rocm-7-0)"

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
