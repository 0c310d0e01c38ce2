"""``options={"validate": True}``: the reference in float64 beside a backend's results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnnffi.convolution.plans import ReferencePlan as ConvReferencePlan
from dnnffi.device.arrays import array_module, doubled
from dnnffi.device.interface import Array
from dnnffi.errors import ValidationError
from dnnffi.execution.tolerance import tolerance
from dnnffi.rnn.reference import ReferencePlan
from dnnffi.spec.conv_problem import RESULTS, ConvProblem
from dnnffi.spec.problem import RNNProblem
from dnnffi.weights import RNNWeights

SMALLEST_NORMAL = {
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    "float32": 2.0**-126,
    "float64": 2.0**-1022,
}


def check_forward(call: Any, problem: RNNProblem, results: Sequence[Array | None]) -> None:
    """Raise `ValidationError` where y, h_n or c_n differ from the reference's."""
    plan = ReferencePlan(problem)
    expected = plan.infer(*_inputs(call))
    _compare(
        problem, dict(zip(("y", "h_n", "c_n"), zip(results, expected, strict=True), strict=True))
    )


def check_backward(
    call: Any,
    problem: RNNProblem,
    dy: Array | None,
    dh_n: Array | None,
    dc_n: Array | None,
    results: Sequence[Array | None],
    dweights: Any,
) -> None:
    """Raise `ValidationError` where a gradient differs from the reference's."""
    plan = ReferencePlan(problem)
    *_, tape = plan.forward(*_inputs(call))
    *expected, weights = plan.backward(
        tape, _double(dy), _double(dh_n), _double(dc_n), weights_needed=True, retain=False
    )
    pairs = dict(zip(("dx", "dh_0", "dc_0"), zip(results, expected, strict=True), strict=True))
    if dweights is not None:
        found = call.weight_gradient(dweights)
        arrays = found.arrays() if isinstance(found, RNNWeights) else found
        for index, pair in enumerate(zip(arrays, weights or (), strict=True)):
            pairs[f"dweights[{index}]"] = pair
    _compare(problem, pairs)


def check_conv(problem: ConvProblem, arrays: Sequence[Array | None], result: Array) -> None:
    """Raise `ValidationError` where the result of a convolution differs from the reference's."""
    expected = ConvReferencePlan(problem).run(*(_double(array) for array in arrays))
    _compare(problem, {RESULTS[problem.operation]: (result, expected)})


def _inputs(call: Any) -> tuple[Any, ...]:
    weights = call.weights
    arrays = weights.arrays() if isinstance(weights, RNNWeights) else weights
    return _double(call.x), _double(call.h_0), _double(call.c_0), [_double(w) for w in arrays]


def _double(array: Array | None) -> Array | None:
    return None if array is None else doubled(array)


def _compare(
    problem: RNNProblem | ConvProblem, pairs: dict[str, tuple[Array | None, Array | None]]
) -> None:
    allowed = tolerance(problem)
    wrong = {}
    for name, (found, expected) in pairs.items():
        if found is None or expected is None:
            continue
        deviation = relative_deviation(found, expected)
        if not deviation <= allowed:
            wrong[name] = (deviation, allowed)
    if wrong:
        raise ValidationError(wrong)


def relative_deviation(found: Array, expected: Array) -> float:
    """Largest difference over the largest finite magnitude expected.

    Infinite where NaN or infinity stand in one array and not, or otherwise, in the other. A
    magnitude counts as the smallest normal number at least: below it the dtype loses precision, as
    the gradient of the first state does on its way through many steps.
    """
    xp = array_module(expected)
    smallest = SMALLEST_NORMAL[found.dtype.name]
    found = doubled(found)
    finite = xp.isfinite(expected)
    same = (found == expected) | (xp.isnan(found) & xp.isnan(expected))
    if not bool(xp.all(same | (finite & xp.isfinite(found)))):
        return float("inf")
    scale = float(xp.max(xp.where(finite, xp.abs(expected), 0)))
    difference = float(xp.max(xp.where(finite, xp.abs(found - xp.where(finite, expected, 0)), 0)))
    return difference / max(scale, smallest)
