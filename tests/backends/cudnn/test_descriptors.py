"""Descriptors on the real libcudnn: lifetime, contents, refusals.

The property tests are in test_descriptor_values.py, dropout on a GPU in tests/gpu.
"""

from __future__ import annotations

import gc
import os
import weakref
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from dnnffi.backends.cudnn import descriptors
from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.descriptors import (
    ClipInfo,
    DropoutDescriptor,
    DropoutInfo,
    FilterDescriptor,
    FilterInfo,
    RNNDataDescriptor,
    RNNDataInfo,
    RNNDescriptor,
    RNNInfo,
    TensorDescriptor,
    TensorInfo,
    states_size,
)
from dnnffi.backends.cudnn.library import Library, using
from dnnffi.backends.vendor.handle import Handle
from dnnffi.device.dtypes import dtype_object
from dnnffi.errors import CudnnError, UnsupportedError


class Counted:
    """Wrapper of libcudnn that keeps the objects that were made and not destroyed.

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
        if name.startswith("cudnnCreate"):
            return lambda out: self._create(function, out)
        if name.startswith("cudnnDestroy"):
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
    other_buffers: tuple
    setter: str

    def make(self, library):
        return self.cls(*self.arguments, library=library)

    def make_other(self, library):
        return self.cls(*self.other_arguments, library=library)


LSTM = RNNInfo("lstm", 3, 5, 2, True, "none", 4, "float64", math_precision="float64")
GRU = RNNInfo("gru", 7, 5, dtype="float16", math="tensor_op", padded_io=False)
CASES = [
    Case(
        TensorDescriptor,
        ("float32", (2, 3, 4)),
        TensorInfo("float32", (2, 3, 4), (12, 4, 1)),
        ("float64", (5, 4, 3, 2), (1, 5, 20, 60)),
        TensorInfo("float64", (5, 4, 3, 2), (1, 5, 20, 60)),
        "cudnnSetTensorNdDescriptor",
    ),
    Case(
        FilterDescriptor,
        ("float32", (2, 3, 4)),
        FilterInfo("float32", "NCHW", (2, 3, 4)),
        ("bfloat16", (5, 4, 3, 2)),
        FilterInfo("bfloat16", "NCHW", (5, 4, 3, 2)),
        "cudnnSetFilterNdDescriptor",
    ),
    Case(RNNDescriptor, (LSTM,), LSTM, (GRU,), GRU, "cudnnSetRNNDescriptor_v8"),
    Case(
        RNNDataDescriptor,
        ("float32", "packed", 5, 3, 7, (5, 3, 3)),
        RNNDataInfo("float32", "packed", 5, 3, 7, (5, 3, 3)),
        ("float16", "batch_major", 6, 2, 1, (1, 4)),
        RNNDataInfo("float16", "batch_major", 6, 2, 1, (1, 4)),
        "cudnnSetRNNDataDescriptor",
    ),
]
each_class = pytest.mark.parametrize("case", CASES, ids=lambda case: case.cls.__name__)


# Life


@each_class
def test_what_was_set_is_read_back(counted, case):
    with case.make(counted) as first, case.make_other(counted) as other:
        assert first.read() == case.held
        assert other.read() == case.other_buffers


@each_class
def test_it_can_be_set_again(counted, case):
    with case.make(counted) as descriptor:
        descriptor.set(*case.other_arguments)
        assert descriptor.read() == case.other_buffers
        assert counted.lib.created == 1


@each_class
def test_equal_is_what_holds_the_same(counted, case):
    with case.make(counted) as first, case.make(counted) as second:
        assert first == second
        second.set(*case.other_arguments)
        assert first != second


@each_class
def test_unequal_to_everything_else(counted, case):
    other_class = CASES[CASES.index(case) - 1]
    with case.make(counted) as descriptor, other_class.make(counted) as other:
        assert descriptor != other
        assert descriptor != case.held


@each_class
def test_it_has_no_hash(counted, case):
    with case.make(counted) as descriptor, pytest.raises(TypeError, match="unhashable"):
        hash(descriptor)


@each_class
def test_closing_twice_destroys_once(counted, case):
    descriptor = case.make(counted)
    assert len(counted.lib.live) == 1
    descriptor.close()
    assert counted.lib.live == set()
    descriptor.close()
    assert descriptor.closed


@each_class
def test_a_context_manager_closes(counted, case):
    with case.make(counted) as descriptor:
        assert not descriptor.closed
    assert descriptor.closed
    assert counted.lib.live == set()


@each_class
def test_dropping_it_destroys_it(counted, case):
    descriptor = case.make(counted)
    assert len(counted.lib.live) == 1
    del descriptor
    gc.collect()
    assert counted.lib.live == set()


@each_class
def test_many_are_independent(counted, case):
    several = [case.make(counted) for _ in range(5)]
    assert len(counted.lib.live) == 5
    several[2].close()
    assert len(counted.lib.live) == 4
    assert all(one.read() == case.held for one in several if not one.closed)


@each_class
def test_use_after_closing_is_an_error(counted, case):
    descriptor = case.make(counted)
    descriptor.close()
    message = f"this {case.cls.__name__} is closed"
    for use in (
        descriptor.read,
        lambda: descriptor.set(*case.arguments),
        lambda: descriptor.pointer,
        lambda: descriptor == case.make(counted),
    ):
        with pytest.raises(ValueError, match=message):
            use()


def test_other_uses_after_closing(counted):
    tensor, rnn = CASES[0].make(counted), CASES[2].make(counted)
    tensor.close()
    rnn.close()
    for use in (lambda: tensor.size_in_bytes, lambda: rnn.set_clip((0, 1)), rnn.read_clip):
        with pytest.raises(ValueError, match="is closed"):
            use()


@each_class
def test_repr_shows_what_it_holds(counted, case):
    descriptor = case.make(counted)
    assert repr(descriptor) == f"<{case.cls.__name__} {case.held}>"
    descriptor.close()
    assert repr(descriptor) == f"<{case.cls.__name__} closed>"


@each_class
def test_the_library_of_the_process_is_the_default(counted, case):
    with using(counted), case.cls(*case.arguments) as descriptor:
        assert descriptor.library is counted
        assert counted.lib.created == 1


def test_every_public_name_is_there():
    assert all(hasattr(descriptors, name) for name in descriptors.__all__)


# Setting fails


@each_class
def test_what_we_refuse_makes_no_object(counted, case):
    with pytest.raises(ValueError, match=r"must be one of .+; got 'int8'"):
        case.cls(*bad(case), library=counted)
    assert counted.lib.created == 0


@each_class
def test_what_we_refuse_leaves_a_live_one_as_it_was(counted, case):
    with case.make(counted) as descriptor:
        with pytest.raises(ValueError, match=r"must be one of .+; got 'int8'"):
            descriptor.set(*bad(case))
        assert descriptor.read() == case.held


def bad(case):
    """Return the arguments of a case with a data type that does not exist."""
    if case.cls is RNNDescriptor:
        return (LSTM._replace(dtype="int8"),)
    return ("int8", *case.arguments[1:])


@each_class
def test_what_the_library_refuses_is_destroyed(counted, case):
    counted.lib.broken.add(case.setter)
    with pytest.raises(CudnnError) as caught:
        case.make(counted)
    assert caught.value.status_name == "CUDNN_STATUS_BAD_PARAM"
    assert caught.value.function == case.setter
    assert caught.value.problem
    # It is closed although the error's traceback still refers to it.
    assert (counted.lib.created, counted.lib.live) == (1, set())


@each_class
def test_an_interrupt_while_setting_destroys_it(counted, case, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(counted.lib, case.setter, interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt) as caught:
        case.make(counted)
    assert (counted.lib.created, counted.lib.live) == (1, set())
    # Until here the traceback refers to the descriptor.
    assert caught.traceback


@each_class
def test_what_the_library_cannot_make(counted, case):
    create = f"cudnnCreate{case.cls.__name__}"
    counted.lib.broken.add(create)
    with pytest.raises(CudnnError) as caught:
        case.make(counted)
    assert caught.value.function == create
    assert counted.lib.created == 0


@each_class
def test_what_the_library_cannot_read(counted, case):
    getter = case.setter.replace("Set", "Get")
    with case.make(counted) as descriptor:
        counted.lib.broken.add(getter)
        with pytest.raises(CudnnError) as caught:
            descriptor.read()
    assert caught.value.function == getter


def test_a_combination_that_only_the_library_knows(counted):
    info = RNNInfo("lstm", 8, 8, bias_mode="none", algorithm="persist_static")
    with pytest.raises(UnsupportedError) as caught:
        RNNDescriptor(info, library=counted)
    assert "cudnnSetRNNDescriptor_v8 does not support RNNInfo(mode='lstm'" in str(caught.value)
    assert (counted.lib.created, counted.lib.live) == (1, set())


def test_a_live_rnn_descriptor_keeps_what_it_buffers(counted):
    with RNNDescriptor(LSTM, library=counted) as rnn:
        rnn.set_clip((-1.0, 1.0))
        with pytest.raises(UnsupportedError, match="algorithm='persist_static'"):
            rnn.set(LSTM._replace(algorithm="persist_static"))
        assert rnn.read() == LSTM
        assert rnn.read_clip() == ClipInfo((-1.0, 1.0), "propagate")


def test_more_steps_than_the_library_takes(counted):
    with pytest.raises(UnsupportedError, match="at most 65535 time steps; got 65536"):
        RNNDataDescriptor("float32", "packed", 65536, 1, 1, [65536], library=counted)
    assert counted.lib.live == set()


def test_the_library_takes_no_more_steps(library):
    # If this fails, the library has lifted a limit that dnnffi documents.
    with RNNDataDescriptor("float32", "packed", 65535, 1, 1, [65535], library=library) as data:
        arguments = (0, 0, 65536, 1, 1, [1], ffi.NULL)
        status = library.lib.cudnnSetRNNDataDescriptor(data.pointer, *arguments)
        assert type(library.error(status, "cudnnSetRNNDataDescriptor")) is UnsupportedError
        assert data.read().steps == 65535


# Tensors and filters of arrays


def tensor_of(array, library, **options):
    with TensorDescriptor.of(array, library=library, **options) as descriptor:
        return descriptor.read(), descriptor.size_in_bytes


BASE = np.zeros((4, 6, 8), "float32")


@pytest.mark.parametrize(
    ("array", "shape", "strides"),
    [
        (BASE, (4, 6, 8), (48, 8, 1)),
        (BASE.T, (8, 6, 4), (1, 8, 48)),
        (np.asfortranarray(BASE), (4, 6, 8), (1, 4, 24)),
        (BASE[1:, ::2, 3:5], (3, 3, 2), (48, 16, 1)),
        (BASE[:, 2:3, ::4], (4, 1, 2), (48, 8, 4)),
        (BASE.transpose(0, 2, 1), (4, 8, 6), (48, 1, 8)),
        (np.broadcast_to(BASE[:, :1], (4, 1, 8)), (4, 1, 8), (48, 8, 1)),
    ],
    ids=["C", "transposed", "Fortran", "sliced", "one wide", "inner transposed", "not repeated"],
)
def test_the_strides_of_an_array(library, array, shape, strides):
    held, size = tensor_of(array, library)
    assert held == TensorInfo("float32", shape, strides)
    low, high = np.lib.array_utils.byte_bounds(array)
    assert size == high - low


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_dtype_of_an_array(library, dtype):
    array = np.zeros((2, 3, 4), dtype_object(dtype))
    assert tensor_of(array, library)[0].dtype == dtype
    with FilterDescriptor.of(array, library=library) as descriptor:
        assert descriptor.read() == FilterInfo(dtype, "NCHW", (2, 3, 4))


def test_strides_that_are_not_stepped_over_are_made_up(library):
    # NumPy has 0 where it broadcast a new dimension, and -24 in a flipped one of one row.
    array = np.broadcast_to(BASE[0], (1, 6, 8))
    assert array.strides[0] == 0
    assert tensor_of(array, library)[0].strides == (48, 8, 1)
    flipped = np.zeros((3, 1, 5), "float32")[:, ::-1]
    assert flipped.strides[1] < 0
    assert tensor_of(flipped, library)[0].strides == (5, 5, 1)


def test_an_array_of_low_rank_is_padded(library):
    assert tensor_of(BASE[0], library, min_rank=4)[0].shape == (6, 8, 1, 1)
    assert tensor_of(BASE[0, 0, ::2], library, min_rank=3)[0] == TensorInfo(
        "float32", (4, 1, 1), (2, 1, 1)
    )
    assert tensor_of(BASE[0, 0, 0], library, min_rank=3)[0].shape == (1, 1, 1)
    with FilterDescriptor.of(BASE[0], min_rank=3, library=library) as descriptor:
        assert descriptor.read().shape == (6, 8, 1)


FIELDS = np.zeros((2, 3, 4), [("a", "float64"), ("b", "float32")])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.broadcast_to(BASE, (2, 4, 6, 8)), r"strides\[0\]"),
        (BASE[:, ::-1], r"strides\[1\]"),
        (BASE[:, :0], r"shape\[1\]"),
        (BASE[0, 0], "shape must have"),
        (np.zeros((1,) * 9, "float32"), "shape must have"),
        (BASE.astype("int32"), "dtype must be one of .*int32"),
        (BASE.astype("complex64"), "dtype"),
        (BASE.astype(BASE.dtype.newbyteorder()), "byte order"),
        (FIELDS["a"], "strides .* 8 bytes"),
        (FIELDS, "dtype"),
    ],
    ids=[
        "broadcast",
        "flipped",
        "empty",
        "rank 1",
        "rank 9",
        "int32",
        "complex",
        "byte order",
        "field",
        "fields",
    ],
)
def test_arrays_that_are_no_tensor(counted, array, message):
    with pytest.raises(ValueError, match=message):
        TensorDescriptor.of(array, library=counted)
    assert counted.lib.created == 0


def filter_of(array, library, **options):
    with FilterDescriptor.of(array, library=library, **options) as descriptor:
        return descriptor.read()


def test_a_filter_whose_channels_are_last(library):
    array = np.moveaxis(np.zeros((5, 3, 4, 2), "float32"), -1, 1)
    assert filter_of(array, library, format="NHWC") == FilterInfo("float32", "NHWC", (5, 2, 3, 4))
    with pytest.raises(ValueError, match="in NCHW has strides"):
        filter_of(array, library)
    with pytest.raises(ValueError, match="in NHWC has strides"):
        filter_of(np.ascontiguousarray(array), library, format="NHWC")


def test_a_filter_for_which_the_formats_are_the_same(library):
    array = np.zeros((5, 2, 1, 1), "float32")
    assert filter_of(array, library).shape == filter_of(array, library, format="NHWC").shape


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (BASE.T, "strides"),
        (BASE[:, ::2], "strides"),
        (np.broadcast_to(BASE[:1], (4, 6, 8)), "strides"),
        (BASE[::-1], "strides"),
        (BASE[:, :0], r"shape\[1\]"),
        (BASE[0], "shape must have"),
        (BASE.astype("int64"), "dtype"),
    ],
    ids=["transposed", "sliced", "broadcast", "flipped", "empty", "rank 2", "int64"],
)
def test_arrays_that_are_no_filter(counted, array, message):
    with pytest.raises(ValueError, match=message):
        FilterDescriptor.of(array, library=counted)
    assert counted.lib.created == 0


# Clipping


def test_clipping_is_off_at_first(library):
    with RNNDescriptor(LSTM, library=library) as rnn:
        assert rnn.read_clip().clip is None


def test_clipping_can_be_taken_off(library):
    with RNNDescriptor(LSTM, library=library) as rnn:
        rnn.set_clip((-2.0, 3.0), "clip")
        assert rnn.read_clip() == ClipInfo((-2.0, 3.0), "clip")
        rnn.set_clip(None)
        assert rnn.read_clip() == ClipInfo(None, "propagate")


def test_setting_the_network_turns_clipping_off(library):
    with RNNDescriptor(LSTM, library=library) as rnn:
        rnn.set_clip((-2.0, 3.0))
        rnn.set(LSTM)
        assert rnn.read_clip().clip is None


def test_clipping_tells_descriptors_apart(library):
    first, second = (RNNDescriptor(LSTM, library=library) for _ in range(2))
    with first, second:
        first.set_clip((-1.0, 1.0))
        assert first != second
        second.set_clip((-1.0, 1.0), "clip")
        assert first != second
        second.set_clip((-1.0, 1.0))
        assert first == second
        first.set_clip(None, "propagate")
        second.set_clip(None, "clip")
        assert first == second


# Dropout: refusals of the real library without a GPU, then the calls of dnnffi

NO_HANDLE = SimpleNamespace(pointer=ffi.NULL)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-0.1,), ValueError, "dropout must be from 0 to 1"),
        ((1.1,), ValueError, "dropout must be from 0 to 1"),
        ((float("nan"),), ValueError, "dropout must be from 0 to 1"),
        (("0.5",), TypeError, "dropout must be a number; got"),
        ((0.5,), ValueError, "states: a dropout above 0 needs a buffer"),
        ((0.0, None, -1), ValueError, "seed must be from 0"),
        ((0.0, None, 2**64), ValueError, "seed must be from 0"),
        ((0.0, None, 1.5), TypeError, "seed must be an integer"),
        ((0.5, np.zeros(8, "uint8")), TypeError, "states must be a device array; got ndarray"),
    ],
)
def test_dropout_that_we_refuse(counted, arguments, error, message):
    with pytest.raises(error, match=message):
        DropoutDescriptor(NO_HANDLE, *arguments, library=counted)
    assert counted.lib.created == 0


def test_dropout_that_the_library_refuses(counted):
    with pytest.raises(CudnnError) as caught:
        DropoutDescriptor(NO_HANDLE, library=counted)
    assert caught.value.function == "cudnnSetDropoutDescriptor"
    assert (counted.lib.created, counted.lib.live) == (1, set())


def test_the_size_of_the_states_needs_a_handle(library):
    with pytest.raises(CudnnError, match="cudnnDropoutGetStatesSize"):
        states_size(library, NO_HANDLE)


class DropoutInPython:
    """Model of cuDNN's dropout descriptors, as far as calls can observe it; all statuses are 0."""

    NEEDED = 64

    def __init__(self):
        self.calls = []
        self.held = {}
        self.destroyed = []

    def cudnnGetVersion(self):
        return 91900

    def cudnnCreateDropoutDescriptor(self, out):
        out[0] = ffi.cast("cudnnDropoutDescriptor_t", 16 * (len(self.held) + 1))
        self.held[out[0]] = None
        return 0

    def cudnnDestroyDropoutDescriptor(self, pointer):
        self.destroyed.append(pointer)
        return 0

    def cudnnDropoutGetStatesSize(self, handle, size):
        size[0] = self.NEEDED
        return 0

    def cudnnSetDropoutDescriptor(self, pointer, handle, *values):
        return self._set("seeded", pointer, *values)

    def cudnnRestoreDropoutDescriptor(self, pointer, handle, *values):
        return self._set("restored", pointer, *values)

    def _set(self, how, pointer, dropout, states, size, seed):
        self.calls.append((how, dropout, states, size, seed))
        self.held[pointer] = dropout, states, seed
        return 0

    def cudnnGetDropoutDescriptor(self, pointer, handle, dropout, states, seed):
        dropout[0], states[0], seed[0] = self.held[pointer]
        return 0


