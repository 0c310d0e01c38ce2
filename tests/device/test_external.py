"""Arrays without CuPy, as far as they need no device."""

from __future__ import annotations

import copy
import ctypes
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from dnnffi import RNNSpec, RNNWeights, weight_layout
from dnnffi.device.external import array as array_module
from dnnffi.device.external.array import _Tensor
from dnnffi.device.external.host import host_array, owner_of
from dnnffi.device.spans import written_span
from dnnffi.foreign import array_at, device_array

CPU, CUDA, ROCM = 1, 2, 10
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Producer:
    """An object that shows an address by DLPack, whatever is stored there."""

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
    device_array("x", Producer(shape=(0, 3), strides=(17, 9)))


def test_an_array_without_dimensions():
    assert device_array("x", Producer(shape=())).shape == ()


def at_device(device_type):
    return Producer(device_type=device_type)


def without_address():
    producer = Producer()
    producer.tensor.data, producer.tensor.byte_offset = None, 64
    return producer


def beyond_memory():
    producer = Producer()
    producer.tensor.byte_offset = 2**64 - 1
    return producer


class Elsewhere(Producer):
    def __dlpack_device__(self):
        return ROCM, 0


class Versioned(Producer):
    def __dlpack__(self, *, stream=None):
        return _new_capsule(ctypes.addressof(self.tensor), b"dltensor_versioned", None)


def of_dimensions(ndim):
    producer = Producer()
    producer.tensor.ndim = ndim
    producer.tensor.shape = None
    return producer


@pytest.mark.parametrize(
    ("producer", "error", "message"),
    [
        (without_address(), ValueError, "x has 6 elements and no address of memory"),
        (beyond_memory(), ValueError, "x has 6 elements and no address of memory"),
        (Elsewhere(), ValueError, "x is on device 0 by __dlpack_device__, and on 1 by its DLPack"),
        (Versioned(), TypeError, "x gave no DLPack capsule that was asked for: "),
        (of_dimensions(2), ValueError, "x has a DLPack capsule of 2 dimensions without a shape"),
        (of_dimensions(-1), ValueError, "x has a DLPack capsule of -1 dimensions without a shape"),
        (Producer(shape=(2, -3)), ValueError, r"x must have sizes from 0; its shape is \(2, -3\)"),
        (Producer(bits=8), TypeError, "x has a dtype that DLPack numbers 2, of 8 bits and 1 lanes"),
        (Producer(code=4, bits=8), TypeError, "x has a dtype that DLPack numbers 4, of 8 bits"),
    ],
)
def test_what_dlpack_cannot_mean(producer, error, message):
    with pytest.raises(error, match=f"^{message}"):
        device_array("x", producer)


# __cuda_array_interface__


class Runtime:
    """The runtime of a device that does nothing."""

    def current_device(self):
        return 1


class Interface:
    def __init__(self, **entries):
        self.__cuda_array_interface__ = {
            "shape": (2, 3),
            "typestr": "<f4",
            "data": (4096, False),
            "version": 3,
        } | entries


@pytest.fixture
def waited(monkeypatch):
    """The streams that were waited for, on a runtime that does nothing."""
    streams = []
    monkeypatch.setattr(array_module, "device_runtime", lambda kind: Runtime())
    monkeypatch.setattr(array_module, "_wait_for", lambda found, stream: streams.append(stream))
    return streams


@pytest.mark.parametrize(
    "entries",
    [
        {},
        {"strides": None, "mask": None, "stream": None, "descr": [("", "<f4")]},
        {"strides": (12, 4)},
        {"strides": [12, 4], "shape": [2, 3]},
        {"version": 0},
        {"shape": (1, 3), "strides": (5, 4)},
        {"shape": (0, 3), "strides": (5, 5), "data": (0, False)},
    ],
)
def test_what_an_interface_tells(waited, entries):
    value = Interface(**entries)
    array = device_array("x", value, kind="cuda")
    interface = value.__cuda_array_interface__
    assert array.shape == tuple(interface["shape"])
    assert (array.data.ptr, array.data.device_id) == (interface["data"][0], 1)
    assert (array.dtype, array.kind, array.owner) == (np.float32, "cuda", value)
    assert waited == [None]


@pytest.mark.parametrize(
    "entries",
    [
        {"shape": tuple(np.int64([2, 3]))},
        {"strides": tuple(np.int64([12, 4]))},
        {"data": (np.uint64(4096), False)},
    ],
    ids=["shape", "strides", "address"],
)
def test_integers_of_numpy_in_an_interface_are_integers(waited, entries):
    array = device_array("x", Interface(**entries), kind="cuda", strided=True)
    numbers = (*array.shape, *array.strides, array.data.ptr)
    assert {type(number) for number in numbers} == {int}


