"""Random values of descriptors on the real libcudnn: legal ones are stored, illegal ones refused.

The library's functions are also called directly, to test which values are legal.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.descriptors import (
    MAX_DIMS,
    ClipInfo,
    FilterDescriptor,
    FilterInfo,
    RNNDataDescriptor,
    RNNDataInfo,
    RNNDescriptor,
    RNNInfo,
    TensorDescriptor,
    TensorInfo,
)
from dnnffi.backends.cudnn.library import (
    ALGORITHMS,
    BIAS_MODES,
    DATA_TYPES,
    LAYOUTS,
    MATH_TYPES,
    MODES,
)
from dnnffi.errors import UnsupportedError

INT32_MAX = 2**31 - 1
REFUSED = (TypeError, ValueError)

dtypes = st.sampled_from(list(DATA_TYPES))
sizes = st.integers(1, 9)
# Each power of two meets its neighbours, so that sums and products fall on both sides of a limit.
edges = st.sampled_from([1, 2, 3, 2**15, 2**16 - 1, 2**16, 2**30, 2**31 - 2, INT32_MAX])
no_integers = st.sampled_from([1.0, "2", None, True, np.float32(3), [4]])
too_small = st.integers(max_value=0)
too_large = st.integers(min_value=2**31)
no_size = st.one_of(no_integers, too_small, too_large)
no_dtype = st.sampled_from(
    ["float", "int32", "FLOAT32", "", None, 0, ["float32"], np.dtype("int8")]
)
no_flag = st.sampled_from([0, 1, 2, "yes", None])


@pytest.fixture(scope="module")
def least_rank(library):
    """The smallest number of dimensions of a tensor that the version of cuDNN accepts."""
    return 2 if library.version >= (9,) else 3


@st.composite
def no_sizes(draw, least, most=MAX_DIMS):
    """Draw sizes of which exactly one is illegal, and its index."""
    values = draw(st.lists(sizes, min_size=least, max_size=most))
    index = draw(st.integers(0, len(values) - 1))
    values[index] = draw(no_size)
    return values, index


# Tensors


@st.composite
def strided(draw):
    """Draw a shape, and its strides in any order of dimensions and with any gaps."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=MAX_DIMS))
    strides, step = [0] * len(shape), draw(sizes)
    for index in draw(st.permutations(range(len(shape)))):
        strides[index] = step
        step = step * shape[index] + draw(st.integers(0, 3))
    assume(step < 2**31)
    return tuple(shape), tuple(strides)


@given(dtype=dtypes, layout=strided(), min_rank=st.integers(0, MAX_DIMS))
def test_tensors_with_strides(library, least_rank, dtype, layout, min_rank):
    shape, strides = layout
    assume(max(len(shape), min_rank) >= least_rank)
    ones = (1,) * (min_rank - len(shape))
    with TensorDescriptor(dtype, shape, strides, min_rank=min_rank, library=library) as tensor:
        assert tensor.read() == TensorInfo(dtype, shape + ones, strides + ones)
        span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        item = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[dtype]
        assert tensor.size_in_bytes == span * item


@given(dtype=dtypes, shape=st.lists(sizes, max_size=MAX_DIMS), min_rank=st.integers(0, MAX_DIMS))
def test_contiguous_tensors(library, least_rank, dtype, shape, min_rank):
    assume(max(len(shape), min_rank) >= least_rank)
    padded = (*shape, *[1] * (min_rank - len(shape)))
    expected = np.zeros(padded, "int8").strides
    with TensorDescriptor(dtype, shape, min_rank=min_rank, library=library) as tensor:
        assert tensor.read() == TensorInfo(dtype, padded, expected)


@given(layout=strided())
def test_tensors_of_arrays(library, layout):
    shape, strides = layout
    itemsize = 2
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    assume(span < 10**6)
    array = np.lib.stride_tricks.as_strided(
        np.zeros(span, "float16"), shape, [stride * itemsize for stride in strides]
    )
    with TensorDescriptor.of(array, min_rank=3, library=library) as tensor:
        ones = (1,) * (3 - len(shape))
        assert tensor.read() == TensorInfo("float16", shape + ones, strides + ones)


