"""Tolerances of results, by dtype and by the math that was requested."""

from __future__ import annotations

from dnnffi.spec.conv_problem import ConvProblem
from dnnffi.spec.problem import RNNProblem

TOLERANCES = {
    ("float16", "default"): 2e-2,
    ("bfloat16", "default"): 1e-1,
    ("float32", "default"): 1e-2,
    ("float32", "strict"): 1e-4,
    ("float64", "default"): 1e-9,
}
"""Largest deviation that the dtype explains, relative to the reference's largest magnitude.
float32 has ten bits of mantissa in TF32 products, which "strict" forbids."""

ROUNDOFFS = {
    ("float16", "default"): 2.0**-11,
    ("bfloat16", "default"): 2.0**-8,
    ("float32", "default"): 2.0**-11,
    ("float32", "strict"): 2.0**-24,
    ("float64", "default"): 2.0**-53,
}
"""Largest relative error of a number that is rounded: the unit roundoff, of float32 in TF32."""


def tolerance(problem: RNNProblem | ConvProblem) -> float:
    """Return the tolerance for a problem's dtype and math."""
    return _of(TOLERANCES, problem)


def roundoff(problem: RNNProblem | ConvProblem) -> float:
    """Return the unit roundoff for a problem's dtype and math."""
    return _of(ROUNDOFFS, problem)


def _of(table: dict[tuple[str, str], float], problem: RNNProblem | ConvProblem) -> float:
    dtype, math = problem.spec.dtype, problem.options.math
    return table.get((dtype, math), table[dtype, "default"])
