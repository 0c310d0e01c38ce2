"""Limits of cuDNN's convolutions, as data."""

from __future__ import annotations

from dnnffi.backends.vendor.limits import OUTPUT_PADDING, Limit, Limits
from dnnffi.spec.conv_problem import ConvProblem

LIMITS: Limits[ConvProblem] = (OUTPUT_PADDING,)
"""Checked before the library is asked. Whether it has an engine for the rest, only it can tell."""

ALLOCATOR: Limits[object] = (
    Limit(lambda asked: True, "convolutions take CuPy arrays, without options['allocator']"),
)
"""Of calls with an allocator."""
