"""Graphs of convolution on the real libcudnn: layouts, operands, and what is refused."""

from __future__ import annotations

from itertools import product

import pytest
from convolutions import CASES
from hypothesis import assume, given
from hypothesis import strategies as st

from dnnffi.backends.cudnn.graph.build import COMPUTE, UIDS, graph_of
from dnnffi.backends.cudnn.graph.geometry import Layout, canonical
from dnnffi.errors import CudnnError, UnsupportedError
from dnnffi.spec.layouts import is_packed, packed_strides

SMALL = CASES["2d odd"]

shapes = st.lists(st.integers(1, 5), min_size=3, max_size=5).map(tuple)


@given(shape=shapes, last=st.booleans(), prefer=st.booleans(), data=st.data())
def test_strides_of_dimensions_of_one_do_not_matter(shape, last, prefer, data):
    strides = [
        data.draw(st.integers(0, 99)) if size == 1 else stride
        for size, stride in zip(shape, packed_strides(shape, last), strict=True)
    ]
    found = canonical(Layout(shape, tuple(strides)), prefer)
    assert found.shape == shape
    # The preferred order if both orders describe the memory.
    if is_packed(shape, tuple(strides), prefer):
        assert found.strides == packed_strides(shape, prefer)
    else:
        assert found.strides == packed_strides(shape, last)


@given(shape=shapes, gap=st.integers(1, 4), prefer=st.booleans())
def test_strides_with_gaps_are_kept(shape, gap, prefer):
    assume(shape[-1] > 1 and shape[1] > 1)
    strides = tuple(stride * (gap + 1) for stride in packed_strides(shape, False))
    found = canonical(Layout(shape, strides), prefer)
    assert found == Layout(shape, strides)


@pytest.mark.parametrize("last", [False, True])
def test_one_dimension_is_two_of_which_the_first_is_one(last):
    geometry = CASES["1d strided"].geometry("float32", last).of_rank_two()
    assert geometry.x == Layout.packed((2, 8, 1, 17), channels_last=last)
    assert geometry.w == Layout.packed((16, 4, 1, 5), channels_last=last)
    assert geometry.y.shape == (2, 16, 1, 5)
    assert (geometry.stride, geometry.padding, geometry.dilation) == ((1, 3), (0, 2), (1, 2))
    assert geometry.of_rank_two() is geometry
    assert geometry.channels_last == last


def test_the_layout_is_that_of_an_operand_that_can_tell():
    # A filter of one tap looks the same in both orders.
    case = CASES["2d pointwise"]
    for last in (False, True):
        geometry = case.geometry("float32", last)
        assert geometry.channels_last == last
        assert canonical(geometry.w, last).strides == packed_strides(case.w, last)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", COMPUTE)
@pytest.mark.parametrize("last", [False, True])
def test_the_library_takes_the_graphs(library, name, dtype, last):
    geometry = CASES[name].geometry(dtype, last)
    for residual, bias, relu in product((False, True), repeat=3):
        graph = graph_of(
            "forward", geometry, residual=residual, bias=bias, relu=relu, alpha=0.5, library=library
        )
        assert graph.graph.read("engine_count") > 0
    for operation in ("backward_data", "backward_weights"):
        assert graph_of(operation, geometry, library=library).graph.read("engine_count") > 0


def test_the_operands_are_in_order(library):
    geometry = SMALL.geometry("float32")
    full = {"bias": True, "residual": geometry.y, "relu": True, "library": library}
    assert graph_of("forward", geometry, **full).operands == ("x", "w", "y", "residual", "bias")
    assert graph_of("forward", geometry, library=library).operands == ("x", "w", "y")
    assert graph_of("backward_weights", geometry, library=library).operands == ("x", "w", "y")
    assert len(set(UIDS.values())) == len(UIDS) == 5


def tensors_of(graph):
    """Return the attributes of the tensors of a graph by uid."""
    operations = graph.graph._kept["operations"]
    found = (one for operation in operations for one in operation._kept.values())
    return {one.read("uid"): one.read_all() for one in found if type(one).__name__ == "Tensor"}


@pytest.mark.parametrize(("dtype", "between"), COMPUTE.items())
def test_what_lies_between_is_virtual_and_computed_precisely(library, dtype, between):
    geometry = SMALL.geometry(dtype, True)
    graph = graph_of("forward", geometry, bias=True, residual=True, relu=True, library=library)
    tensors = tensors_of(graph)
    virtual = [one for one in tensors.values() if one["virtual"]]
    assert len(virtual) == 3
    assert {one["dtype"] for one in virtual} == {between}
    assert {one["dims"] for one in virtual} == {SMALL.y}
    operands = [tensors[UIDS[name]] for name in graph.operands]
    assert {one["dtype"] for one in operands} == {dtype}
    assert not any(one["virtual"] for one in operands)


@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_weights"])
def test_shapes_that_do_not_fit_leave_nothing(counted, operation):
    geometry = SMALL.geometry("float32")
    bad = geometry._replace(y=Layout.packed((1, 5, 5, 9)))
    with pytest.raises(CudnnError, match=r"dims=\(1, 5, 5, 9\)") as caught:
        graph_of(operation, bad, library=counted)
    # Descriptors are destroyed although the error keeps the frames alive.
    assert caught.tb is not None
    assert counted.lib.live == []
    gaps = geometry._replace(w=Layout(SMALL.w, (36, 12, 4, 1)))
    with pytest.raises(UnsupportedError, match=r"filters without gaps; w \[5, 3, 2, 3\] has strid"):
        graph_of(operation, gaps, library=counted)
    broadcast = geometry._replace(x=Layout(geometry.x.shape, (0, 30, 5, 0)))
    with pytest.raises(ValueError, match=r"strides\[3\] must be from 1"):
        graph_of(operation, broadcast, library=counted)
