"""Limits of the backend "vulkan", as data."""

from __future__ import annotations

from dnnffi.backends.vendor.limits import DEVICE_LENGTHS, Limit, Limits, mode_limit
from dnnffi.backends.vulkan.shaders import MODES
from dnnffi.spec.conv_problem import ConvProblem
from dnnffi.spec.problem import RNNProblem

DTYPES = ("float16", "float32")

RNN_LIMITS: Limits[RNNProblem] = (
    mode_limit(MODES),
    DEVICE_LENGTHS,
    Limit(
        lambda problem: problem.training,
        "it runs inference alone",
        "cudnn, miopen and reference train",
    ),
    Limit(
        lambda problem: problem.spec.dtype not in DTYPES,
        f"RNNs are {' or '.join(DTYPES)}, not {{asked.spec.dtype}}",
        "cudnn and reference have it",
    ),
    Limit(
        lambda problem: problem.options.clip is not None,
        "the cell of an LSTM is not clipped",
        "cudnn and reference do",
    ),
)
"""Limits that are checked before wgpu is called."""

CONV_LIMITS: Limits[ConvProblem] = (
    Limit(lambda problem: True, "it has no convolutions", "cudnn, miopen and reference have"),
)
