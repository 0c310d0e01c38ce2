"""Products of arrays of CuPy: a class over NumPy takes their place, and a loop that of cuBLASLt."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from dnnffi import matmul, matrices
from dnnffi.device.graphs import recording
from dnnffi.errors import CaptureError

A, B = np.arange(6, dtype="f4").reshape(2, 3), np.arange(12, dtype="f4").reshape(3, 4)


class Array:
    """An array on a device, whose memory is the host's."""

    def __init__(self, values, device=0):
        self.values = values
        self.data = SimpleNamespace(ptr=values.ctypes.data, device_id=device)

    def __getattr__(self, name):
        return getattr(self.values, name)

    def copy(self, order):
        return Array(self.values.copy(order), self.data.device_id)


class Product:
    """The product of matrices at addresses."""

    made: list
    runs: list

    def __init__(self, library, device, a, b, result, dtype, *, math, workspace_limit):
        self.made.append((library, device, dtype, math, workspace_limit))
        matrices = zip("abd", (a, b, result), strict=True)
        self._matrices = [matrix.checked(name) for name, matrix in matrices]
        self._dtype = np.dtype(dtype)

    def run(self, launch, a, b, result, workspace):
        self.runs.append((launch.stream.ptr, launch.device, workspace))
        left, right, target = map(self._read, self._matrices, (a, b, result))
        target[...] = left @ right

    def _read(self, matrix, address):
        count = (matrix.rows - 1) * matrix.leading + matrix.columns
        memory = (ctypes.c_char * (count * self._dtype.itemsize)).from_address(address)
        flat = np.frombuffer(memory, self._dtype)
        strides = (matrix.leading * self._dtype.itemsize, self._dtype.itemsize)
        found = np.lib.stride_tricks.as_strided(flat, (matrix.rows, matrix.columns), strides)
        return found.T if matrix.transposed else found


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    Product.made, Product.runs = [], []
    used = []
    memory = SimpleNamespace(
        ndarray=Array,
        used=used,
        use=lambda device: used.append(device) or nullcontext(),
        current_stream=lambda: SimpleNamespace(ptr=16),
        empty=lambda shape, dtype: Array(np.full(shape, np.nan, dtype), used[-1]),
    )
    monkeypatch.setattr(matrices, "as_array", lambda name, array: array)
    monkeypatch.setattr(matrices, "cupy_memory", lambda: memory)
    monkeypatch.setattr(matrices, "library", SimpleNamespace(load=lambda: "library"))
    monkeypatch.setattr(matrices, "MatrixProduct", Product)
    monkeypatch.setattr(matrices, "_products", {})
    return memory


@pytest.mark.parametrize(
    "views",
    [
        (A, B),
        (A.T.copy().T, B),
        (A, B.T.copy().T),
        (np.repeat(A, 2, axis=1)[:, ::2], B),
        (A[:1], B),
        (A, B[:, :1]),
    ],
)
@pytest.mark.parametrize("device", [0, 1])
def test_a_product_is_made_once_and_run_on_the_stream_of_the_arrays(views, device, memory):
    a, b = (Array(view, device) for view in views)
    for _ in range(2):
        found = matmul(a, b, math="fast")
        np.testing.assert_array_equal(found.values, views[0] @ views[1])
    assert found.data.device_id == device
    assert memory.used == [device] * 2
    assert Product.made == [("library", device, "float32", "fast", 0)]
    assert Product.runs == [(16, device, 0)] * 2


def test_a_given_result_is_written(memory):
    out = Array(np.empty((2, 4), "f4"))
    assert matmul(Array(A), Array(B), out=out) is out
    np.testing.assert_array_equal(out.values, A @ B)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (1, 1, 1)])
def test_only_an_empty_product_asks_no_library(shape):
    m, k, n = shape
    a, b = np.ones((m, k), "f4"), np.ones((k, n), "f4")
    found = matmul(Array(a), Array(b))
    np.testing.assert_array_equal(found.values, a @ b)
    assert len(Product.runs) == (0 not in shape)


@pytest.mark.parametrize("name", ["b", "out"])
def test_all_arrays_are_of_one_device_and_library(name):
    given = {"a": Array(A), "b": Array(B), "out": Array(np.empty((2, 4), "f4"))}
    given[name].data.device_id = 1
    with pytest.raises(ValueError, match=f"^{name} must be on device 0; got 1$"):
        matmul(given["a"], given["b"], out=given["out"])
    given[name] = given[name].values
    with pytest.raises(TypeError, match=f"^{name} must be of the same library as a; got ndarray$"):
        matmul(given["a"], given["b"], out=given["out"])


def test_other_dtypes_are_refused():
    with pytest.raises(
        TypeError, match=r"^a must have dtype .*; got float64; use a\.astype\('float32"
    ):
        matmul(Array(A.astype("f8")), Array(B.astype("f8")))


def misaligned(values):
    """Return an array of these values that begins a byte after a multiple of its elements' size."""
    memory = np.empty(values.nbytes + 1, np.uint8)
    found = memory[1:].view(values.dtype).reshape(values.shape)
    found[...] = values
    return found


@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_an_array_that_is_not_aligned_to_its_elements_is_refused(name):
    given = {"a": A, "b": B, "out": np.empty((2, 4), "f4")}
    given[name] = misaligned(given[name])
    arrays = {key: Array(values) for key, values in given.items()}
    with pytest.raises(ValueError, match=f"^{name} must begin at a multiple of its elements' 4"):
        matmul(arrays["a"], arrays["b"], out=arrays["out"])


def test_nothing_is_allocated_in_a_capture(memory):
    stream = SimpleNamespace(ptr=16)
    memory.empty = None
    with recording(stream), pytest.raises(CaptureError):
        matmul(Array(A), Array(B))
