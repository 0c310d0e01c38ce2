"""A CUDA device on the driver: memory, streams, events, and graphs.

Addresses, streams and events of other libraries are integers. What is made here is destroyed with
its Python object, in whichever thread that is, and whatever that thread captures.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from threading import local

from dnnffi.errors import CudaError
from dnnffi.operating_system import read_kernel_file
from dnnffi.runtime.cuda._cdef import ffi
from dnnffi.runtime.cuda.driver import INVALID_CONTEXT, RELAXED, DeviceAttributes, Driver

_OUT_OF_MEMORY = ffi.integer_const("CUDA_ERROR_OUT_OF_MEMORY")
_MAX_PITCH_BYTES = 2**31 - 1  # of cuMemcpy2DAsync, see CU_DEVICE_ATTRIBUTE_MAX_PITCH
_UNIFIED = ffi.integer_const("CU_MEMORYTYPE_UNIFIED")
_NON_BLOCKING = ffi.integer_const("CU_STREAM_NON_BLOCKING")
_TIMED = ffi.integer_const("CU_EVENT_DEFAULT")
_NOT_TIMED = ffi.integer_const("CU_EVENT_DISABLE_TIMING")
_THREAD_LOCAL = ffi.integer_const("CU_STREAM_CAPTURE_MODE_THREAD_LOCAL")
_STATUS = ffi.typeof("CUstreamCaptureStatus *")


class _Owned:
    """An object of the driver, by its address ``ptr``; destroyed with this one."""

    _destroy = ""  # the function that destroys it

    def __init__(self, driver: Driver, device: int, ptr: int) -> None:
        self._driver = driver
        self.device = device
        self.ptr = ptr

    def __del__(self) -> None:
        # A thread that captures may destroy nothing unless it is relaxed. A status is ignored:
        # there is nobody to tell, and after a fork and at the end of the process each call fails.
        driver = self._driver
        try:
            with driver.relaxed(), driver.primary(self.device):
                getattr(driver.lib, self._destroy)(self.ptr)
        except Exception:
            pass


class DeviceBuffer(_Owned):
    """Memory of a device. Giving it back waits for the work of the device."""

    _destroy = "cuMemFree_v2"


class OwnStream(_Owned):
    """A stream that does not wait for the default stream."""

    _destroy = "cuStreamDestroy_v2"

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version and address, for CuPy and others that know the CUDA stream protocol."""
        return 0, self.ptr


class Event(_Owned):
    """An event, with or without times."""

    _destroy = "cuEventDestroy_v2"

    def __del__(self) -> None:
        # Captures forbid this nowhere; the slower way is for a thread without a context.
        if self._driver.lib.cuEventDestroy_v2(self.ptr):
            super().__del__()


class Graph(_Owned):
    """An executable graph."""

    _destroy = "cuGraphExecDestroy"

    def __init__(self, driver: Driver, device: int, ptr: int) -> None:
        super().__init__(driver, device, ptr)
        self._launch = driver.lib.cuGraphLaunch

    def launch(self, stream: int) -> None:
        """Enqueue the graph on ``stream``."""
        status = self._launch(self.ptr, stream)
        if status == INVALID_CONTEXT:
            self._driver.make_current(self.device)
            status = self._launch(self.ptr, stream)
        if status:
            self._driver.check(status, "cuGraphLaunch")


