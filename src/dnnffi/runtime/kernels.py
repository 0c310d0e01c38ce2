"""Kernels of dnnffi: from their source to a function of a device, and the launch of one.

A kernel takes numbers of 64 bits (addresses, integers and floats) and structs by value, given as
bytes. What a launch hands to the driver is kept and filled again, so that 30 arguments cost the
host little more than two.
"""

from __future__ import annotations

import os
import threading
import time
from functools import cache
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Protocol

from dnnffi.cache_folder import cache_folder
from dnnffi.errors import CompileError, CudaError, LibraryNotFoundError, UnsupportedError
from dnnffi.log import logger
from dnnffi.runtime.cuda._cdef import ffi
from dnnffi.runtime.cuda.driver import INVALID_CONTEXT, Driver, load_driver
from dnnffi.runtime.kernel_cache import Headers, KernelCache, KernelKey
from dnnffi.runtime.nvrtc import compiler as nvrtc
from dnnffi.runtime.nvrtc.compiler import Compiler

OPTIONS = ("-std=c++17", "-ftz=true")
"""Options of NVRTC for every kernel: C++17, and subnormal float32 numbers flushed to zero."""

DEFAULT_SHARED_BYTES = 48 * 1024
"""Bytes of shared memory that a block may be given without asking the driver for more."""

_EMPTY = 'extern "C" __global__ void empty() {}'
"""A kernel for counting clusters: it has no work, and its registers limit nothing."""

_MAX_CLUSTER_BLOCKS = 8
"""Blocks that a cluster can have on every device that has clusters."""

_FIRST_WITH_CLUSTERS = (9, 0)
"""The first compute capability that has clusters."""

_COOPERATIVE = ffi.new("CUlaunchAttribute[1]")
_COOPERATIVE[0].id = ffi.integer_const("CU_LAUNCH_ATTRIBUTE_COOPERATIVE")
ffi.cast("int *", _COOPERATIVE[0].value)[0] = 1


class Stream(Protocol):
    """A stream of any library."""

    @property
    def ptr(self) -> int:
        """Its address; 0 is the default stream."""


Argument = int | float | bytes
"""An argument of a kernel: an address or integer below 2**63, a float, or a struct as its bytes."""


class _ArgumentLayout(NamedTuple):
    """Layout of a kernel's arguments; ``words`` has the index of the first 64-bit word of each."""

    packer: Struct
    words: tuple[int, ...]

    @classmethod
    def of(cls, arguments: tuple[Argument, ...]) -> _ArgumentLayout:
        """Return the layout of arguments with the types and sizes of these.

        Raises ``ValueError`` for a struct whose size is not a multiple of 8 bytes.
        """
        formats, words, word = ["<"], [], 0
        for argument in arguments:
            words.append(word)
            if isinstance(argument, bytes):
                if len(argument) % 8:
                    raise ValueError(
                        f"a struct must have a multiple of 8 bytes; got {len(argument)}: pad it"
                    )
                formats.append(f"{len(argument)}s")
                word += len(argument) // 8
            else:
                formats.append("d" if isinstance(argument, float) else "q")
                word += 1
        return cls(Struct("".join(formats)), tuple(words))


