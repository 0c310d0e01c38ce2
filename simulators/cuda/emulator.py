"""CUDA kernels compiled for the host: all threads of a cooperative launch, each on its own stack.

``device.c`` changes between threads as a seed says; ``cuda.h`` has CUDA's words. The headers
``ptx_*.cuh`` replace those of the same names that the kernels of recurrent layers include.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import shlex
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dnnffi.backends.cublas import library
from dnnffi.backends.own.recurrent import source
from dnnffi.backends.own.source import (
    CONFIG_HEADER,
    KernelSource,
    config_header,
    with_headers,
)
from dnnffi.device.interface import Architecture
from simulators.cuda.memory import POISON, SimulatedMemory, cluster_counts_of, numbers_of

HERE = Path(__file__).resolve().parent / "emulated"
_MEMORY = "extern __shared__ __align__(16) unsigned char memory[];"
_NO_BLOCK = -1
_numbers = itertools.count()
_MARGIN = 256


class EmulatorError(Exception):
    """A kernel did what no kernel may do; the message says what."""


@cache
def _folder():
    folder, process = Path(tempfile.mkdtemp(prefix="emulated")), os.getpid()

    def remove():
        if os.getpid() == process:  # and not in a forked child, as other tests make
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


@cache
def compiled(text, headers=()):
    """Return a source of C++ with its headers as a shared library that knows `device.c`."""
    folder = _folder()
    number = next(_numbers)
    sources, path = folder / f"sources{number}", folder / f"kernels{number}.so"
    sources.mkdir()
    for name, header in headers:
        (sources / name).write_text(header, "utf-8")
    (sources / "kernel.cpp").write_text(text, "utf-8")
    command = shlex.split(os.environ.get("CXX", "c++"))
    command += ["-O0", "-ffp-contract=off", "-std=c++20", "-w", "-shared", "-fPIC"]
    command += [f"-I{HERE}", "-include", "cuda.h"]
    command += [str(sources / "kernel.cpp"), str(_device_path()), f"-Wl,-rpath,{folder}"]
    done = subprocess.run([*command, "-o", str(path)], text=True, capture_output=True, check=False)
    if done.returncode:
        raise EmulatorError(done.stderr[:4000])
    return ctypes.CDLL(str(path))


@cache
def _device_path():
    path = _folder() / "libdevice.so"
    command = shlex.split(os.environ.get("CC", "cc"))
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, *flags, HERE / "device.c", "-o", path], check=True)
    return path


@cache
def _device():
    library = ctypes.CDLL(str(_device_path()))
    library.device_run.restype = ctypes.c_char_p
    return library


def for_host(text):
    """Return the text of one of dnnffi's recurrent kernels as C++."""
    assert text.count(_MEMORY) == text.count("__shared__")
    return text.replace(_MEMORY, "unsigned char *memory = (unsigned char *)device_shared();")


def functions(constants, includes, text, change=lambda header: header, prelude=""):
    """C functions, in ``text``, that use headers of the kernels.

    ``change`` is applied to each header, ``prelude`` precedes them.
    """
    head = "".join(f'#include "{name}"\n' for name in includes)
    made = {CONFIG_HEADER: config_header(source.FOLDER, constants)}
    found = with_headers(source.FOLDER, f"{head}using namespace dnnffi;\n{text}", "", made)
    headers = tuple((name, change(_for_host(name, one))) for name, one in found.headers)
    return compiled(prelude + found.text, headers)


def _for_host(name, header):
    """Return the text of a header, or of the one of this folder that replaces it."""
    own = HERE / name
    return own.read_text("utf-8") if own.exists() else header


def compiled_source(source, text):
    """Return the source of a kernel, followed by ``text``, as a shared library."""
    headers = tuple((name, _for_host(name, one)) for name, one in source.headers)
    return compiled(for_host(source.text) + text, headers)


