"""Backend descriptors on the real libcudnn: contents, refusals, destruction.

Tensors, convolutions, operations, graphs and variant packs need no GPU. Values that
dnnffi refuses are also passed to the library directly, to test what cuDNN 9.19 does.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.graph.attributes import KNOB, NUMERICAL_NOTE
from dnnffi.backends.cudnn.graph.engine import KnobChoice, OperationGraph
from dnnffi.backends.cudnn.graph.execution import VariantPacks
from dnnffi.backends.cudnn.graph.operations import (
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    ConvolutionForward,
    Pointwise,
    PointwiseOperation,
)
from dnnffi.backends.cudnn.graph.tensor import Tensor
from dnnffi.backends.cudnn.graph.types import (
    BEHAVIOR_NOTES,
    HEURISTICS,
    KNOBS,
    NUMERICAL_NOTES,
)
from dnnffi.backends.cudnn.library import DATA_TYPES
from dnnffi.errors import CudnnError, UnsupportedError
from dnnffi.spec.layouts import contiguous_strides

REFUSED = (TypeError, ValueError)
INT64 = 2**63

dtypes = st.sampled_from(list(DATA_TYPES))
no_integers = st.sampled_from([1.0, "2", None, True, np.float32(3), [4]])
no_size = st.one_of(no_integers, st.integers(max_value=0), st.integers(min_value=2**31))


def tensor(uid, shape, library, dtype="float32", **options):
    return Tensor(uid, dtype, shape, contiguous_strides(shape), library=library, **options)


def convolution(library, rank=2, dtype="float32", **changes):
    steps = {"stride": [1] * rank, "padding": [0] * rank, "dilation": [1] * rank} | changes
    return Convolution(dtype, **steps, library=library)


# Tensors


@given(
    uid=st.integers(-INT64, INT64 - 1),
    dtype=dtypes,
    layout=st.lists(
        st.tuples(st.just(1) | st.integers(1, 2**31 - 1), st.integers(1, INT64 - 1)),
        min_size=1,
        max_size=8,
    ),
    virtual=st.booleans(),
)
def test_tensors(library, uid, dtype, layout, virtual):
    dims, strides = zip(*layout, strict=True)
    made = Tensor(
        uid,
        dtype,
        dims,
        strides,
        virtual=virtual,
        library=library,
    )
    with made:
        assert made.read_all() == {
            "uid": uid,
            "dtype": dtype,
            "dims": dims,
            "strides": strides,
            "virtual": virtual,
        }
        assert made.dims == dims


GOOD = {"uid": 1, "dtype": "float32", "dims": (2, 3, 4), "strides": (12, 4, 1)}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"uid": INT64}, ValueError, "uid must be from"),
        ({"uid": "x"}, TypeError, "uid must be an integer; got str"),
        ({"dtype": "int8"}, ValueError, "dtype must be one of float32.*got 'int8'"),
        ({"dims": ()}, ValueError, r"dims must have 1 to 8 dimensions; got \[\]"),
        ({"dims": (1,) * 9}, ValueError, "dims must have 1 to 8 dimensions"),
        ({"dims": 5}, TypeError, "dims must be a sequence of integers; got int"),
        ({"dims": (2, 0, 4)}, ValueError, r"dims\[1\] must be from 1"),
        ({"dims": (2, 3.0, 4)}, TypeError, r"dims\[1\] must be an integer; got float"),
        ({"strides": (4, 1)}, ValueError, "strides must have .* 3 dimensions; got 2"),
        ({"strides": (12, 0, 1)}, ValueError, r"strides\[1\] must be from 1"),
        ({"strides": (12, -4, 1)}, ValueError, r"strides\[1\] must be from 1"),
        ({"strides": (INT64, 4, 1)}, ValueError, r"strides\[0\] must be from 1"),
    ],
)
def test_tensors_that_are_refused(counted, changes, error, message):
    with pytest.raises(error, match=message):
        Tensor(**(GOOD | changes), library=counted)
    assert counted.lib.created == 0


@given(data=st.data(), dims=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_a_size_that_is_refused_is_named(library, data, dims):
    index = data.draw(st.integers(0, len(dims) - 1))
    bad = [*dims[:index], data.draw(no_size), *dims[index + 1 :]]
    with pytest.raises(REFUSED, match=rf"dims\[{index}\]"):
        Tensor(1, "float32", bad, contiguous_strides(tuple(dims)), library=library)


# Convolutions

steps = st.integers(1, 2**31 - 1)


@given(
    dtype=dtypes,
    sides=st.lists(st.tuples(steps, st.integers(0, 2**31 - 1), steps), min_size=1, max_size=3),
)
def test_convolutions(library, dtype, sides):
    stride, padding, dilation = zip(*sides, strict=True)
    with Convolution(dtype, stride, padding, dilation, library=library) as made:
        assert made.read_all() == {
            "dtype": dtype,
            "spatial_dims": len(sides),
            "stride": stride,
            "dilation": dilation,
            "padding": padding,
            "post_padding": padding,
        }


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dtype": "complex64"}, ValueError, "dtype must be one of"),
        ({"stride": ()}, ValueError, "stride must have 1 to 3 spatial dimensions"),
        ({"stride": (1,) * 4}, ValueError, "stride must have 1 to 3 spatial dimensions"),
        ({"stride": (1, 0)}, ValueError, r"stride\[1\] must be from 1"),
        ({"padding": (-1, 0)}, ValueError, r"padding\[0\] must be from 0"),
        ({"padding": (1,)}, ValueError, "padding must have .* 2 spatial dimensions of stride"),
        ({"dilation": (1, 0)}, ValueError, r"dilation\[1\] must be from 1"),
        ({"dilation": (1, 2.5)}, TypeError, r"dilation\[1\] must be an integer; got float"),
    ],
)
def test_convolutions_that_are_refused(counted, changes, error, message):
    good = {"dtype": "float32", "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    with pytest.raises(error, match=message):
        Convolution(**(good | changes), library=counted)
    assert counted.lib.created == 0


# Pointwise


@given(mode=st.sampled_from(["add", "relu"]), dtype=dtypes)
def test_pointwise(library, mode, dtype):
    with Pointwise(mode, dtype, library=library) as made:
        # cuDNN cannot read these attributes.
        assert made.read_all() == {}
        with pytest.raises(UnsupportedError, match=r"Pointwise\.mode"):
            made.read("mode")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tanh", "float32"), "mode must be one of add, relu"),
        (("add", "int32"), "dtype must be one of"),
    ],
)
def test_pointwise_that_is_refused(counted, arguments, message):
    with pytest.raises(ValueError, match=message):
        Pointwise(*arguments, library=counted)
    assert counted.lib.created == 0


# Operations

ALL = (ConvolutionForward, ConvolutionBackwardData, ConvolutionBackwardFilter)


@pytest.mark.parametrize("operation", ALL)
@given(
    rank=st.integers(1, 3),
    groups=st.integers(1, 3),
    sizes=st.tuples(*[st.integers(1, 4)] * 3),
    dtype=dtypes,
)
def test_convolution_operations(library, operation, rank, groups, sizes, dtype):
    batch, channels, filters = sizes
    x = tensor(1, (batch, groups * channels, *[5] * rank), library, dtype)
    w = tensor(2, (groups * filters, channels, *[3] * rank), library, dtype)
    y = tensor(3, (batch, groups * filters, *[3] * rank), library, dtype)
    how = convolution(library, rank, dtype)
    with x, w, y, how, operation(how, x, w, y, library=library) as made:
        assert made.read_all() == {"alpha": 1.0, "beta": 0.0}


@pytest.mark.parametrize("operation", ALL)
@pytest.mark.parametrize(
    ("x", "w", "y", "rank"),
    [
        pytest.param((2, 6, 8, 8), (4, 6, 3, 3), (2, 4, 6, 7), 2, id="output"),
        pytest.param((2, 6, 8, 8), (4, 6, 3, 3), (3, 4, 6, 6), 2, id="images"),
        pytest.param((2, 6, 8, 8), (4, 6, 3, 3), (2, 5, 6, 6), 2, id="filters"),
        pytest.param((2, 6, 8, 8), (4, 4, 3, 3), (2, 4, 6, 6), 2, id="channels"),
        pytest.param((2, 6, 8, 8), (4, 2, 3, 3), (2, 4, 6, 6), 2, id="groups"),
        pytest.param((2, 6, 2, 8), (4, 6, 3, 3), (2, 4, 1, 6), 2, id="small"),
        pytest.param((2, 6, 8), (4, 6, 3, 3), (2, 4, 6, 6), 2, id="ranks"),
        pytest.param((2, 6, 8, 8), (4, 6, 3, 3), (2, 4, 6, 6), 1, id="rank"),
    ],
)
def test_shapes_that_do_not_fit(counted, operation, x, w, y, rank):
    x, w, y = (tensor(uid, shape, counted) for uid, shape in enumerate((x, w, y)))
    with x, w, y, convolution(counted, rank) as how:
        with pytest.raises(CudnnError) as caught:
            operation(how, x, w, y, library=counted)
        shown = caught.value.problem
        assert shown.startswith(f"{operation.__name__}(alpha=1.0, beta=0.0, convolution=<Conv")
        assert all(f"dims={one.dims}" in shown for one in (x, w, y))
        assert caught.value.status_name.startswith("CUDNN_STATUS_BAD_PARAM")
        assert caught.value.detail
        assert len(counted.lib.live) == 4


def test_pointwise_operations(counted):
    shape = (2, 4, 6, 6)
    x, y = tensor(1, shape, counted, virtual=True), tensor(2, shape, counted)
    row, odd = tensor(3, (1, 4, 1, 1), counted), tensor(4, (1, 3, 1, 1), counted)
    add, relu = (Pointwise(mode, "float32", library=counted) for mode in ("add", "relu"))
    with x, y, row, odd, add, relu:
        PointwiseOperation(add, x, y, row, 0.5, library=counted).close()
        PointwiseOperation(relu, x, y, library=counted).close()
        for wrong, message in (
            ({"b": odd}, r"b: \[1, 3, 1, 1\] does not broadcast to \[2, 4, 6, 6\]"),
            ({"x": odd}, r"x: \[1, 3, 1, 1\] does not broadcast"),
        ):
            with pytest.raises(ValueError, match=message):
                PointwiseOperation(add, **({"x": x, "y": y} | wrong), library=counted)


# Graphs, packs, knobs


def convolved(library):
    """Return a convolution and the four descriptors that it refers to."""
    x, w = tensor(1, (2, 6, 8, 8), library), tensor(2, (4, 6, 3, 3), library)
    y, how = tensor(3, (2, 4, 6, 6), library), convolution(library)
    return ConvolutionForward(how, x, w, y, library=library), (x, w, y, how)


def test_a_graph_needs_no_gpu(counted):
    operation, _ = convolved(counted)
    with OperationGraph([operation], library=counted) as graph:
        assert graph.read("engine_count") > 0


def test_packs(counted):
    packs = VariantPacks((1, 2), library=counted)
    workspace, count = ffi.new("uintptr_t *"), ffi.new("int64_t *")
    pack = packs.at((4096, 8192, 65536))
    status = counted.lib.cudnnBackendGetAttribute(pack, 1003, 6, 1, count, workspace)
    assert (status, count[0], workspace[0]) == (0, 1, 65536)
    packs.clear()
    assert len(counted.lib.live) == 1
    del pack
    assert counted.lib.live == []


def test_knobs(counted):
    with KnobChoice("stages", 3, library=counted) as made:
        assert made.read_all() == {"type": "stages", "value": 3}
    with KnobChoice(KNOBS["stages"], 3, library=counted) as made:
        assert made.read("type") == "stages"
    with pytest.raises(ValueError, match="knob must be from 0"):
        KnobChoice(-1, 3, library=counted)
    with pytest.raises(TypeError, match="value must be an integer"):
        KnobChoice("stages", 1.5, library=counted)


def test_what_a_newer_library_may_say_is_a_number():
    assert NUMERICAL_NOTE.decode(NUMERICAL_NOTES["fft"]) == "fft"
    assert KNOB.decode(12345) == KNOB.encode(12345) == 12345


def test_names_are_unique():
    for names in (BEHAVIOR_NOTES, HEURISTICS, KNOBS, NUMERICAL_NOTES):
        assert len(set(names.values())) == len(names) > 2


# Life


def test_closing_destroys_once(counted):
    made = tensor(1, (2, 3), counted)
    assert len(counted.lib.live) == 1
    made.close()
    made.close()
    assert counted.lib.live == []
    assert repr(made) == "<Tensor closed>"
    with pytest.raises(ValueError, match="this Tensor is closed"):
        made.read("uid")


def test_dropping_destroys(counted):
    made = tensor(1, (2, 3), counted)
    del made
    assert counted.lib.live == []


def test_an_operation_keeps_its_tensors(counted):
    operation, named = convolved(counted)
    alive = [weakref.ref(one) for one in named]
    graph = OperationGraph([operation], library=counted)
    del operation, named
    gc.collect()
    assert all(one() is not None for one in alive)
    assert len(counted.lib.live) == 6
    graph.close()
    assert all(one() is None for one in alive)


def test_graphs_of_several_sizes_name_the_same_descriptors(counted):
    # Because of this, a recipe describes weights, filter and functions once for all sizes.
    w, how = tensor(2, (4, 6, 3, 3), counted), convolution(counted)
    row, add = tensor(5, (1, 4, 1, 1), counted), Pointwise("add", "float32", library=counted)
    graphs = []
    for size in (8, 9, 12):
        x, y = (tensor(1, (2, 6, size, 8), counted), tensor(3, (2, 4, size - 2, 6), counted))
        between = tensor(17, (2, 4, size - 2, 6), counted, virtual=True)
        operations = (
            ConvolutionForward(how, x, w, between, library=counted),
            PointwiseOperation(add, between, y, row, library=counted),
        )
        graphs.append(OperationGraph(operations, library=counted))
    assert len({graph.read("engine_count") for graph in graphs}) == 1
    assert counted.lib.created == 4 + 3 * 6
    for graph in graphs:
        graph.close()


def test_cudnn_keeps_a_copy_of_what_an_operation_names(counted):
    operation, named = convolved(counted)
    for one in named:
        one.close()
    with operation, OperationGraph([operation], library=counted) as graph:
        assert graph.read("engine_count") > 0


def test_closed_descriptors_are_refused(counted):
    x, w = tensor(1, (2, 6, 8, 8), counted), tensor(2, (4, 6, 3, 3), counted)
    with tensor(3, (2, 4, 6, 6), counted) as y, convolution(counted) as how, x:
        w.close()
        with pytest.raises(ValueError, match="this Tensor is closed"):
            ConvolutionForward(how, x, w, y, library=counted)


class Mischief(Tensor):
    """A tensor that passes values to the library which dnnffi would refuse."""

    def __init__(self, library, **values):
        super(Tensor, self).__init__(library, values)


@pytest.mark.parametrize(
    ("values", "function", "message"),
    [
        ({"dims": (2,) * 9, "strides": (1,) * 9}, "SetAttribute|Finalize", "dims="),
        ({"dims": (2, 2), "strides": (1,)}, "Finalize", r"Mischief\(uid=1, .*strides=\(1,\)"),
        ({"alignment": 3}, "Finalize", "alignment=3"),
        ({"strides": (-1, 1, 1)}, "Finalize", r"strides=\(-1, 1, 1\)"),
    ],
)
def test_what_the_library_refuses_is_named_and_gone(counted, values, function, message):
    with pytest.raises(CudnnError, match=message) as caught:
        Mischief(counted, **(GOOD | {"alignment": 16} | values))
    assert any(caught.value.function.endswith(name) for name in function.split("|"))
    assert caught.value.detail
    assert (counted.lib.created, counted.lib.live) == (1, [])


def test_a_finalized_descriptor_cannot_be_changed(counted):
    # Because of this, each set of addresses has a pack of its own.
    pack = VariantPacks((1,), library=counted).at((4096, 0))
    other = ffi.new("uintptr_t[]", [8192])
    assert counted.lib.cudnnBackendSetAttribute(pack, 1001, 6, 1, other) != 0
    assert counted.lib.cudnnBackendFinalize(pack) != 0


def test_a_kind_that_there_is_not(counted):
    out = ffi.new("cudnnBackendDescriptor_t *")
    assert counted.lib._lib.cudnnBackendCreateDescriptor(9999, out) != 0
