"""Limits of cuDNN's convolutions, as data."""

from __future__ import annotations

from dnnffi.backends.vendor.limits import OUTPUT_PADDING, Limits
from dnnffi.spec.conv_problem import ConvProblem

LIMITS: Limits[ConvProblem] = (OUTPUT_PADDING,)
"""Checked before the library is asked. Whether it has an engine for the rest, only it can tell."""
