"""The driver's contexts, attributes, modules and errors, on a stand-in."""

from __future__ import annotations

import pytest

from dnnffi.errors import CudaError


def test_attributes_are_asked_once(driver, standin):
    found = driver.attributes(1)
    assert found == ((9, 0), 132, 227 << 10, 50 << 20)
    asked = standin.standin_attributes
    assert driver.attributes(1) is found
    assert standin.standin_attributes == asked


def test_the_primary_context_is_retained_once_per_device(driver, standin):
    for device in (0, 1, 0, 1):
        driver.make_current(device)
    assert standin.standin_retains == 2


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
    assert standin.standin_unloads == 1


def test_a_driver_that_cannot_begin(driver, standin):
    standin.standin_fail(b"cuInit", 100)
    with pytest.raises(CudaError, match=r"cuInit returned .* \(100\)") as raised:
        type(driver)(driver.lib)
    assert raised.value.detail == "what the driver says of it"
