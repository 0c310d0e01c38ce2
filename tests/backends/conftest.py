"""A libcublasLt of our own that computes on the host, also for who stands on it."""

from __future__ import annotations

import gc
import subprocess
from pathlib import Path

import cffi
import pytest

from dnnffi.backends.cublas import library
from dnnffi.backends.cublas._cdef import ffi

HERE = Path(__file__).resolve().parent / "cublas"
C_TEXT = HERE.parents[2] / "bindings" / "cublas"


@pytest.fixture(scope="session")
def standin_path(compiler, tmp_path_factory):
    path = tmp_path_factory.mktemp("cublas") / "libcublasLt_standin.so"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    # Its own names must not meet those of a real libcublasLt in the same process.
    flags += ["-Wl,-Bsymbolic", f"-I{C_TEXT}"]
    subprocess.run([compiler, *flags, HERE / "standin.c", "-o", path], check=True)
    return path


@pytest.fixture(scope="session")
def standin_ffi():
    made = cffi.FFI()
    made.cdef((HERE / "control.h").read_text(encoding="utf-8"))
    return made


@pytest.fixture
def standin(standin_path, standin_ffi):
    """What `control.h` declares, as it is at first."""
    control = standin_ffi.dlopen(str(standin_path)).standin
    standin_ffi.buffer(standin_ffi.addressof(control))[:] = bytes(standin_ffi.sizeof("standin_t"))
    control.version = 131000
    return control


@pytest.fixture
def cublas(standin, standin_path, monkeypatch):
    """dnnffi's library over the stand-in; at the end nothing is left of it."""
    monkeypatch.setattr(library, "cuda_majors", list)
    made = library.Library(ffi.dlopen(str(standin_path)), str(standin_path), "tests")
    yield made
    made.handles.clear()
    gc.collect()
    assert list(standin.live)[:4] == [0, 0, 0, 0]
