"""Estimate how far rounding alone takes a result, by computing again with an error per operation.

In the standard model of floating-point arithmetic an operation gives (a op b) (1 + d), where d is
at most the unit roundoff. Here d is drawn at random. The result shows the effect of all operations:
of cancellation, of a derivative that is nearly zero, and of the corner of a ReLU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

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
