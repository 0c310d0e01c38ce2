"""Comparison of arrays by a tolerance relative to the largest magnitude of each.

An absolute tolerance, or one relative to 1 where an array is smaller, takes zeros or the other sign
for a small gradient. The helpers here refuse a tolerance that would take a result 10 % off.
"""

from __future__ import annotations

import numpy as np

MAX_TOLERANCE = 0.08
"""Largest tolerance: an array scaled by 0.9 or 1.1 differs by 0.1 of its largest magnitude."""

TOLERANCES = {"float16": 1e-2, "bfloat16": 6e-2, "float32": 1e-4, "float64": 1e-9}
"""Allowed error of a result, as a part of the largest magnitude of its array, by dtype."""


def assert_near(found, expected, tolerance, name="array", terms=0.0):
    """Raise ``AssertionError`` unless two arrays have one shape and are near each other.

    The largest difference may be ``tolerance`` of the largest magnitude in ``expected``. An array
    of zeros allows no difference, and NaN is near nothing.

    ``terms`` is the magnitude of what an element is a sum of, for random problems of a few elements
    whose terms may cancel: there rounding is a part of the terms, not of the sum.
    """
    if not 0 <= tolerance <= MAX_TOLERANCE:
        raise ValueError(f"tolerance must be from 0 to {MAX_TOLERANCE}; got {tolerance}")
    found, expected = (np.asarray(array).astype("float64") for array in (found, expected))
    assert found.shape == expected.shape, f"{name}: {found.shape} is not {expected.shape}"
    if not expected.size:
        return
    scale = max(float(np.abs(expected).max()), terms)
    error = float(np.abs(found - expected).max())
    allowed = tolerance * scale
    assert error <= allowed, f"{name}: error {error:.3g} of {scale:.3g}, allowed {allowed:.3g}"