@given(
    layout=st.integers(3, MAX_DIMS).flatmap(
        lambda rank: st.tuples(*[st.lists(edges, min_size=rank, max_size=rank)] * 2)
    )
)
def test_tensors_near_the_limits_are_refused_where_the_library_refuses(library, layout):
    shape, strides = layout
    with TensorDescriptor("float32", (1, 1, 1), library=library) as tensor:
        status = library.lib.cudnnSetTensorNdDescriptor(
            tensor.pointer, 0, len(shape), shape, strides
        )
        if status:
            with pytest.raises(ValueError, match="shape: at most 2147483647 elements"):
                tensor.set("float32", shape, strides)
        else:
            tensor.set("float32", shape, strides)
            assert tensor.read() == TensorInfo("float32", tuple(shape), tuple(strides))


def test_a_stride_that_is_made_up_fits_an_int(library):
    # Elements that overlap, as in a sliding window: more of them than an int32 counts.
    shape = (1, 2**20, 2**20)
    with TensorDescriptor("float32", shape, (0, 1, 1), library=library) as tensor:
        assert tensor.read() == TensorInfo("float32", shape, (INT32_MAX, 1, 1))


@given(bad=no_sizes(2), dtype=dtypes)
def test_sizes_of_tensors_that_are_refused(library, bad, dtype):
    shape, index = bad
    with pytest.raises(REFUSED, match=rf"shape\[{index}\]"):
        TensorDescriptor(dtype, shape, library=library)


@given(layout=strided(), data=st.data())
def test_strides_that_are_refused(library, layout, data):
    shape, strides = layout
    stepped = [index for index, size in enumerate(shape) if size > 1]
    assume(stepped)
    index = data.draw(st.sampled_from(stepped))
    strides = [*strides[:index], data.draw(no_size), *strides[index + 1 :]]
    with pytest.raises(REFUSED, match=rf"strides\[{index}\]"):
        TensorDescriptor("float32", shape, strides, min_rank=3, library=library)


@given(layout=strided(), count=st.integers(0, 10))
def test_a_wrong_number_of_strides_is_refused(library, layout, count):
    shape, _ = layout
    assume(count != len(shape))
    with pytest.raises(ValueError, match=f"strides must have .* {len(shape)} dimensions"):
        TensorDescriptor("float32", shape, [1] * count, min_rank=3, library=library)


@pytest.mark.parametrize("cls", [TensorDescriptor, FilterDescriptor])
@given(rank=st.integers(MAX_DIMS + 1, 20))
def test_too_many_dimensions_are_refused(library, cls, rank):
    with pytest.raises(ValueError, match="shape must have"):
        cls("float32", [1] * rank, library=library)


@pytest.mark.parametrize(("cls", "least"), [(TensorDescriptor, 2), (FilterDescriptor, 3)])
def test_too_few_dimensions_are_refused(library, cls, least):
    for rank in range(least):
        with pytest.raises(ValueError, match=f"shape must have {least} to 8 dimensions"):
            cls("float32", [1] * rank, library=library)


@pytest.mark.parametrize("cls", [TensorDescriptor, FilterDescriptor])
@given(min_rank=st.one_of(no_integers, st.integers(max_value=-1), st.integers(min_value=9)))
def test_minimum_ranks_that_are_refused(library, cls, min_rank):
    with pytest.raises(REFUSED, match="min_rank"):
        cls("float32", (1, 1, 1), min_rank=min_rank, library=library)


@pytest.mark.parametrize("cls", [TensorDescriptor, FilterDescriptor])
@given(dtype=no_dtype)
def test_dtypes_that_are_refused(library, cls, dtype):
    with pytest.raises(REFUSED, match="dtype must be one of float32, float64, float16"):
        cls(dtype, (1, 1, 1), library=library)


@pytest.mark.parametrize("cls", [TensorDescriptor, FilterDescriptor])
@pytest.mark.parametrize("shape", [5, None, 2.0])
def test_a_shape_that_is_no_sequence(library, cls, shape):
    with pytest.raises(TypeError, match="shape must be a sequence of integers"):
        cls("float32", shape, library=library)


def test_integers_of_other_kinds_are_taken(library):
    shape = np.array([2, 3, 4])
    with TensorDescriptor(np.dtype("float32"), iter(shape), library=library) as tensor:
        assert tensor.read() == TensorInfo("float32", (2, 3, 4), (12, 4, 1))


# Filters