class Buffer:
    """Stand-in for a device buffer: an address and a size without memory."""

    def __init__(self, address, nbytes):
        self.data = SimpleNamespace(ptr=address)
        self.nbytes = nbytes


@pytest.fixture
def dropout_library():
    return Library(DropoutInPython(), "nowhere", "a test")


def test_dropout_without_states(dropout_library):
    with DropoutDescriptor(NO_HANDLE, library=dropout_library) as dropout:
        assert dropout.read() == DropoutInfo(0.0, 0, 0)
    assert dropout_library.lib.calls == [("seeded", 0.0, 0, 0, 0)]
    assert len(dropout_library.lib.destroyed) == 1


@pytest.mark.parametrize(("initialize", "how"), [(True, "seeded"), (False, "restored")])
def test_dropout_with_states(dropout_library, initialize, how):
    states = Buffer(4096, 100)
    arguments = (NO_HANDLE, 0.25, states, 2**64 - 1)
    with DropoutDescriptor(*arguments, initialize=initialize, library=dropout_library) as dropout:
        assert dropout.read() == DropoutInfo(0.25, 4096, 2**64 - 1)
    assert dropout_library.lib.calls == [(how, 0.25, 4096, 100, 2**64 - 1)]


def test_dropout_keeps_its_states_alive(dropout_library):
    states = Buffer(4096, 100)
    alive = weakref.ref(states)
    dropout = DropoutDescriptor(NO_HANDLE, 0.25, states, library=dropout_library)
    del states
    gc.collect()
    assert alive() is not None
    dropout.set(NO_HANDLE, 0.0)
    gc.collect()
    assert alive() is None
    dropout.close()


def test_dropout_with_too_small_a_buffer(dropout_library):
    with pytest.raises(ValueError, match="states must have 64 bytes; got 63"):
        DropoutDescriptor(NO_HANDLE, 0.25, Buffer(4096, 63), library=dropout_library)
    assert dropout_library.lib.calls == []
    assert len(dropout_library.lib.destroyed) == 1


def test_dropout_is_equal_with_the_same_states(dropout_library):
    arguments = (NO_HANDLE, 0.25, Buffer(4096, 64))
    first, second, other = (
        DropoutDescriptor(*arguments, seed, library=dropout_library) for seed in (1, 1, 2)
    )
    assert first == second
    assert first != other


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU")
def test_a_handle_needs_a_gpu(counted):
    with pytest.raises(CudnnError) as caught:
        Handle(counted, 0)
    assert caught.value.status_name == "CUDNN_STATUS_NOT_INITIALIZED"
    assert counted.lib.created == 0
