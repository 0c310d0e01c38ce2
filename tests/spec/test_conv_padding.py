"""Convolutions with asymmetric padding rewritten as symmetric ones on a padded image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from dnnffi import ConvProblem, ConvSpec, testing
from dnnffi.spec.conv_padding import PaddedImage, is_symmetric


@given(testing.conv_problems(testing.conv_specs(asymmetric=False)))
def test_a_symmetric_problem_has_no_padded_image(problem):
    assert is_symmetric(problem.spec)
    assert PaddedImage.of(problem) is None


@given(testing.conv_problems(testing.conv_specs(asymmetric=True)))
def test_the_symmetric_problem_differs_in_its_image_alone(problem):
    image = PaddedImage.of(problem)
    symmetric = image.problem
    assert is_symmetric(symmetric.spec)
    shapes = {"x": problem.x_shape, "y": problem.y_shape}
    padded = {"x": symmetric.x_shape, "y": symmetric.y_shape}
    name, other = ("y", "x") if problem.spec.transposed else ("x", "y")
    assert (image.shape, image.padded_shape) == (shapes[name], padded[name])
    assert shapes[other] == padded[other]
    assert symmetric.spec.weight_shape == problem.spec.weight_shape
    assert symmetric.options == problem.options


@pytest.mark.parametrize(("dtype", "nbytes"), [("float16", 486), ("float64", 1944)])
def test_a_padded_image_knows_its_bytes_and_whether_it_is_a_result(dtype, nbytes):
    spec = ConvSpec(
        in_channels=3, out_channels=8, kernel=(3, 3), padding=((0, 1),) * 2, dtype=dtype
    )
    images = [
        PaddedImage.of(ConvProblem.of(operation, spec, (1, 3, 8, 8)))
        for operation in ("forward", "backward_data")
    ]
    assert [image.padded_bytes for image in images] == [nbytes] * 2
    assert [image.is_result for image in images] == [False, True]


@given(testing.conv_problems(testing.conv_specs(asymmetric=True)))
def test_no_dimension_has_zeros_on_two_sides(problem):
    # The library adds the zeros that both sides have.
    image = PaddedImage.of(problem)
    offsets = zip(image.shape[2:], image.padded_shape[2:], image.offset, strict=True)
    for size, padded, offset in offsets:
        assert offset in (0, padded - size)
    before = np.add(image.offset, image.problem.spec.padding_before)
    assert tuple(before) == problem.spec.padding_before


@given(testing.conv_problems(testing.conv_specs(asymmetric=True)))
def test_bias_residual_and_activation_follow_an_image_that_is_a_result(problem):
    image = PaddedImage.of(problem)
    written = image.operand == "result"
    assert image.problem.epilogue == (() if written else problem.epilogue)


OPERANDS = {
    ("forward", False): "first",
    ("backward_data", False): "result",
    ("backward_weights", False): "second",
    ("forward", True): "result",
    ("backward_data", True): "first",
    ("backward_weights", True): "first",
}


@pytest.mark.parametrize(("operation", "transposed"), OPERANDS)
def test_the_operand_that_is_the_image(operation, transposed):
    spec = ConvSpec(
        in_channels=2, out_channels=3, kernel=(3,), padding=((0, 1),), transposed=transposed
    )
    problem = ConvProblem.of(operation, spec, (1, 2, 7))
    assert PaddedImage.of(problem).operand == OPERANDS[operation, transposed]
