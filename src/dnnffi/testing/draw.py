"""Helpers of the strategies."""

from __future__ import annotations

from hypothesis import strategies as st

from dnnffi.spec.names import DType

# Hypothesis shrinks towards the first of each, so the plainest comes first.
DTYPES: tuple[DType, ...] = ("float32", "float64", "float16", "bfloat16")


def either(fixed: bool | None) -> st.SearchStrategy[bool]:
    """``fixed``, or where it is None a bool."""
    return st.booleans() if fixed is None else st.just(fixed)
