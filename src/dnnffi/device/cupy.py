"""Device memory with the arrays of CuPy: its allocator, its current device and its streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from math import prod
from typing import Any

import numpy as np

from dnnffi import wheels
from dnnffi.device.graphs import StepGraph
from dnnffi.device.interface import AnyArray, Array
from dnnffi.device.memory import DeviceMemory
from dnnffi.importing import import_lock
from dnnffi.runtime.cuda.runtime import OwnStream

# With CuPy's extra "ctk", as the extras of dnnffi: without it CuPy needs an installed CUDA toolkit.
INSTALL_CUPY = (
    "pip install 'cupy-cuda13x[ctk]' (CUDA 12: 'cupy-cuda12x[ctk]'; ROCm 7: cupy-rocm-7-0)"
)

_ALIGNMENT = 256  # bytes, as the driver aligns allocations


class CupyMemory(DeviceMemory):
    """Device memory with CuPy's arrays, on CUDA or ROCm.

    CuPy has the same names for both. What is said of ROCm was read in CuPy's documentation and not
    run.
    """

    def __init__(self) -> None:
        cupy = import_cupy()
        super().__init__("rocm" if cupy.cuda.runtime.is_hip else "cuda")
        self._cupy = cupy
        self.ndarray: Any = cupy.ndarray
        # The class itself allocates, at four fifths of the cost of cupy.empty.
        self.empty: Callable[..., Array] = cupy.ndarray
        self.zeros: Callable[..., Array] = cupy.zeros
        self.current_device = cupy.cuda.runtime.getDevice
        self.device_count = cupy.cuda.runtime.getDeviceCount
        self.current_stream = cupy.cuda.get_current_stream

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

    def constant(self, values: np.ndarray[Any, Any]) -> Array:
        array: Array = self._cupy.asarray(values)
        self._cupy.cuda.get_current_stream().synchronize()
        return array

    def use(self, device: int) -> AbstractContextManager[Any]:
        return self._cupy.cuda.Device(device)

    def _on_stream(self, stream: OwnStream) -> AbstractContextManager[Any]:
        cuda = self._cupy.cuda
        if hasattr(cuda.Stream, "from_external"):
            return cuda.Stream.from_external(stream)
        return cuda.ExternalStream(stream.ptr)  # CuPy 13; deprecated in CuPy 14

    def capture_step(self, step: Callable[[], Any]) -> StepGraph:
        """Run ``step()`` once, then return a graph of it with the memory that it allocates."""
        runtime, cupy = self._cuda, self._cupy
        step()
        stream, pool = runtime.new_stream(), cupy.cuda.MemoryPool()
        # What the step allocates is to be at its address in every launch: a pool of its own.
        with self._on_stream(stream), cupy.cuda.using_allocator(pool.malloc):
            try:
                runtime.begin_capture(stream.ptr, relaxed=True)  # the pool asks for memory
                result = step()
            except BaseException:
                runtime.abandon_capture(stream.ptr)
                raise
            graph = runtime.end_capture(stream.ptr)
        return StepGraph(graph, self, result, (pool, stream, step))

    @contextmanager
    def scratch(self) -> Iterator[None]:
        pool = self._cupy.cuda.MemoryPool()
        try:
            with self._cupy.cuda.using_allocator(pool.malloc):
                yield
        finally:
            self._cupy.cuda.get_current_stream().synchronize()
            pool.free_all_blocks()


@cache
def cupy_memory() -> CupyMemory:
    """Return the one `CupyMemory`. Without CuPy raises ``ImportError`` with the command."""
    return CupyMemory()


def import_cupy() -> Any:
    """CuPy, or an ``ImportError`` that says how to install it."""
    try:
        with import_lock:
            import cupy
    except ImportError as error:
        raise ImportError(
            f"CuPy is needed for GPU arrays, unless options['allocator'] makes the results. "
            f"Install: {wheels.fitting_installed(INSTALL_CUPY)}"
        ) from error
    return cupy
