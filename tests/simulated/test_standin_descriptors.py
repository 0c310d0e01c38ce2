"""The simulator of cuDNN takes the descriptors that the real libcudnn takes, and no others."""

from __future__ import annotations

import needs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dnnffi.backends.cudnn import library as cudnn_library
from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.errors import LibraryNotFoundError
from dnnffi.spec.layouts import contiguous_strides
from simulators.cudnn import build
from simulators.cudnn.calls import SUCCESS


@pytest.fixture(scope="module")
def real(pytestconfig):
    try:
        library = cudnn_library.load()
    except LibraryNotFoundError as error:
        needs.missing(pytestconfig, "libcudnn", error)
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


# The graph API. A kind of descriptor, and the attributes: number, type, C type, values.

TENSOR, CONVOLUTION, FORWARD, PACK = 17, 1, 10, 16
INT64 = (3, "int64_t[]")
ENUM, FLOAT, DESCRIPTOR = "int[]", (4, "float[]"), (15, "cudnnBackendDescriptor_t[]")


def backend(lib, kind, *attributes):
    """A backend descriptor, and whether the library took all of it."""
    out = ffi.new("cudnnBackendDescriptor_t *")
    assert lib.cudnnBackendCreateDescriptor(kind, out) == SUCCESS
    taken = True
    for number, (element, ctype), values in attributes:
        status = lib.cudnnBackendSetAttribute(
            out[0], number, element, len(values), ffi.new(ctype, values)
        )
        taken = taken and status == SUCCESS
    return out[0], taken and lib.cudnnBackendFinalize(out[0]) == SUCCESS


def tensor_attributes(uid, dtype, dims, strides, alignment):
    return (
        (906, INT64, [uid]),
        (901, (1, ENUM), [dtype]),
        (902, INT64, dims),
        (903, INT64, strides),
        (900, INT64, [alignment]),
    )


def convolution_attributes(rank, steps):
    stride, dilation, pre, post = steps
    return (
        (100, (1, ENUM), [0]),
        (101, (7, ENUM), [1]),
        (106, INT64, [rank]),
        (103, INT64, stride),
        (102, INT64, dilation),
        (105, INT64, pre),
        (104, INT64, post),
    )


def taken_by_both(standin_copy, real, kind, *attributes):
    found = []
    for lib in (standin_copy.lib, real):
        made, taken = backend(lib, kind, *attributes)
        assert lib.cudnnBackendDestroyDescriptor(made) == SUCCESS
        found.append(taken)
    return found


@settings(max_examples=200)
@given(
    dtype=st.sampled_from([0, 1, 2, 9]),
    sides=st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 9)), min_size=1, max_size=9),
    more=st.booleans(),
    alignment=st.integers(-1, 17),
)
def test_takes_the_operands_that_cudnn_takes(standin_copy, real, dtype, sides, more, alignment):
    dims, strides = map(list, zip(*sides, strict=True))
    attributes = tensor_attributes(1, dtype, dims, strides + [1] * more, alignment)
    found, expected = taken_by_both(standin_copy, real, TENSOR, *attributes)
    assert found == expected


@settings(max_examples=200)
@given(
    rank=st.integers(0, 4),
    steps=st.integers(1, 3).flatmap(
        lambda rank: st.tuples(*[st.lists(st.integers(-1, 3), min_size=rank, max_size=rank)] * 4)
    ),
    data=st.data(),
)
def test_takes_the_convolutions_that_cudnn_takes(standin_copy, real, rank, steps, data):
    # Mostly the right number of dimensions.
    rank = data.draw(st.sampled_from([len(steps[0]), len(steps[0]), rank]))
    attributes = convolution_attributes(rank, steps)
    found, expected = taken_by_both(standin_copy, real, CONVOLUTION, *attributes)
    assert found == expected


@settings(max_examples=300)
@given(data=st.data(), rank=st.integers(1, 3))
def test_takes_the_operations_that_cudnn_takes(standin_copy, real, data, rank):
    def draw(least, most, count=rank):
        return data.draw(
            st.lists(st.integers(least, most), min_size=count, max_size=count), label="sizes"
        )

    stride, dilation, pre, post = draw(1, 2), draw(1, 2), draw(0, 1), draw(0, 1)
    x, w = draw(4, 6), draw(1, 3)
    y = [
        (size + before + after - step * (taps - 1) - 1) // move + 1
        for size, taps, move, step, before, after in zip(
            x, w, stride, dilation, pre, post, strict=True
        )
    ]
    groups, channels, filters, batch = draw(1, 3, 4)
    shapes = [
        [batch, groups * channels, *x],
        [groups * filters, channels, *w],
        [batch, groups * filters, *y],
    ]
    if data.draw(st.booleans(), label="wrong"):
        which, where = data.draw(st.integers(0, 2)), data.draw(st.integers(0, rank + 1))
        shapes[which][where] += data.draw(st.sampled_from([-1, 1, 2]))
        assume(min(shapes[which]) >= 1)
    gap = data.draw(st.sampled_from([None, 0, 1, 2]), label="gap")
    results = []
    for lib in (standin_copy.lib, real):
        made = []
        for uid, dims in enumerate(shapes):
            strides = list(contiguous_strides(tuple(dims)))
            if gap == uid:
                strides[:-1] = [2 * stride for stride in strides[:-1]]
            made.append(backend(lib, TENSOR, *tensor_attributes(uid, 0, dims, strides, 4)))
        steps = (stride, dilation, pre, post)
        made.append(backend(lib, CONVOLUTION, *convolution_attributes(rank, steps)))
        assert all(taken for _, taken in made)
        (x_, _), (w_, _), (y_, _), (how, _) = made
        made.append(
            backend(
                lib,
                FORWARD,
                *((700, FLOAT, [1.0]), (701, FLOAT, [0.0]), (702, DESCRIPTOR, [how])),
                *((704, DESCRIPTOR, [x_]), (703, DESCRIPTOR, [w_]), (705, DESCRIPTOR, [y_])),
            )
        )
        results.append(made[-1][1])
        for one, _ in reversed(made):
            assert lib.cudnnBackendDestroyDescriptor(one) == SUCCESS
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("kind", "attribute"),
    [
        pytest.param(TENSOR, (906, (2, "bool[]"), [True]), id="type"),
        pytest.param(TENSOR, (906, INT64, [1, 2]), id="count"),
        pytest.param(TENSOR, (700, FLOAT, [1.0]), id="attribute"),
        pytest.param(PACK, (1000, INT64, []), id="empty"),
        pytest.param(FORWARD, (704, DESCRIPTOR, [ffi.NULL]), id="null"),
    ],
)
def test_refuses_the_attributes_that_cudnn_refuses(standin_copy, real, kind, attribute):
    assert taken_by_both(standin_copy, real, kind, attribute) == [False, False]
