"""dnnffi.testing for convolutions: what is drawn is right, and the hard cases are reached."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from dnnffi import ConvProblem, ConvSpec, testing
from dnnffi.device.dtypes import dtype_object
from dnnffi.spec.conv_problem import OPERATIONS
from dnnffi.spec.layouts import LAYOUTS, memory_layout

seeds = st.integers(0, 2**32 - 1)
SPEC = ConvSpec(in_channels=2, out_channels=3, kernel=(3, 3))


@given(
    testing.conv_specs(
        ranks=(2,),
        dtypes=("float64",),
        max_channels=2,
        max_groups=2,
        max_kernel=2,
        max_stride=1,
        max_padding=0,
        max_dilation=1,
        transposed=False,
    )
)
def test_specs_obey(spec):
    assert isinstance(spec, ConvSpec)
    assert (spec.rank, spec.dtype, spec.transposed) == (2, "float64", False)
    assert max(spec.in_channels, spec.out_channels) <= 4
    assert max(spec.kernel) <= 2
    assert (spec.stride, spec.padding, spec.dilation) == ((1, 1), (0, 0), (1, 1))


@given(testing.conv_specs(depthwise=True))
def test_depthwise_specs_are(spec):
    assert spec.depthwise


@given(testing.conv_specs(max_channels=1, depthwise=False))
def test_one_channel_that_is_not_depthwise_has_one_group(spec):
    assert (spec.in_channels, spec.out_channels) == (1, 1)


@given(testing.conv_specs(depthwise=False))
def test_other_specs_are_not_depthwise(spec):
    assert not spec.depthwise


def test_depthwise_needs_groups():
    with pytest.raises(ValueError, match=r"^depthwise=True needs max_groups of 2 or more"):
        find(testing.conv_specs(depthwise=True, max_groups=1), lambda spec: True)


@given(testing.conv_specs(asymmetric=True, max_padding=1))
def test_asymmetric_specs_are(spec):
    assert spec.padding_before != spec.padding_after
    assert max(*spec.padding_before, *spec.padding_after) == 1


@given(testing.conv_specs(asymmetric=False))
def test_other_specs_are_symmetric(spec):
    assert spec.padding_before == spec.padding_after == spec.padding


@pytest.mark.parametrize(
    ("strategy", "error", "message"),
    [
        (
            lambda: testing.conv_problems(operations="forward"),
            TypeError,
            r"^operations must be a tuple of names; got 'forward'; write \('forward',\)$",
        ),
        (
            lambda: testing.conv_problems(layouts=("NHWC",)),
            ValueError,
            r"^layouts must be among channels_first, channels_last; got 'NHWC'$",
        ),
        (
            lambda: testing.conv_problems(SPEC),
            TypeError,
            r"^convolutions must be a strategy; got ConvSpec; use st\.just\(spec\)$",
        ),
        (lambda: testing.conv_specs(dtypes="f"), TypeError, r"^dtypes must be a tuple of names"),
    ],
)
def test_a_wrong_argument_of_a_strategy_is_named(strategy, error, message):
    with pytest.raises(error) as caught:  # Hypothesis adds a note, which match would read
        find(strategy(), lambda one: True)
    assert re.search(message, str(caught.value))


@pytest.mark.parametrize(
    "function", [lambda one: testing.conv_inputs(one, 0), testing.conv_keywords]
)
def test_arrays_and_keywords_are_those_of_a_problem(function):
    message = r"^problem must be a ConvProblem; got ConvSpec; use ConvProblem\.of\("
    with pytest.raises(TypeError, match=message):
        function(SPEC)


def test_asymmetric_needs_padding():
    with pytest.raises(ValueError, match=r"^asymmetric=True needs max_padding of 1 or more"):
        find(testing.conv_specs(asymmetric=True, max_padding=0), lambda spec: True)


HARD = {
    **{
        f"{operation} of {kind}": lambda p, o=operation, t=kind == "transposed": (
            p.operation == o and p.spec.transposed is t
        )
        for operation in OPERATIONS
        for kind in ("ordinary", "transposed")
    },
    **{f"{layout}": lambda p, wanted=layout: p.layout == wanted for layout in LAYOUTS},
    "three dimensions": lambda p: p.spec.rank == 3 and len(set(p.sizes)) == 3,
    "input that the last step leaves unread": lambda p: (
        not p.spec.transposed and p.spec.input_sizes(p.y_shape[2:]) != p.sizes
    ),
    "groups that are not depthwise": lambda p: p.spec.groups == 3 and not p.spec.depthwise,
    "output padding beyond the stride": lambda p: any(
        o >= s for o, s in zip(p.spec.output_padding, p.spec.stride, strict=True)
    ),
    "zeros before alone and after alone": lambda p: p.spec.padding[:2] == ((2, 0), (0, 1)),
    "dilated and strided": lambda p: p.spec.dilation[0] == 3 and p.spec.stride[0] == 2,
    "the kernel fits once": lambda p: p.spec.kernel[0] == 3 and p.y_shape[2:] == (1,),
    "all fused": lambda p: p.activation and p.residual and p.bias and p.alpha != 1,
    "some options": lambda p: p.options.math == "fast" and p.options.workspace_limit == 0,
}


@pytest.mark.parametrize("name", HARD)
def test_hard_problems_are_drawn(name):
    try:
        find(
            testing.conv_problems(with_options=True),
            HARD[name],
            settings=settings(max_examples=3000, database=None, phases=[Phase.generate]),
        )
    except NoSuchExample:
        pytest.fail("not drawn")


@given(
    testing.conv_problems(
        testing.conv_specs(ranks=(1,)),
        operations=("forward",),
        layouts=("channels_last",),
        max_batch=1,
        max_extra=0,
        fused=False,
    )
)
def test_problems_obey(problem):
    assert isinstance(problem, ConvProblem)
    assert (problem.operation, problem.layout, problem.batch) == ("forward", "channels_last", 1)
    assert (problem.activation, problem.residual, problem.bias) == (None, False, False)
    with pytest.raises(ValueError, match=r"size 0|smaller than the kernel|cuts off"):
        problem.spec.output_sizes([problem.sizes[0] - 1])


@given(testing.conv_problems(), seeds)
def test_arrays_have_the_shapes_dtype_and_layout_of_the_problem(problem, seed):
    made, spec = testing.conv_inputs(problem, seed), problem.spec
    assert (made.x.shape, made.w.shape) == (problem.x_shape, spec.weight_shape)
    assert made.dy.shape == problem.y_shape
    assert (made.bias is not None) is problem.bias
    assert (made.residual is not None) is problem.residual
    if problem.bias:
        assert made.bias.shape == spec.bias_shape
    if problem.residual:
        assert made.residual.shape == problem.y_shape
    arrays = [a for a in made if a is not None]
    assert {a.dtype for a in arrays} == {dtype_object(spec.dtype)}
    for array in (a for a in arrays if a.ndim > 1):
        assert memory_layout(array.shape, array.strides) in (None, problem.layout)


@given(testing.conv_problems(), seeds)
def test_the_same_seed_gives_the_same_numbers_in_each_layout(problem, seed):
    made = testing.conv_inputs(problem, seed)
    for layout in LAYOUTS:
        again = testing.conv_inputs(problem._replace(layout=layout), seed)
        np.testing.assert_array_equal(made.x, again.x)
        np.testing.assert_array_equal(made.w, again.w)
        np.testing.assert_array_equal(made.dy, again.dy)
    assert (testing.conv_inputs(problem, seed + 1).x != made.x).any()
