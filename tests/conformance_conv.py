"""Problems, oracles and tolerances of the convolutions, written once for every backend under test.

The oracle of a backend is the reference in float64 on NumPy, given the same rounded inputs. The
oracle of the reference is the definition, `by_definition`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import limit_tables
import numpy as np
import pytest
from conformance import deviation, tolerance

import dnnffi
from dnnffi import testing
from dnnffi.convolution.reference_plan import ReferenceConvPlan
from dnnffi.errors import UnsupportedError
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import BACKWARD_DATA, FORWARD, OPERATIONS, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST, LAYOUTS, memory_layout

DTYPES = ("float64", "float32", "float16", "bfloat16")
GROUPINGS = ("whole", "groups", "depthwise")


class Case(NamedTuple):
    """A problem and the seed of its arrays."""

    problem: ConvProblem
    seed: int

    def __str__(self):
        problem, spec = self.problem, self.problem.spec
        parts = [
            "transposed" if spec.transposed else "",
            problem.operation,
            f"{spec.rank}d",
            spec.dtype,
            problem.layout.removeprefix("channels_"),
            "depthwise" if spec.depthwise else f"G{spec.groups}",
            f"C{spec.in_channels}K{spec.out_channels}N{problem.batch}",
            *(
                f"{letter}{''.join(map(_joined, values))}"
                for letter, values in zip(
                    "kspdo",
                    (spec.kernel, spec.stride, spec.padding, spec.dilation, spec.output_padding),
                    strict=True,
                )
            ),
            "bias" if problem.bias else "",
            "residual" if problem.residual else "",
            problem.activation or "",
            problem.options.math if problem.options.math != "default" else "",
        ]
        return "-".join(part for part in parts if part)


def _joined(value):
    """A number, or a pair of padding as before+after."""
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def matrix():
    """Ranks x dtypes x layouts x groupings x transposed x operations, of random odd geometry.

    Forwards take turns in having a bias, a residual and an activation.
    """
    cases = []
    for rank, dtype, layout, grouping, transposed, operation in itertools.product(
        (1, 2, 3), DTYPES, LAYOUTS, GROUPINGS, (False, True), OPERATIONS
    ):
        seed = len(cases)
        rng = np.random.default_rng(seed)
        spec = _spec(rng, rank, dtype, grouping, transposed)
        if seed % 5 == 3:  # coprime to the number of combinations, so that all kinds come
            spec = _asymmetric(spec, np.random.default_rng((seed, 1)))
        more = {}
        if operation == FORWARD:
            residual, bias, relu = rng.random(3) < 0.5
            more = {
                "residual": bool(residual),
                "alpha": float(rng.choice([1.0, 0.5, -2.0])),
                "bias": bool(bias),
                "activation": "relu" if relu else None,
            }
        sizes = [
            max(1, span - before - after) + 2 + int(rng.integers(0, 5))
            for span, before, after in zip(
                spec.span, spec.padding_before, spec.padding_after, strict=True
            )
        ]
        options = ConvOptions(math="strict" if seed % 2 else "default")
        x_shape = spec.x_shape(int(rng.integers(1, 4)), sizes)
        problem = ConvProblem.of(operation, spec, x_shape, layout=layout, options=options, **more)
        cases.append(Case(problem, seed))
    return cases


def _spec(rng, rank, dtype, grouping, transposed):
    def each(least, most):
        return tuple(int(n) for n in rng.integers(least, most + 1, rank))

    groups = 1 if grouping == "whole" else int(rng.integers(2, 5))
    few = 1 if grouping == "depthwise" else int(rng.integers(1 if groups == 1 else 2, 6))
    many = int(rng.integers(1, 6))
    # Plain ones, which vendors have their best kernels for, as often as all others.
    if rng.random() < 0.5:
        kernel = (int(rng.choice([1, 3])),) * rank
        padding = tuple(k // 2 for k in kernel)
        stride, dilation = each(1, 2), (1,) * rank
    else:
        kernel, stride, dilation = each(1, 4), each(1, 3), each(1, 3)
        padding = tuple(min(p, k - 1) for p, k in zip(each(0, 2), kernel, strict=True))
    return ConvSpec(
        in_channels=groups * (many if transposed else few),
        out_channels=groups * (few if transposed else many),
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        transposed=transposed,
        # Below the stride: with more, no ordinary convolution leads back to the sizes.
        output_padding=tuple(int(rng.integers(0, s)) for s in stride) if transposed else 0,
        dtype=dtype,
    )


def _asymmetric(spec, rng):
    """A copy of a case with padding that differs between the sides of some dimensions."""
    most = [min(2, span - 1) for span in spec.span]
    pairs = tuple(tuple(map(int, rng.integers(0, one + 1, 2))) for one in most)
    return replace(spec, padding=pairs)


def arguments(problem, arrays):
    """The arrays that the problem's operation reads, in the order of its plans."""
    if problem.operation == FORWARD:
        return (arrays.x, arrays.w, arrays.bias, arrays.residual)
    return (arrays.dy, arrays.w if problem.operation == BACKWARD_DATA else arrays.x)


def expected(problem, arrays):
    """The reference's result in float64."""
    doubles = (None if a is None else a.astype(np.float64) for a in arguments(problem, arrays))
    return ReferenceConvPlan(problem).run(*doubles)


