"""Limits of MIOpen's convolutions (3.4.0) and of its fusion plans, as data."""

from __future__ import annotations

from math import prod

from dnnffi.backends.miopen.types import CONVOLUTION_DATA_TYPES
from dnnffi.backends.vendor.limits import OUTPUT_PADDING, Limit, Limits
from dnnffi.spec.checks import INT32_MAX
from dnnffi.spec.conv_problem import ConvProblem


def _most_elements(problem: ConvProblem) -> int:
    return max(map(prod, (problem.x_shape, problem.spec.weight_shape, problem.y_shape)))


LIMITS: Limits[ConvProblem] = (
    Limit(
        lambda problem: problem.spec.dtype not in CONVOLUTION_DATA_TYPES,
        f"convolutions are {', '.join(CONVOLUTION_DATA_TYPES)}, not {{asked.spec.dtype}}",
        "cudnn and reference have it",
    ),
    Limit(
        lambda problem: problem.options.math != "default",
        "there is no choice of math, {asked.options.math!r} was asked for",
        "cudnn has it",
    ),
    Limit(
        lambda problem: problem.spec.dtype == "bfloat16" and bool(problem.epilogue),
        "a convolution in bfloat16 has no bias, residual or activation",
        "cudnn and reference have them",
    ),
    OUTPUT_PADDING,
    Limit(
        lambda problem: _most_elements(problem) > INT32_MAX,
        f"an array has at most {INT32_MAX} elements; x is {{asked.x_shape}}, w "
        "{asked.spec.weight_shape}, y {asked.y_shape}",
        "make the batch or the sizes smaller",
    ),
)
"""Checked before the library is asked."""

FUSION: Limits[ConvProblem] = (
    Limit(lambda problem: problem.residual, "a fusion plan has no residual"),
    Limit(lambda problem: problem.spec.transposed, "a fusion plan is not transposed"),
    Limit(
        lambda problem: problem.options.deterministic,
        "a fusion plan is not made where options['deterministic'] is True",
    ),
    Limit(
        lambda problem: problem.spec.dtype != "float32",
        "a fusion plan is float32, not {asked.spec.dtype}",
    ),
    Limit(lambda problem: problem.channels_last, "a fusion plan has the channels first"),
    Limit(
        lambda problem: problem.spec.rank > 2,
        "a fusion plan has one or two dimensions, not {asked.spec.rank}",
    ),
)
"""Limits of bias and ReLU in the convolution's kernel; beyond them they have kernels of their own.

Whether there is such a kernel for the rest, only the library can tell.
"""

BIAS_GRADIENT: Limits[str] = (
    Limit(
        lambda dtype: dtype not in ("float16", "float32"),
        "the gradient of a bias is float16 or float32, not {asked}",
        "reference has it",
    ),
)
"""Limits of the dtype of a gradient that MIOpen sums."""
