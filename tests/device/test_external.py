"""Arrays without CuPy, as far as they need no device."""

from __future__ import annotations

import copy
import ctypes
import pickle

import numpy as np
import pytest

from dnnffi.device.external.array import _Tensor
from dnnffi.foreign import device_array

CPU, CUDA, ROCM = 1, 2, 10
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Producer:
    """Shows an address by DLPack, whatever is there."""

    def __init__(self, shape=(2, 3), strides=None, code=2, bits=32, device_type=ROCM, lanes=1):
        numbers = ctypes.c_int64 * len(shape)
        self.parts = numbers(*shape), None if strides is None else numbers(*strides)
        self.tensor = _Tensor(
            4096, device_type, 1, len(shape), code, bits, lanes, self.parts[0], self.parts[1], 64
        )
        self.streams = []

    def __dlpack_device__(self):
        return self.tensor.device_type, self.tensor.device_id

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return _new_capsule(ctypes.addressof(self.tensor), b"dltensor", None)


@pytest.mark.parametrize(
    ("device_type", "kind", "stream"), [(CUDA, "cuda", 1), (13, "cuda", 1), (ROCM, "rocm", 0)]
)
def test_what_dlpack_tells(device_type, kind, stream):
    producer = Producer(device_type=device_type)
    array = device_array("x", producer)
    assert (array.kind, array.data.ptr, array.data.device_id) == (kind, 4096 + 64, 1)
    assert (array.shape, array.dtype, array.nbytes) == ((2, 3), np.float32, 24)
    assert array.owner is producer
    assert producer.streams == [stream]
    assert device_array("x", array) is array


@pytest.mark.parametrize(
    ("code", "bits", "name"), [(2, 16, "float16"), (0, 64, "int64"), (1, 8, "uint8")]
)
def test_dtypes(code, bits, name):
    assert device_array("x", Producer(code=code, bits=bits)).dtype == name


def test_bfloat16():
    assert device_array("x", Producer(code=4, bits=16)).dtype.name == "bfloat16"


@pytest.mark.parametrize("strides", [(3, 1), None])
def test_contiguous_arrays(strides):
    assert device_array("x", Producer(strides=strides)).strides == (12, 4)


def test_strides_that_are_never_stepped_over():
    device_array("x", Producer(shape=(1, 3), strides=(17, 1)))


@pytest.mark.parametrize("strides", [(1, 2), (6, 2)])
def test_strided_arrays(strides):
    with pytest.raises(ValueError, match=r"^dy must be contiguous; its strides are "):
        device_array("dy", Producer(strides=strides))


@pytest.mark.parametrize(("code", "lanes"), [(5, 1), (2, 4)])
def test_unknown_dtypes(code, lanes):
    with pytest.raises(TypeError, match=r"^x has a dtype that DLPack numbers"):
        device_array("x", Producer(code=code, lanes=lanes))


@pytest.mark.parametrize("value", [np.zeros(3), Producer(device_type=CPU)])
def test_arrays_on_the_host(value):
    with pytest.raises(TypeError, match=r"^x must be in device memory; this .* is elsewhere"):
        device_array("x", value)


@pytest.mark.parametrize("value", [None, 1.0, [1.0], "x"])
def test_no_arrays(value):
    with pytest.raises(TypeError, match=r"^x must be an array in device memory, .*; got"):
        device_array("x", value)


def test_views():
    array = device_array("x", Producer(shape=(4, 2)))
    view = array[1:3]
    assert (view.shape, view.data.ptr, view.owner) == ((2, 2), array.data.ptr + 8, array.owner)
    assert view.reshape(-1).shape == (4,)
    assert array.reshape((2, 4)).shape == (2, 4)
    with pytest.raises(ValueError, match="cannot reshape"):
        array.reshape(3, 3)
    with pytest.raises(ValueError, match="whole rows"):
        array[::2]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_address_is_not_copied_without_its_memory(again):
    with pytest.raises(TypeError, match=r"^DeviceArray cannot be pickled or copied: "):
        again(device_array("x", Producer()))


class layout:  # named as the class of torch.sparse_coo, of a module of that name
    __module__ = "torch"

    def __str__(self):
        return "torch.sparse_coo"


def test_a_sparse_tensor_is_refused_before_its_owner_is_asked_for_its_memory():
    sparse = Producer()
    sparse.layout = layout()
    message = r"^x must be a dense tensor, .* got one of torch\.sparse_coo: give x\.to_dense\(\)$"
    with pytest.raises(TypeError, match=message):
        device_array("x", sparse)
    assert sparse.streams == []
