"""Implement ``options={"validate": True}`` by comparing a convolution with a float64 reference."""

from __future__ import annotations

from collections.abc import Sequence

from dnnffi.convolution.reference import ReferenceConvPlan
from dnnffi.device.interface import AnyArray
from dnnffi.execution.comparison import compare
from dnnffi.spec.conv_problem import RESULTS, ConvProblem


def check_conv(problem: ConvProblem, arrays: Sequence[AnyArray | None], result: AnyArray) -> None:
    """Raise `ValidationError` where the result of a convolution differs from the reference's."""
    plan, name = ReferenceConvPlan(problem), RESULTS[problem.operation]
    compare(problem, {name: result}, lambda *arrays: {name: plan.run(*arrays)}, arrays)
