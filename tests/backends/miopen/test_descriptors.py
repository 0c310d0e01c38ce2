"""MIOpen's descriptors: refusals without a library, and their lifetime on the real library."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi.backends.miopen import descriptors
from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.descriptors import (
    ActivationDescriptor,
    ActivationInfo,
    ConvolutionDescriptor,
    ConvolutionInfo,
    DropoutDescriptor,
    DropoutInfo,
    RNNDataInfo,
    RNNDescriptor,
    RNNInfo,
    SeqTensorDescriptor,
    TensorDescriptor,
    TensorInfo,
    states_size,
)
from dnnffi.backends.miopen.library import (
    ALGORITHMS,
    DATA_TYPES,
    LAYOUTS,
    MODES,
    RNN_DATA_TYPES,
    Library,
    using,
)
from dnnffi.backends.vendor.handle import Handle
from dnnffi.device.interface import StreamAt
from dnnffi.errors import MiopenError


class Counted:
    """Wrapper of libMIOpen that keeps the objects that were made and not destroyed.

    A function in ``broken`` gets NULL for its descriptor, which the real library refuses.
    """

    def __init__(self, lib):
        self._lib = lib
        self.created = 0
        self.live = set()
        self.destroyed_twice = []
        self.broken = set()

    def __getattr__(self, name):
        function = getattr(self._lib, name)
        if name in self.broken:
            return lambda descriptor, *rest: function(ffi.NULL, *rest)
        if name.startswith("miopenCreate"):
            return lambda out: self._create(function, out)
        if name.startswith("miopenDestroy"):
            return lambda pointer: self._destroy(function, pointer)
        return function

    def _create(self, function, out):
        status = function(out)
        if not status:
            self.created += 1
            self.live.add(int(ffi.cast("uintptr_t", out[0])))
        return status

    def _destroy(self, function, pointer):
        address = int(ffi.cast("uintptr_t", pointer))
        if address not in self.live:
            self.destroyed_twice.append(address)
            return 0
        self.live.remove(address)
        return function(pointer)


@pytest.fixture
def counted(library):
    """The library with a count. The test fails if an object is not destroyed."""
    lib = Counted(library.lib)
    yield Library(lib, library.path, library.found_via)
    gc.collect()
    assert lib.live == set()
    assert lib.destroyed_twice == []


class Case(NamedTuple):
    """A class with two sets of arguments, and the values that are read back for each."""

    cls: type
    arguments: tuple
    held: tuple
    other_arguments: tuple
    other_held: tuple
    setter: str


LSTM = RNNInfo("lstm", 5, 2, True, False, "float16", "fundamental", True)
GRU = RNNInfo("gru", 7)
PLAIN = ConvolutionInfo((0, 1), (1, 2), (1, 1))
OTHER = ConvolutionInfo((1, 2, 0), (3, 1, 2), (2, 1, 1), 4, "transpose", True, True, "normal")
CASES = [
    Case(
        TensorDescriptor,
        ("float32", (2, 3, 4)),
        TensorInfo("float32", (2, 3, 4), (12, 4, 1)),
        ("float64", (5, 4, 3, 2), (1, 5, 20, 60)),
        TensorInfo("float64", (5, 4, 3, 2), (1, 5, 20, 60)),
        "miopenSetTensorDescriptor",
    ),
    Case(RNNDescriptor, (LSTM,), LSTM, (GRU,), GRU, "miopenSetRNNDescriptor"),
    Case(
        SeqTensorDescriptor,
        ("float32", "packed", 5, 3, 7, (5, 3, 3)),
        RNNDataInfo("float32", "packed", 5, 3, 7, (5, 3, 3)),
        ("float16", "batch_major", 6, 2, 1, (1, 4)),
        RNNDataInfo("float16", "batch_major", 6, 2, 1, (1, 4)),
        "miopenSetRNNDataSeqTensorDescriptor",
    ),
    Case(
        ConvolutionDescriptor,
        (PLAIN,),
        PLAIN,
        (OTHER,),
        OTHER,
        "miopenInitConvolutionNdDescriptor",
    ),
    Case(
        ActivationDescriptor,
        (ActivationInfo("relu"),),
        ActivationInfo("relu"),
        (ActivationInfo("power", 1.0, -0.5, 2.0),),
        ActivationInfo("power", 1.0, -0.5, 2.0),
        "miopenSetActivationDescriptor",
    ),
]
each_class = pytest.mark.parametrize("case", CASES, ids=lambda case: case.cls.__name__)


# Life


@each_class
def test_what_was_set_is_read_back_and_can_be_set_again(counted, case):
    with case.cls(*case.arguments, library=counted) as descriptor:
        assert descriptor.read() == case.held
        assert repr(descriptor) == f"<{case.cls.__name__} {case.held}>"
        descriptor.set(*case.other_arguments)
        assert descriptor.read() == case.other_held
        assert counted.lib.created == 1


@each_class
def test_equal_is_what_holds_the_same(counted, case):
    with (
        case.cls(*case.arguments, library=counted) as first,
        case.cls(*case.arguments, library=counted) as second,
    ):
        assert first == second
        second.set(*case.other_arguments)
        assert first != second
        with pytest.raises(TypeError, match="unhashable"):
            hash(first)


@each_class
def test_it_is_destroyed_once(counted, case):
    descriptor = case.cls(*case.arguments, library=counted)
    dropped = case.cls(*case.arguments, library=counted)
    assert len(counted.lib.live) == 2
    descriptor.close()
    descriptor.close()
    assert descriptor.closed
    assert repr(descriptor) == f"<{case.cls.__name__} closed>"
    with pytest.raises(ValueError, match=f"this {case.cls.__name__} is closed"):
        descriptor.read()
    del dropped
    gc.collect()
    assert counted.lib.live == set()


@each_class
def test_what_the_library_refuses_is_destroyed(counted, case):
    counted.lib.broken.add(case.setter)
    with pytest.raises(MiopenError) as caught:
        case.cls(*case.arguments, library=counted)
    assert (caught.value.status, caught.value.status_name) == (3, "miopenStatusBadParm")
    assert caught.value.function == case.setter
    assert caught.value.problem
    assert (counted.lib.created, counted.lib.live) == (1, set())


@each_class
def test_what_the_library_cannot_make(counted, case):
    create = f"miopenCreate{case.cls.__name__}"
    counted.lib.broken.add(create)
    with pytest.raises(MiopenError) as caught:
        case.cls(*case.arguments, library=counted)
    assert caught.value.function == create
    assert counted.lib.created == 0


@each_class
def test_what_we_refuse_leaves_a_live_one_as_it_was(counted, case):
    with case.cls(*case.arguments, library=counted) as descriptor:
        with pytest.raises(ValueError, match=r"must be one of .+; got 'int8'"):
            descriptor.set(*bad(case))
        assert descriptor.read() == case.held


@each_class
def test_the_library_of_the_process_is_the_default(counted, case):
    with using(counted), case.cls(*case.arguments) as descriptor:
        assert descriptor.library is counted
        assert counted.lib.created == 1


# Observed limits of the library; if one of these tests fails, the library has lifted a limit


def test_the_setters_turn_padding_off(library):
    with RNNDescriptor(LSTM, library=library) as descriptor:
        assert library.lib.miopenSetRNNDescriptor(descriptor.pointer, 5, 2, 0, 1, 2, 0, 1, 0) == 0
        assert descriptor.read() == LSTM._replace(padded_io=False)


@pytest.mark.parametrize("mode", ["miopenGroupConv", "miopenDepthwise"])
def test_the_library_takes_modes_for_groups_as_an_ordinary_convolution(library, mode):
    with ConvolutionDescriptor(PLAIN, library=library) as descriptor:
        number = ffi.integer_const(mode)
        arguments = (2, PLAIN.padding, PLAIN.stride, PLAIN.dilation, number)
        assert library.lib.miopenInitConvolutionNdDescriptor(descriptor.pointer, *arguments) == 0
        assert descriptor.read().mode == "convolution"


def test_the_library_takes_lengths_above_the_steps(library):
    with SeqTensorDescriptor("float32", "packed", 5, 3, 7, (5, 3, 3), library=library) as sequences:
        setter = library.lib.miopenSetRNNDataSeqTensorDescriptor
        assert setter(sequences.pointer, 1, 2, 5, 3, 7, (9, 3, 3), ffi.NULL) == 0
        assert sequences.read().lengths == (9, 3, 3)


@pytest.mark.parametrize("number", [DATA_TYPES["float64"], DATA_TYPES["bfloat16"]])
def test_the_library_has_no_rnn_of_other_data_types(library, number):
    with RNNDescriptor(GRU, library=library) as descriptor:
        status = library.lib.miopenSetRNNDescriptor(descriptor.pointer, 5, 2, 0, 1, 2, 0, 0, number)
        assert status == 3
        assert descriptor.read() == GRU


# Values


shapes = st.lists(st.integers(1, 9), min_size=1, max_size=8).map(tuple)


@given(dtype=st.sampled_from(list(DATA_TYPES)), shape=shapes, data=st.data())
def test_any_tensor_is_read_back(library, dtype, shape, data):
    strides = data.draw(st.tuples(*(st.integers(1, 99) for _ in shape)))
    with TensorDescriptor(dtype, shape, strides, library=library) as descriptor:
        assert descriptor.read() == TensorInfo(dtype, shape, strides)
        span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        item = {"float64": 8, "float32": 4}.get(dtype, 2)
        assert descriptor.size_in_bytes == span * item


@given(
    info=st.builds(
        RNNInfo,
        mode=st.sampled_from(list(MODES)),
        hidden_size=st.integers(1, 2**31 - 1),
        num_layers=st.integers(1, 2**31 - 1),
        bidirectional=st.booleans(),
        bias=st.booleans(),
        dtype=st.sampled_from(list(RNN_DATA_TYPES)),
        algorithm=st.sampled_from(list(ALGORITHMS)),
        padded_io=st.booleans(),
    )
)
def test_any_network_is_read_back(library, info):
    with RNNDescriptor(info, library=library) as descriptor:
        assert descriptor.read() == info


@given(
    dtype=st.sampled_from(list(RNN_DATA_TYPES)),
    layout=st.sampled_from(list(LAYOUTS)),
    lengths=st.lists(st.integers(1, 70000), min_size=1, max_size=9),
    width=st.integers(1, 2**31 - 1),
)
def test_any_sequences_are_read_back(library, dtype, layout, lengths, width):
    if layout == "packed":
        lengths.sort(reverse=True)
    arguments = (dtype, layout, max(lengths), len(lengths), width, tuple(lengths))
    with SeqTensorDescriptor(*arguments, library=library) as descriptor:
        assert descriptor.read() == RNNDataInfo(*arguments)


def test_the_tensor_of_an_array(library):
    array = np.zeros((4, 6, 8), "float32")[1:, ::2, 3:5]
    with TensorDescriptor.of(array, library=library) as descriptor:
        assert descriptor.read() == TensorInfo("float32", (3, 3, 2), (48, 16, 1))
    with TensorDescriptor.of(array[0, 0], min_rank=3, library=library) as descriptor:
        assert descriptor.read().shape == (2, 1, 1)


# Dropout, which needs a handle; only calls that run no kernel


def states_of(nbytes):
    """Return a stand-in for a device array, whose address is passed to the library and not used."""
    return SimpleNamespace(data=SimpleNamespace(ptr=4096), nbytes=nbytes)


def test_dropout_is_read_back(counted, handle):
    states = states_of(states_size(counted, handle))
    with DropoutDescriptor(handle, 0.25, states, 2**64 - 1, library=counted) as dropout:
        assert dropout.read() == DropoutInfo(0.25, 2**64 - 1)
        dropout.set(handle, 0.0)
        assert dropout.read() == DropoutInfo(0.0, 0)


def test_dropout_wants_states_of_the_right_size(counted, handle):
    size = states_size(counted, handle)
    with pytest.raises(ValueError, match=f"states must have {size} bytes; got {size - 4}"):
        DropoutDescriptor(handle, 0.5, states_of(size - 4), library=counted)
    with pytest.raises(ValueError, match="states: a dropout above 0 needs a buffer"):
        DropoutDescriptor(handle, 0.5, library=counted)
    with pytest.raises(ValueError, match="dropout must be from 0 to 1"):
        DropoutDescriptor(handle, 1.5, states_of(size), library=counted)


def test_a_network_with_dropout(counted, handle):
    with (
        DropoutDescriptor(handle, library=counted) as dropout,
        RNNDescriptor(LSTM, dropout, library=counted) as network,
    ):
        assert network.read() == LSTM


def test_a_handle_takes_a_stream_and_is_closed_once(counted, device):
    made = Handle(counted, 0)
    assert made.launch is None
    assert made.set_stream(StreamAt(0)) is made.launch
    assert made.launch.stream.ptr == 0
    made.close()
    made.close()
    with pytest.raises(ValueError, match="this Handle is closed"):
        made.set_stream(StreamAt(0))


# Refusals, which need no library


def bad(case):
    """Return the arguments of a case with a data type or mode that does not exist."""
    first = case.arguments[0]
    if isinstance(first, RNNInfo):
        return (first._replace(dtype="int8"),)
    if isinstance(first, ConvolutionInfo | ActivationInfo):
        return (first._replace(mode="int8"),)
    return ("int8", *case.arguments[1:])


@each_class
def test_an_unknown_data_type_or_mode(case):
    with pytest.raises(ValueError, match=r"(dtype|mode) must be one of .*; got 'int8'"):
        case.cls(*bad(case))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "float64"}, "dtype must be one of float16, float32; got 'float64'"),
        ({"dtype": "bfloat16"}, "dtype must be one of float16, float32; got 'bfloat16'"),
        ({"mode": "elman"}, "mode must be one of"),
        ({"algorithm": "standard"}, "algorithm must be one of default, fundamental, "),
        ({"hidden_size": 0}, "hidden_size must be from 1"),
        ({"num_layers": 2**31}, "num_layers must be from 1"),
    ],
)
def test_a_network_that_miopen_has_not(fields, message):
    with pytest.raises(ValueError, match=message):
        RNNDescriptor(LSTM._replace(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": (5, 3)}, "lengths"),
        ({"lengths": (6, 3, 3)}, r"lengths\[0\]"),
        ({"lengths": (5, 0, 3)}, r"lengths\[1\]"),
        ({"lengths": (3, 5, 3)}, "lengths of packed sequences must be descending"),
        ({"lengths": (4, 3, 3)}, "steps of packed sequences is the longest length, 4; got 5"),
        ({"layout": "NTC"}, "layout must be one of"),
        ({"vector_size": 0}, "vector_size must be from 1"),
        ({"dtype": "float64"}, "dtype must be one of float16, float32"),
    ],
)
def test_sequences_that_are_none(fields, message):
    good = RNNDataInfo("float32", "packed", 5, 3, 7, (5, 3, 3))
    with pytest.raises(ValueError, match=message):
        SeqTensorDescriptor(*good._replace(**fields))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("float32", ()), "shape must have 1 to 8 dimensions"),
        (("float32", (1,) * 9), "shape must have 1 to 8 dimensions"),
        (("float32", (2, 0)), r"shape\[1\] must be from 1"),
        (("float32", (2, 3), (3, 0)), r"strides\[1\] must be from 1"),
        (("float32", (2, 3), (3,)), "strides must have one entry"),
        (("float32", (65536, 65536)), "at most 2147483647 elements"),
    ],
)
def test_tensors_that_are_none(arguments, message):
    with pytest.raises(ValueError, match=message):
        TensorDescriptor(*arguments)


def test_every_public_name_is_there():
    assert all(hasattr(descriptors, name) for name in descriptors.__all__)