@given(
    dtype=dtypes,
    format=st.sampled_from(["NCHW", "NHWC"]),
    shape=st.lists(sizes | edges, max_size=MAX_DIMS),
    min_rank=st.integers(0, MAX_DIMS),
)
def test_filters(library, dtype, format, shape, min_rank):
    padded = (*shape, *[1] * (min_rank - len(shape)))
    assume(len(padded) >= 3)
    arguments = {"format": format, "min_rank": min_rank}
    with FilterDescriptor(dtype, shape, **arguments, library=library) as descriptor:
        assert descriptor.read() == FilterInfo(dtype, format, padded)
        descriptor.set("float16", (9, 9, 9))
        assert descriptor.read() == FilterInfo("float16", "NCHW", (9, 9, 9))
        descriptor.set(dtype, shape, **arguments)
        assert descriptor.read() == FilterInfo(dtype, format, padded)


@given(bad=no_sizes(3), dtype=dtypes)
def test_sizes_of_filters_that_are_refused(library, bad, dtype):
    shape, index = bad
    with pytest.raises(REFUSED, match=rf"shape\[{index}\]"):
        FilterDescriptor(dtype, shape, library=library)


@given(format=st.sampled_from(["nchw", "NCHW_VECT_C", "", None, 0]))
def test_formats_that_are_refused(library, format):
    with pytest.raises(ValueError, match="format must be one of NCHW, NHWC"):
        FilterDescriptor("float32", (1, 1, 1), format=format, library=library)


# RNNs


@st.composite
def rnn_infos(draw):
    hidden_size = draw(st.integers(1, 40) | edges)
    mode = draw(st.sampled_from(list(MODES)))
    projects = mode == "lstm" and hidden_size > 1 and draw(st.booleans())
    dtype = draw(dtypes)
    return RNNInfo(
        mode=mode,
        input_size=draw(st.integers(1, 40) | edges),
        hidden_size=hidden_size,
        num_layers=draw(st.integers(1, 5) | edges),
        bidirectional=draw(st.booleans()),
        bias_mode=draw(st.sampled_from(list(BIAS_MODES))),
        proj_size=draw(st.integers(1, hidden_size - 1)) if projects else 0,
        dtype=dtype,
        algorithm=draw(st.sampled_from(list(ALGORITHMS))),
        math=draw(st.sampled_from(list(MATH_TYPES))),
        math_precision=draw(st.sampled_from([dtype, "float32"])),
        padded_io=draw(st.booleans()),
    )


def is_computed(info, version):
    """Return whether cuDNN accepts a network, as observed with 8.9.7, 9.19 and 9.28."""
    precisions = {
        "float16": ("float16", "float32"),
        "bfloat16": ("float32",) if version >= (9,) else (),
        "float32": ("float32",),
        "float64": ("float64",),
    }
    if info.math_precision not in precisions[info.dtype]:
        return False
    if info.algorithm == "standard":
        return True
    return (
        info.bias_mode == "double"
        and not info.proj_size
        and info.math_precision != "float16"
        and (info.dtype != "float64" or info.algorithm == "persist_dynamic")
    )


@given(info=rnn_infos())
def test_networks(library, info):
    try:
        rnn = RNNDescriptor(info, library=library)
    except UnsupportedError:
        assert not is_computed(info, library.version)
    else:
        with rnn:
            assert rnn.read() == info
            assert rnn.read_clip().clip is None


LSTM = RNNInfo("lstm", 30, 40)
CHANGES = {
    "mode": "gru",
    "input_size": 31,
    "hidden_size": 41,
    "num_layers": 2,
    "bidirectional": True,
    "bias_mode": "none",
    "proj_size": 7,
    "dtype": "float16",
    "algorithm": "persist_static",
    "math": "fma",
    "math_precision": "float16",
    "padded_io": False,
}


@pytest.mark.parametrize("name", RNNInfo._fields)
def test_each_parameter_tells_networks_apart(library, name):
    # Only float16 is computed in more than one precision.
    first = LSTM._replace(dtype="float16") if name == "math_precision" else LSTM
    one, other = (RNNDescriptor(first, library=library) for _ in range(2))
    with one, other:
        assert one == other
        other.set(first._replace(**{name: CHANGES[name]}))
        assert one != other
        other.set(first)
        assert one == other


