"""Clocks that measure time and memory, one for each library that computes.

A clock times a loop of calls; the device is idle before the first call and after the last one. On a
GPU the time is measured between two events on the stream of the calls. The host's time ends when
the last call returns.

Memory is the number of bytes that the library's allocator has in use: the maximum during a call,
minus the bytes in use before the model was made. It does not include what the library requests from
the driver without its allocator, nor free blocks of a pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

Call = Callable[[], Any]


class Clock:
    """Clock for NumPy, and for PyTorch on a CPU. It does not measure memory."""

    def time(self, call: Call, count: int) -> tuple[float, float]:
        """Return milliseconds and host microseconds per call, means over ``count`` calls."""
        seconds = _seconds(call, count) / count
        return seconds * 1e3, seconds * 1e6

    def loop(self, call: Callable[[Any], Any], arguments: Iterable[Any]) -> tuple[float, float]:
        """Return the wall seconds of one call for each argument, and those until the last returns.

        The device is idle before the first call and when the wall time ends.
        """
        self.drain(None)
        start = time.perf_counter()
        result = None
        for argument in arguments:
            result = call(argument)
        host = time.perf_counter() - start
        self.drain(result)
        return time.perf_counter() - start, host

    def drain(self, result: Any) -> None:
        """Wait until the device is idle; for JAX, until ``result`` is computed."""

    def used(self) -> int | None:
        """Return the bytes in use, or None if the library does not report them."""
        return None

    def peak(self, call: Call) -> int | None:
        """Return the maximum of the bytes in use during ``call``, or None as `used`."""
        call()
        return None

    def is_out_of_memory(self, error: Exception) -> bool:
        """Return whether ``error`` says that the device has too little memory."""
        # PyTorch's allocator on the CPU raises a RuntimeError.
        return isinstance(error, MemoryError) or "can't allocate memory" in str(error)

    def free(self) -> None:
        """Free unused memory."""


def _seconds(call: Call, count: int) -> float:
    """Return the seconds until the last of ``count`` calls returns."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


def _between_events(event: Callable[[], Any], call: Call, count: int) -> tuple[Any, Any, float]:
    """Return two events around ``count`` calls, after the second one, and the host's seconds."""
    first, last = event(), event()
    first.record()
    host = _seconds(call, count)
    last.record()
    last.synchronize()
    return first, last, host


class CupyClock(Clock):
    """Clock for CuPy: its current stream and its memory pool."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy

    def time(self, call: Call, count: int) -> tuple[float, float]:
        cuda = self._cupy.cuda
        cuda.Device().synchronize()
        first, last, host = _between_events(cuda.Event, call, count)
        return cuda.get_elapsed_time(first, last) / count, host / count * 1e6

    def drain(self, result: Any) -> None:
        self._cupy.cuda.Device().synchronize()

    def used(self) -> int | None:
        return int(self._cupy.get_default_memory_pool().used_bytes())

    def peak(self, call: Call) -> int | None:
        hook = _peak_hook(self._cupy, self.used() or 0)
        with hook:
            call()
        self._cupy.cuda.Device().synchronize()
        return int(hook.peak)

    def is_out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, MemoryError) or "ALLOC_FAILED" in str(error)

    def free(self) -> None:
        self._cupy.get_default_memory_pool().free_all_blocks()


def _peak_hook(cupy: Any, used: int) -> Any:
    """Return a hook that records the maximum of the bytes in use, which CuPy's pool does not."""

    class Peak(cupy.cuda.MemoryHook):  # type: ignore[misc]
        name = "dnnffi peak"

        def __init__(self) -> None:
            self.now = self.peak = used

        def malloc_postprocess(self, **event: Any) -> None:
            self.now += event["mem_size"]
            self.peak = max(self.peak, self.now)

        def free_postprocess(self, **event: Any) -> None:
            self.now -= event["mem_size"]

    return Peak()


class TorchClock(Clock):
    """Clock for PyTorch on a GPU: its current stream and its allocator."""

    def __init__(self) -> None:
        import torch

        self._cuda: Any = torch.cuda

    def time(self, call: Call, count: int) -> tuple[float, float]:
        self._cuda.synchronize()
        event = partial(self._cuda.Event, enable_timing=True)
        first, last, host = _between_events(event, call, count)
        return first.elapsed_time(last) / count, host / count * 1e6

    def drain(self, result: Any) -> None:
        self._cuda.synchronize()

    def used(self) -> int | None:
        return int(self._cuda.memory_allocated())

    def peak(self, call: Call) -> int | None:
        self._cuda.reset_peak_memory_stats()
        call()
        self._cuda.synchronize()
        return int(self._cuda.max_memory_allocated())

    def is_out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, self._cuda.OutOfMemoryError) or "ALLOC_FAILED" in str(error)

    def free(self) -> None:
        self._cuda.empty_cache()


class JaxClock(Clock):
    """Clock for JAX: the host's time until the last result is computed.

    JAX has no events. The maximum of its allocator cannot be reset, so memory is not measured.
    """

    def __init__(self) -> None:
        import jax

        self._jax: Any = jax

    def time(self, call: Call, count: int) -> tuple[float, float]:
        self._jax.block_until_ready(call())
        start = time.perf_counter()
        for _ in range(count):
            results = call()
        host = time.perf_counter() - start
        self._jax.block_until_ready(results)
        return (time.perf_counter() - start) / count * 1e3, host / count * 1e6

    def drain(self, result: Any) -> None:
        self._jax.block_until_ready(result)

    def peak(self, call: Call) -> int | None:
        self._jax.block_until_ready(call())
        return None

    def is_out_of_memory(self, error: Exception) -> bool:
        return "RESOURCE_EXHAUSTED" in str(error)


def clock_for(library: str, place: str) -> Clock:
    """Return the clock for ``library`` ("array", "torch" or "jax") on "cpu" or "gpu"."""
    if library == "jax":
        return JaxClock()
    if place == "cpu":
        return Clock()
    return TorchClock() if library == "torch" else CupyClock()
