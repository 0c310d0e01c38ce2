"""The host stand-in takes the descriptors that the real libcudnn takes, and no others."""

from __future__ import annotations

import pytest
from calls import SUCCESS
from hypothesis import given, settings
from hypothesis import strategies as st

import build
from dnnffi.backends.cudnn import library as cudnn_library
from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.errors import DnnffiError


@pytest.fixture(scope="module")
def real():
    try:
        library = cudnn_library.load()
    except (DnnffiError, ImportError) as reason:
        pytest.skip(f"no libcudnn: {reason}")
    if library.version[0] != build.MAJOR:
        pytest.skip(f"this is cuDNN {library.version_text}")
    return library.lib


def both(standin_copy, real, kind, function, *arguments):
    """The statuses of a function that sets a descriptor, here and there."""
    statuses = []
    for lib in (standin_copy.lib, real):
        out = ffi.new(f"cudnn{kind}Descriptor_t *")
        assert getattr(lib, f"cudnnCreate{kind}Descriptor")(out) == SUCCESS
        statuses.append(getattr(lib, function)(out[0], *arguments))
        assert getattr(lib, f"cudnnDestroy{kind}Descriptor")(out[0]) == SUCCESS
    return statuses


SMALL = st.integers(-1, 5)


@settings(max_examples=200)
@given(
    enums=st.tuples(*(st.integers(0, n) for n in (4, 4, 4, 2, 2))),
    types=st.tuples(st.sampled_from([0, 1, 2, 3, 9]), st.sampled_from([0, 0, 1, 2])),
    math=st.integers(0, 4),
    sizes=st.tuples(SMALL, SMALL, SMALL, SMALL),
    flags=st.integers(0, 2),
)
def test_takes_the_rnns_that_cudnn_takes(standin_copy, real, enums, types, math, sizes, flags):
    arguments = (*enums, *types, math, *sizes, ffi.NULL, flags)
    found, expected = both(standin_copy, real, "RNN", "cudnnSetRNNDescriptor_v8", *arguments)
    assert (found == SUCCESS) == (expected == SUCCESS)


@settings(max_examples=200)
@given(
    dtype=st.sampled_from([0, 1, 2, 9, 3]),
    layout=st.integers(0, 3),
    steps=st.sampled_from([0, 1, 2, 4, 5, 65535, 65536]),
    size=SMALL,
    lengths=st.lists(st.integers(-1, 6), min_size=1, max_size=4),
)
def test_takes_the_sequences_that_cudnn_takes(
    standin_copy, real, dtype, layout, steps, size, lengths
):
    arguments = (dtype, layout, steps, len(lengths), size, lengths, ffi.NULL)
    found, expected = both(standin_copy, real, "RNNData", "cudnnSetRNNDataDescriptor", *arguments)
    assert (found == SUCCESS) == (expected == SUCCESS)


@settings(max_examples=200)
@given(
    dtype=st.sampled_from([0, 1, 2, 9, 10]),
    sides=st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 60)), min_size=1, max_size=9),
)
def test_takes_the_tensors_that_cudnn_takes(standin_copy, real, dtype, sides):
    dims, strides = map(list, zip(*sides, strict=True))
    arguments = (dtype, len(dims), dims, strides)
    found, expected = both(standin_copy, real, "Tensor", "cudnnSetTensorNdDescriptor", *arguments)
    assert found == expected