class EmulatedKernel:
    """A kernel of dnnffi, called as one on a device."""

    def __init__(self, text, name, headers=(), *, cooperative):
        body = f"{{ using namespace dnnffi; call({name}, arguments); }}"
        # Declares the namespace, which a source without headers does not have.
        launch = f'\nnamespace dnnffi {{}}\nextern "C" void launch(const void *arguments) {body}\n'
        self._function = compiled_source(KernelSource(text, name, headers), launch).launch
        everything = "".join((text, *(header for _, header in headers)))
        cluster = "bool CLUSTER = true;" in everything
        meets = "__shfl" in everything or "__syncthreads" in everything
        self._together = cooperative or cluster or meets
        self.name, self.seed, self.absent = name, 0, _NO_BLOCK

    def __call__(self, blocks, threads, arguments, *, stream=None, shared_mem=0):
        grid = (ctypes.c_int * 3)(*(*blocks, 1, 1)[:3])
        given = numbers_of(arguments)
        if not self._together:
            _device().device_each(self._function, given, grid, threads[0])
            return
        assert grid[1] == grid[2] == 1, "threads that meet are emulated in one dimension"
        self.seed += 1
        said = _device().device_run(
            self._function,
            *(given, grid, threads[0], ctypes.c_long(shared_mem)),
            *(ctypes.c_uint64(self.seed), self.absent),
        )
        if said:
            raise EmulatorError(said.decode())


class Control:
    """Stand-in control for kernels without cuDNN, which registers no allocations."""

    def standin_register(self, address, size):
        pass

    def standin_unregister(self, address):
        pass

    def standin_registered(self):
        return 0


class EmulatedMemory(SimulatedMemory):
    """Host memory with the kernels of recurrent layers.

    Arrays begin at ``offset`` bytes past a multiple of 256. The device has room for ``room``
    blocks; ``seed`` says how their threads change.
    """

    def __init__(self, room=12, seed=0, offset=0):
        super().__init__(Control())
        self.room, self.seed, self.offset = room, seed, offset
        self._margins = []

    def _allocate(self, size):
        raw = np.full(size + 4 * _MARGIN, 0xFF, np.uint8)  # NaN, for who reads beyond
        first = -raw.ctypes.data % _MARGIN + _MARGIN + self.offset
        raw[first : first + size] = POISON
        self._margins += [raw[:first], raw[first + size :]]
        return raw[first : first + size]

    def check_margins(self):
        """Assert that nothing was written past an array's end, or before its start."""
        for margin in self._margins:
            wrong = np.flatnonzero(margin != 0xFF)
            assert not len(wrong), f"wrote beyond an array: {wrong} of {len(margin)}"

    def kernel(self, source, name, headers=(), *, cooperative=False, shared_bytes=0):
        made = EmulatedKernel(source, name, headers, cooperative=cooperative)
        made.seed = self.seed
        return made

    def blocks_at_once(self, kernel, threads, shared_bytes):
        return self.room

    def constant(self, values):
        return self.array(np.ascontiguousarray(values))


_OF_KERNELS = "kernel", "blocks_at_once", "shared_bytes", "l2_bytes"
_ARCHITECTURE = Architecture(9, 0, 6)


def emulate_kernels(patch, memory, kernels):
    """Run the kernels of a memory, which is on the host, by those of an `EmulatedMemory`."""
    for name in _OF_KERNELS:
        patch.setattr(memory, name, getattr(kernels, name), raising=False)
    counts = cluster_counts_of(_ARCHITECTURE)
    patch.setattr(memory, "architecture", lambda device: _ARCHITECTURE)
    patch.setattr(memory, "cluster_counts", lambda device: counts, raising=False)


@contextmanager
def emulating(simulator, cublas):
    """Run our kernels on the memory of cuDNN's stand-in, with ``cublas`` for their products."""
    kernels = EmulatedMemory(room=6)
    with pytest.MonkeyPatch.context() as patch:
        emulate_kernels(patch, simulator.memory, kernels)
        patch.setattr(simulator.memory, "_allocate", kernels._allocate, raising=False)
        patch.setattr(simulator.memory, "constant", simulator.memory.array, raising=False)
        patch.setattr(library, "load", lambda: cublas)
        yield
        simulator.forget_plans()
        kernels.check_margins()
