"""ConvSpec: sizes, shapes, refusals."""

from __future__ import annotations

import pickle
import re
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given

from dnnffi import ConvProblem, ConvSpec, testing


def spec(**changes):
    return ConvSpec(**{"in_channels": 4, "out_channels": 6, "kernel": (3, 3), **changes})


def replaced(one, **changes):
    return ConvSpec(**{f.name: getattr(one, f.name) for f in fields(one)} | changes)


def test_one_number_stands_for_all_dimensions():
    one = spec(kernel=(3, 2, 1), stride=2, padding=1, dilation=3)
    each = spec(kernel=[3, 2, 1], stride=(2, 2, 2), padding=[1, 1, 1], dilation=(3, 3, 3))
    assert one == each
    assert hash(one) == hash(each)
    assert (one.stride, one.padding, one.dilation) == ((2, 2, 2), (1, 1, 1), (3, 3, 3))
    assert one.output_padding == (0, 0, 0)


def test_integers_of_numpy_become_pythons():
    found = spec(in_channels=np.int64(4), stride=(np.int32(2), 1), dtype=np.dtype("f8"))
    assert found == spec(stride=(2, 1), dtype="float64")
    assert type(found.in_channels) is type(found.stride[0]) is int


@pytest.mark.parametrize("transposed", [False, True])
def test_same_padding_leaves_the_sizes(transposed):
    found = spec(kernel=(3, 5, 2), dilation=(1, 3, 2), padding="same", transposed=transposed)
    assert found.padding == (1, 6, 1)
    assert found.resolved((1, 4, 7)) is found
    assert found.output_sizes((1, 4, 7)) == (1, 4, 7)
    assert found == spec(
        kernel=(3, 5, 2), dilation=(1, 3, 2), padding=(1, 6, 1), transposed=transposed
    )


def test_equal_sides_are_one_number():
    found = spec(padding=[(1, 1), [0, np.int64(2)]])
    assert found.padding == (1, (0, 2))
    assert (found.padding_before, found.padding_after) == ((1, 0), (1, 2))
    assert found == spec(padding=(1, (0, 2)))
    assert spec(padding=((1, 1), (2, 2))) == spec(padding=(1, 2))


def test_valid_padding_is_none():
    assert spec(padding="valid", stride=2) == spec(stride=2)


SAME_PADDING = {  # kernel, stride, dilation, size, padding: what TensorFlow's rule gives
    "even kernel": (4, 1, 1, 7, (1, 2)),
    "even span": (2, 1, 3, 7, (1, 2)),
    "stride, even size": (3, 2, 1, 8, (0, 1)),
    "stride, odd size": (3, 2, 1, 9, (1, 1)),
    "stride larger than the kernel": (1, 3, 1, 8, (0, 0)),
    "stride that leaves a part": (3, 4, 1, 6, (0, 1)),
    "dilated with a stride": (3, 2, 2, 8, (1, 2)),
}


