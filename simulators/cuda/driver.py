"""Fixtures of a libcuda without a device (`driver.c`): its controls, and dnnffi's objects on it."""

from __future__ import annotations

import gc
import subprocess
from pathlib import Path

import pytest

from dnnffi.runtime.cuda._cdef import ffi
from dnnffi.runtime.cuda.driver import Driver
from dnnffi.runtime.cuda.runtime import CudaRuntime

_CONTROLS = """
typedef struct {
    unsigned int grid[3], block[3], shared_bytes;
    uint64_t stream, function;
    int is_cooperative, device;
    unsigned char arguments[64];
} Record;
extern Record standin_launch;
extern int standin_num_arguments, standin_launches, standin_shared_bytes;
extern int standin_streams, standin_events, standin_graphs, standin_executables;
extern int standin_buffers;
extern float standin_work_milliseconds;
void standin_fail(const char *function, int status, int calls);
void standin_drop_context(void);
int standin_context_device(void);
int standin_calls(const char *function);
void standin_reset(void);
"""
_OBJECTS = ("streams", "events", "graphs", "executables", "buffers")


class Standin:
    """The controls of the stand-in."""

    def __init__(self, lib):
        self.lib = lib

    def __getattr__(self, name):
        return getattr(self.lib, f"standin_{name}")

    def fail(self, function, status, *, after=0):
        """Let a call of a function return ``status``, after ``after`` calls that succeed."""
        self.lib.standin_fail(function.encode(), status, after)

    def calls(self, function):
        """Return the number of calls of a function."""
        return self.lib.standin_calls(function.encode())

    def live(self):
        """Return the number of live objects by kind."""
        gc.collect()
        counts = {name: getattr(self, name) for name in _OBJECTS}
        return {name: count for name, count in counts.items() if count}


@pytest.fixture(scope="session")
def driver_path(compiler, tmp_path_factory):
    """Compile ``driver.c``; return the path of the library."""
    path = tmp_path_factory.mktemp("driver") / "libcuda_standin.so"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    source = Path(__file__).with_name("driver.c")
    subprocess.run([compiler, *flags, source, "-o", path], check=True)
    return path


@pytest.fixture
def standin(driver_path):
    """Yield the stand-in with counters at zero. The test fails if an object is not destroyed."""
    import cffi

    controls = cffi.FFI()
    controls.cdef(_CONTROLS)
    standin = Standin(controls.dlopen(str(driver_path)))
    standin.reset()
    yield standin
    assert standin.live() == {}
    standin.drop_context()


@pytest.fixture
def driver(standin, driver_path):
    """Return dnnffi's driver over the stand-in."""
    return Driver(ffi.dlopen(str(driver_path)))


@pytest.fixture
def runtime(driver):
    """Yield dnnffi's runtime over the stand-in."""
    made = CudaRuntime(driver)
    yield made
    made._local.__dict__.clear()  # pytest keeps it for longer than the stand-in
