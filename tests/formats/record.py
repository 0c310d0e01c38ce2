"""Arrays in a JSON file: by their shapes and elements, in lists and mappings of other values."""

from __future__ import annotations

import numpy as np


def encoded(value):
    """Convert ``value`` to types of JSON; arrays become their shape and elements."""
    if isinstance(value, dict):
        return {name: encoded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(one) for one in value]
    if value is None or isinstance(value, str | int | float):
        return value
    array = np.asarray(value)
    return {"shape": array.shape, "elements": [float(one) for one in array.ravel()]}


def decoded(value):
    """Convert a value of `encoded` back, with its arrays in float32."""
    if isinstance(value, list):
        return [decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"shape", "elements"}:
        return np.array(value["elements"], "float32").reshape(value["shape"])
    return {name: decoded(one) for name, one in value.items()}
