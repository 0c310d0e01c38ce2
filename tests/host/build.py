"""Builds the host stand-in: a libcudnn that computes on host memory and checks its arguments.

``build()`` compiles ``standin/*.c`` against cuDNN's own header, once for each state of the sources,
and gives the path of the shared library. ``control()`` opens it for what ``standin/control.h``
declares; the functions with cuDNN's names are in the same file.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import cffi

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = HERE / "standin"
CONTROL = SOURCES / "control.h"
STUBS = ROOT / "bindings" / "stubs"
BUILD = ROOT / "build" / "host"
NAME = "libcudnn_standin.so"

MAJOR = 9
"""The version of cuDNN that the stand-in is."""

FLAGS = (
    *("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"),
    *("-shared", "-fPIC", "-pthread"),
    # Its own names must not meet those of a real libcudnn in the same process.
    *("-fvisibility=hidden", "-Wl,-Bsymbolic"),
)


class Unavailable(Exception):
    """The stand-in cannot be built on this machine; ``what`` is missing, by its name in `needs`."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(message)
        self.what = what


def build(*extra_flags: str) -> Path:
    """The path of the shared library, built if it is not there yet.

    ``extra_flags`` go to the compiler, for a build with sanitizers say. Raises `Unavailable`
    without a C compiler or without cuDNN's headers, ``CalledProcessError`` if the sources do not
    compile.
    """
    headers = find_headers()
    command = [*_compiler(), *FLAGS, *extra_flags]
    folder = BUILD / _fingerprint(headers, command)
    library = folder / NAME
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    # Built aside and renamed, since several test processes may be at it.
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        made = Path(temporary) / NAME
        sources = sorted(map(str, SOURCES.glob("*.c")))
        search = ["-isystem", str(headers), "-isystem", str(STUBS)]
        subprocess.run([*command, *search, *sources, "-lm", "-o", str(made)], check=True)
        os.replace(made, library)
    return library


_CUDA_IN_C = """
#include <stddef.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads)
static struct { int x, y; } blockIdx, gridDim, threadIdx;

#define MOST_THREADS 1024
#define STACK (1 << 16)
#define MOST_ARGUMENTS 26
typedef long long of_kernel[MOST_ARGUMENTS];
typedef void (*any_kernel)();
static ucontext_t block, of_thread[MOST_THREADS];
static int ended[MOST_THREADS];
static any_kernel the_kernel;
static const long long *a;

/* The others go on until they are here too. */
static void __syncthreads(void)
{
    swapcontext(&of_thread[threadIdx.x], &block);
}

static void run_thread(void)
{
    the_kernel(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12],
               a[13], a[14], a[15], a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23], a[24],
               a[25]);
    ended[threadIdx.x] = 1;
}

/* Nonzero if some threads have ended and others wait at a barrier, for good on a device. */
int run_block(char *stacks, any_kernel kernel, const of_kernel arguments, int threads, int x,
              int y, int across, int down)
{
    blockIdx.x = x, blockIdx.y = y, gridDim.x = across, gridDim.y = down;
    the_kernel = kernel, a = arguments;
    for (int thread = 0; thread < threads; thread++) {
        ended[thread] = 0;
        getcontext(&of_thread[thread]);
        of_thread[thread].uc_stack.ss_sp = stacks + thread * STACK;
        of_thread[thread].uc_stack.ss_size = STACK;
        of_thread[thread].uc_link = &block;
        makecontext(&of_thread[thread], run_thread, 0);
    }
    for (int left = threads; left;) {
        const int before = left;
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) {
            if (ended[threadIdx.x]) continue;
            swapcontext(&block, &of_thread[threadIdx.x]);
            left -= ended[threadIdx.x];
        }
        if (left && left < before) return 1;
    }
    return 0;
}
"""


MOST_ARGUMENTS = 26
"""Of a kernel, as the C text has it."""

STACKS = (ctypes.c_char * (1024 * 2**16))()
"""Of all threads of a block; every kernel is a library of its own, and has none."""


@cache
def kernels(source: str) -> ctypes.CDLL:
    """A CUDA source as C. ``run_block`` runs a block, its threads in turns between barriers."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        command = [*_compiler(), "-O1", "-w", "-shared", "-fPIC", "-xc", "-", "-o", str(library)]
        text = _CUDA_IN_C + source.replace('extern "C" ', "")
        subprocess.run(command, input=text, text=True, check=True)
        return ctypes.CDLL(str(library))


def _compiler() -> list[str]:
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        raise Unavailable("compiler", f"there is no C compiler {compiler[0]}")
    return compiler


def find_headers() -> Path:
    """A folder with the headers of a cuDNN 9.

    Those that ``make check-headers`` took out of the wheels, the newest first, then those of an
    installed wheel.
    """
    fetched = (ROOT / "build" / "headers" / "cudnn").glob(f"{MAJOR}.*")
    installed = (Path(folder) / "nvidia" / "cudnn" / "include" for folder in _site_packages())
    for folder in (*sorted(fetched, key=_version, reverse=True), *installed):
        version = folder / "cudnn_version.h"
        if version.exists() and re.search(rf"CUDNN_MAJOR\s+{MAJOR}\b", version.read_text()):
            return folder
    raise Unavailable(
        "headers",
        f"there are no headers of cuDNN {MAJOR}: pip install nvidia-cudnn-cu13 has them, and "
        "make check-headers VENDORS=cudnn fetches some",
    )


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.split(".") if part.isdigit())


def _site_packages() -> list[str]:
    return [*sys.path, *site.getsitepackages(), site.getusersitepackages()]


def _fingerprint(headers: Path, command: list[str]) -> str:
    inputs = [*SOURCES.glob("*.[ch]"), *STUBS.glob("*.h"), *headers.glob("cudnn_version*.h")]
    digest = hashlib.sha256(" ".join(command).encode())
    for path in sorted(inputs):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def control(path: Path | None = None) -> tuple[Any, Any]:
    """(ffi, lib) for the functions of ``standin/control.h`` of a build, by default `build`'s."""
    ffi = cffi.FFI()
    ffi.cdef(CONTROL.read_text(encoding="utf-8"))
    return ffi, ffi.dlopen(str(build() if path is None else path))


if __name__ == "__main__":
    print(build(*sys.argv[1:]))
