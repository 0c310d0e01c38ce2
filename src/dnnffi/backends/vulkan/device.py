"""Adapters and devices of wgpu: limits, pipelines, and the meaning of errors."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from dnnffi.backends.vulkan.native import Functions
from dnnffi.errors import DnnffiError, LibraryNotFoundError, UnsupportedError, VulkanError
from dnnffi.execution.cache import OnceCell
from dnnffi.importing import import_lock
from dnnffi.installing import install_extra
from dnnffi.log import logger

INSTALL_DRIVER = (
    "the driver of the GPU; without a GPU Mesa's lavapipe computes on the CPU: "
    "apt install mesa-vulkan-drivers"
)

MAX_POLLS = 100
"""Polls of a GPU for results before a thread sleeps, which takes longer to end."""

MAX_STEPS = 4096
"""Steps of a chunk of a sequence: each has a number in a buffer of the device."""

# The APIs of wgpu that always have compute shaders with storage buffers; OpenGL does not.
_APIS = ("Vulkan", "Metal", "D3D12")
_KINDS = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "Unknown", "CPU")

_MAX_BYTES = 2**32 - 4
"""Limit of a buffer: kernels count elements of four bytes, and some drivers report no limit."""

_SUBGROUP = "subgroup"
_SUBGROUP_SIZE = """
@group(0) @binding(0) var<storage, read_write> size: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(subgroup_size) found: u32) { size[0] = found; }
"""


class Adapter(NamedTuple):
    """An adapter that wgpu found: its name, kind ("CPU", "DiscreteGPU", ...), API and driver."""

    name: str
    kind: str
    api: str
    driver: str

    def __str__(self) -> str:
        return f"{self.name} ({self.api}, {self.kind}, {self.driver})"


def wgpu_module() -> Any:
    """Import the package wgpu. `LibraryNotFoundError`, with the install command, without it."""
    try:
        with import_lock:
            return import_module("wgpu")
    except ImportError as error:
        raise LibraryNotFoundError(
            "wgpu, which the backend 'vulkan' runs on,",
            [f"import wgpu: {error}"],
            install_extra("vulkan"),
        ) from error


def _of(adapter: Any) -> Adapter:
    info = adapter.info
    return Adapter(info["device"], info["adapter_type"], info["backend_type"], info["description"])


def _found() -> list[tuple[Adapter, Any]]:
    """Return the adapters, discrete GPUs first, software last."""
    found = [(_of(one), one) for one in wgpu_module().gpu.enumerate_adapters_sync()]
    taken = [(adapter, one) for adapter, one in found if adapter.api in _APIS]
    if not taken:
        others = ", ".join(str(adapter) for adapter, _ in found) or "none"
        raise LibraryNotFoundError(
            "a Vulkan adapter", [f"the adapters that wgpu enumerates: {others}"], INSTALL_DRIVER
        )
    order = {kind: place for place, kind in enumerate(_KINDS)}
    return sorted(taken, key=lambda pair: order.get(pair[0].kind, len(order)))


def adapters() -> list[Adapter]:
    """Return the adapters in the order of their numbers; `LibraryNotFoundError` without any."""
    return [adapter for adapter, _ in _found()]


class Device:
    """An open adapter, for the process that opened it: a forked child is refused."""

    def __init__(self, index: int, adapter: Adapter, native: Any) -> None:
        self.index = index
        self.adapter = adapter
        limits = dict(native.limits)
        wanted = {
            name: min(int(limits[name]), _MAX_BYTES)
            for name in ("max-storage-buffer-binding-size", "max-buffer-size")
        }
        self.max_binding_bytes, self.max_bytes = wanted.values()
        self.alignment = max(256, int(limits["min-storage-buffer-offset-alignment"]))
        self.cpu = adapter.kind == "CPU"
        self.polls = 0 if self.cpu else MAX_POLLS
        self._module = wgpu_module()
        self.functions = Functions(self._module.__version__)
        self._process = os.getpid()
        with self.errors("opening the adapter"):
            self.native = native.request_device_sync(
                required_features=[_SUBGROUP] if self.cpu and _SUBGROUP in native.features else [],
                required_limits=wanted,
            )
            self.queue = self.native.queue
            self.usage = self._module.BufferUsage
            apart = int(limits["min-uniform-buffer-offset-alignment"])
            numbers = memoryview(bytearray(MAX_STEPS * apart)).cast("I")
            for step in range(MAX_STEPS):
                numbers[step * apart // 4] = step
            self.step_offsets = self.functions.offsets([step * apart for step in range(MAX_STEPS)])
            self.steps = self.native.create_buffer_with_data(data=numbers, usage=self.usage.UNIFORM)
        logger.info("opened the Vulkan adapter %s", adapter)
        self.lost = False
        self._pipelines: OnceCell[str, Pipeline] = OnceCell()
        self.subgroup = self._subgroup_size() if _SUBGROUP in self.native.features else 0
        """Invocations of a subgroup; 0 if kernels may not use subgroups."""

    @contextmanager
    def errors(self, doing: str, what: object = "") -> Iterator[None]:
        """Turn errors of wgpu into `VulkanError`, raised in a forked child too; drop a lost device.

        ``{}`` in ``doing`` stands for ``what``, which is put into words for an error alone.
        """
        if os.getpid() != self._process:
            raise VulkanError(
                f"{self.adapter.name}: this process was forked after it was opened, and the driver "
                f"does not work in it; start processes with the spawn or forkserver method of "
                f"multiprocessing"
            )
        try:
            yield
        except DnnffiError:
            raise
        except (self._module.GPUError, self._module.GPUPipelineError, RuntimeError) as error:
            text = " ".join(str(error).split())
            if "lost" in text.lower():
                self.lost = True
                _devices.drop(self.index, self)
                text += (
                    "; what was packed on it is gone. Pack the weights again, which opens the "
                    "adapter anew"
                )
            raise VulkanError(f"{self.adapter}: {doing.format(what)}: {text}") from error

    def unsupported(self, limit: str) -> UnsupportedError:
        """Return the error for what this adapter, or the backend, does not have."""
        return UnsupportedError("Vulkan", self.version_text, limit)

    @property
    def version_text(self) -> str:
        """The adapter, in words: errors have it in place of a library's version."""
        return f"on {self.adapter}"

    def __str__(self) -> str:
        return str(self.adapter)

    def buffer(self, what: str, nbytes: int, usage: int, mapped: bool = False) -> Any:
        """Return a zeroed buffer. `VulkanError` without memory, `UnsupportedError` if too large."""
        if nbytes > self.max_bytes:
            raise self.unsupported(
                f"{what} takes {nbytes} bytes; a buffer of this adapter has at most "
                f"{self.max_bytes} (max-buffer-size); run fewer steps or rows at once"
            )
        with self.errors(f"a buffer of {nbytes} bytes for {what}"):
            return self.native.create_buffer(
                size=max(16, nbytes), usage=usage, mapped_at_creation=mapped
            )

    def _subgroup_size(self) -> int:
        usage = self.usage.STORAGE | self.usage.COPY_SRC
        found = self.buffer("the size of subgroups", 16, usage)
        pipeline = self.pipeline(_SUBGROUP_SIZE, ("out",))
        with self.errors("asking for the size of subgroups"):
            encoder = self.native.create_command_encoder()
            run = encoder.begin_compute_pass()
            run.set_pipeline(pipeline.native)
            run.set_bind_group(0, pipeline.bind({"out": (found, 0, 16)}))
            run.dispatch_workgroups(1)
            run.end()
            self.queue.submit([encoder.finish()])
            return int(self.queue.read_buffer(found, 0, 4).cast("I")[0])

    def pipeline(self, source: str, names: tuple[str, ...]) -> Pipeline:
        """Return the compiled kernel of ``source``, whose bindings are ``names``."""

        def make() -> Pipeline:
            begun = time.perf_counter()
            with self.errors("compiling a kernel"):
                made = Pipeline(self.native, source, names)
            milliseconds = 1e3 * (time.perf_counter() - begun)
            logger.debug("compiled a kernel for %s in %.1f ms", self.adapter, milliseconds)
            return made

        return self._pipelines.get(source, make)


