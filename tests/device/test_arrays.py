"""Tests of what counts as an array."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from dnnffi.device import arrays
from dnnffi.device.arrays import as_array
from dnnffi.device.external import DeviceArray


@pytest.fixture
def half_imported(monkeypatch):
    """CuPy while another thread imports it: its module has no classes yet."""
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    arrays._kind_of_class.cache_clear()
    yield
    arrays._kind_of_class.cache_clear()


class Labelled(np.ndarray):
    """A subclass that changes nothing."""


def matrix(array):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        return np.asmatrix(array)


class OwnMatrix(np.matrix):
    """A subclass of what is refused."""


PECULIAR = {
    "masked": (np.ma.masked_array(np.ones((2, 2)), mask=np.eye(2)), "MaskedArray"),
    "masked nowhere": (np.ma.masked_array(np.ones((2, 2))), "MaskedArray"),
    "matrix": (matrix(np.ones((2, 2))), "matrix"),
    "of a subclass": (matrix(np.ones((2, 2))).view(OwnMatrix), "OwnMatrix"),
}


@pytest.mark.parametrize(("array", "kind"), PECULIAR.values(), ids=list(PECULIAR))
def test_an_array_that_means_more_than_its_elements_is_refused(array, kind):
    for _ in range(2):  # a class that was taken once is taken again
        with pytest.raises(TypeError, match=f"^dy must be a plain array; got {kind}$"):
            as_array("dy", array)


def test_arrays_and_subclasses_that_change_nothing_are_taken_as_they_are(tmp_path):
    plain = np.ones(3, np.float32)
    mapped = np.memmap(tmp_path / "mapped", np.float32, "w+", shape=(3,))
    for array in (plain, plain.view(Labelled), mapped):
        assert as_array("dy", array) is array


@pytest.mark.parametrize(
    ("function", "expected"), [(arrays.array_module, np), (arrays.kind, "host")]
)
@pytest.mark.usefixtures("half_imported")
def test_an_array_of_numpy_needs_nothing_of_a_cupy_that_is_being_imported(function, expected):
    assert function(np.ones(3)) == expected


@pytest.mark.usefixtures("half_imported")
def test_an_array_of_another_library_is_taken_while_cupy_is_being_imported():
    values = np.ones(3)
    other = SimpleNamespace(__array_interface__=values.__array_interface__, values=values)
    assert as_array("x", other).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("error", [RuntimeError, BufferError, ValueError])
@pytest.mark.parametrize("refuses", ["__dlpack_device__", "__dlpack__"])
def test_an_array_that_its_library_does_not_hand_out_is_named(error, refuses):
    def refuse(self, **keywords):
        raise error("not this one")

    methods = {"__dlpack_device__": lambda self: (1, 0), "__dlpack__": None, refuses: refuse}
    value = type("Refusing", (), methods)()
    message = r"^x cannot be seen as an array of NumPy or CuPy \(not this one\); if it is bfloat16"
    with pytest.raises(TypeError, match=message):
        as_array("x", value)


class At:
    """An array on the host that DLPack says to be on a device of another type."""

    def __init__(self, device_type):
        self._device_type = device_type

    def __dlpack_device__(self):
        return self._device_type, 0

    def __dlpack__(self, **keywords):
        return np.ones(3).__dlpack__(**keywords)


@pytest.mark.parametrize("device_type", [3, 11], ids=["CUDAHost", "ROCmHost"])
def test_pinned_memory_is_memory_of_the_host(device_type):
    assert as_array("x", At(device_type)).tolist() == [1.0, 1.0, 1.0]


def test_an_array_on_a_device_of_another_platform_is_named_with_its_place():
    message = r"^x must be in memory of the host, CUDA or ROCm; this At is elsewhere .* type 14\)$"
    with pytest.raises(TypeError, match=message):
        as_array("x", At(14))


def test_an_array_that_cupy_cannot_take_is_named(monkeypatch):
    def refuse(value):
        raise BufferError("not this one")

    monkeypatch.setattr(arrays, "import_cupy", lambda: SimpleNamespace(from_dlpack=refuse))
    with pytest.raises(TypeError, match=r"^x cannot be seen as an array of NumPy or CuPy \(not th"):
        as_array("x", At(2))


def test_memory_whose_owner_does_not_tell_its_platform_is_of_the_one_in_the_process(monkeypatch):
    monkeypatch.setattr(arrays, "kind_in_process", lambda: "cuda")
    array = DeviceArray(object(), None, 1, 4096, (2,), np.dtype("f4"))
    assert arrays.device_of(array) == "cuda:1"
