"""Operations on device memory that do not depend on the library of its arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, cast

import numpy as np

from dnnffi.device.branches import Branches, Work
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.graphs import CudaGraph, NullStream, recording, refuse_in_capture, uncollected
from dnnffi.device.interface import Architecture, Graph, Launch, Stream
from dnnffi.errors import UnsupportedError
from dnnffi.runtime.cuda.runtime import CudaRuntime, OwnStream
from dnnffi.runtime.devices import DeviceRuntime, device_runtime
from dnnffi.runtime.kernel_cache import Headers
from dnnffi.runtime.kernels import Kernel, kernel_problem, process_kernels


class DeviceMemory:
    """Memory of CUDA or ROCm devices, as executors, tuners and plans use it.

    Copies, events, kernels, captures and times are those of the device's runtime. A subclass adds
    the arrays of a library: their class ``ndarray``, `empty` and the like, the current device and
    stream, and `_on_stream`. On ROCm there are no kernels of dnnffi's own, no captures and no
    times.
    """

    current_device: Callable[[], int]
    current_stream: Callable[[], Stream]
    device_count: Callable[[], int]

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._local = threading.local()
        self._null_streams: dict[int, NullStream] = {}

    @cached_property
    def _runtime(self) -> DeviceRuntime:
        # Opened at the first use, because CuPy can also be imported without a driver.
        return device_runtime(self.kind)

    @cached_property
    def _branches(self) -> Branches:
        return Branches(self._runtime)

    @property
    def _cuda(self) -> CudaRuntime:
        """The runtime of CUDA; `UnsupportedError` on ROCm."""
        if self.kind != "cuda":
            raise UnsupportedError("dnnffi", "", "graphs and own kernels need CUDA; this is ROCm")
        return cast("CudaRuntime", self._runtime)

    def _on_stream(self, stream: OwnStream) -> AbstractContextManager[Any]:
        """Return a context in which ``stream`` is the current stream."""
        raise NotImplementedError

    # Devices

    def use(self, device: int) -> AbstractContextManager[Any]:
        return self._runtime.use(device)

    def dtype(self, name: str) -> np.dtype[Any]:
        return dtype_object(name)

    def architecture(self, device: int) -> Architecture:
        attributes = self._cuda.attributes(device)
        return Architecture(*attributes.compute_capability, attributes.num_multiprocessors)

    def shared_bytes(self, device: int) -> int:
        return self._cuda.attributes(device).shared_bytes

    def l2_bytes(self, device: int) -> int:
        return self._cuda.attributes(device).l2_bytes

    def device_name(self, device: int) -> str:
        return self._cuda.device_name(device)

    # Copies and events

    def clear(self, address: int, nbytes: int, stream: Stream) -> None:
        self._runtime.clear(address, nbytes, stream.ptr)

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        self._runtime.copy(target, source, nbytes, stream.ptr)

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
        ends = target, target_pitch, source, source_pitch
        self._runtime.copy_rows(*ends, width, rows, stream.ptr)

    def new_event(self) -> Any:
        return self._runtime.new_event()

    def record(self, event: Any, stream: Stream) -> None:
        self._runtime.record(event, stream.ptr)

    def wait(self, stream: Stream, event: Any) -> None:
        self._runtime.wait(stream.ptr, event)

    def elapsed(self, calls: Callable[[], object]) -> float:
        runtime, stream = self._cuda, self.current_stream().ptr
        start, end = runtime.new_event(timed=True), runtime.new_event(timed=True)
        runtime.record(start, stream)
        calls()
        runtime.record(end, stream)
        runtime.wait_on_host(end)
        return runtime.milliseconds(start, end)

    # Kernels

    def kernel_problem(self) -> str:
        return kernel_problem() if self.kind == "cuda" else "run on CUDA only"

    def kernel(
        self,
        source: str,
        name: str,
        headers: Headers = (),
        *,
        cooperative: bool = False,
        shared_bytes: int = 0,
    ) -> Kernel:
        if self.kind != "cuda":
            raise UnsupportedError("dnnffi", "", "our own kernels run on CUDA only; this is ROCm")
        return process_kernels().get(
            *(source, name, self.current_device()),
            headers=headers,
            cooperative=cooperative,
            shared_bytes=shared_bytes,
        )

    def blocks_at_once(self, kernel: Any, threads: int, shared_bytes: int) -> int:
        attributes = self._cuda.attributes(self.current_device())
        each: int = kernel.blocks_per_multiprocessor(threads, shared_bytes)
        return each * attributes.num_multiprocessors

    def cluster_counts(self, device: int) -> tuple[int, ...]:
        return process_kernels().cluster_counts(device)

    def at_once(self, launch: Launch, works: Sequence[Work]) -> None:
        self._branches.run(launch, works)

    # Captures

    def is_capturing(self, stream: Stream) -> bool:
        # The null stream cannot be captured; asking about it may disturb another's capture.
        at = stream.ptr
        refuse_in_capture(at)
        return bool(at) and self._runtime.is_capturing(at)

    def capture_id(self, stream: Stream) -> int:
        at = stream.ptr
        return self._runtime.capture_id(at) if at else 0

    def beside_capture(self) -> AbstractContextManager[None]:
        return self._runtime.beside_capture()

    def capture(self, record: Callable[[Stream], object]) -> Graph:
        runtime, null = self._cuda, self._null_stream()
        free_bytes = runtime.free_bytes()
        stream = self._capture_stream()
        with recording(stream), self._on_stream(stream), uncollected():
            try:
                runtime.begin_capture(stream.ptr)
                record(stream)
            except BaseException:
                runtime.abandon_capture(stream.ptr)
                raise
            graph = runtime.end_capture(stream.ptr)
        runtime.upload(graph, stream.ptr)
        runtime.synchronize(stream.ptr)
        return CudaGraph(graph, null, max(0, free_bytes - runtime.free_bytes()))

    def _capture_stream(self) -> OwnStream:
        """Return the thread's stream for captures on the current device.

        The caller's may be the null stream, which cannot be captured. Each is kept, because a
        library may remember it.
        """
        streams: dict[int, OwnStream] = vars(self._local).setdefault("capture_streams", {})
        device = self.current_device()
        found = streams.get(device)
        if found is None:
            found = streams.setdefault(device, self._cuda.new_stream())
        return found

    def _null_stream(self) -> NullStream:
        """Return the `NullStream` of the current device."""
        device = self.current_device()
        found = self._null_streams.get(device)
        if found is None:
            runtime = self._cuda
            word = runtime.allocate(4)
            null = NullStream(lambda: runtime.clear(word.ptr, 4, 0))
            found = self._null_streams.setdefault(device, null)
        return found