class CudaRuntime:
    """The devices of a driver. Raises `CudaError` with the driver's name for a status."""

    kind = "cuda"

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._call = driver.call
        self._stream_is_capturing = driver.lib.cuStreamIsCapturing
        self._local = local()
        self.current_device = driver.current_device
        self.device_count = driver.device_count
        self.beside_capture = driver.relaxed

    # Devices

    def use(self, device: int) -> AbstractContextManager[None]:
        """Make ``device`` the current one for the length of a ``with`` block."""
        return self.driver.primary(device)

    def attributes(self, device: int) -> DeviceAttributes:
        """Return attributes of ``device``, asked of the driver once per process."""
        return self.driver.attributes(device)

    def device_name(self, device: int) -> str:
        """Return the name of ``device`` with the version of its driver: for measured times."""
        version = kernel_module_version()
        if not version:
            major, minor = self.driver.version
            version = f"API {1000 * major + 10 * minor}"
        return f"{self.driver.device_name(device)}, driver {version}"

    # Memory

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Return new memory of the current device. Raises ``MemoryError`` if it has too little.

        Nothing is enqueued: a thread that captures a stream may allocate too.
        """
        made, device = ffi.new("dev_ptr *"), self.current_device()
        try:
            with self.beside_capture():
                self._call("cuMemAlloc_v2", made, max(nbytes, 1))
        except CudaError as error:
            if error.status != _OUT_OF_MEMORY:
                raise
            raise MemoryError(f"device {device} has no {nbytes:,} bytes of memory left") from error
        return DeviceBuffer(self.driver, device, made[0])

    def free_bytes(self) -> int:
        """Return the free memory of the current device in bytes."""
        free, total = ffi.new("size_t *"), ffi.new("size_t *")
        self._call("cuMemGetInfo_v2", free, total)
        return int(free[0])

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Enqueue a copy between any two addresses, of devices or the host."""
        if nbytes:
            self._call("cuMemcpyAsync", target, source, nbytes, stream)

    def copy_rows(
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        stream: int,
    ) -> None:
        """Enqueue a copy of rows of ``width`` bytes; pitches are from row to row.

        Calls ``cuMemcpy2DAsync``.
        """
        if not width or not rows:
            return
        if rows == 1 or max(target_pitch, source_pitch) > _MAX_PITCH_BYTES:
            for row in range(rows):
                ends = target + row * target_pitch, source + row * source_pitch
                self.copy(*ends, width, stream)
            return
        copy = ffi.new("CUDA_MEMCPY2D *")
        copy.srcMemoryType = copy.dstMemoryType = _UNIFIED
        copy.srcDevice, copy.srcPitch = source, source_pitch
        copy.dstDevice, copy.dstPitch = target, target_pitch
        copy.WidthInBytes, copy.Height = width, rows
        self._call("cuMemcpy2DAsync_v2", copy, stream)

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Enqueue the writing of zeros."""
        if nbytes:
            self._call("cuMemsetD8Async", address, 0, nbytes, stream)

    def write(self, target: int, source: int, nbytes: int) -> None:
        """Copy from the host, and wait for that alone, on a stream of the runtime's own.

        ``target`` must not be in use by other streams. A thread that captures may do this too.
        """
        device = self.current_device()
        with self.beside_capture():
            stream = getattr(self._local, "stream", None)
            if stream is None or stream.device != device:
                stream = self._local.stream = self.new_stream()
            self.copy(target, source, nbytes, stream.ptr)
            self.synchronize(stream.ptr)

    # Streams and events

    def new_stream(self) -> OwnStream:
        """Return a new stream of the current device, which does not wait for the default stream."""
        made = ffi.new("stream_ptr *")
        with self.beside_capture():
            self._call("cuStreamCreate", made, _NON_BLOCKING)
        return OwnStream(self.driver, self.current_device(), made[0])

    def synchronize(self, stream: int) -> None:
        """Wait until all work on ``stream`` is done."""
        self._call("cuStreamSynchronize", stream)

    def new_event(self, *, timed: bool = False) -> Event:
        """Return a new event of the current device, which takes times or only orders streams."""
        made = ffi.new("event_ptr *")
        self._call("cuEventCreate", made, _TIMED if timed else _NOT_TIMED)
        return Event(self.driver, self.current_device(), made[0])

    def record(self, event: Event, stream: int) -> None:
        """Record ``event`` on ``stream``."""
        self._call("cuEventRecord", event.ptr, stream)

    def wait(self, stream: int, event: Event) -> None:
        """Let ``stream`` wait for ``event``, without the host waiting."""
        self._call("cuStreamWaitEvent", stream, event.ptr, 0)

    def wait_on_host(self, event: Event) -> None:
        """Wait until the work before ``event`` is done."""
        self._call("cuEventSynchronize", event.ptr)

    def milliseconds(self, start: Event, end: Event) -> float:
        """Return the milliseconds between two events that take times and are done."""
        passed = ffi.new("float *")
        self._call("cuEventElapsedTime", passed, start.ptr, end.ptr)
        return float(passed[0])

    # Captures and graphs

    def is_capturing(self, stream: int) -> bool:
        """Return whether a stream other than the default stream is being captured."""
        # On the path of calls: without `Driver.call`, which is for the error.
        status = ffi.new(_STATUS)
        if self._stream_is_capturing(stream, status):
            self._call("cuStreamIsCapturing", stream, status)
        return bool(status[0])

    def capture_id(self, stream: int) -> int:
        """Return the number of the capture that a stream is in; 0 if it is in none."""
        status, number = ffi.new("CUstreamCaptureStatus *"), ffi.new("uint64_t *")
        null = ffi.NULL
        self._call("cuStreamGetCaptureInfo_v2", stream, status, number, null, null, null)
        return int(number[0]) if status[0] else 0

    def begin_capture(self, stream: int, *, relaxed: bool = False) -> None:
        """Begin to capture a stream; ``relaxed`` lets the thread allocate meanwhile."""
        self._call("cuStreamBeginCapture_v2", stream, RELAXED if relaxed else _THREAD_LOCAL)

    def end_capture(self, stream: int) -> Graph:
        """End the capture of a stream, and return what was captured as a graph to launch."""
        lib, graph, made = self.driver.lib, ffi.new("graph_ptr *"), ffi.new("graph_exec_ptr *")
        self._call("cuStreamEndCapture", stream, graph)
        try:
            self._call("cuGraphInstantiateWithFlags", made, graph[0], 0)
        finally:
            lib.cuGraphDestroy(graph[0])
        return Graph(self.driver, self.current_device(), made[0])

    def abandon_capture(self, stream: int) -> None:
        """End the capture of a stream after an error, and drop what was captured."""
        lib, graph = self.driver.lib, ffi.new("graph_ptr *")
        lib.cuStreamEndCapture(stream, graph)
        if graph[0]:
            lib.cuGraphDestroy(graph[0])

    def upload(self, graph: Graph, stream: int) -> None:
        """Enqueue the preparation of a graph, which its first launch would else do."""
        self._call("cuGraphUpload", graph.ptr, stream)


@cache
def kernel_module_version() -> str:
    """Return the version of NVIDIA's kernel module, as "580.65.06"; empty if it is not known."""
    return read_kernel_file("/sys/module/nvidia/version").decode(errors="replace").strip()
