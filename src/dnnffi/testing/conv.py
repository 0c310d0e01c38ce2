"""Strategies for convolutions, and arrays for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from dnnffi.device.arrays import in_layout
from dnnffi.device.dtypes import dtype_object
from dnnffi.spec.checks import check_problem
from dnnffi.spec.conv import RANKS, ConvSpec
from dnnffi.spec.conv_options import conv_options as checked_options
from dnnffi.spec.conv_problem import FORWARD, OPERATIONS, ConvProblem
from dnnffi.spec.layouts import CHANNELS_LAST, LAYOUTS
from dnnffi.spec.names import DType, MemoryLayout, Operation
from dnnffi.spec.options import MATHS, TUNES
from dnnffi.testing.draw import DTYPES, check_strategy, either, names_among

_HostArray = np.ndarray[Any, Any]


@st.composite
def conv_specs(
    draw: st.DrawFn,
    *,
    ranks: Sequence[int] = RANKS,
    dtypes: Sequence[DType] = DTYPES,
    max_channels: int = 3,
    max_groups: int = 3,
    max_kernel: int = 3,
    max_stride: int = 3,
    max_padding: int = 2,
    max_dilation: int = 3,
    transposed: bool | None = None,
    depthwise: bool | None = None,
    asymmetric: bool | None = None,
) -> ConvSpec:
    """Draw convolutions. A parameter that is None draws both True and False.

    Parameters
    ----------
    ranks, dtypes : the values to draw from; arrays of bfloat16 need the package ml_dtypes
    max_channels : largest number of channels of a group
    max_groups, max_kernel, max_stride, max_padding, max_dilation : largest of each
    transposed : whether the convolution is transposed
    depthwise : whether the convolution is depthwise; True needs ``max_groups`` of 2 or more
    asymmetric : whether the padding before and after differs in some dimension; True needs
        ``max_padding`` of 1 or more
    """
    if depthwise and max_groups < 2:
        raise ValueError("depthwise=True needs max_groups of 2 or more")
    if asymmetric and max_padding < 1:
        raise ValueError("asymmetric=True needs max_padding of 1 or more")
    dtypes = names_among("dtypes", dtypes, DTYPES)
    rank = draw(st.sampled_from(list(ranks)))

    def each(minimum: int, maximum: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(minimum, maximum)) for _ in range(rank))

    is_transposed = draw(either(transposed))
    if depthwise is False and max_channels == 1:  # more groups would make it depthwise
        max_groups = 1
    groups = draw(st.integers(2 if depthwise else 1, max_groups))
    many = draw(st.integers(1, max_channels))
    if depthwise:
        few = 1
    else:
        minimum = 2 if depthwise is False and groups > 1 else 1
        few = draw(st.integers(minimum, max_channels))
    stride, dilation = each(1, max_stride), each(1, max_dilation)
    return ConvSpec(
        in_channels=groups * (many if is_transposed else few),
        out_channels=groups * (few if is_transposed else many),
        kernel=each(1, max_kernel),
        stride=stride,
        padding=draw(_paddings(rank, max_padding, asymmetric)),
        dilation=dilation,
        groups=groups,
        transposed=is_transposed,
        output_padding=tuple(
            draw(st.integers(0, max(s, d) - 1)) if is_transposed else 0
            for s, d in zip(stride, dilation, strict=True)
        ),
        dtype=draw(st.sampled_from(dtypes)),
    )


@st.composite
def _paddings(
    draw: st.DrawFn, rank: int, maximum: int, asymmetric: bool | None
) -> tuple[int | tuple[int, int], ...]:
    """Return padding of each dimension, an integer or a pair."""
    side = st.integers(0, maximum)
    if not draw(either(asymmetric)):
        return tuple(draw(side) for _ in range(rank))
    pairs = [draw(st.tuples(side, side)) for _ in range(rank)]
    if asymmetric and all(before == after for before, after in pairs):
        before, _ = pairs[0]
        pairs[0] = before, before + 1 if before < maximum else before - 1
    return tuple(pairs)


@st.composite
def conv_options(draw: st.DrawFn) -> dict[str, Any]:
    """Draw ``options`` of a call, without "validate"; any key may be missing."""
    choices: dict[str, st.SearchStrategy[Any]] = {
        "math": st.sampled_from(MATHS),
        "deterministic": st.booleans(),
        "tune": st.sampled_from(TUNES),
        "workspace_limit": st.sampled_from([None, 0]) | st.integers(1, 2**32),
    }
    return draw(st.fixed_dictionaries({}, optional=choices))


@st.composite
def conv_problems(
    draw: st.DrawFn,
    convolutions: st.SearchStrategy[ConvSpec] | None = None,
    *,
    operations: Sequence[Operation] = OPERATIONS,
    layouts: Sequence[MemoryLayout] = LAYOUTS,
    max_batch: int = 3,
    max_extra: int = 4,
    fused: bool | None = None,
    with_options: bool = False,
) -> ConvProblem:
    """Draw problems: a convolution, the shape of its input, and the operation to compute.

    Parameters
    ----------
    convolutions : a strategy; None for all of `conv_specs`
    operations : the values to draw from: "forward", "backward_data" and "backward_weights"
    layouts : the values to draw from: "channels_first" and "channels_last"
    max_batch : largest N
    max_extra : largest number of positions that the input has, in each dimension, in addition to
        the smallest input with an output
    fused : whether the operation "forward" has a bias, a residual and an activation, each drawn;
        None draws both True and False
    with_options : whether to draw `conv_options` too, instead of the defaults
    """
    operations = names_among("operations", operations, OPERATIONS)
    layouts = names_among("layouts", layouts, LAYOUTS)
    check_strategy("convolutions", convolutions, ConvSpec, "st.just(spec)")
    spec = draw(conv_specs() if convolutions is None else convolutions)
    operation = draw(st.sampled_from(operations))
    sizes = [draw(st.integers(minimum, minimum + max_extra)) for minimum in _smallest(spec)]
    more: dict[str, Any] = {}
    if operation == FORWARD and draw(either(fused)):
        more = {
            "bias": draw(st.booleans()),
            "residual": draw(st.booleans()),
            "alpha": draw(st.sampled_from([1.0, 0.5, -2.0])),
            "activation": draw(st.sampled_from([None, "relu"])),
        }
    if with_options:
        more["options"] = checked_options(draw(conv_options()))
    return ConvProblem.of(
        operation,
        spec,
        spec.x_shape(draw(st.integers(1, max_batch)), sizes),
        layout=draw(st.sampled_from(layouts)),
        **more,
    )


def _smallest(spec: ConvSpec) -> tuple[int, ...]:
    """Return the smallest spatial sizes of x that give an output."""
    sides = zip(spec.padding_before, spec.padding_after, strict=True)
    paddings = [before + after for before, after in sides]
    if not spec.transposed:
        return tuple(
            max(1, span - padding) for span, padding in zip(spec.span, paddings, strict=True)
        )
    return tuple(
        1 + max(0, -((span + more - padding - 1) // stride))
        for span, more, padding, stride in zip(
            spec.span, spec.output_padding, paddings, spec.stride, strict=True
        )
    )


class ConvInputs(NamedTuple):
    """NumPy arrays for a problem, in its dtype and layout.

    x [N, C, ...]; w as `ConvSpec.weight_shape`; bias [K] or None; residual, of the shape of y, or
    None; dy of the shape of y.
    """

    x: _HostArray
    w: _HostArray
    bias: _HostArray | None
    residual: _HostArray | None
    dy: _HostArray


def conv_inputs(problem: ConvProblem, seed: int) -> ConvInputs:
    """Return normally distributed arrays for a problem, weights scaled so that y is about 1.

    The same seed gives the same numbers, rounded to the spec's dtype, in each layout.
    """
    check_problem(problem, ConvProblem, 'ConvProblem.of("forward", spec, x_shape)')
    spec = problem.spec
    random = np.random.default_rng(seed)
    dtype = dtype_object(spec.dtype)
    last = problem.layout == CHANNELS_LAST

    def normal(shape: tuple[int, ...], scale: float = 1.0) -> _HostArray:
        array: _HostArray = (random.standard_normal(shape) * scale).astype(dtype)
        return in_layout(array, channels_last=last) if len(shape) > 1 else array

    x = normal(problem.x_shape)
    w = normal(spec.weight_shape, int(np.prod(spec.weight_shape[1:])) ** -0.5)
    bias = normal(spec.bias_shape)
    residual, dy = normal(problem.y_shape), normal(problem.y_shape)
    return ConvInputs(
        x, w, bias if problem.bias else None, residual if problem.residual else None, dy
    )


def conv_keywords(problem: ConvProblem) -> dict[str, Any]:
    """Return the keywords with which the function of the problem's operation runs it.

    Arrays (bias, residual) and the shape of a result are not among them.
    """
    check_problem(problem, ConvProblem, 'ConvProblem.of("forward", spec, x_shape)')
    spec = problem.spec
    result: dict[str, Any] = {
        "stride": spec.stride,
        "padding": spec.padding,
        "dilation": spec.dilation,
        "groups": spec.groups,
        "options": problem.options._asdict(),
    }
    if spec.transposed:
        result["output_padding"] = spec.output_padding
    if problem.operation == FORWARD:
        result |= {"activation": problem.activation, "alpha": problem.alpha}
    return result
