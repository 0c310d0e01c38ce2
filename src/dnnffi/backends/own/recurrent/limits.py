"""Limits of dnnffi's own recurrent kernels, as data."""

from __future__ import annotations

from dnnffi.backends.own.recurrent.config import CELLS
from dnnffi.backends.vendor.limits import Limit, Limits, mode_limit
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import RNNProblem

_MAX_INDEX = 2**31 - 1


def _gate_bytes(problem: RNNProblem) -> int:
    """Return the bytes of a step's gates, padded: by no more does a kernel's address advance."""
    return 4 * problem.batch * (problem.spec.hidden_size + 7) * ITEM_SIZES[problem.spec.dtype]


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
        lambda problem: _gate_bytes(problem) > _MAX_INDEX,
        f"our own kernels take at most {_MAX_INDEX} bytes of the gates of a step; got "
        "{asked.batch} rows of 4 * {asked.spec.hidden_size} elements in {asked.spec.dtype}",
        "use standard",
    ),
)
