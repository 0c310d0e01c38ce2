"""Compare results with the reference's, within what rounding allows.

A result may be off by the tolerance of its dtype, relative to the largest magnitude of its array.
That is far more than rounding makes of most arrays, but an array of few elements may be small as a
whole: a sum that cancels, the gradient of a unit that is saturated. And a unit near the corner of a
ReLU may be on for the one and off for the other. So where a result is beyond the tolerance, the
reference is computed again and again with each operation as inexact as the dtype
(`inexact`), and the result may be off by twice what rounding was seen to do. Of
12,500 networks of one to eight hidden units on cuDNN (H200), 172 had such arrays, 464 in all, and
none was off by more than 1.2 times that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import default_rng

from dnnffi.device.arrays import array_module, doubled, to_host
from dnnffi.device.interface import AnyArray
from dnnffi.errors import ValidationError
from dnnffi.spec.conv_problem import ConvProblem
from dnnffi.spec.problem import RNNProblem

SMALLEST_NORMAL = {
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    "float32": 2.0**-126,
    "float64": 2.0**-1022,
}

_DRAWS = 16  # of rounding errors: where a ReLU has its corner, few of them show both sides
_ALLOWED = 2.0  # times the farthest of them

Results = dict[str, AnyArray | None]


@np.errstate(all="ignore")
def compare(
    problem: RNNProblem | ConvProblem,
    found: Results,
    compute: Callable[..., Results],
    inputs: Sequence[AnyArray | None],
) -> None:
    """Raise unless ``found`` is what ``compute`` makes of ``inputs``, but for rounding."""
    doubles = [None if array is None else doubled(array) for array in inputs]
    results = compute(*doubles)
    allowed = tolerance(problem)
    wrong: dict[str, tuple[float, float]] = {}
    for name, array in found.items():
        expected = results[name]
        if array is not None and expected is not None:
            deviation = relative_deviation(array, expected)
            if not deviation <= allowed:
                wrong[name] = deviation, allowed
    random = default_rng(0)
    for _ in range(_DRAWS):
        if not wrong:
            return
        err = inexact(roundoff(problem), random)
        drawn = compute(*(None if array is None else err(to_host(array)) for array in doubles))
        for name, (deviation, allowed) in list(wrong.items()):
            far = _ALLOWED * _drawn_deviation(drawn[name], found[name], results[name])
            wrong[name] = deviation, max(allowed, far if far < float("inf") else 0.0)
            if deviation <= wrong[name][1]:
                del wrong[name]
    if wrong:
        raise ValidationError(wrong)


def _drawn_deviation(drawn: Any, found: Any, expected: Any) -> float:
    """Return the deviation of a result with rounding errors, rounded to the dtype of ``found``."""
    rounded = np.asarray(drawn).astype(found.dtype)  # infinite beyond the dtype's range
    return relative_deviation(rounded, to_host(expected))


@np.errstate(all="ignore")
def relative_deviation(found: AnyArray, expected: AnyArray) -> float:
    """Largest difference over the largest finite magnitude expected.

    Infinite where NaN or infinity stand in one array and not, or otherwise, in the other. A
    magnitude counts as the smallest normal number at least: below it the dtype loses precision, as
    the gradient of the first state does on its way through many steps.
    """
    xp = array_module(expected)
    smallest = SMALLEST_NORMAL[found.dtype.name]
    found = doubled(found)
    finite = xp.isfinite(expected)
    same = (found == expected) | (xp.isnan(found) & xp.isnan(expected))
    if not bool(xp.all(same | (finite & xp.isfinite(found)))):
        return float("inf")
    scale = float(xp.max(xp.where(finite, xp.abs(expected), 0)))
    difference = float(xp.max(xp.where(finite, xp.abs(found - xp.where(finite, expected, 0)), 0)))
    return difference / max(scale, smallest)


TOLERANCES = {
    ("float16", "default"): 2e-2,
    ("bfloat16", "default"): 1e-1,
    ("float32", "default"): 1e-2,
    ("float32", "strict"): 1e-4,
    ("float64", "default"): 1e-9,
}
"""Largest deviation that the dtype explains, relative to the reference's largest magnitude.
float32 has ten bits of mantissa in TF32 products, which "strict" forbids."""

ROUNDOFFS = {
    ("float16", "default"): 2.0**-11,
    ("bfloat16", "default"): 2.0**-8,
    ("float32", "default"): 2.0**-11,
    ("float32", "strict"): 2.0**-24,
    ("float64", "default"): 2.0**-53,
}
"""Largest relative error of a number that is rounded: the unit roundoff, of float32 in TF32."""


def tolerance(problem: RNNProblem | ConvProblem) -> float:
    """Return the tolerance for a problem's dtype and math."""
    return _of(TOLERANCES, problem)


def roundoff(problem: RNNProblem | ConvProblem) -> float:
    """Return the unit roundoff for a problem's dtype and math."""
    return _of(ROUNDOFFS, problem)


def _of(table: dict[tuple[str, str], float], problem: RNNProblem | ConvProblem) -> float:
    dtype, math = problem.spec.dtype, problem.options.math
    return table.get((dtype, math), table[dtype, "default"])


_HostArray = np.ndarray[Any, Any]


def inexact(roundoff: float, random: np.random.Generator) -> Callable[[_HostArray], _HostArray]:
    """Return a function that adds drawn rounding errors to float64 arrays.

    The array has relative errors of up to ``roundoff``, and so has each result of NumPy's
    operations on it. Functions that put elements into a new array, such as ``stack`` and ``where``,
    return a plain array, with the errors that its elements had.
    """

    def erring(array: _HostArray) -> _HostArray:
        return array * (1 + random.uniform(-roundoff, roundoff, array.shape))

    class Inexact(np.ndarray[Any, Any]):
        def __array_ufunc__(
            self, ufunc: np.ufunc, method: Any, *operands: Any, **keywords: Any
        ) -> Any:
            (out,) = keywords.pop("out", (None,))
            plain = (a.view(np.ndarray) if isinstance(a, Inexact) else a for a in operands)
            result = getattr(ufunc, method)(*plain, **keywords)
            if isinstance(result, np.ndarray) and result.dtype == np.float64:
                result = erring(result).view(Inexact)
            if out is None:
                return result
            out[...] = result
            return out.view(Inexact)  # ``a += b`` takes what is returned, and errs from then on

    return lambda array: erring(array).view(Inexact)
