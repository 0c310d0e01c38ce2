"""The examples without an array library, on the stand-in: memory and kernels of a GPU's place."""

from __future__ import annotations

import ctypes
import gc
import runpy

import numpy as np
import pytest
from example_runs import EXAMPLES
from stress import user_arrays

import dnnffi
from simulators.cuda.emulator import EmulatedKernel

FRAMEWORK, ADDRESSES = (
    runpy.run_path(str(EXAMPLES / f"{name}.py")) for name in ("autograd_framework", "raw_addresses")
)
THREADS = 256


class Driver:
    """CUDA's driver as the examples use it, on host memory that the stand-in knows."""

    def __init__(self, simulator):
        self._allocate = simulator.memory._allocate
        self.memory = {}

    def allocate(self, nbytes):
        memory = self._allocate(max(nbytes, 1))
        address = ctypes.addressof(memory)
        self.memory[address] = memory
        return address

    def free(self, address):
        del self.memory[address]

    def upload(self, address, values):
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def download(self, address, shape, dtype):
        values = np.empty(shape, dtype)
        ctypes.memmove(values.ctypes.data, address, values.nbytes)
        return values

    def kernels(self, source, names):
        def kernel(name):
            emulated = EmulatedKernel(source, name, cooperative=False)
            return lambda num_threads, *arguments: emulated(
                (-(-num_threads // THREADS),), (THREADS,), arguments
            )

        return {name: kernel(name) for name in names}


@pytest.fixture
def driver(simulator, monkeypatch):
    user_arrays.install(monkeypatch)
    made = Driver(simulator)
    yield made
    user_arrays.forget(simulator.library)
    gc.collect()
    made.memory.clear()


def test_the_framework_learns_on_device_memory_what_it_learns_on_the_host(driver):
    expected = list(FRAMEWORK["train"](FRAMEWORK["Cpu"](), 20))
    found = list(FRAMEWORK["train"](FRAMEWORK["Gpu"](driver), 20))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_the_framework_frees_all_memory(driver):
    list(FRAMEWORK["train"](FRAMEWORK["Gpu"](driver), 2))
    dnnffi.clear_plans()
    assert driver.memory == {}


def test_a_training_step_on_raw_addresses_is_that_of_the_reference(simulator, driver):
    spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2)
    problem = dnnffi.RNNProblem.dense(spec, steps=5, batch=2, training=True)
    values = ADDRESSES["drawn"](spec, 5, 2)
    library = simulator.library.without_cupy()
    found = ADDRESSES["training_step"](driver, library, problem, values)
    expected = ADDRESSES["by_reference"](spec, values)
    assert max(ADDRESSES["relative_errors"](found, expected)) < 1e-5
    assert driver.memory == {}