class _LaunchBuffers:
    """Buffers that one call of ``cuLaunchKernelEx`` reads: its configuration, and the arguments.

    The driver is given one pointer for each argument. (It also takes all arguments as one buffer,
    but not where a cooperative launch is captured: ``CUDA_ERROR_INVALID_VALUE``, driver 580.)
    """

    __slots__ = ("_packed", "config", "pack", "pointers", "shape", "view")

    def __init__(self, layout: _ArgumentLayout, is_cooperative: bool) -> None:
        self.pack = layout.packer.pack_into
        self._packed = ffi.new("uint64_t[]", layout.packer.size // 8)
        self.view = ffi.buffer(self._packed)
        self.pointers = ffi.new("void *[]", [self._packed + word for word in layout.words])
        self.config = ffi.new("CUlaunchConfig *")
        self.shape: object = None
        if is_cooperative:
            self.config.attrs, self.config.numAttrs = _COOPERATIVE, 1

    def set_shape(self, shape: tuple[tuple[int, ...], tuple[int, ...], int]) -> None:
        """Set blocks, threads and shared bytes of what is launched from now on."""
        blocks, threads, shared_bytes = shape
        config = self.config
        config.gridDimX, config.gridDimY, config.gridDimZ = (*blocks, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = (*threads, 1, 1)[:3]
        config.sharedMemBytes = shared_bytes
        self.shape = shape


class Kernel:
    """A function that is loaded on one device.

    ``is_cooperative``: all blocks of a launch are on the device at the same time.
    """

    def __init__(self, driver: Driver, device: int, function: int, is_cooperative: bool) -> None:
        self._driver = driver
        self._launch = driver.lib.cuLaunchKernelEx
        self._device = device
        self._function = function
        self._is_cooperative = is_cooperative
        self._layout: _ArgumentLayout | None = None  # known from the first launch
        self._unused: list[_LaunchBuffers] = []  # as many as were ever needed at the same time

    def __call__(
        self,
        blocks: tuple[int, ...],
        threads: tuple[int, ...],
        arguments: tuple[Argument, ...],
        /,
        *,
        stream: Stream,
        shared_mem: int = 0,
    ) -> None:
        """Enqueue the kernel on ``stream``: a grid of ``blocks`` of ``threads``.

        ``arguments`` are addresses, integers below 2**63 and floats, each passed as 64 bits (floats
        as doubles), and structs as bytes. The types and sizes of the first launch are those of all.
        ``shared_mem`` is the dynamic shared memory of a block in bytes. Calls ``cuLaunchKernelEx``;
        raises `CudaError`.
        """
        # Another thread, or a signal handler, may launch in the middle of this: each takes its own.
        try:
            buffers = self._unused.pop()
        except IndexError:
            if self._layout is None:
                self._layout = _ArgumentLayout.of(arguments)
            buffers = _LaunchBuffers(self._layout, self._is_cooperative)
        buffers.pack(buffers.view, 0, *arguments)
        shape = blocks, threads, shared_mem
        if shape != buffers.shape:
            buffers.set_shape(shape)
        buffers.config.hStream = stream.ptr
        status = self._launch(buffers.config, self._function, buffers.pointers, ffi.NULL)
        if status == INVALID_CONTEXT:
            self._driver.make_current(self._device)
            status = self._launch(buffers.config, self._function, buffers.pointers, ffi.NULL)
        self._unused.append(buffers)
        if status:
            self._driver.check(status, "cuLaunchKernelEx")

    def blocks_per_multiprocessor(self, threads: int, shared_bytes: int) -> int:
        """Return how many blocks fit into a multiprocessor at the same time.

        Blocks have ``threads`` threads and ``shared_bytes`` bytes of dynamic shared memory.
        """
        found = ffi.new("int *")
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        with self._driver.primary(self._device):
            self._driver.call(name, found, self._function, threads, shared_bytes)
        return int(found[0])

    def clusters_at_once(self, blocks: int, threads: int, shared_bytes: int) -> int:
        """Return how many clusters of ``blocks`` blocks are on the device at the same time.

        Blocks are as for `blocks_per_multiprocessor`. The kernel is compiled without a size of
        clusters. Calls ``cuOccupancyMaxActiveClusters``; raises `CudaError`.
        """
        attribute = ffi.new("CUlaunchAttribute *")
        attribute.id = ffi.integer_const("CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION")
        ffi.cast("unsigned int[3]", attribute.value)[0:3] = blocks, 1, 1
        grid = blocks * self._driver.attributes(self._device).num_multiprocessors
        sizes = grid, 1, 1, threads, 1, 1, shared_bytes
        config = ffi.new("CUlaunchConfig *", (*sizes, 0, attribute, 1))
        found = ffi.new("int *")
        with self._driver.primary(self._device):
            self._driver.call("cuOccupancyMaxActiveClusters", found, self._function, config)
        return int(found[0])

    def allow_shared_bytes(self, nbytes: int) -> None:
        """Let launches ask for up to ``nbytes`` bytes of dynamic shared memory for a block."""
        attribute = ffi.integer_const("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES")
        self._driver.call("cuFuncSetAttribute", self._function, attribute, nbytes)


class _LoadKey(NamedTuple):
    """The arguments of `Kernels.get`, which identify a loaded kernel."""

    source: str
    headers: Headers
    name: str
    device: int
    is_cooperative: bool
    shared_bytes: int


class Kernels:
    """Kernels of a process, each compiled and loaded once per device; ``cache`` is that on disk.

    Raises `UnsupportedError` if the compiler is of a newer CUDA than the driver supports.
    """

    def __init__(self, driver: Driver, compiler: Compiler, cache: KernelCache) -> None:
        if compiler.version[0] > driver.version[0]:
            raise UnsupportedError(
                "NVRTC",
                compiler.version_text,
                f"the driver supports CUDA {driver.version[0]}; {compiler.path} was found via "
                f"{compiler.found_via}. Install: {nvrtc.INSTALL}",
            )
        self._driver = driver
        self._compiler = compiler
        self._cache = cache
        self._loaded: dict[_LoadKey, Kernel] = {}
        self._cluster_counts: dict[int, tuple[int, ...]] = {}
        # By process too: a forked child would wait for a thread that it does not have.
        self._locks: dict[tuple[int, _LoadKey], threading.RLock] = {}

    def get(
        self,
        source: str,
        name: str,
        device: int,
        *,
        headers: Headers = (),
        cooperative: bool = False,
        shared_bytes: int = 0,
    ) -> Kernel:
        """Return the function ``name`` of a CUDA source, ready to be launched on ``device``.

        ``headers`` are all that the source includes. ``shared_bytes`` is the most dynamic shared
        memory that a launch will ask for a block. A thread waits for another one that loads the
        same kernel. Raises `CompileError` or `CudaError`.
        """
        key = _LoadKey(source, headers, name, device, cooperative, shared_bytes)
        kernel = self._loaded.get(key)
        if kernel is not None:
            return kernel
        # A signal handler may ask for the kernel that its thread is loading: it loads it too.
        with self._locks.setdefault((os.getpid(), key), threading.RLock()):
            kernel = self._loaded.get(key)
            if kernel is None:
                kernel = self._loaded.setdefault(key, self._load(key))
        return kernel

    def cluster_counts(self, device: int) -> tuple[int, ...]:
        """Return how many clusters of 1, 2, ... 8 blocks are on a device at the same time.

        Each block has a multiprocessor of its own. Empty if the device has no clusters, or if they
        cannot be counted. They are counted once.
        """
        found = self._cluster_counts.get(device)
        if found is None:
            found = ()
            if self._driver.attributes(device).compute_capability >= _FIRST_WITH_CLUSTERS:
                try:
                    found = self._count_clusters(device)
                except (CompileError, CudaError, UnsupportedError) as error:
                    logger.info("no kernels in clusters: %s: %s", type(error).__name__, error)
            self._cluster_counts[device] = found
        return found

    def _count_clusters(self, device: int) -> tuple[int, ...]:
        most = self._driver.attributes(device).shared_bytes
        kernel = self.get(_EMPTY, "empty", device, shared_bytes=most)
        sizes = range(1, _MAX_CLUSTER_BLOCKS + 1)
        return tuple(kernel.clusters_at_once(blocks, 32, most) for blocks in sizes)

    def _load(self, wanted: _LoadKey) -> Kernel:
        image = self._image(wanted)
        with self._driver.relaxed(), self._driver.primary(wanted.device):
            function = self._driver.load_function(image, wanted.name)
            kernel = Kernel(self._driver, wanted.device, function, wanted.is_cooperative)
            if wanted.shared_bytes > DEFAULT_SHARED_BYTES:
                kernel.allow_shared_bytes(wanted.shared_bytes)
        return kernel

    def _image(self, wanted: _LoadKey) -> bytes:
        """Return the compiled source, from disk if it is stored there."""
        source, headers, name, device, *_ = wanted
        target = self._compiler.target(self._driver.attributes(device).compute_capability)
        key = KernelKey(source, headers, OPTIONS, self._compiler.version, target.arch)
        image = self._cache.read(key)
        if image is None:
            begun = time.perf_counter()
            image = self._compiler.compile(source, f"{name}.cu", target, OPTIONS, headers)
            seconds = time.perf_counter() - begun
            logger.info("compiled the kernel %s for %s in %.2f s", name, target.arch, seconds)
            self._cache.write(key, image)
        else:
            logger.debug("read the kernel %s for %s from disk", name, target.arch)
        return image


@cache
def process_kernels() -> Kernels:
    """Return the kernels of this process, with the driver and NVRTC that are found.

    Raises `LibraryNotFoundError` without one of them, or as `load_driver` and `Kernels`.
    """
    return Kernels(load_driver(), nvrtc.load_compiler(), KernelCache(kernel_folder))


@cache
def kernel_problem() -> str:
    """Return why this process can compile no kernels, to follow "our own kernels"; else "".

    Asked once: a library that is installed later is found by the next process.
    """
    try:
        process_kernels()
    except LibraryNotFoundError as error:
        return f"need {error.library}, which was not found. Install: {error.install}"
    except (CudaError, UnsupportedError) as error:
        return f"cannot be compiled: {error}"
    return ""


def kernel_folder() -> Path | None:
    """Return the folder of compiled kernels, or None if none are kept on disk."""
    folder = cache_folder()
    return None if folder is None else folder / "kernels"
