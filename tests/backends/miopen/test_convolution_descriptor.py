"""The convolution descriptor: sizes by the real library against `ConvSpec`, and refusals."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnffi import testing
from dnnffi.backends.miopen.canonical import Canonical
from dnnffi.backends.miopen.descriptors import (
    ActivationDescriptor,
    ActivationInfo,
    ConvolutionDescriptor,
    ConvolutionInfo,
    TensorDescriptor,
)
from dnnffi.backends.miopen.library import CONVOLUTION_MODES, FIND_MODES
from dnnffi.errors import MiopenError
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_problem import OPERATIONS, ConvProblem
from dnnffi.spec.layouts import LAYOUTS, packed_strides


def problems():
    specs = testing.conv_specs(dtypes=("float32", "float16"), asymmetric=False)
    return testing.conv_problems(specs)


def fits(spec):
    """Return whether MIOpen accepts the output padding; dnnffi refuses any other."""
    return all(more < step for more, step in zip(spec.output_padding, spec.stride, strict=True))


@settings(max_examples=300)
@given(problem=problems())
def test_the_library_has_the_sizes_of_the_spec(library, problem):
    ordinary = Canonical.of(problem)
    x, w, y = ordinary.shapes
    info = ConvolutionInfo(ordinary.padding, ordinary.stride, ordinary.dilation, ordinary.groups)
    strides = [packed_strides(shape, ordinary.channels_last) for shape in (x, w)]
    dtype = ordinary.dtype
    with (
        TensorDescriptor(dtype, x, strides[0], library=library) as image,
        TensorDescriptor(dtype, w, strides[1], library=library) as weights,
        ConvolutionDescriptor(info, library=library) as convolution,
    ):
        found = convolution.output_shape(image, weights)
    spec = problem.spec
    if fits(spec):
        assert found == y
    else:
        assert found != y


@settings(max_examples=300)
@given(
    problem=testing.conv_problems(
        testing.conv_specs(ranks=(2, 3), transposed=True, dtypes=("float32",), asymmetric=False)
    )
)
def test_transposed_the_library_has_the_sizes_of_the_spec(library, problem):
    spec = problem.spec
    info = ConvolutionInfo(spec.padding, spec.stride, spec.dilation, spec.groups, "transpose")
    with (
        TensorDescriptor("float32", problem.x_shape, library=library) as x,
        TensorDescriptor("float32", spec.weight_shape, library=library) as w,
        ConvolutionDescriptor(info, spec.output_padding, library=library) as convolution,
    ):
        if fits(spec):
            assert convolution.output_shape(x, w) == problem.y_shape
        else:
            with pytest.raises(MiopenError, match="OutputDim"):
                convolution.output_shape(x, w)


@given(
    geometry=st.integers(2, 3).flatmap(
        lambda rank: st.tuples(
            *(st.tuples(*[st.integers(least, 2**31 - 1)] * rank) for least in (0, 1, 1))
        )
    ),
    groups=st.integers(1, 2**31 - 1),
    mode=st.sampled_from(list(CONVOLUTION_MODES)),
    deterministic=st.booleans(),
    fp16_alt=st.sampled_from([None, False, True]),
    find_mode=st.sampled_from(list(FIND_MODES)),
)
def test_any_convolution_is_read_back(
    library, geometry, groups, mode, deterministic, fp16_alt, find_mode
):
    info = ConvolutionInfo(*geometry, groups, mode, deterministic, fp16_alt, find_mode)
    with ConvolutionDescriptor(info, library=library) as descriptor:
        assert descriptor.read() == info


# Without a library


PLAIN = ConvolutionInfo((0, 1), (1, 2), (1, 1))


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"stride": (1,)}, ValueError, "stride must have 2 or 3 entries"),
        ({"stride": (1,) * 4}, ValueError, "stride must have 2 or 3 entries"),
        ({"stride": (1, 0)}, ValueError, r"stride\[1\] must be from 1"),
        ({"padding": (0, -1)}, ValueError, r"padding\[1\] must be from 0"),
        ({"padding": (0,)}, ValueError, "padding must have 2 entries, as stride; got 1"),
        ({"dilation": (0, 1)}, ValueError, r"dilation\[0\] must be from 1"),
        ({"dilation": (2**31, 1)}, ValueError, r"dilation\[0\] must be from 1 to 2147483647"),
        ({"groups": 0}, ValueError, "groups must be from 1"),
        ({"groups": True}, TypeError, "groups must be an integer"),
        ({"mode": "conv"}, ValueError, "mode must be one of convolution, transpose; got"),
        ({"deterministic": 1}, TypeError, "deterministic must be True or False"),
        ({"fp16_alt": 2}, ValueError, "fp16_alt must be True, False or None; got 2"),
        ({"find_mode": "slow"}, ValueError, "find_mode must be one of normal, fast"),
    ],
)
def test_convolutions_that_are_none(fields, error, message):
    with pytest.raises(error, match=message):
        ConvolutionDescriptor(PLAIN._replace(**fields))


def test_an_output_padding_is_for_a_transposed_one():
    with pytest.raises(ValueError, match="output_padding: only the mode 'transpose' has one"):
        ConvolutionDescriptor(PLAIN, (0, 1))
    with pytest.raises(ValueError, match="output_padding must have 2 entries, as stride; got 3"):
        ConvolutionDescriptor(PLAIN._replace(mode="transpose"), (0, 1, 0))
    with pytest.raises(TypeError, match="output_padding must be a sequence of integers; got int"):
        ConvolutionDescriptor(PLAIN, 1)


def test_an_activation_of_text():
    with pytest.raises(TypeError, match="beta must be a number; got str"):
        ActivationDescriptor(ActivationInfo("elu", 1.0, "1"))


@given(shape=st.lists(st.integers(1, 5), min_size=3, max_size=5).map(tuple), last=st.booleans())
def test_strides_without_gaps(shape, last):
    strides = packed_strides(shape, last)
    assert sorted(
        sum(index * stride for index, stride in zip(at, strides, strict=True))
        for at in np.ndindex(*shape)
    ) == list(range(prod(shape)))
    if shape[1] > 1:
        assert (strides[1] == 1) == (last or prod(shape[2:]) == 1)


@given(
    problem=testing.conv_problems(
        testing.conv_specs(dtypes=("float32", "float16"), transposed=True).filter(
            lambda spec: not any(spec.output_padding)
        )
    )
)
def test_transposed_and_its_adjoint_are_the_same_to_the_library(problem):
    spec = problem.spec
    exchanged = {"forward": "backward_data", "backward_data": "forward"}
    other = ConvProblem.of(
        exchanged.get(problem.operation, problem.operation),
        spec.adjoint,
        problem.y_shape,
        layout=problem.layout,
        options=problem.options,
    )
    assert Canonical.of(other) == Canonical.of(problem)


def test_all_operations_and_layouts_differ():
    made = {
        Canonical.of(
            ConvProblem.of(
                operation,
                ConvSpec(in_channels=2, out_channels=2, kernel=(3,), padding=1),
                (1, 2, 5),
                layout=layout,
            )
        )
        for operation in OPERATIONS
        for layout in LAYOUTS
    }
    assert len(made) == 6
