"""CUDA kernels compiled for the host: all threads of a cooperative launch, each on its own stack.

``device.c`` changes between threads as a seed says; ``cuda.h`` has CUDA's words, ``words.h`` what
the kernels of recurrent layers ask of PTX.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import shlex
import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from host_memory import POISON, HostMemory

from dnnffi.backends.own.recurrent import kernels

HERE = Path(__file__).resolve().parent / "emulated"
_MEMORY = "extern __shared__ __align__(16) unsigned char memory[];"
_NO_BLOCK = -1
_numbers = itertools.count()
_MARGIN = 256


class EmulatorError(Exception):
    """What a kernel did that no kernel may do."""


@cache
def _folder():
    folder, process = Path(tempfile.mkdtemp(prefix="emulated")), os.getpid()

    def remove():
        if os.getpid() == process:  # and not in a forked child, as other tests make
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


@cache
def compiled(source):
    """A source of C++ as a shared library that knows `device.c`."""
    folder = _folder()
    path = folder / f"kernels{next(_numbers)}.so"
    command = shlex.split(os.environ.get("CXX", "c++"))
    command += ["-O0", "-std=c++20", "-w", "-shared", "-fPIC", f"-I{HERE}", "-x", "c++", "-"]
    command += ["-x", "none", str(_device_path()), f"-Wl,-rpath,{folder}", "-o", str(path)]
    done = subprocess.run(command, input=source, text=True, capture_output=True, check=False)
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


def for_host(source):
    """The source of one of our recurrent kernels as C++."""
    numbers = kernels._text("numbers")
    head, _, rest = source.partition(numbers)
    text = '#include "cuda.h"\n' + head + (numbers + '#include "words.h"\n' if rest else "") + rest
    assert text.count(_MEMORY) == text.count("__shared__")
    return text.replace(_MEMORY, "unsigned char *memory = (unsigned char *)device_shared();")


def functions(constants, parts, text, change=lambda source: source):
    """C functions, in ``text``, that use parts of the kernels' source."""
    lines = [f"#define {name} {value}\n" for name, value in constants.items()]
    source = "#define DEVICE inline\n" + "\n".join(map(kernels._text, parts))
    return compiled('#include "cuda.h"\n' + "".join(lines) + change(source) + text)


def numbers_of(arguments):
    """The arguments of a launch: 8 bytes each, and a struct as the last one."""
    return b"".join(
        one if type(one) is bytes else struct.pack("d" if type(one) is float else "q", one)
        for one in arguments
    )


class EmulatedKernel:
    """A kernel of ours, called as one on a device."""

    def __init__(self, source, name, cooperative):
        text = for_host(source) + (
            f'\nextern "C" void launch(const void *arguments) {{ call({name}, arguments); }}\n'
        )
        self._function = compiled(text).launch
        cluster = "#define CLUSTER 1\n" in source and "meet_cluster" in source
        meets = "__shfl" in source or "__syncthreads" in source
        self._together = cooperative or cluster or meets
        self.name, self.seed, self.absent = name, 0, _NO_BLOCK

    def __call__(self, blocks, threads, arguments, *, stream=None, shared_mem=0):
        grid = (ctypes.c_int * 3)(*(*blocks, 1, 1)[:3])
        given = numbers_of(arguments)
        if not self._together:
            _device().device_each(self._function, given, grid, threads[0])
            return
        self.seed += 1
        said = _device().device_run(
            self._function,
            *(given, grid, threads[0], ctypes.c_long(shared_mem)),
            *(ctypes.c_uint64(self.seed), self.absent),
        )
        if said:
            raise EmulatorError(said.decode())


class Control:
    """Nobody is told of allocations."""

    def standin_register(self, address, size):
        pass

    def standin_unregister(self, address):
        pass

    def standin_registered(self):
        return 0


class EmulatedMemory(HostMemory):
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
        """Nobody wrote past an array's end, or in front of it."""
        for margin in self._margins:
            wrong = np.flatnonzero(margin != 0xFF)
            assert not len(wrong), f"wrote beyond an array: {wrong} of {len(margin)}"

    def kernel(self, source, name, *, cooperative=False, shared_bytes=0):
        made = EmulatedKernel(source, name, cooperative)
        made.seed = self.seed
        return made

    def blocks_at_once(self, kernel, threads, shared_bytes):
        return self.room

    def shared_bytes(self, device):
        return 232_448

    def l2_bytes(self, device):
        return 50 << 20

    def constant(self, values):
        return self.array(np.ascontiguousarray(values))
