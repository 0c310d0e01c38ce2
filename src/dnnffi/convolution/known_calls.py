"""Calls of convolutions that look like an earlier one: their plans, without its checks."""

from __future__ import annotations

from typing import Any
from weakref import ref

from dnnffi.backends.cudnn.graph.tensor import MISALIGNED
from dnnffi.convolution.plans import ConvPlan
from dnnffi.spec.conv_options import ConvOptions

Call = tuple[Any, ...]
"""What a call is given beside arrays and options: operation, transposed, the shape that a backward
is told or None, (stride, padding, dilation, output_padding), groups, activation, alpha, backend."""

Key = tuple[Any, ...]

MOST_CALLS = 1024
"""Calls that are known before they are forgotten all at once."""

_ONLY_INTEGERS = {int}


class KnownCalls:
    """The plans of calls that were checked, by all that was checked of them.

    Plans are referred to weakly: how many there are is the plan cache's business.
    """

    def __init__(self, ndarray: Any) -> None:
        self._ndarray = ndarray
        self._plans: dict[Key, ref[ConvPlan]] = {}

    def sign(
        self, call: Call, options: ConvOptions, arrays: tuple[Any, ...]
    ) -> tuple[Key, list[int]] | None:
        """What a call is known by, and the addresses of its arrays.

        None for a call that has to be looked at closely: with arrays that are not CuPy's, are not
        on one device, of one dtype and aligned, or with numbers that are not plain. Of these there
        is more than one kind that compares equal, as 1, True and 1.0 do.
        """
        _, _, shape, geometry, groups, activation, alpha, backend = call
        for value in geometry:
            if value.__class__ is not int and not _plain(value):
                return None
        if groups.__class__ is not int or alpha.__class__ is not float:
            return None
        if shape is not None and not _plain(shape):
            return None
        if activation is not None and activation.__class__ is not str:
            return None
        if backend is not None and backend.__class__ is not str:
            return None
        ndarray = self._ndarray
        first = arrays[0]
        if first.__class__ is not ndarray:
            return None
        dtype, device = first.dtype, first.data.device_id
        key: list[Any] = [call, options, dtype, device]
        addresses = []
        for array in arrays:
            if array is None:
                key.append(None)
                continue
            if array.__class__ is not ndarray or array.dtype is not dtype:
                return None
            data = array.data
            address = data.ptr
            if address & MISALIGNED or data.device_id != device:
                return None
            key.append(array.shape)
            key.append(array.strides)
            addresses.append(address)
        return tuple(key), addresses

    def find(self, key: Key) -> ConvPlan | None:
        """The plan of a call that was added, if it is still there."""
        known = self._plans.get(key)
        return None if known is None else known()

    def add(self, key: Key, plan: ConvPlan) -> None:
        """Know a call from now on. It has passed all checks, and ``plan`` takes its arrays."""
        if len(self._plans) >= MOST_CALLS:
            self._plans.clear()
        self._plans[key] = ref(plan)

    def clear(self) -> None:
        """Forget all calls."""
        self._plans.clear()

    def __len__(self) -> int:
        return len(self._plans)


def _plain(value: Any) -> bool:
    """Whether it is a tuple of integers."""
    return value.__class__ is tuple and {*map(type, value)} == _ONLY_INTEGERS
