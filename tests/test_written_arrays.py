"""Arrays that a public call writes: refused if they overlap themselves or are read-only."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import dnnffi
from dnnffi.spec.conv_problem import ARGUMENTS

CONV = dnnffi.ConvSpec(in_channels=2, out_channels=3, kernel=(2, 2), dtype="float32")
X = (1, 2, 4, 3)
RNN = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=2)


def one_element(shape):
    """An array all of whose elements are the same one."""
    return as_strided(np.zeros(1, "f4"), shape, (0,) * len(shape))


def windows(shape):
    """An array whose rows overlap as windows do."""
    count = int(np.prod(shape))
    strides = (*(4,) * (len(shape) - 1), 4)
    return as_strided(np.zeros(count + len(shape), "f4"), shape, strides)


def broken_stride(shape):
    """An array whose last stride is no multiple of its elements' 4 bytes."""
    raw = np.zeros(8 * int(np.prod(shape)) + 16, "u1")
    strides = [3] * len(shape)
    return as_strided(raw[:4].view("f4"), shape, strides)


OVERLAPPING = [one_element, windows, broken_stride]


def read_only(shape):
    array = np.zeros(shape, "f4")
    array.flags.writeable = False
    return array


def ones(*shapes):
    return [np.ones(shape, "f4") for shape in shapes]


@pytest.mark.parametrize("operation", ARGUMENTS)
@pytest.mark.parametrize("make", OVERLAPPING)
def test_the_result_of_a_convolution_does_not_overlap_itself(operation, make):
    with dnnffi.ConvPlan(CONV, X, operation=operation, backend="reference") as plan:
        shapes = plan.problem.argument_shapes[:2]
        out = make(plan.problem.result_shape)
        with pytest.raises(ValueError, match=r"^out must not overlap itself: it is written; "):
            plan.run(*ones(*shapes), out=out)


def test_the_result_of_a_convolution_may_have_any_strides_that_do_not_overlap():
    with dnnffi.ConvPlan(CONV, X, backend="reference") as plan:
        arrays = ones(*plan.problem.argument_shapes[:2])
        expected = plan.run(*arrays)
        n, k, h, w = plan.problem.result_shape
        for out in (
            np.zeros((n, h, w, k), "f4").transpose(0, 3, 1, 2),
            np.zeros((n, 2 * k, h, w), "f4")[:, ::-2],
        ):
            plan.run(*arrays, out=out)
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("make", [*OVERLAPPING, read_only])
def test_the_result_of_matmul(make):
    with pytest.raises(ValueError, match=r"^out must be (contiguous|writable)"):
        dnnffi.matmul(*ones((2, 3), (3, 4)), out=make((2, 4)))


@pytest.fixture
def plan():
    with dnnffi.RNNPlan(RNN, batch=2, steps=5, training=True, backend="reference") as plan:
        yield plan


@pytest.fixture
def weights():
    return dnnffi.RNNWeights(*ones(dnnffi.weight_layout(RNN, "torch").size), RNN, backend="torch")


@pytest.mark.parametrize("make", [*OVERLAPPING, read_only])
@pytest.mark.parametrize("number", range(3))
def test_the_results_of_a_network(plan, weights, make, number):
    x, dy = ones((5, 2, 3), (5, 2, 2))
    for call, shapes in (
        (lambda out: plan.forward(x, None, weights, out), [(5, 2, 2), (1, 2, 2), (1, 2, 2)]),
        (lambda out: plan.backward_data(dy, out=out), [(5, 2, 3), (1, 2, 2), (1, 2, 2)]),
    ):
        arrays = ones(*shapes)
        arrays[number] = make(shapes[number])
        with pytest.raises(ValueError, match=r"must be (contiguous|writable)"):
            call((arrays[0], tuple(arrays[1:])))
        plan.forward(x, None, weights)  # for the backward call that follows


def test_a_gradient_of_the_weights_that_is_read_only(plan, weights):
    plan.forward(*ones((5, 2, 3)), None, weights)
    gradient = weights.like(read_only(weights.flat.shape))
    with pytest.raises(ValueError, match=r"^out_weights must be writable; it is read-only$"):
        plan.backward(*ones((5, 2, 2)), out_weights=gradient)
    plan.backward_data(*ones((5, 2, 2)))
    with pytest.raises(ValueError, match=r"^out_weights must be writable; it is read-only$"):
        plan.backward_weights(out=gradient)
    assert plan.backward_weights().flat.any()  # nothing was spent


@pytest.mark.parametrize("make", [one_element, broken_stride, read_only])
def test_the_buffer_that_weights_are_packed_into(weights, make):
    with pytest.raises(ValueError, match=r"^(flat must be contiguous|out must be writable)"):
        dnnffi.RNNWeights.pack(weights.arrays(), RNN, out=make(weights.flat.shape))


@pytest.mark.parametrize("make", [*OVERLAPPING, read_only])
def test_the_arrays_that_weights_are_unpacked_into(weights, make):
    arrays = [np.zeros_like(array) for array in weights.arrays()]
    arrays[1] = make(arrays[1].shape)
    message = r"^weights\[1\] must (not overlap itself|be writable)"
    with pytest.raises(ValueError, match=message):
        weights.unpack(arrays)
    assert not arrays[0].any(), "nothing was written"


def test_weights_are_unpacked_into_arrays_that_share_no_memory(weights):
    arrays = [np.zeros_like(array) for array in weights.arrays()]
    arrays[3] = arrays[2]
    with pytest.raises(ValueError, match=r"must not share memory: one is written$"):
        weights.unpack(arrays)
    columns = np.zeros((8, 5), "f4")
    arrays = [columns[:, :3], columns[:, 3:], *ones(8, 8)]
    weights.unpack(arrays)
    assert columns.all()
