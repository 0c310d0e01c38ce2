"""Arrays without CuPy that have strides: what is seen of them, and which operations they have."""

from __future__ import annotations

import numpy as np
import pytest
from stress import user_arrays

from dnnffi.foreign import DeviceArray, device_array

VALUES = np.arange(24.0, dtype="f4").reshape(2, 3, 4)


class Owner:
    """The owner of a view of a NumPy array, which stands for device memory."""

    def __init__(self, values, **changes):
        self.values, self.changes = values, changes

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.values.shape,
            "typestr": self.values.dtype.str,
            "data": (self.values.__array_interface__["data"][0], False),
            "strides": self.values.strides,
            "version": 3,
        } | self.changes


@pytest.fixture(autouse=True)
def on_host(monkeypatch):
    user_arrays.install(monkeypatch)


VIEWS = {
    "transposed": VALUES.transpose(0, 2, 1),
    "with gaps": VALUES[:, ::2, 1:3],
    "broadcast": np.broadcast_to(VALUES[:1], (5, 3, 4)),
    "contiguous": VALUES,
}


@pytest.mark.parametrize("name", VIEWS)
def test_an_array_with_strides_is_taken_where_it_may_be(name):
    values = VIEWS[name]
    array = device_array("x", Owner(values), strided=True)
    assert array.strides == values.strides
    assert array._c_contiguous == array.flags.c_contiguous == (name == "contiguous")
    np.testing.assert_array_equal(array.get(), values)
    strides = None if name == "contiguous" else values.strides
    assert array.__cuda_array_interface__["strides"] == strides


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "contiguous"])
def test_elsewhere_it_is_refused_also_when_it_was_taken_before(name):
    owner = Owner(VIEWS[name])
    taken = device_array("x", owner, strided=True)
    for value in (owner, taken):
        with pytest.raises(ValueError, match=r"^x must be contiguous; its strides are \("):
            device_array("x", value)


@pytest.mark.parametrize("strides", [(-48, 16, 4), (48, 16, 2), (48, 14, 4)])
def test_strides_are_whole_elements_from_0(strides):
    with pytest.raises(ValueError, match=r"^x must have strides from 0, in whole elements; its"):
        device_array("x", Owner(VALUES, strides=strides), strided=True)


def test_memory_that_ends_behind_the_address_space_is_refused():
    owner = Owner(VALUES, strides=(2**61, 16, 4), data=(2**63, False))
    device_array("x", owner, strided=True)
    owner = Owner(VALUES, strides=(2**63, 16, 4), data=(2**63, False))
    with pytest.raises(ValueError, match=r"^x has 24 elements and no address of memory$"):
        device_array("x", owner, strided=True)


@pytest.mark.parametrize(
    "operation",
    [
        lambda array: array[:1],
        lambda array: array.reshape(-1),
        lambda array: array.fill(0),
        lambda array: array.set(VIEWS["transposed"]),
        lambda array: DeviceArray.__setitem__(whole(), ..., array),
    ],
)
def test_operations_take_contiguous_arrays(operation):
    array = device_array("x", Owner(VIEWS["transposed"]), strided=True)
    with pytest.raises(ValueError, match="this operation takes contiguous arrays; strides are"):
        operation(array)


def whole():
    return device_array("x", Owner(np.empty((2, 4, 3), "f4")))


def test_an_empty_array_has_any_strides():
    array = device_array("x", Owner(np.empty((0, 3, 4), "f4").transpose(0, 2, 1)), strided=True)
    assert array.get().shape == (0, 4, 3)
    assert array._c_contiguous


def test_strides_over_dimensions_of_1_do_not_count():
    owner = Owner(np.empty((1, 3, 4), "f4"), strides=(4000, 16, 4))
    assert device_array("x", owner, strided=True)._c_contiguous
