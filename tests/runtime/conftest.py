"""A driver that launches nothing (`driver.c`), and a compiler that counts what it compiles."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from dnnffi.runtime.cuda._cdef import ffi
from dnnffi.runtime.cuda.driver import Driver
from dnnffi.runtime.kernel_cache import KernelCache
from dnnffi.runtime.kernels import Kernels
from dnnffi.runtime.nvrtc.compiler import Target

_CONTROLS = """
typedef struct {
    unsigned int grid[3], block[3], shared_bytes;
    uint64_t stream, function;
    int is_cooperative, device;
    unsigned char arguments[64];
} Record;
extern Record standin_launch;
extern int standin_launches, standin_retains, standin_attributes;
extern int standin_unloads, standin_shared_bytes, standin_num_arguments;
void standin_fail(const char *function, int status);
void standin_drop_context(void);
"""


@pytest.fixture(scope="session")
def driver_path(compiler, tmp_path_factory):
    path = tmp_path_factory.mktemp("driver") / "libcuda_standin.so"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    source = Path(__file__).with_name("driver.c")
    subprocess.run([compiler, *flags, source, "-o", path], check=True)
    return path


@pytest.fixture
def standin(driver_path):
    """The record of calls of the driver, and a function that lets one fail."""
    import cffi

    controls = cffi.FFI()
    controls.cdef(_CONTROLS)
    lib = controls.dlopen(str(driver_path))
    lib.standin_launches = lib.standin_retains = lib.standin_attributes = lib.standin_unloads = 0
    lib.standin_shared_bytes = 0
    lib.standin_num_arguments = 3
    lib.standin_drop_context()
    return lib


@pytest.fixture
def driver(standin, driver_path):
    return Driver(ffi.dlopen(str(driver_path)))


class CountingCompiler:
    """Compiles nothing: code that begins as that of a device does, of the source's length."""

    def __init__(self):
        self.version, self.version_text = (13, 0), "13.0"
        self.path, self.found_via = "libnvrtc.so", "a test"
        self.compiled = []

    def target(self, compute_capability):
        return Target("sm_{}{}".format(*compute_capability), False)

    def compile(self, source, name, target, options):
        self.compiled.append(SimpleNamespace(source=source, name=name, target=target))
        return b"\177ELF" + source.encode()


@pytest.fixture
def compiler_of_tests():
    return CountingCompiler()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def kernels(driver, compiler_of_tests, folder):
    return Kernels(driver, compiler_of_tests, KernelCache(lambda: folder))
