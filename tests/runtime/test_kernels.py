"""Tests of kernels: compiled and loaded once, kept on disk, and launched with arguments."""

from __future__ import annotations

import re
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from dnnffi.device.interface import StreamAt
from dnnffi.errors import CompileError, CudaError, LibraryNotFoundError, UnsupportedError
from dnnffi.runtime import kernels as kernels_module
from dnnffi.runtime.kernel_cache import KernelCache
from dnnffi.runtime.kernels import Kernels

SOURCE = 'extern "C" __global__ void scale(float *, double) {}'
STREAM = StreamAt(0x7000)


def launch(kernel, arguments=(1, 2.5, -3), **keywords):
    kernel((4, 5), (32,), arguments, stream=STREAM, **keywords)


def test_a_launch_hands_over_sizes_stream_and_arguments(kernels, standin):
    launch(kernels.get(SOURCE, "scale", 1), shared_mem=256)
    told = standin.launch
    assert (list(told.grid), list(told.block)) == ([4, 5, 1], [32, 1, 1])
    assert (told.shared_bytes, told.stream, told.device) == (256, 0x7000, 1)
    assert not told.is_cooperative
    assert bytes(told.arguments)[:24] == struct.pack("<qdq", 1, 2.5, -3)


def test_a_cooperative_kernel_says_so(kernels, standin):
    launch(kernels.get(SOURCE, "scale", 0, cooperative=True))
    assert standin.launch.is_cooperative == 1


def test_an_integer_in_the_place_of_a_float_is_passed_as_a_float(kernels, standin):
    kernel = kernels.get(SOURCE, "scale", 0)
    launch(kernel)
    launch(kernel, (1, 4, -3))
    assert bytes(standin.launch.arguments)[8:16] == struct.pack("<d", 4.0)


def test_a_thread_without_a_context_gets_that_of_the_kernels_device(kernels, standin):
    kernel = kernels.get(SOURCE, "scale", 1)
    thread = threading.Thread(target=launch, args=(kernel,))
    thread.start()
    thread.join()
    assert (standin.launches, standin.launch.device) == (1, 1)


def test_a_launch_that_fails_raises_the_drivers_status(kernels, standin):
    kernel = kernels.get(SOURCE, "scale", 0)
    standin.fail("cuLaunchKernelEx", 700)
    with pytest.raises(CudaError, match=r"cuLaunchKernelEx returned CUDA_ERROR_OTHER \(700\)"):
        launch(kernel)


def test_launches_of_threads_do_not_mix_their_arguments(kernels, standin):
    kernel = kernels.get(SOURCE, "scale", 0)
    standin.lib.standin_num_arguments = 2
    kernel((1,), (1,), (0, 0.0), stream=STREAM)

    def many(number):
        for _ in range(200):
            kernel((1,), (1,), (number, float(number)), stream=STREAM)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many, range(4)))
    integer, real = struct.unpack("<qd", bytes(standin.launch.arguments)[:16])
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
    assert standin.shared_bytes == 0
    kernels.get(SOURCE, "scale", 0, shared_bytes=100_000)
    assert standin.shared_bytes == 100_000


def test_occupancy_is_asked_in_the_kernels_context_which_does_not_stay_current(kernels, standin):
    kernel = kernels.get(SOURCE, "scale", 1)
    assert standin.context_device() == -1
    assert kernel.blocks_per_multiprocessor(512, 2 << 16) == 2
    assert standin.context_device() == -1


def test_clusters_are_counted_once_for_a_device(kernels, standin):
    counts = kernels.cluster_counts(1)
    assert counts == tuple(100 // blocks - 3 for blocks in range(1, 9))  # 3 for the shared memory
    asked = standin.calls("cuOccupancyMaxActiveClusters")
    assert kernels.cluster_counts(1) is counts
    assert standin.calls("cuOccupancyMaxActiveClusters") == asked == 8
    assert standin.context_device() == -1


def test_a_device_before_compute_capability_9_has_no_clusters(kernels, driver, monkeypatch):
    older = driver.attributes(0)._replace(compute_capability=(8, 9))
    monkeypatch.setattr(driver, "attributes", lambda device: older)
    assert kernels.cluster_counts(0) == ()


def test_without_an_answer_there_are_no_clusters(kernels, monkeypatch):
    asked = []

    def fail(*_, **__):
        asked.append(1)
        raise CompileError(6, "NVRTC_ERROR_COMPILATION", "nvrtcCompileProgram")

    monkeypatch.setattr(kernels, "get", fail)
    assert [kernels.cluster_counts(0) for _ in range(2)] == [(), ()]
    assert len(asked) == 1


def test_a_kernel_for_another_device_leaves_the_current_one(kernels, driver, standin):
    driver.make_current(0)
    kernels.get(SOURCE, "scale", 1, shared_bytes=100_000)
    assert standin.context_device() == 0


def test_threads_that_ask_for_the_same_kernel_first_load_it_once(
    kernels, compiler_of_tests, standin
):
    # A compilation waits until all threads have asked for the kernel, at most a second.
    everybody = threading.Barrier(4, timeout=1)

    def wait():
        with suppress(threading.BrokenBarrierError):
            everybody.wait()

    compiler_of_tests.before = wait
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: kernels.get(SOURCE, "scale", 0), range(4)))
    assert len(set(found)) == 1
    assert (len(compiler_of_tests.compiled), standin.calls("cuModuleLoadData")) == (1, 1)


