"""The checks of a dropout descriptor's arguments."""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.arrays import Array
from dnnffi.backends.descriptors.checks import integer


class DropoutInfo(NamedTuple):
    """A dropout descriptor to set or as read back; ``states`` is a device address."""

    dropout: float
    states: int
    seed: int


def check_dropout(dropout: float, states: Array | None, seed: int) -> DropoutInfo:
    """Probability, address of the states (0 for none) and seed, or an error naming one."""
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout must be from 0 to 1; got {dropout}")
    if dropout and states is None:
        raise ValueError("states: a dropout above 0 needs a buffer for its random numbers")
    return DropoutInfo(dropout, _address(states), integer("seed", seed, 0, 2**64 - 1))


def _address(states: Array | None) -> int:
    if states is None:
        return 0
    try:
        return int(states.data.ptr)
    except AttributeError:
        raise TypeError(f"states must be a device array; got {type(states).__name__}") from None