no_choice = st.sampled_from(["", "unknown", None, 0, ["lstm"]])
BAD_RNN = {
    "mode": no_choice,
    "input_size": no_size,
    "hidden_size": no_size,
    "num_layers": no_size,
    "bidirectional": no_flag,
    "bias_mode": no_choice,
    "proj_size": st.one_of(no_integers, st.integers(max_value=-1), st.integers(min_value=40)),
    "dtype": no_dtype,
    "algorithm": no_choice,
    "math": no_choice,
    "math_precision": no_dtype,
    "padded_io": no_flag,
}


@pytest.mark.parametrize("name", RNNInfo._fields)
@given(data=st.data())
def test_parameters_of_networks_that_are_refused(library, name, data):
    info = LSTM._replace(**{name: data.draw(BAD_RNN[name])})
    with pytest.raises(REFUSED, match=f"^{name}"):
        RNNDescriptor(info, library=library)


@pytest.mark.parametrize("mode", ["gru", "rnn_tanh", "rnn_relu"])
def test_projections_of_anything_but_an_lstm_are_refused(library, mode):
    with pytest.raises(ValueError, match="proj_size: only an LSTM has a projection"):
        RNNDescriptor(RNNInfo(mode, 8, 8, proj_size=3), library=library)


@given(hidden_size=sizes, more=st.integers(0, 3))
def test_projections_that_do_not_shrink_are_refused(library, hidden_size, more):
    with pytest.raises(ValueError, match="proj_size must be smaller than hidden_size"):
        RNNDescriptor(
            RNNInfo("lstm", 8, hidden_size, proj_size=hidden_size + more), library=library
        )


limits = st.floats(allow_nan=False)


@given(clip=st.tuples(limits, limits).map(sorted), nan=st.sampled_from(["propagate", "clip"]))
def test_clipping(library, clip, nan):
    with RNNDescriptor(LSTM, library=library) as rnn:
        rnn.set_clip(clip, nan)
        assert rnn.read_clip() == ClipInfo(tuple(clip), nan)


@given(
    clip=st.tuples(st.floats(), st.floats()).filter(lambda clip: not clip[0] <= clip[1]),
    nan=st.sampled_from(["propagate", "clip"]),
)
def test_limits_that_are_refused(library, clip, nan):
    with RNNDescriptor(LSTM, library=library) as rnn:
        rnn.set_clip((-1.0, 2.0), "clip")
        with pytest.raises(ValueError, match=r"^clip must be \(low, high\)"):
            rnn.set_clip(clip, nan)
        assert rnn.read_clip() == ClipInfo((-1.0, 2.0), "clip")


@pytest.mark.parametrize(
    "clip", [1.0, (1.0,), (0, 1, 2), ("low", "high"), (None, 1.0), ("0", "1"), "12", {0: 1, 1: 2}]
)
def test_what_is_no_pair_of_limits_is_refused(library, clip):
    rnn = RNNDescriptor(LSTM, library=library)
    with rnn, pytest.raises(TypeError, match=r"^clip must be two numbers"):
        rnn.set_clip(clip)


def test_a_limit_beyond_float64_is_refused_by_name(library):
    rnn = RNNDescriptor(LSTM, library=library)
    with rnn, pytest.raises(ValueError, match=r"^clip must be a number that float64 holds"):
        rnn.set_clip((0, 10**400))


@pytest.mark.parametrize("nan", ["", "keep", None, True])
def test_what_clipping_does_to_nan_is_one_of_two(library, nan):
    rnn = RNNDescriptor(LSTM, library=library)
    with rnn, pytest.raises(ValueError, match=r"^nan must be one of propagate, clip"):
        rnn.set_clip((-1.0, 1.0), nan)


def test_limits_may_be_infinite_or_one_point(library):
    with RNNDescriptor(LSTM, library=library) as rnn:
        for clip in ((-math.inf, math.inf), (2.0, 2.0), (0.0, -0.0)):
            rnn.set_clip(clip)
            assert rnn.read_clip().clip == clip


# Sequences


@st.composite
def sequences(draw):
    """Draw arguments of an RNN data descriptor."""
    layout = draw(st.sampled_from(list(LAYOUTS)))
    steps = draw(st.integers(1, 12) | st.sampled_from([1000, 65534, 65535]))
    lengths = draw(st.lists(st.integers(1, steps), min_size=1, max_size=9))
    if layout == "packed":
        lengths = sorted([*lengths, steps], reverse=True)
    vector_size = draw(sizes | edges)
    return draw(dtypes), layout, steps, len(lengths), vector_size, tuple(lengths)


