"""dnnffi's libcublasLt over a simulator that computes on the host."""

from __future__ import annotations

import gc
import subprocess
from contextlib import contextmanager
from pathlib import Path

import cffi
import pytest

from dnnffi.backends.cublas import library
from dnnffi.backends.cublas._cdef import ffi

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]


def build_standin(compiler, folder):
    """Compile the stand-in into a folder; return the path of the library."""
    path = folder / "libcublasLt_standin.so"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    # Its own names must not meet those of a real libcublasLt in the same process.
    flags += ["-Wl,-Bsymbolic", f"-I{ROOT / 'bindings' / 'cublas'}"]
    subprocess.run([compiler, *flags, FOLDER / "standin.c", "-o", path], check=True)
    return path


def control_ffi():
    """Return the cffi object that has the declarations of the stand-in's own variables."""
    made = cffi.FFI()
    made.cdef((FOLDER / "control.h").read_text(encoding="utf-8"))
    return made


def fresh_control(path, declared):
    """Return the variables that `control.h` declares, reset to their first values."""
    control = declared.dlopen(str(path)).standin
    declared.buffer(declared.addressof(control))[:] = bytes(declared.sizeof("standin_t"))
    control.version = 131000
    return control


@contextmanager
def open_cublas(path, control):
    """Yield dnnffi's library over the stand-in; assert at the end that nothing is left of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "cuda_majors", list)
        made = library.Library(ffi.dlopen(str(path)), str(path), "tests")
        yield made
        made.handles.clear()
        gc.collect()
    assert list(control.live)[:4] == [0, 0, 0, 0]
