"""What the strategies share."""

from __future__ import annotations

from hypothesis import strategies as st

# Hypothesis shrinks towards the first of each, so the plainest comes first.
DTYPES = ("float32", "float64", "float16", "bfloat16")


def either(fixed: bool | None) -> st.SearchStrategy[bool]:
    """``fixed``, or where it is None a bool."""
    return st.booleans() if fixed is None else st.just(fixed)