def test_a_signal_handler_gets_the_kernel_that_its_thread_is_loading(kernels, compiler_of_tests):
    of_handler = []

    def interrupt():
        compiler_of_tests.before = lambda: None
        of_handler.append(kernels.get(SOURCE, "scale", 0))

    compiler_of_tests.before = interrupt
    assert [kernels.get(SOURCE, "scale", 0)] == of_handler


def test_a_kernel_is_loaded_by_a_thread_that_captures(kernels, runtime):
    stream = runtime.new_stream()
    runtime.begin_capture(stream.ptr)
    launch(kernels.get(SOURCE, "scale", 0))
    runtime.abandon_capture(stream.ptr)


def test_a_kernel_that_did_not_load_is_loaded_by_the_next_call(kernels, standin):
    standin.fail("cuModuleLoadData", 2)
    with pytest.raises(CudaError, match="cuModuleLoadData"):
        kernels.get(SOURCE, "scale", 0)
    launch(kernels.get(SOURCE, "scale", 0))
    assert standin.launches == 1


def test_the_kernels_of_a_process_are_kept_in_its_cache_folder(
    driver, compiler_of_tests, monkeypatch, tmp_path
):
    monkeypatch.setattr(kernels_module, "load_driver", lambda: driver)
    monkeypatch.setattr(kernels_module.nvrtc, "load_compiler", lambda: compiler_of_tests)
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    kernels_module.process_kernels.cache_clear()
    try:
        launch(kernels_module.process_kernels().get(SOURCE, "scale", 0))
    finally:
        kernels_module.process_kernels.cache_clear()
    assert list((tmp_path / "kernels").iterdir())
    monkeypatch.setenv("DNNFFI_CACHE_DIR", "off")
    assert kernels_module.kernel_folder() is None


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (
            LibraryNotFoundError("NVRTC", ["here"], "pip install it"),
            "need NVRTC, which was not found. Install: pip install it",
        ),
        (
            UnsupportedError("NVRTC", "14.0", "the driver supports CUDA 13"),
            "cannot be compiled: NVRTC 14.0: the driver supports CUDA 13",
        ),
        (None, ""),
    ],
)
def test_why_a_process_compiles_no_kernels_is_asked_once(monkeypatch, error, problem):
    asked = []

    def find():
        asked.append(1)
        if error is not None:
            raise error

    monkeypatch.setattr(kernels_module, "process_kernels", find)
    kernels_module.kernel_problem.cache_clear()
    assert [kernels_module.kernel_problem() for _ in range(2)] == [problem, problem]
    assert len(asked) == 1
    kernels_module.kernel_problem.cache_clear()


def test_a_compiler_of_a_newer_cuda_than_the_drivers_is_refused(driver, compiler_of_tests):
    compiler_of_tests.version, compiler_of_tests.version_text = (14, 0), "14.0"
    with pytest.raises(UnsupportedError, match=r"NVRTC 14\.0: the driver supports CUDA 13"):
        Kernels(driver, compiler_of_tests, KernelCache(lambda: None))


def test_the_time_of_a_compilation_is_logged(kernels, caplog):
    with caplog.at_level("DEBUG", "dnnffi"):
        kernels.get(SOURCE, "scale", 0)
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert re.fullmatch(r"compiled the kernel scale for sm_\d+ in \d+\.\d\d s", record.getMessage())


def test_a_kernel_that_is_read_from_disk_is_logged_as_a_detail(
    kernels, driver, compiler_of_tests, folder, caplog
):
    kernels.get(SOURCE, "scale", 0)
    with caplog.at_level("DEBUG", "dnnffi"):
        Kernels(driver, compiler_of_tests, KernelCache(lambda: folder)).get(SOURCE, "scale", 0)
    (record,) = caplog.records
    assert record.levelname == "DEBUG"
    assert re.fullmatch(r"read the kernel scale for sm_\d+ from disk", record.getMessage())
