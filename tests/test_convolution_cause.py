"""Arrays of convolutions as other libraries have them: the error names what they are."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dnnffi
from dnnffi import testing
from dnnffi.spec.conv_cause import conv_cause

X, W, Y = (2, 3, 8, 9), (4, 3, 5, 5), (2, 4, 4, 5)  # [N, C, H, W], [K, C, kernel], [N, K, ...]
HWIO = "w fits in the order of TensorFlow's and Keras's kernels, [..., C, K]: give "
SECOND = "since channels are the second axis in every layout: give "

CAUSES = {
    "a kernel of TensorFlow": ("conv", X, (5, 5, 3, 4), HWIO + "w.transpose(3, 2, 0, 1)"),
    "a kernel of one dimension": ("conv", (2, 3, 8), (5, 3, 16), HWIO + "w.transpose(2, 1, 0)"),
    "a kernel of three dimensions": (
        *("conv", (2, 3, 8, 8, 8), (2, 2, 2, 3, 4)),
        HWIO + "w.transpose(4, 3, 0, 1, 2)",
    ),
    "a kernel of Conv2DTranspose": (
        *("conv_transpose", X, (5, 5, 4, 3)),
        HWIO + "w.transpose(3, 2, 0, 1)",
    ),
    "weights with channels last": (
        *("conv", X, (4, 5, 5, 3)),
        f"w fits with its last axis second, {SECOND}w.transpose(0, 3, 1, 2)",
    ),
    "images with channels last": (
        *("conv", (2, 8, 9, 3), W),
        f"x fits with its last axis second, {SECOND}x.transpose(0, 3, 1, 2)",
    ),
    "both with channels last": (
        *("conv", (2, 8, 9, 3), (5, 5, 3, 4)),
        f"x fits with its last axis second, {SECOND}x.transpose(0, 3, 1, 2); "
        f"{HWIO}w.transpose(3, 2, 0, 1)",
    ),
    "an image smaller than the kernel": ("conv", (8, 3, 2, 2), (16, 3, 3, 3), "add padding"),
    "w before x, of equal channels": (
        *("conv", (16, 2, 3, 3), (8, 2, 7, 8)),
        "they fit in the other order: x comes first, then w",
    ),
    "w before x": ("conv", W, X, "they fit in the other order: x comes first, then w"),
    "weights of each channel": (
        *("conv", X, (3, 1, 5, 5)),
        "w fits a depthwise convolution: give groups=3",
    ),
    "weights of groups": ("conv", (2, 6, 8, 9), (4, 3, 5, 5), "they fit with groups=2"),
    "weights of conv_transpose": ("conv", X, (3, 4, 5, 5), "they fit conv_transpose"),
    "weights of conv": ("conv_transpose", X, W, "they fit conv"),
}


def zeros(shape):
    return np.zeros(shape, "f4")


@pytest.mark.parametrize(("function", "x", "w", "cause"), CAUSES.values(), ids=CAUSES)
def test_the_cause_is_named_behind_the_error(function, x, w, cause):
    with pytest.raises(ValueError, match=rf"^\w+ .*; {re.escape(cause)}$"):
        getattr(dnnffi, function)(zeros(x), zeros(w))


def test_the_order_of_cupy_in_the_gradients():
    with pytest.raises(ValueError, match=r"; they fit in the other order: dy comes first, then w$"):
        dnnffi.conv_backward_data(zeros(W), zeros(Y), X)
    with pytest.raises(ValueError, match=r"; they fit in the other order: dy comes first, then x$"):
        dnnffi.conv_backward_weights(zeros(X), zeros(Y), W)


def test_an_array_in_place_of_a_shape():
    message = r" must be a tuple of integers; got ndarray; give its shape, since the result is ret"
    with pytest.raises(TypeError, match=rf"^w_shape{message}"):
        dnnffi.conv_backward_weights(zeros(Y), zeros(X), zeros(W))
    with pytest.raises(TypeError, match=rf"^x_shape{message}"):
        dnnffi.conv_backward_data(zeros(Y), zeros(W), zeros(X))


def test_a_shape_of_weights_in_the_order_of_tensorflow():
    with pytest.raises(ValueError, match=r"; w fits in the order of TensorFlow's"):
        dnnffi.conv_backward_weights(zeros(Y), zeros(X), (5, 5, 3, 4))


@pytest.mark.parametrize("w", [(4, 7, 3, 3), (4, 2, 5, 5)])
def test_what_no_known_mistake_explains_has_the_error_alone(w):
    with pytest.raises(ValueError, match=r"^x must have \d channels .*; got shape \(2, 3, 8, 9\)$"):
        dnnffi.conv(zeros(X), zeros(w))


@given(testing.conv_problems(), st.booleans())
def test_shapes_that_fit_have_no_cause(problem, swapped):
    shapes = {"x": problem.x_shape, "w": problem.spec.weight_shape, "dy": problem.y_shape}
    spec = problem.spec
    fits = lambda found, groups, transposed: found == shapes  # noqa: E731
    arrays = ("x", "w") if swapped else ("dy", "x")
    assert conv_cause(shapes, arrays, spec.groups, spec.transposed, fits) is None


def test_an_error_about_something_else_stays_as_it_is():
    with pytest.raises(ValueError, match=r"^residual must have shape \(2, 4, 4, 5\); got \(1,\)$"):
        dnnffi.conv(zeros(X), zeros(W), residual=zeros((1,)))


def test_weights_without_dimensions_have_the_error_alone():
    with pytest.raises(ValueError, match=r"^w must have 3, 4 or 5 dimensions, .*; got \(\)$"):
        dnnffi.conv(zeros((2, 3, 1, 1)), zeros(()))
