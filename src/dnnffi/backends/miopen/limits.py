"""Limits of MIOpen (3.4.0) and of its fusion plans, as data."""

from __future__ import annotations

from math import prod

from dnnffi.backends.miopen.library import CONVOLUTION_DATA_TYPES, MODES, RNN_DATA_TYPES
from dnnffi.backends.vendor.limits import (
    DEVICE_LENGTHS,
    OUTPUT_PADDING,
    RESETS,
    STATE_ELEMENTS,
    Limit,
    Limits,
    mode_limit,
)
from dnnffi.spec.checks import INT32_MAX
from dnnffi.spec.conv_problem import ConvProblem
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.weights import weight_layout

MAX_BIASED_ROWS = 65_535
"""Rows of all steps that biases are added to in one call. The kernel that adds them has a block in
y for each row, and no grid has more: the launch fails, and MIOpen does not look at its status
(ROCm/rocm-libraries#10551, pytorch/pytorch#177834). A problem with more runs in groups of rows."""

BIASED_ROWS_MENDED = 3, 6, 0
"""The version without this limit (rocm-libraries#9049)."""


def _longest(problem: RNNProblem) -> int:
    return problem.steps if problem.lengths is None else max(problem.lengths)


RNN_LIMITS: Limits[RNNProblem] = (
    mode_limit(MODES),
    RESETS,
    DEVICE_LENGTHS,
    Limit(
        lambda problem: problem.spec.dtype not in RNN_DATA_TYPES,
        f"RNNs are {' or '.join(RNN_DATA_TYPES)}, not {{asked.spec.dtype}}",
        "cudnn and reference have it",
    ),
    Limit(
        lambda problem: bool(problem.spec.proj_size),
        "an LSTM has no projection",
        "cudnn and reference have it",
    ),
    Limit(
        lambda problem: weight_layout(problem.spec, "miopen").size > INT32_MAX,
        f"the weights have at most {INT32_MAX} elements",
        "cudnn and reference have no such limit",
    ),
    Limit(
        lambda problem: problem.options.clip is not None,
        "the cell of an LSTM is not clipped",
        "cudnn and reference do",
    ),
    Limit(
        lambda problem: problem.options.math != "default",
        "there is no choice of math, {asked.options.math!r} was asked for",
        "cudnn has it",
    ),
    Limit(
        lambda problem: problem.spec.bias and _longest(problem) > MAX_BIASED_ROWS,
        f"with biases a row has at most {MAX_BIASED_ROWS:,} steps, of more MIOpen before 3.6 gives "
        "wrong results without an error; x is {asked.x_shape}",
        "divide the sequence, or use MIOpen 3.6",
        mended=BIASED_ROWS_MENDED,
    ),
)
"""Checked before the library is asked."""

GROUP_LIMITS: Limits[RNNProblem] = (STATE_ELEMENTS,)
"""Limits of the rows that one executor runs, which may be a group of those of a problem."""


def _max_elements(problem: ConvProblem) -> int:
    return max(map(prod, (problem.x_shape, problem.spec.weight_shape, problem.y_shape)))


CONV_LIMITS: Limits[ConvProblem] = (
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
        lambda problem: _max_elements(problem) > INT32_MAX,
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
