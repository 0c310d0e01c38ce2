"""Limits of MIOpen's recurrent networks (3.4.0), as data."""

from __future__ import annotations

from dnnffi.backends.miopen.types import RNN_DATA_TYPES
from dnnffi.backends.vendor.limits import DEVICE_LENGTHS, RESETS, Limit, Limits
from dnnffi.spec.problem import RNNProblem

MAX_BIASED_ROWS = 65_535
"""Rows of all steps that biases are added to in one call. The kernel that adds them has a block in
y for each row, and no grid has more: the launch fails, and MIOpen does not look at its status
(ROCm/rocm-libraries#10551, pytorch/pytorch#177834). A problem with more runs in groups of rows."""

BIASED_ROWS_MENDED = 3, 6, 0
"""The version without this limit (rocm-libraries#9049)."""


def _longest(problem: RNNProblem) -> int:
    return problem.steps if problem.lengths is None else max(problem.lengths)


LIMITS: Limits[RNNProblem] = (
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
