"""The driver of the examples without an array library, on a libcuda of host memory."""

from __future__ import annotations

import ctypes
import runpy
import subprocess
from pathlib import Path

import needs
import numpy as np
import pytest
from example_runs import EXAMPLES

from dnnffi.errors import LibraryNotFoundError
from dnnffi.runtime.nvrtc.compiler import load_compiler

EXAMPLE = runpy.run_path(str(EXAMPLES / "cuda_driver.py"))
SOURCE = 'extern "C" __global__ void fill(float *out, long long size, double value) {}'


class Launch(ctypes.Structure):
    """The arguments of a launch that the stand-in recorded."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("integers", ctypes.c_int64 * 2),
        ("number", ctypes.c_double),
    )


@pytest.fixture(scope="module")
def library(compiler, tmp_path_factory):
    path = tmp_path_factory.mktemp("driver") / "libcuda_of_examples.so"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    source = Path(__file__).with_name("driver.c")
    subprocess.run([compiler, *flags, source, "-o", path], check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture
def driver(library):
    return EXAMPLE["CudaDriver"](library=library)


@pytest.fixture
def nvrtc(pytestconfig):
    try:
        load_compiler()
    except LibraryNotFoundError as error:
        needs.missing(pytestconfig, "libnvrtc", error)


def test_memory_has_what_was_copied_there_and_is_freed(driver, library):
    values = np.arange(6, dtype="float32").reshape(2, 3)
    address = driver.allocate(values.nbytes)
    driver.upload(address, values)
    np.testing.assert_array_equal(driver.download(address, (2, 3), "float32"), values)
    allocations = ctypes.c_int.in_dll(library, "standin_allocations")
    assert allocations.value == 1
    driver.free(address)
    assert allocations.value == 0


def test_an_array_without_elements_has_an_address(driver):
    address = driver.allocate(0)
    assert address
    driver.free(address)


def test_an_error_has_the_name_of_the_function_and_of_the_status(driver):
    with pytest.raises(RuntimeError, match=r"^cuMemAllocAsync returned CUDA_ERROR_OUT_OF_MEMORY"):
        driver.allocate(1 << 50)


@pytest.mark.usefixtures("nvrtc")
def test_a_kernel_gets_its_threads_and_arguments(driver, library):
    fill = driver.kernels(SOURCE, ("fill",))["fill"]
    fill(257, 1 << 40, -3, 0.5)
    launch = Launch.in_dll(library, "standin_launch")
    assert (list(launch.grid), list(launch.block)) == ([2, 1, 1], [256, 1, 1])
    assert (list(launch.integers), launch.number) == ([1 << 40, -3], 0.5)
    assert launch.shared_bytes == 0


@pytest.mark.usefixtures("nvrtc")
def test_the_kernels_of_the_framework_compile():
    source = runpy.run_path(str(EXAMPLES / "autograd_framework.py"))["KERNELS"]
    assert EXAMPLE["compiled"](source, "sm_90").startswith(b"\x7fELF")


@pytest.mark.usefixtures("nvrtc")
def test_a_source_with_an_error_is_refused_with_the_compilers_words():
    with pytest.raises(RuntimeError, match=r"kernels\.cu\(1\): error"):
        EXAMPLE["compiled"]("garbage;", "sm_90")


def test_a_machine_without_a_driver_is_told_what_the_example_needs(monkeypatch):
    def refuse(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with pytest.raises(SystemExit, match=r"needs an NVIDIA GPU and its driver: libcuda\.so\.1"):
        EXAMPLE["CudaDriver"]()