@given(arguments=sequences())
def test_sequences(library, arguments):
    assume(arguments[0] != "bfloat16" or library.version >= (9,))
    with RNNDataDescriptor(*arguments, library=library) as data:
        assert data.read() == RNNDataInfo(*arguments)


@given(first=sequences(), second=sequences())
def test_sequences_can_be_set_again(library, first, second):
    assume("bfloat16" not in (first[0], second[0]) or library.version >= (9,))
    with RNNDataDescriptor(*first, library=library) as data:
        data.set(*second)
        assert data.read() == RNNDataInfo(*second)


@given(
    layout=st.sampled_from(list(LAYOUTS)),
    steps=st.integers(-1, 4),
    vector_size=st.integers(-1, 2),
    lengths=st.lists(st.integers(-1, 5), max_size=4),
)
def test_sequences_are_refused_where_the_library_refuses(
    library, layout, steps, vector_size, lengths
):
    # It takes rows of no steps in padded layouts; dnnffi does not.
    assume(0 not in lengths)
    arguments = (steps, len(lengths), vector_size, lengths)
    with RNNDataDescriptor("float32", "packed", 1, 1, 1, [1], library=library) as data:
        status = library.lib.cudnnSetRNNDataDescriptor(
            data.pointer, DATA_TYPES["float32"], LAYOUTS[layout], *arguments, ffi.NULL
        )
        if status:
            with pytest.raises(ValueError, match=r"steps|batch|vector_size|lengths"):
                data.set("float32", layout, *arguments)
        else:
            data.set("float32", layout, *arguments)


GOOD = {
    "dtype": "float32",
    "layout": "sequence_major",
    "steps": 5,
    "batch": 3,
    "vector_size": 4,
    "lengths": (2, 5, 1),
}
BAD_SEQUENCES = {
    "dtype": no_dtype,
    "layout": no_choice,
    "steps": no_size,
    "batch": no_size,
    "vector_size": no_size,
    "lengths": st.one_of(
        st.sampled_from([None, 5, "521", 5.0]),
        st.lists(st.integers(1, 5), max_size=6).filter(lambda lengths: len(lengths) != 3),
        st.permutations([2, 5, 0]),
        st.permutations([2, 5, 6]),
        st.permutations([2, 5, -1]),
        st.permutations([2, 5, 1.0]),
        st.permutations([2, 5, True]),
    ),
}


@pytest.mark.parametrize("name", GOOD)
@given(data=st.data())
def test_arguments_of_sequences_that_are_refused(library, name, data):
    with pytest.raises(REFUSED, match=f"^{name}"):
        RNNDataDescriptor(**GOOD | {name: data.draw(BAD_SEQUENCES[name])}, library=library)


@given(lengths=st.lists(st.integers(1, 5), min_size=1).filter(lambda n: n != sorted(n)[::-1]))
def test_rising_lengths_are_refused_when_packed(library, lengths):
    arguments = ("float32", "packed", max(lengths), len(lengths), 4, lengths)
    with pytest.raises(ValueError, match="lengths of packed sequences must be descending"):
        RNNDataDescriptor(*arguments, library=library)


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1).map(lambda n: sorted(n)[::-1]),
    more=st.integers(1, 3),
)
def test_packed_sequences_have_as_many_steps_as_the_longest(library, lengths, more):
    arguments = ("float32", "packed", lengths[0] + more, len(lengths), 4, lengths)
    with pytest.raises(ValueError, match=f"the longest length, {lengths[0]}; got"):
        RNNDataDescriptor(*arguments, library=library)


@given(layout=st.sampled_from(list(LAYOUTS)), steps=st.integers(65536, INT32_MAX))
def test_too_many_steps_are_unsupported(library, layout, steps):
    with pytest.raises(UnsupportedError, match=f"at most 65535 time steps; got {steps}"):
        RNNDataDescriptor("float32", layout, steps, 1, 4, [steps], library=library)


def test_a_large_batch(library):
    lengths = tuple(range(1, 1001)) * 70
    with RNNDataDescriptor(
        "float32", "batch_major", 1000, 70_000, 4, lengths, library=library
    ) as data:
        assert data.read().lengths == lengths
