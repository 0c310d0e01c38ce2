"""Implement ``options={"validate": True}`` by comparing a network with a float64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnnffi.device.arrays import to_host
from dnnffi.device.interface import AnyArray
from dnnffi.execution.comparison import Results, compare
from dnnffi.rnn.reference_plan import ReferenceRNNPlan
from dnnffi.rnn.resets import Resets
from dnnffi.rnn.row_arrays import lengths_on_host
from dnnffi.spec.problem import RNNProblem
from dnnffi.weights import RNNWeights


def check_forward(call: Any, problem: RNNProblem, results: Sequence[AnyArray | None]) -> None:
    """Raise `ValidationError` where y, h_n or c_n differ from the reference's."""
    problem = _with_lengths(call, problem)
    plan, names = ReferenceRNNPlan(problem), ("y", "h_n", "c_n")
    resets = _on_host(call.resets)

    def compute(
        x: AnyArray, h_0: AnyArray | None, c_0: AnyArray | None, *weights: AnyArray
    ) -> Results:
        *results, _ = plan.forward(x, h_0, c_0, weights, resets)
        return dict(zip(names, results, strict=True))

    compare(problem, dict(zip(names, results, strict=True)), compute, _inputs(call))


def check_backward(
    call: Any,
    problem: RNNProblem,
    dy: AnyArray | None,
    dh_n: AnyArray | None,
    dc_n: AnyArray | None,
    results: Sequence[AnyArray | None],
    dweights: Any,
) -> None:
    """Raise `ValidationError` where a gradient differs from the reference's."""
    problem = _with_lengths(call, problem)
    plan, names = ReferenceRNNPlan(problem), ("dx", "dh_0", "dc_0")
    resets = _on_host(call.resets)

    def compute(
        dy: AnyArray | None,
        dh_n: AnyArray | None,
        dc_n: AnyArray | None,
        x: AnyArray,
        h_0: AnyArray | None,
        c_0: AnyArray | None,
        *weights: AnyArray,
    ) -> Results:
        *_, tape = plan.forward(x, h_0, c_0, weights, resets)
        *data, gradients, _ = plan.backward(tape, dy, dh_n, dc_n, weights_needed=True, retain=False)
        return dict(zip(names, data, strict=True)) | _numbered(gradients or ())

    found = dict(zip(names, results, strict=True))
    if dweights is not None:
        gradient = call.weight_gradient(dweights)
        found |= _numbered(gradient.arrays() if isinstance(gradient, RNNWeights) else gradient)
    compare(problem, found, compute, [dy, dh_n, dc_n, *_inputs(call)])


def _with_lengths(call: Any, problem: RNNProblem) -> RNNProblem:
    """Return the problem with the lengths of a call on the device, after checking them."""
    if call.lengths is None:
        return problem
    lengths = lengths_on_host(call.lengths, problem.steps, is_strict=True)
    return problem._replace(lengths=lengths, has_device_lengths=False)


def _on_host(resets: Resets | None) -> Resets | None:
    """Return the same for a reference on any arrays, and with rounding errors added."""
    if resets is None:
        return None
    return Resets._make(None if array is None else to_host(array) for array in resets)


def _inputs(call: Any) -> list[AnyArray | None]:
    weights = call.weights
    arrays = weights.arrays() if isinstance(weights, RNNWeights) else weights
    return [call.x, call.h_0, call.c_0, *arrays]


def _numbered(gradients: Sequence[AnyArray]) -> Results:
    return {f"dweights[{index}]": gradient for index, gradient in enumerate(gradients)}
