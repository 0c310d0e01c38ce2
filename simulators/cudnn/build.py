"""Build the simulator of libcudnn, which computes on host memory and checks its arguments.

``build()`` compiles the C files of this folder against cuDNN's own header, once for each state of
the sources, and gives the path of the shared library. ``control()`` opens it for what ``control.h``
declares; the functions with cuDNN's names are in the same file.
"""

from __future__ import annotations

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

from simulators.errors import UnavailableError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CONTROL = HERE / "control.h"
STUBS = ROOT / "bindings" / "stubs"
BUILD = ROOT / "build" / "simulators"
NAME = "libcudnn_standin.so"

MAJOR = 9
"""The version of cuDNN that is simulated."""

FLAGS = (
    *("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"),
    *("-shared", "-fPIC", "-pthread"),
    # Its own names must not meet those of a real libcudnn in the same process.
    *("-fvisibility=hidden", "-Wl,-Bsymbolic"),
)


def build(*extra_flags: str) -> Path:
    """Return the path of the shared library, built if it is not there yet.

    ``extra_flags`` go to the compiler, for a build with sanitizers say. Raises `UnavailableError`
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
        sources = sorted(map(str, HERE.glob("*.c")))
        search = ["-isystem", str(headers), "-isystem", str(STUBS)]
        subprocess.run([*command, *search, *sources, "-lm", "-o", str(made)], check=True)
        os.replace(made, library)
    return library


def _compiler() -> list[str]:
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        raise UnavailableError("compiler", f"there is no C compiler {compiler[0]}")
    return compiler


def find_headers() -> Path:
    """Return a folder with the headers of a cuDNN 9.

    Those that ``make check-headers`` took out of the wheels, the newest first, then those of an
    installed wheel.
    """
    fetched = (ROOT / "build" / "headers" / "cudnn").glob(f"{MAJOR}.*")
    installed = (Path(folder) / "nvidia" / "cudnn" / "include" for folder in _site_packages())
    for folder in (*sorted(fetched, key=_version, reverse=True), *installed):
        version = folder / "cudnn_version.h"
        if version.exists() and re.search(rf"CUDNN_MAJOR\s+{MAJOR}\b", version.read_text()):
            return folder
    raise UnavailableError(
        "headers",
        f"there are no headers of cuDNN {MAJOR}: pip install nvidia-cudnn-cu13 has them, and "
        "make check-headers VENDORS=cudnn fetches some",
    )


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.split(".") if part.isdigit())


def _site_packages() -> list[str]:
    return [*sys.path, *site.getsitepackages(), site.getusersitepackages()]


def _fingerprint(headers: Path, command: list[str]) -> str:
    inputs = [*HERE.glob("*.[ch]"), *STUBS.glob("*.h"), *headers.glob("cudnn_version*.h")]
    digest = hashlib.sha256(" ".join(command).encode())
    for path in sorted(inputs):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def control(path: Path | None = None) -> tuple[Any, Any]:
    """Return (ffi, lib) for the functions of ``control.h`` of a build, by default `build`'s."""
    ffi = cffi.FFI()
    ffi.cdef(CONTROL.read_text(encoding="utf-8"))
    return ffi, ffi.dlopen(str(build() if path is None else path))


if __name__ == "__main__":
    print(build(*sys.argv[1:]))