def run(problem, arrays, asarray=np.asarray, backend=None, options=None):
    """The functional API's result; ``options`` are those besides the problem's."""
    spec, operation = problem.spec, problem.operation
    last = problem.layout == CHANNELS_LAST

    def put(array):
        if array is None:
            return None
        if array.ndim == 1 or not last:
            return asarray(np.ascontiguousarray(array))
        # A view of what is contiguous, which any kind of array has.
        placed = asarray(np.ascontiguousarray(np.moveaxis(array, 1, -1)))
        return placed.transpose(0, placed.ndim - 1, *range(1, placed.ndim - 1))

    given = [put(array) for array in arguments(problem, arrays)]
    keywords = testing.conv_keywords(problem) | {"backend": backend}
    keywords["options"] |= options or {}
    name = "conv_transpose" if spec.transposed else "conv"
    if operation == FORWARD:
        *positional, residual = given
        return getattr(dnnffi, name)(*positional, residual=residual, **keywords)
    shape = problem.x_shape if operation == BACKWARD_DATA else spec.weight_shape
    return getattr(dnnffi, f"{name}_{operation}")(*given, shape, **keywords)


def check(case, asarray=np.asarray, backend=None):
    """Check a case by the functional API against the reference in float64."""
    problem = case.problem
    arrays = testing.conv_inputs(problem, case.seed)
    found = check_values(problem, arrays, asarray, backend)
    assert found.dtype.name == problem.spec.dtype
    assert memory_layout(found.shape, found.strides) in (None, told_layout(problem, arrays))


def check_values(problem, arrays, asarray=np.asarray, backend=None):
    """Compare the shape and the values of `run` with the reference, and return the result."""
    found = run(problem, arrays, asarray, backend)
    assert found.shape == problem.result_shape
    error = deviation(found, expected(problem, arrays))
    allowed = tolerance(problem)
    assert error <= allowed, f"relative error {error:.3g}, allowed {allowed:.3g}"
    return found


def cells(backend, limits="LIMITS"):
    """The problems of the documentation's table and what it says of each, as parameters."""
    return [
        pytest.param(one, limit_tables.conv_cell(row, backend), id=f"{row.words}-{number}")
        for row in limit_tables.CONV_ROWS
        if row.limits is getattr(limit_tables, limits)
        for number, one in enumerate(row.asked)
    ]


def can_be_run(cells):
    """Return the cells whose problems fit into memory."""
    return [one for one in cells if one.values[0].batch < 2**10]


def refusal(cell):
    """The limit that a cell tells, or nothing."""
    kind, colon, limit = cell.partition(": ")
    assert (kind, bool(colon)) in {("no", True), ("yes", False), ("ignored", False)}
    return limit


def check_cell(problem, cell, asarray=np.asarray, backend=None):
    """Check that the call is refused as the table says, or its result is right."""
    if limit := refusal(cell):
        with pytest.raises(UnsupportedError) as caught:
            run(problem, testing.conv_inputs(problem, 0), asarray, backend)
        assert caught.value.limit == limit
    else:
        check(Case(problem, 0), asarray, backend)


def told_layout(problem, arrays):
    """Return the layout that the arrays' strides tell; channels first if all have one channel."""
    first, second, *_ = arguments(problem, arrays)
    return (
        memory_layout(first.shape, first.strides)
        or memory_layout(second.shape, second.strides)
        or CHANNELS_FIRST
    )


def by_definition(problem, arrays):
    """The result of a problem by loops over positions: the definition, sharing no code with it."""
    spec, operation = problem.spec, problem.operation
    x, w, dy = (a.astype(np.float64) for a in (arrays.x, arrays.w, arrays.dy))
    y, dx, dw = (np.zeros(a.shape) for a in (dy, x, w))
    for xs, ys, tap in _meetings(problem):
        for group in range(spec.groups):
            c = _channels(spec.in_channels, spec.groups, group)
            k = _channels(spec.out_channels, spec.groups, group)
            if spec.transposed:
                matrix = w[(c, slice(None), *tap)]  # [C/G, K/G]
                dw[(c, slice(None), *tap)] += x[(slice(None), c, *xs)].T @ dy[(slice(None), k, *ys)]
            else:
                matrix = w[(k, slice(None), *tap)].T
                dw[(k, slice(None), *tap)] += dy[(slice(None), k, *ys)].T @ x[(slice(None), c, *xs)]
            y[(slice(None), k, *ys)] += x[(slice(None), c, *xs)] @ matrix
            dx[(slice(None), c, *xs)] += dy[(slice(None), k, *ys)] @ matrix.T
    if operation != FORWARD:
        return dx if operation == BACKWARD_DATA else dw
    if problem.residual:
        y += problem.alpha * arrays.residual.astype(np.float64)
    if problem.bias:
        y += arrays.bias.astype(np.float64).reshape(-1, *(1,) * spec.rank)
    return np.where(y > 0, y, 0) if problem.activation == "relu" else y


def _meetings(problem):
    """Every (position of x, position of y, position of the kernel) that are multiplied."""
    spec = problem.spec
    ends = problem.y_shape[2:] if spec.transposed else problem.sizes
    walk = problem.sizes if spec.transposed else problem.y_shape[2:]
    for small in np.ndindex(*walk):
        for tap in np.ndindex(*spec.kernel):
            large = tuple(
                s * one + d * t - p
                for one, t, s, d, p in zip(
                    small, tap, spec.stride, spec.dilation, spec.padding_before, strict=True
                )
            )
            if all(0 <= one < end for one, end in zip(large, ends, strict=True)):
                yield (small, large, tap) if spec.transposed else (large, small, tap)


def _channels(channels, groups, group):
    each = channels // groups
    return slice(group * each, (group + 1) * each)
