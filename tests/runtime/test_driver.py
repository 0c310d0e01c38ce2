"""Tests of the driver's contexts, attributes, modules and errors on a stand-in."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dnnffi.errors import CudaError
from dnnffi.runtime.cuda import driver as module


def test_attributes_are_asked_once(driver, standin):
    found = driver.attributes(1)
    assert found == ((9, 0), 132, 227 << 10, 50 << 20)
    asked = standin.calls("cuDeviceGetAttribute")
    assert driver.attributes(1) is found
    assert standin.calls("cuDeviceGetAttribute") == asked


def test_the_primary_context_is_retained_once_per_device(driver, standin):
    for device in (0, 1, 0, 1):
        driver.make_current(device)
    assert standin.calls("cuDevicePrimaryCtxRetain") == 2


def test_a_device_that_does_not_exist_is_named_by_the_drivers_status(driver):
    with pytest.raises(CudaError, match=r"cuDeviceGet returned CUDA_ERROR_OTHER \(101\)"):
        driver.make_current(2)


def test_a_status_that_the_driver_does_not_know(driver):
    with pytest.raises(CudaError, match=r"cuFree returned an unknown status \(4711\)"):
        driver.check(4711, "cuFree")


def test_the_version(driver):
    assert driver.version == (13, 0)


def test_a_module_without_the_function_is_unloaded(driver, standin):
    driver.make_current(0)
    with pytest.raises(CudaError, match="cuModuleGetFunction"):
        driver.load_function(b"\177ELF", "absent")
    assert standin.calls("cuModuleUnload") == 1


def test_a_driver_that_cannot_begin(driver, standin):
    standin.fail("cuInit", 100)
    with pytest.raises(CudaError, match=r"cuInit returned .* \(100\)") as raised:
        type(driver)(driver.lib)
    assert raised.value.detail == "what the driver says of it"


def test_devices_have_names_and_memory(driver):
    assert driver.device_count() == 2
    assert driver.device_name(1) == "Stand-in 1"
    assert driver.total_bytes(1) == 2 << 30


def test_a_thread_without_a_context_is_on_device_0_and_stays_without_one(driver, standin):
    assert driver.current_device() == 0
    assert standin.context_device() == -1


def test_the_current_device_is_that_of_the_context(driver):
    for device in (1, 0):
        driver.make_current(device)
        assert driver.current_device() == device


def test_an_error_of_the_context_is_not_taken_for_a_missing_one(driver, standin):
    driver.make_current(0)
    standin.fail("cuCtxGetDevice", 709)
    with pytest.raises(CudaError, match="cuCtxGetDevice"):
        driver.current_device()


def test_a_call_in_a_thread_without_a_context_is_made_on_device_0(driver, standin):
    driver.call("cuStreamSynchronize", 0)
    assert standin.context_device() == 0


def test_a_call_that_refuses_the_context_is_not_made_again(driver, standin):
    driver.make_current(1)
    standin.fail("cuStreamSynchronize", 201)
    with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_CONTEXT"):
        driver.call("cuStreamSynchronize", 0)
    assert standin.context_device() == 1


@pytest.mark.parametrize("before", [-1, 0, 1])
def test_the_context_of_a_block_gives_way_to_that_before(driver, standin, before):
    if before >= 0:
        driver.make_current(before)
    inside = []

    def fail():
        with driver.primary(1):
            inside.append(standin.context_device())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (inside, standin.context_device()) == ([1], before)


def test_a_process_opens_one_driver(driver, monkeypatch):
    opened = []

    def load(*given):
        opened.append(given[3])
        return SimpleNamespace(lib=driver.lib)

    monkeypatch.setattr(module.loader, "load", load)
    module.load_driver.cache_clear()
    try:
        assert module.load_driver() is module.load_driver()
    finally:
        module.load_driver.cache_clear()
    assert opened == ["cuInit"]
