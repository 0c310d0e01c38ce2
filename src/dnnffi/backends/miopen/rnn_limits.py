"""Limits of MIOpen's recurrent networks (3.4.0), as data."""

from __future__ import annotations

from dnnffi.backends.miopen.types import RNN_DATA_TYPES
from dnnffi.backends.vendor.limits import Limit, Limits
from dnnffi.spec.problem import RNNProblem

LIMITS: Limits[RNNProblem] = (
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
)
"""Checked before the library is asked."""