def test_the_stream_of_an_interface(waited):
    device_array("x", Interface(stream=7), kind="cuda")
    assert waited == [7]


def test_an_interface_tells_that_it_is_read_only(waited):
    array = device_array("x", Interface(data=(4096, True)), kind="cuda")
    for view in (array, array[1:], array.reshape(3, 2), array_module.array_over([array], 4096, 2)):
        assert not view.flags.writeable
        assert view.__cuda_array_interface__["data"][1]
        with pytest.raises(ValueError, match=r"^y must be writable; it is read-only$"):
            written_span("y", view)
    assert device_array("x", Interface(), kind="cuda").flags.writeable


@pytest.mark.parametrize(
    ("entries", "error", "message"),
    [
        (
            {"strides": (12, 5)},
            ValueError,
            r"x must be contiguous; its strides are \(12, 5\) bytes",
        ),
        ({"strides": (15, 4)}, ValueError, "x must be contiguous; its strides are"),
        ({"strides": (16, 4)}, ValueError, "x must be contiguous; its strides are"),
        ({"strides": (0, 4)}, ValueError, "x must be contiguous; its strides are"),
        ({"strides": (-12, 4)}, ValueError, "x must be contiguous; its strides are"),
        ({"shape": (3,), "strides": (5,)}, ValueError, r"x must be contiguous; .* \(5,\) bytes"),
        ({"strides": (4,)}, ValueError, r"x has strides \(4,\) for shape \(2, 3\)"),
        ({"shape": (2, -3)}, ValueError, r"x must have sizes from 0; its shape is \(2, -3\)"),
        ({"shape": (2, 3.0)}, TypeError, "the shape of x must be an integer; got float"),
        ({"mask": Interface()}, TypeError, "x must be a plain array; its .* has a mask"),
        ({"version": 4}, ValueError, "x must have a .* of version 0 to 3; got 4"),
        ({"version": "3"}, ValueError, "x must have a .* of version 0 to 3; got '3'"),
        ({"stream": 0}, ValueError, "the stream of x must be None or from 1; .* has 0"),
        ({"stream": -1}, ValueError, "the stream of x must be None or from 1; .* has -1"),
        ({"stream": "0"}, TypeError, "the stream of x must be an integer; got str"),
        ({"typestr": ">f4"}, TypeError, "x must have the native byte order; got >f4"),
        ({"typestr": "<f3"}, TypeError, "x has the unknown type '<f3'"),
        ({"descr": [("a", "<f4")]}, TypeError, "x must have elements without fields; its descr is"),
        ({"descr": [("", "<i4")]}, TypeError, "x must have elements without fields; its descr is"),
        ({"typestr": None}, ValueError, "x must have typestr in its __cuda_array_interface__$"),
        (
            {"shape": None, "data": None},
            ValueError,
            "x must have shape, data in its __cuda_array_interface__$",
        ),
        ({"data": (0, False)}, ValueError, "x has 6 elements and no address of memory"),
        ({"data": (None, False)}, ValueError, "x has 6 elements and no address of memory"),
        ({"data": (2**64 - 8, False)}, ValueError, "x has 6 elements and no address of memory"),
    ],
)
def test_what_an_interface_cannot_mean(waited, entries, error, message):
    with pytest.raises(error, match=f"^{message}"):
        device_array("x", Interface(**entries), kind="cuda")
    assert waited == []


@pytest.mark.parametrize("strides", [(1, 2), (6, 2), (4, 1), (0, 1), (-3, 1), (3, 0)])
def test_strided_arrays(strides):
    with pytest.raises(ValueError, match=r"^dy must be contiguous; its strides are "):
        device_array("dy", Producer(strides=strides))


@pytest.mark.parametrize(("code", "lanes"), [(5, 1), (2, 4)])
def test_unknown_dtypes(code, lanes):
    with pytest.raises(TypeError, match=r"^x has a dtype that DLPack numbers"):
        device_array("x", Producer(code=code, lanes=lanes))


@pytest.mark.parametrize("error", [RuntimeError, BufferError, ValueError])
@pytest.mark.parametrize("refuses", ["__dlpack_device__", "__dlpack__"])
def test_an_array_that_its_library_does_not_export_is_named(error, refuses):
    def refuse(self, **keywords):
        raise error("not this one")

    value = type("Refusing", (Producer,), {refuses: refuse})()
    with pytest.raises(TypeError, match=r"^x does not show its memory by DLPack: not this one$"):
        device_array("x", value)


