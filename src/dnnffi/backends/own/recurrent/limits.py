"""Limits of dnnffi's own recurrent kernels, as data."""

from __future__ import annotations

from dnnffi.backends.own.recurrent.config import CELLS
from dnnffi.backends.vendor.limits import Limit, Limits, mode_limit
from dnnffi.spec.problem import RNNProblem

_MAX_INDEX = 2**31 - 1

LIMITS: Limits[RNNProblem] = (
    mode_limit(CELLS),
    Limit(
        lambda problem: problem.spec.dtype == "float64",
        "our own kernels take float16, bfloat16 and float32; got float64",
        "use another algorithm",
    ),
    Limit(
        lambda problem: bool(problem.spec.proj_size),
        "our own kernels have no projection; got proj_size {asked.spec.proj_size}",
        "use standard",
    ),
    Limit(
        lambda problem: problem.steps * problem.batch > _MAX_INDEX,
        f"our own kernels take at most {_MAX_INDEX} rows of all steps; got "
        "{asked.steps} * {asked.batch}",
        "use standard",
    ),
    Limit(
        lambda problem: 4 * problem.batch * (problem.spec.hidden_size + 7) > _MAX_INDEX,
        f"our own kernels take at most {_MAX_INDEX} elements of the gates of a step; got "
        "4 * {asked.batch} * {asked.spec.hidden_size}",
        "use standard",
    ),
)
