"""The reference's convolutions: the definition, finite differences, and what both imply."""

from __future__ import annotations

from typing import Any

import conformance_conv
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dnnffi import ConvSpec, testing
from dnnffi.device.arrays import in_layout
from dnnffi.device.dtypes import dtype_object
from dnnffi.reference.conv import backward_bias, backward_data, backward_weights, forward

seeds = st.integers(0, 2**32 - 1)
doubles = testing.conv_specs(dtypes=("float64",))
ordinary = testing.conv_specs(dtypes=("float64",), transposed=False)


class Arrays:
    """Random read-only arrays: a write to one of them fails the test."""

    def __init__(self, spec: ConvSpec, sizes: tuple[int, ...], batch: int = 2, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=spec.x_shape(batch, sizes))
        self.w = rng.normal(size=spec.weight_shape)
        self.bias = rng.normal(size=spec.bias_shape)
        self.z = rng.normal(size=spec.y_shape(batch, sizes))
        self.dy = rng.normal(size=self.z.shape)
        for array in vars(self).values():
            array.flags.writeable = False


def close(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@given(testing.conv_problems(doubles), seeds)
def test_every_result_is_that_of_the_definition(problem, seed):
    arrays = testing.conv_inputs(problem, seed)
    close(
        conformance_conv.expected(problem, arrays), conformance_conv.by_definition(problem, arrays)
    )


# Gradients

GEOMETRY: dict[str, dict[str, Any]] = {
    "plain": {},
    "padded": {"padding": 1},
    "strided": {"stride": 2},
    "dilated": {"dilation": 2},
    "all": {"stride": (2, 3, 1), "padding": (1, 0, 2), "dilation": (1, 2, 2)},
}


@pytest.mark.parametrize("geometry", GEOMETRY)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("channels", [(3, 2, 1), (4, 6, 2), (3, 3, 3)], ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gradients_by_finite_differences(rank, channels, transposed, geometry):
    fields = {
        name: value[:rank] if isinstance(value, tuple) else value
        for name, value in GEOMETRY[geometry].items()
    }
    if transposed and geometry == "all":
        fields["output_padding"] = (1, 2, 1)[:rank]
    spec = ConvSpec(
        in_channels=channels[0],
        out_channels=channels[1],
        groups=channels[2],
        kernel=(3, 2, 2)[:rank],
        transposed=transposed,
        dtype="float64",
        **fields,
    )
    sizes = (5, 6, 4)[:rank]
    a = Arrays(spec, sizes)

    def loss(x, w, bias, z):
        y = forward(spec, x, w, bias, activation="relu", residual=z, alpha=-0.5)
        return float((a.dy * y).sum())

    y = forward(spec, a.x, a.w, a.bias, activation="relu", residual=a.z, alpha=-0.5)
    dz = a.dy * (y > 0)  # in front of the activation
    gradients = (
        backward_data(spec, dz, a.w, sizes),
        backward_weights(spec, dz, a.x),
        backward_bias(dz),
        -0.5 * dz,
    )
    arguments = [a.x, a.w, a.bias, a.z]
    rng = np.random.default_rng(1)
    step = 1e-6
    for index, gradient in enumerate(gradients):
        assert gradient.shape == arguments[index].shape
        for _ in range(2):
            along = rng.normal(size=gradient.shape)
            sides = []
            for sign in (1, -1):
                moved = arguments.copy()
                moved[index] = arguments[index] + sign * step * along
                sides.append(loss(*moved))
            numeric = (sides[0] - sides[1]) / (2 * step)
            size = np.linalg.norm(gradient) * np.linalg.norm(along) + 1
            assert abs(numeric - (gradient * along).sum()) < 1e-7 * size, f"argument {index}"


@given(testing.conv_problems(doubles), seeds)
def test_the_gradients_pair_with_the_forward(problem, seed):
    # sum(dy * conv(x, w)) is linear in x and in w, so that it is each with its gradient.
    spec, a = problem.spec, testing.conv_inputs(problem, seed)
    pairing = (a.dy * forward(spec, a.x, a.w)).sum()
    close((backward_data(spec, a.dy, a.w, problem.sizes) * a.x).sum(), pairing, 1e-10)
    close((backward_weights(spec, a.dy, a.x) * a.w).sum(), pairing, 1e-10)


@given(testing.conv_problems(testing.conv_specs(dtypes=("float64",), transposed=True)), seeds)
def test_a_transposed_convolution_is_backward_data_of_the_ordinary_one(problem, seed):
    spec, a = problem.spec, testing.conv_inputs(problem, seed)
    sizes = problem.y_shape[2:]
    np.testing.assert_array_equal(
        forward(spec, a.x, a.w), backward_data(spec.adjoint, a.x, a.w, sizes)
    )


# Implications of the definition


@given(testing.conv_problems(ordinary), seeds, st.integers(1, 2))
def test_an_input_that_begins_later_gives_an_output_that_does(problem, seed, steps):
    spec = problem.spec
    a = Arrays(spec, tuple(size + 8 for size in problem.sizes), seed=seed)
    unpadded = ConvSpec(
        in_channels=spec.in_channels,
        out_channels=spec.out_channels,
        kernel=spec.kernel,
        stride=spec.stride,
        dilation=spec.dilation,
        groups=spec.groups,
        dtype="float64",
    )
    later = (..., *(slice(steps * stride, None) for stride in spec.stride))
    assume(
        all(
            size - steps * stride >= span
            for size, stride, span in zip(a.x.shape[2:], spec.stride, spec.span, strict=True)
        )
    )
    whole = forward(unpadded, a.x, a.w)
    close(forward(unpadded, a.x[later], a.w), whole[(..., *(slice(steps, None),) * spec.rank)])


@given(testing.conv_problems(doubles), seeds)
def test_groups_are_convolutions_side_by_side(problem, seed):
    spec, a = problem.spec, testing.conv_inputs(problem, seed)
    one = ConvSpec(
        in_channels=spec.in_channels // spec.groups,
        out_channels=spec.out_channels // spec.groups,
        kernel=spec.kernel,
        stride=spec.stride,
        padding=spec.padding,
        dilation=spec.dilation,
        transposed=spec.transposed,
        output_padding=spec.output_padding,
        dtype="float64",
    )
    xs, ws = np.split(a.x, spec.groups, axis=1), np.split(a.w, spec.groups)
    parts = [forward(one, x, w) for x, w in zip(xs, ws, strict=True)]
    close(forward(spec, a.x, a.w), np.concatenate(parts, axis=1))


def test_a_kernel_of_one_element_is_a_matrix():
    spec = ConvSpec(in_channels=3, out_channels=4, kernel=(1, 1), dtype="float64")
    a = Arrays(spec, (5, 6))
    close(forward(spec, a.x, a.w), np.einsum("kc,nchw->nkhw", a.w[:, :, 0, 0], a.x))


def test_the_kernel_is_not_flipped():
    spec = ConvSpec(in_channels=1, out_channels=1, kernel=(2,), dtype="float64")
    found = forward(spec, np.array([[[1.0, 10.0, 100.0]]]), np.array([[[2.0, 3.0]]]))
    assert found.tolist() == [[[32.0, 320.0]]]


def test_a_convolution_in_one_dimension_is_one_in_two_with_a_row():
    narrow = ConvSpec(in_channels=2, out_channels=3, kernel=(3,), stride=2, padding=1)
    wide = ConvSpec(in_channels=2, out_channels=3, kernel=(1, 3), stride=(1, 2), padding=(0, 1))
    a = Arrays(narrow, (7,))
    close(forward(narrow, a.x, a.w), forward(wide, a.x[:, :, None], a.w[:, :, None])[:, :, 0])


def test_bias_residual_and_activation():
    spec = ConvSpec(in_channels=3, out_channels=4, kernel=(3, 3), padding=1, dtype="float64")
    a = Arrays(spec, (4, 5))
    plain = forward(spec, a.x, a.w)
    whole = plain + 0.5 * a.z + a.bias[:, None, None]
    close(forward(spec, a.x, a.w, a.bias, residual=a.z, alpha=0.5), whole)
    fused = forward(spec, a.x, a.w, a.bias, residual=a.z, alpha=0.5, activation="relu")
    close(fused, np.maximum(whole, 0))
    assert (fused == 0).any()
    assert (fused > 0).any()


def test_nan_passes_the_activation_and_only_where_the_kernel_sees_it():
    spec = ConvSpec(in_channels=1, out_channels=1, kernel=(3,), dtype="float64")
    x = np.ones((1, 1, 8))
    x[0, 0, 0] = np.nan
    y = forward(spec, x, np.ones((1, 1, 3)), activation="relu")
    assert np.isnan(y[0, 0]).tolist() == [True] + [False] * 5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_types_of_16_bits_are_computed_in_float32_and_rounded_once(dtype):
    spec = ConvSpec(in_channels=40, out_channels=3, kernel=(5,), dtype=dtype)
    a = Arrays(spec, (9,))
    rounded = dtype_object(dtype)
    x, w, z, dy = (array.astype(rounded) for array in (a.x, a.w, a.z, a.dy))
    up = [array.astype("float32") for array in (x, w, z, dy)]
    results = {
        "y": (forward(spec, x, w, residual=z), forward(spec, *up[:2], residual=up[2])),
        "dx": (backward_data(spec, dy, w, (9,)), backward_data(spec, up[3], up[1], (9,))),
        "dw": (backward_weights(spec, dy, x), backward_weights(spec, up[3], up[0])),
        "db": (backward_bias(dy), backward_bias(up[3])),
    }
    for found, expected in results.values():
        assert found.dtype == rounded
        np.testing.assert_array_equal(found, expected.astype(rounded))


def test_a_long_sum_of_16_bits_does_not_stop_growing():
    # In float16 a sum of ones stays at 2048.
    assert backward_bias(np.ones((3, 1, 1500), "f2")).tolist() == [4500.0]


@settings(max_examples=30)
@given(testing.conv_problems(testing.conv_specs(dtypes=("float32",))), seeds)
def test_float32_stays_float32(problem, seed):
    arrays = testing.conv_inputs(problem, seed)
    assert conformance_conv.run(problem, arrays).dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 37, 29), (2, 6, 64), (1, 3, 1, 33), (1, 1, 1, 1)])
def test_the_gradient_of_a_bias(dtype, channels_last, shape):
    values = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    found = backward_bias(in_layout(values, channels_last=channels_last))
    expected = values.astype("float64").sum(axis=(0, *range(2, len(shape))))
    assert found.dtype == values.dtype
    digits = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    largest = np.abs(values.astype("float64")).sum(axis=(0, *range(2, len(shape))))
    assert (np.abs(found - expected) <= digits * largest).all()