@pytest.mark.parametrize("value", [np.zeros(3), *map(at_device, (CPU, 3, 11))])
def test_arrays_on_the_host(value):
    with pytest.raises(TypeError, match=r"^x must be in device memory; this .* is on the host: "):
        device_array("x", value)


@pytest.mark.parametrize("value", [None, 1.0, [1.0], "x"])
def test_no_arrays(value):
    with pytest.raises(TypeError, match=r"^x must be an array in device memory, .*; got"):
        device_array("x", value)


def test_an_array_at_an_address():
    owner = object()
    array = array_at(4096, [2, 3], "bfloat16", kind="rocm", device=1, owner=owner)
    assert (array.data.ptr, array.data.device_id, array.kind) == (4096, 1, "rocm")
    assert (array.shape, array.dtype.name, array.owner) == ((2, 3), "bfloat16", owner)
    assert array.flags.writeable
    plain = array_at(4096, (), np.dtype("f8"))
    assert (plain.kind, plain.data.device_id, plain.owner) == ("cuda", 0, None)
    assert array_at(0, (0, 3), "float32").size == 0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"address": 4096.0}, TypeError, "address must be an integer; got float"),
        ({"address": None}, TypeError, "address must be an integer; got NoneType"),
        ({"address": 0}, ValueError, "the array has 6 elements and no address of memory"),
        ({"address": -4096}, ValueError, "the array has 6 elements and no address of memory"),
        ({"address": 2**64 - 4}, ValueError, "the array has 6 elements and no address of memory"),
        ({"shape": (2, -3)}, ValueError, r"the array must have sizes from 0; its shape is \(2, -3"),
        ({"shape": (2, 3.0)}, TypeError, "shape must be an integer; got float"),
        ({"dtype": "float31"}, TypeError, "dtype must be the name of a dtype; got 'float31'"),
        ({"dtype": "O"}, TypeError, "dtype must be of numbers in the byte order"),
        ({"dtype": ">f4"}, TypeError, "dtype must be of numbers in the byte order"),
        ({"kind": "host"}, ValueError, "kind must be one of cuda, rocm; got 'host'"),
        ({"device": -1}, ValueError, "device must be from 0 to"),
    ],
)
def test_what_cannot_be_at_an_address(change, error, message):
    arguments = {"address": 4096, "shape": (2, 3), "dtype": "float32"} | change
    with pytest.raises(error, match=f"^{message}"):
        array_at(**arguments)


def test_an_array_on_the_host_shows_the_memory_of_its_owner():
    owner = np.arange(6, dtype="f4").reshape(2, 3)
    array = host_array("x", owner)
    array[0, 0] = 7
    assert owner[0, 0] == 7
    assert host_array("x", array) is array
    assert owner_of(array) is owner
    assert owner_of(array[1:]) is None
    assert owner_of(owner) is None


def test_an_array_on_the_host_without_elements_needs_no_address():
    interface = {"shape": (0, 3), "typestr": "<f4", "data": (0, False), "version": 3}
    owner = SimpleNamespace(__array_interface__=interface)
    array = host_array("x", owner)
    assert (array.shape, array.dtype) == ((0, 3), np.float32)
    assert owner_of(array) is owner


def test_weights_at_an_address_that_nobody_owns_have_a_flat_array():
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=4)
    flat = array_at(4096, (weight_layout(spec, "cudnn").size,), "float32")
    assert RNNWeights(flat, spec).flat is flat


def test_views():
    array = device_array("x", Producer(shape=(4, 2)))
    view = array[1:3]
    assert (view.shape, view.data.ptr, view.owner) == ((2, 2), array.data.ptr + 8, array.owner)
    assert view.reshape(-1).shape == (4,)
    assert array.reshape((2, 4)).shape == (2, 4)
    for shape in [(3, 3), (3, -1), (-1, -1), (-2, -4), (0, -1)]:
        with pytest.raises(ValueError, match=r"cannot reshape \(4, 2\) into"):
            array.reshape(*shape)
    empty = array[:0]
    assert empty.reshape(2, -1).shape == (2, 0)
    with pytest.raises(ValueError, match=r"cannot reshape \(0, 2\) into \(0, -1\)"):
        empty.reshape(0, -1)
    with pytest.raises(ValueError, match="whole rows"):
        array[::2]


@pytest.mark.parametrize("place", [0, ..., (0, 1), None])
def test_a_place_that_is_no_slice_is_refused(place):
    array = device_array("x", Producer(shape=(4, 2)))
    with pytest.raises(ValueError, match="is taken in whole rows"):
        array[place]


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
