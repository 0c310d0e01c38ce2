"""How far results may be apart, for a dtype and the math that was asked for."""

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


def tolerance(problem: RNNProblem | ConvProblem) -> float:
    """The tolerance for a problem's dtype and math."""
    dtype, math = problem.spec.dtype, problem.options.math
    return TOLERANCES.get((dtype, math), TOLERANCES[dtype, "default"])