_READ = frozenset(("w", "x", "source", "before", "gates", "bias", "lengths", "flags"))


class Pipeline:
    """A compiled kernel and the layout of its bindings."""

    def __init__(self, native: Any, source: str, names: tuple[str, ...]) -> None:
        entries: list[dict[str, Any]] = []
        for index, name in enumerate(names):
            buffer: dict[str, Any] = {
                "type": "read-only-storage" if name in _READ else "storage",
            }
            if name == "now":
                buffer = {"type": "uniform", "has_dynamic_offset": True}
            entries.append({"binding": index, "visibility": 4, "buffer": buffer})
        self.names = names
        self._native = native
        self._layout = native.create_bind_group_layout(entries=entries)
        self.native = native.create_compute_pipeline(
            layout=native.create_pipeline_layout(bind_group_layouts=[self._layout]),
            compute={"module": native.create_shader_module(code=source), "entry_point": "main"},
        )

    def bind(self, parts: Mapping[str, tuple[Any, int, int] | None]) -> Any:
        """Return a bind group of ``parts``: buffer, offset and bytes by name.

        Parts without a binding are ignored.
        """
        entries = []
        for index, name in enumerate(self.names):
            part = parts[name]
            assert part is not None
            buffer, offset, size = part
            resource = {"buffer": buffer, "offset": offset, "size": size}
            entries.append({"binding": index, "resource": resource})
        return self._native.create_bind_group(layout=self._layout, entries=entries)


def _open(index: int) -> Device:
    found = _found()
    if not 0 <= index < len(found):
        names = ", ".join(f"{number}: {adapter}" for number, (adapter, _) in enumerate(found))
        raise ValueError(f"device must be from 0 to {len(found) - 1} ({names}); got {index}")
    return Device(index, *found[index])


_devices: OnceCell[int, Device] = OnceCell()


def open_device(index: int | None = None) -> Device:
    """Return the adapter of this number, by default the first, opened once in a process.

    Raises
    ------
    LibraryNotFoundError
        Without wgpu, or without an adapter.
    ValueError
        There is no adapter of this number.
    """
    number = 0 if index is None else index
    with import_lock:  # wgpu imports modules when it looks for adapters
        return _devices.get(number, lambda: _open(number))
