"""Kernels: compiled and loaded once, kept on disk, and what a launch hands to the driver."""

from __future__ import annotations

import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dnnffi.device.interface import StreamAt
from dnnffi.errors import CudaError, UnsupportedError
from dnnffi.runtime.kernel_cache import KernelCache
from dnnffi.runtime.kernels import Kernels

SOURCE = 'extern "C" __global__ void scale(float *, double) {}'
STREAM = StreamAt(0x7000)


def launch(kernel, arguments=(1, 2.5, -3), **keywords):
    kernel((4, 5), (32,), arguments, stream=STREAM, **keywords)


def test_a_launch_hands_over_sizes_stream_and_arguments(kernels, standin):
    launch(kernels.get(SOURCE, "scale", 1), shared_mem=256)
    told = standin.standin_launch
    assert (list(told.grid), list(told.block)) == ([4, 5, 1], [32, 1, 1])
    assert (told.shared_bytes, told.stream, told.device) == (256, 0x7000, 1)
    assert not told.is_cooperative
    assert bytes(told.arguments)[:24] == struct.pack("<qdq", 1, 2.5, -3)


def test_a_cooperative_kernel_says_so(kernels, standin):
    launch(kernels.get(SOURCE, "scale", 0, cooperative=True))
    assert standin.standin_launch.is_cooperative == 1


def test_an_integer_in_the_place_of_a_float_is_passed_as_a_float(kernels, standin):
    kernel = kernels.get(SOURCE, "scale", 0)
    launch(kernel)
    launch(kernel, (1, 4, -3))
    assert bytes(standin.standin_launch.arguments)[8:16] == struct.pack("<d", 4.0)


def test_a_thread_without_a_context_gets_that_of_the_kernels_device(kernels, standin):
    kernel = kernels.get(SOURCE, "scale", 1)
    thread = threading.Thread(target=launch, args=(kernel,))
    thread.start()
    thread.join()
    assert (standin.standin_launches, standin.standin_launch.device) == (1, 1)


def test_a_launch_that_fails_raises_the_drivers_status(kernels, standin):
    kernel = kernels.get(SOURCE, "scale", 0)
    standin.standin_fail(b"cuLaunchKernelEx", 700)
    with pytest.raises(CudaError, match=r"cuLaunchKernelEx returned CUDA_ERROR_OTHER \(700\)"):
        launch(kernel)


def test_launches_of_threads_do_not_mix_their_arguments(kernels, standin):
    kernel = kernels.get(SOURCE, "scale", 0)
    standin.standin_num_arguments = 2
    kernel((1,), (1,), (0, 0.0), stream=STREAM)

    def many(number):
        for _ in range(200):
            kernel((1,), (1,), (number, float(number)), stream=STREAM)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many, range(4)))
    integer, real = struct.unpack("<qd", bytes(standin.standin_launch.arguments)[:16])
    assert integer == real


def test_a_kernel_is_compiled_and_loaded_once_per_device(kernels, compiler_of_tests):
    first = kernels.get(SOURCE, "scale", 0)
    assert kernels.get(SOURCE, "scale", 0) is first
    assert kernels.get(SOURCE, "scale", 1) is not first
    assert len(compiler_of_tests.compiled) == 1  # the other device has the same architecture


def test_another_process_finds_the_code_on_disk(kernels, driver, compiler_of_tests, folder):
    kernels.get(SOURCE, "scale", 0)
    other = Kernels(driver, compiler_of_tests, KernelCache(lambda: folder))
    other.get(SOURCE, "scale", 0)
    assert len(compiler_of_tests.compiled) == 1


def test_shared_memory_beyond_the_default_is_asked_for(kernels, standin):
    kernels.get(SOURCE, "scale", 0, shared_bytes=48 * 1024)
    assert standin.standin_shared_bytes == 0
    kernels.get(SOURCE, "scale", 0, shared_bytes=100_000)
    assert standin.standin_shared_bytes == 100_000


def test_occupancy_in_a_thread_without_a_context(kernels, standin):
    kernel = kernels.get(SOURCE, "scale", 0)
    standin.standin_drop_context()
    assert kernel.blocks_per_multiprocessor(512, 2 << 16) == 2


def test_a_compiler_of_a_newer_cuda_than_the_drivers_is_refused(driver, compiler_of_tests):
    compiler_of_tests.version, compiler_of_tests.version_text = (14, 0), "14.0"
    with pytest.raises(UnsupportedError, match=r"NVRTC 14\.0: the driver supports CUDA 13"):
        Kernels(driver, compiler_of_tests, KernelCache(lambda: None))