@pytest.mark.parametrize("case", SAME_PADDING.values(), ids=list(SAME_PADDING))
def test_same_padding_puts_the_odd_zero_after(case):
    kernel, stride, dilation, size, sides = case
    found = spec(kernel=(kernel,), stride=stride, dilation=dilation, padding="same")
    known = found.resolved((size,))
    assert (known.padding_before, known.padding_after) == ((sides[0],), (sides[1],))
    assert found.output_sizes((size,)) == known.output_sizes((size,)) == (-(-size // stride),)
    assert known.resolved((size,)) is known


def test_same_padding_with_a_stride_has_no_numbers_before_the_size_is_known():
    found = spec(kernel=(3, 3), stride=(2, 1), padding="same")
    assert found.padding == "same"
    assert found.input_sizes((4, 5)) == (7, 5)
    assert found.output_sizes((7, 5)) == found.output_sizes((8, 5)) == (4, 5)
    assert found == replaced(found)
    message = r"^padding='same' with a stride depends on the size of x: use .*resolved\(sizes\)"
    for name in ("padding_before", "padding_after", "adjoint"):
        with pytest.raises(ValueError, match=message):
            getattr(found, name)
    with pytest.raises(ValueError, match=r"^x must have 2 spatial dimensions"):
        found.resolved((8,))


TRANSPOSED_SAME = {  # kernel, stride, dilation, padding, output padding
    "odd kernel": (3, 2, 1, (0, 1), 0),
    "even kernel": (4, 2, 1, (1, 1), 0),
    "kernel of 5": (5, 2, 1, (1, 2), 0),
    "kernel as large as the stride": (2, 2, 1, (0, 0), 0),
    "kernel smaller than the stride": (1, 3, 1, (0, 0), 2),
    "dilated": (2, 2, 3, (1, 1), 0),
}


@pytest.mark.parametrize("case", TRANSPOSED_SAME.values(), ids=list(TRANSPOSED_SAME))
def test_same_padding_of_a_transposed_convolution_multiplies_the_sizes_by_the_stride(case):
    kernel, stride, dilation, sides, more = case
    found = spec(
        kernel=(kernel,), stride=stride, dilation=dilation, padding="same", transposed=True
    )
    assert (found.padding_before + found.padding_after, found.output_padding) == (sides, (more,))
    assert found.output_sizes((5,)) == (5 * stride,)
    # Backward data of the ordinary convolution with the same rule.
    ordinary = spec(kernel=(kernel,), stride=stride, dilation=dilation, padding="same")
    known = ordinary.resolved((5 * stride,))
    assert found.padding == known.padding


def test_a_problem_has_the_numbers_of_same_padding():
    asked = spec(stride=2, padding="same")
    problem = ConvProblem.of("forward", asked, (2, 4, 8, 9))
    assert problem.spec == asked.resolved((8, 9))
    assert problem.y_shape == (2, 6, 4, 5)


SIZES = {  # kernel, stride, padding, dilation, input, output
    "plain": (3, 1, 0, 1, 7, 5),
    "same": (3, 1, 1, 1, 7, 7),
    "strided, last column unread": (3, 2, 0, 1, 8, 3),
    "dilated": (3, 1, 0, 2, 7, 3),
    "just fits": (5, 3, 0, 1, 5, 1),
    "padding alone fits": (5, 1, 2, 1, 1, 1),
    "larger padding than kernel": (1, 2, 3, 1, 2, 4),
    "zeros before alone": (3, 2, ((1, 0),), 1, 8, 4),
    "zeros after alone": (3, 2, ((0, 1),), 1, 8, 4),
    "more zeros after": (3, 1, ((0, 4),), 1, 1, 3),
}


@pytest.mark.parametrize("case", SIZES.values(), ids=list(SIZES))
def test_output_sizes(case):
    kernel, stride, padding, dilation, size, output = case
    found = spec(kernel=(kernel,), stride=stride, padding=padding, dilation=dilation)
    assert found.output_sizes((size,)) == (output,)


TRANSPOSED_SIZES = {  # kernel, stride, padding, dilation, output padding, input, output
    "plain": (3, 1, 0, 1, 0, 5, 7),
    "doubled": (4, 2, 1, 1, 0, 5, 10),
    "doubled with an odd kernel": (3, 2, 1, 1, 1, 5, 10),
    "dilated": (3, 1, 0, 2, 1, 5, 10),
    "one left": (3, 1, 1, 1, 0, 1, 1),
    "cut off before": (3, 2, ((1, 0),), 1, 0, 5, 10),
    "cut off after": (3, 2, ((0, 2),), 1, 1, 5, 10),
}


@pytest.mark.parametrize("case", TRANSPOSED_SIZES.values(), ids=list(TRANSPOSED_SIZES))
def test_output_sizes_of_a_transposed_convolution(case):
    kernel, stride, padding, dilation, more, size, output = case
    found = spec(
        kernel=(kernel,),
        stride=stride,
        padding=padding,
        dilation=dilation,
        output_padding=more,
        transposed=True,
    )
    assert found.output_sizes((size,)) == (output,)
    assert found.input_sizes((output,)) == (size,)


@given(testing.conv_problems())
def test_the_smallest_input_gives_the_output_and_a_smaller_one_does_not(problem):
    found = problem.spec
    outputs = found.output_sizes(problem.sizes)
    inputs = found.input_sizes(outputs)
    assert found.output_sizes(inputs) == outputs
    for index, (one, most) in enumerate(zip(inputs, problem.sizes, strict=True)):
        assert one <= most < one + (1 if found.transposed else found.stride[index])
        if one > 1:
            smaller = (*inputs[:index], one - 1, *inputs[index + 1 :])
            assert outputs_or_none(found, smaller) != outputs


def outputs_or_none(found, sizes):
    try:
        return found.output_sizes(sizes)
    except ValueError as error:
        if not re.search("size 0|smaller than the kernel|cuts off", str(error)):
            raise
        return None


@given(testing.conv_problems(testing.conv_specs(transposed=False)))
def test_a_transposed_convolution_leads_back_to_the_sizes(problem):
    ordinary = problem.spec
    # Its output padding makes up for what the stride left out.
    left = [
        (size + before + after - span) % stride
        for size, before, after, span, stride in zip(
            problem.sizes,
            ordinary.padding_before,
            ordinary.padding_after,
            ordinary.span,
            ordinary.stride,
            strict=True,
        )
    ]
    back = replaced(ordinary.adjoint, output_padding=left)
    assert back.output_sizes(ordinary.output_sizes(problem.sizes)) == problem.sizes


@given(testing.conv_specs())
def test_shapes_follow_from_the_channels(found):
    many, few = (
        (found.in_channels, found.out_channels)
        if found.transposed
        else (found.out_channels, found.in_channels)
    )
    assert found.weight_shape == (many, few // found.groups, *found.kernel)
    assert found.bias_shape == (found.out_channels,)
    assert found.adjoint.weight_shape == found.weight_shape
    assert found.adjoint.bias_shape == (found.in_channels,)
    again = ConvSpec.from_weight_shape(
        found.weight_shape,
        stride=found.stride,
        padding=found.padding,
        dilation=found.dilation,
        groups=found.groups,
        transposed=found.transposed,
        output_padding=found.output_padding,
        dtype=found.dtype,
    )
    assert again == found
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("channels", "groups", "depthwise"),
    [((4, 4), 4, True), ((4, 8), 4, True), ((4, 4), 1, False), ((4, 4), 2, False)],
)
def test_depthwise_is_one_channel_a_group(channels, groups, depthwise):
    many, few = channels[1], channels[0]
    assert spec(in_channels=few, out_channels=many, groups=groups).depthwise is depthwise
    turned = spec(in_channels=many, out_channels=few, groups=groups, transposed=True)
    assert turned.depthwise is depthwise


def test_one_channel_without_groups_is_not_depthwise():
    assert not spec(in_channels=1, out_channels=1).depthwise


REFUSED = {
    "no channels": ({"in_channels": 0}, ValueError, r"^in_channels must be from 1 to .*; got 0$"),
    "huge": ({"out_channels": 2**31}, ValueError, r"^out_channels must be from 1 to 2147483647"),
    "channels of a float": ({"in_channels": 4.0}, TypeError, r"^in_channels must be an integer"),
    "channels of a bool": ({"out_channels": True}, TypeError, r"^out_channels must be an integer"),
    "kernel of a number": ({"kernel": 3}, TypeError, r"^kernel must be one size for each"),
    "kernel of text": ({"kernel": "33"}, TypeError, r"^kernel must be one size for each"),
    "kernel of bytes": ({"kernel": b"\3\3"}, TypeError, r"^kernel must be one size for each"),
    "kernel of a set": ({"kernel": {3, 2}}, TypeError, r"^kernel must be one size for each"),
    "kernel of rank 0": ({"kernel": ()}, ValueError, r"^kernel must have 1, 2 or 3 sizes; got 0$"),
    "kernel of rank 4": ({"kernel": (1,) * 4}, ValueError, r"^kernel must have .* sizes; got 4$"),
    "kernel of size 0": ({"kernel": (3, 0)}, ValueError, r"^kernel\[1\] must be from 1"),
    "stride 0": ({"stride": 0}, ValueError, r"^stride must be from 1 to .*; got 0$"),
    "stride 0 of one": ({"stride": (1, 0)}, ValueError, r"^stride\[1\] must be from 1 .*; got 0$"),
    "stride of text": ({"stride": "12"}, TypeError, r"^stride must be an integer; got str$"),
    "stride of bytes": ({"stride": b"\1\2"}, TypeError, r"^stride must be an int.*; got bytes$"),
    "stride of a set": ({"stride": {1, 2}}, TypeError, r"^stride must be an integer; got set$"),
    "stride of floats": ({"stride": (1.0, 1)}, TypeError, r"^stride\[0\] must be an integer"),
    "strides too many": (
        {"stride": (1, 1, 1)},
        ValueError,
        r"^stride must be one integer, or 2 for as many spatial dimensions; got 3$",
    ),
    "dilation 0": ({"dilation": 0}, ValueError, r"^dilation must be from 1 to .*; got 0$"),
    "padding below 0": ({"padding": -1}, ValueError, r"^padding must be from 0 to .*; got -1$"),
    "padding of one below 0": ({"padding": (0, -1)}, ValueError, r"^padding\[1\] must be from 0"),
    "padding too short": ({"padding": (0,)}, ValueError, r"^padding must be one integer, or 2"),
    "no groups": ({"groups": 0}, ValueError, r"^groups must be from 1 to .*; got 0$"),
    "groups and input": (
        {"groups": 3},
        ValueError,
        r"^groups must divide the input channels, 4; got 3$",
    ),
    "groups and output": (
        {"groups": 4},
        ValueError,
        r"^groups must divide the output channels, 6; got 4$",
    ),
    "output padding of an ordinary one": (
        {"output_padding": 1, "stride": 2},
        ValueError,
        r"^output_padding: only a transposed convolution has one; got \(1, 1\)$",
    ),
    "output padding as large as the stride": (
        {"output_padding": (1, 2), "stride": 2, "transposed": True},
        ValueError,
        r"^output_padding\[1\] must be smaller than the larger of stride and dilation, 2; got 2$",
    ),
    "output padding as large as the dilation": (
        {"output_padding": 3, "dilation": 3, "transposed": True},
        ValueError,
        r"^output_padding\[0\] must be smaller .*, 3; got 3$",
    ),
    "padding of text": (
        {"padding": "full"},
        ValueError,
        r"^padding must be integers, pairs \(before, after\), 'same' or 'valid'; got 'full'$",
    ),
    "padding of one pair for all": (
        {"padding": (0, 1), "kernel": (3,)},
        ValueError,
        r"^padding must be one integer, or 1 for .* got 2\. If .*: \(\(before, after\),\)$",
    ),
    "padding as begins and ends": (
        {"padding": (0, 0, 1, 1)},
        ValueError,
        r"got 4\. If .*, give a pair for each dimension: \(\(before, after\), \(before, after\)\)$",
    ),
    "padding of three sides": (
        {"padding": (0, (1, 1, 1))},
        ValueError,
        r"^padding\[1\] must be an integer or a pair \(before, after\); got \(1, 1, 1\)$",
    ),
    "padding of one side": (
        {"padding": ((1,), 0)},
        ValueError,
        r"^padding\[0\] must be an integer or a pair \(before, after\); got \(1,\)$",
    ),
    "padding of a side below 0": (
        {"padding": (0, (1, -1))},
        ValueError,
        r"^padding\[1\]\[1\] must be from 0 to .*; got -1$",
    ),
    "padding of a side of text": (
        {"padding": (("1", 1), 0)},
        TypeError,
        r"^padding\[0\]\[0\] must be an integer; got str$",
    ),
    "padding of a dimension of text": (
        {"padding": ("same", 0)},
        TypeError,
        r"^padding\[0\] must be an integer; got str$",
    ),
    "same padding with an output padding": (
        {"padding": "same", "dilation": 2, "output_padding": 1, "transposed": True},
        ValueError,
        r"^padding='same' decides the size of the output: leave out output_padding; got \(1, 1\)$",
    ),
    "output padding below 0": (
        {"output_padding": -1, "transposed": True},
        ValueError,
        r"^output_padding must be from 0",
    ),
    "transposed of a number": ({"transposed": 1}, TypeError, r"^transposed must be True or False"),
    "dtype": ({"dtype": "int32"}, ValueError, r"^dtype must be one of float16, .*; got 'int32'$"),
}


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED.values(), ids=list(REFUSED))
def test_wrong_fields_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        spec(**changes)


def test_output_padding_may_be_just_below_the_larger_of_stride_and_dilation():
    found = spec(stride=2, dilation=3, output_padding=2, transposed=True)
    assert found.output_padding == (2, 2)


WEIGHT_SHAPES = {
    "of rank 2": ((4, 3), r"^w must have 3, 4 or 5 dimensions, \[K, C/groups, ...\]; got \(4, 3\)"),
    "of rank 6": ((1,) * 6, r"^w must have 3, 4 or 5 dimensions"),
    "of nothing": ((4, 0, 3), r"^w must have no dimension of size 0; got shape \(4, 0, 3\)$"),
}


def test_what_is_not_said_is_a_plain_convolution_in_float32():
    expected = ConvSpec(
        in_channels=4,
        out_channels=6,
        kernel=(3, 5),
        stride=(1, 1),
        padding=(0, 0),
        dilation=(1, 1),
        groups=1,
        transposed=False,
        output_padding=(0, 0),
        dtype="float32",
    )
    assert ConvSpec(in_channels=4, out_channels=6, kernel=(3, 5)) == expected
    assert ConvSpec.from_weight_shape((6, 4, 3, 5)) == expected


@pytest.mark.parametrize(("shape", "message"), WEIGHT_SHAPES.values(), ids=list(WEIGHT_SHAPES))
def test_wrong_weight_shapes_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        ConvSpec.from_weight_shape(shape)


def test_a_kernel_larger_than_the_padded_input_is_refused():
    message = (
        r"^x is smaller than the kernel: spatial dimension 1 has size 2, 4 with its padding, and "
        r"the kernel spans 5 \(size 3, dilation 2\)$"
    )
    with pytest.raises(ValueError, match=message):
        spec(dilation=2, padding=1).output_sizes((5, 2))
    assert spec(dilation=2, padding=1).output_sizes((5, 3)) == (3, 1)


def test_padding_that_leaves_nothing_of_a_transposed_output_is_refused():
    with pytest.raises(ValueError, match=r"^padding\[0\] cuts off all of the output: x has size 2"):
        spec(kernel=(2,), padding=2, transposed=True).output_sizes((2,))
    with pytest.raises(ValueError, match=r"and padding is \(0, 3\)$"):
        spec(kernel=(2,), padding=((0, 3),), transposed=True).output_sizes((2,))


@pytest.mark.parametrize("transposed", [False, True])
def test_sizes_of_another_rank_or_of_0_are_refused(transposed):
    found = spec(transposed=transposed, padding=2)
    with pytest.raises(ValueError, match=r"^x must have 2 spatial dimensions, as the kernel; got"):
        found.output_sizes((4, 4, 4))
    with pytest.raises(ValueError, match=r"^x must have no spatial dimension of size 0; dim.* 1 "):
        found.output_sizes((4, 0))
    with pytest.raises(ValueError, match=r"^y must have 2 spatial"):
        found.input_sizes((4,))


UNREACHABLE = {
    "padding alone is larger": ({"kernel": (1,), "padding": 2}, 3),
    "between two steps": ({"kernel": (3,), "stride": 2, "transposed": True}, 4),
    "smaller than the kernel": ({"kernel": (3,), "transposed": True}, 2),
}


@pytest.mark.parametrize(("changes", "size"), UNREACHABLE.values(), ids=list(UNREACHABLE))
def test_an_output_that_no_input_gives_is_refused(changes, size):
    with pytest.raises(ValueError, match=rf"^y: no input gives size {size} in spatial dimension 0"):
        spec(**changes).input_sizes((size,))
