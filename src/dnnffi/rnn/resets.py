"""Resets of a call: where states are replaced between steps, and by what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnnffi.device.arrays import as_array, ready
from dnnffi.device.interface import AnyArray
from dnnffi.device.spans import Span, spans_of
from dnnffi.errors import UnsupportedError
from dnnffi.spec.problem import RNNProblem

if TYPE_CHECKING:  # it imports the plans, which take resets
    from dnnffi.rnn.call import CallArrays

RESET_NAMES = "reset_to[0]", "reset_to[1]"
"""Names of the parts of an LSTM's reset_to in error messages."""

FLAG_DTYPES = "bool", "uint8", "int8"
"""Dtypes of one byte, whose arrays kernels read as they are."""


class Resets(NamedTuple):
    """The arrays of a call with resets, which its plan takes.

    ``flags`` [T, B] in the layout of x has one byte for each row of each step; not zero: the state
    before the step is replaced. ``h`` and ``c`` [L*D, 1 or B, .] replace it; None stands for zeros.
    """

    flags: AnyArray
    h: AnyArray | None = None
    c: AnyArray | None = None

    @property
    def rows(self) -> int:
        """Rows of the states that replace others: 1, or one for each of the batch."""
        return 1 if self.h is None else int(self.h.shape[1])

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """The addresses of flags, h and c in device memory, 0 for none, and `rows`."""
        flags, h, c = self
        if h is None:
            return flags.data.ptr, 0, 0, 1
        return flags.data.ptr, h.data.ptr, 0 if c is None else c.data.ptr, self.rows

    @classmethod
    def of(cls, call: CallArrays, problem: RNNProblem, flags: object, states: Any) -> Resets:
        """Return the resets of a call, checked; errors name the argument at fault.

        ``states`` are those that replace others, (h, c), either of them None where it is missing.
        """
        found = cls(_flags(call, flags, problem.leading_shape))
        h, c = states
        if h is None:
            return found
        names = RESET_NAMES if problem.spec.has_cell else ("reset_to", "")
        h = _state(call, names[0], h, problem.h_shape)
        if c is not None:
            c = _state(call, names[1], c, problem.c_shape)
            check_rows(h.shape[1], c.shape[1])
        return cls(found.flags, h, c)


def check_given(resets: object, reset_to: object) -> None:
    """Raise ``ValueError`` for the state of resets without resets."""
    if resets is None and reset_to is not None:
        raise ValueError("reset_to is the state of resets; give resets, too, or leave it out")


def check_rows(of_h: int, of_c: int) -> None:
    """Raise ``ValueError`` unless both parts of a reset_to have as many rows."""
    if of_h != of_c:
        raise ValueError(
            f"reset_to must have one row for all in both parts, or one for each; got {of_h} in "
            f"{RESET_NAMES[0]} and {of_c} in {RESET_NAMES[1]}"
        )


def row_spans(resets: Resets | None, lengths: AnyArray | None) -> list[Span]:
    """Return the memory of the arrays about rows that a forward pass reads."""
    names = "lengths", "resets", "reset_to", "reset_to"
    return spans_of(names, (lengths, *(resets or ())))


def check_sums(array: AnyArray) -> None:
    """Raise `UnsupportedError` for an array of an allocator.

    It has no sum, which the gradient of a reset state with one row for all is.
    """
    if not hasattr(array, "sum"):
        raise UnsupportedError(
            "dnnffi",
            "",
            "with an allocator there is no gradient of reset_to with one row for all; give one for "
            "each row, or leave it out of need",
        )


def row_gradient(gradient: AnyArray | None, rows: int) -> AnyArray | None:
    """Return the gradient of a reset state of 1 or B ``rows``, from ``gradient`` [L*D, B, .]."""
    if gradient is None or gradient.shape[1] == rows:
        return gradient
    check_sums(gradient)
    total: AnyArray = gradient.sum(axis=1, keepdims=True)
    return total


def _flags(call: CallArrays, value: object, shape: tuple[int, ...]) -> AnyArray:
    if isinstance(value, list | tuple):
        raise TypeError(
            f"resets must be an array; got {type(value).__name__}; "
            f"use numpy.asarray(resets, 'bool')"
        )
    flags: Any = as_array("resets", value)
    if not isinstance(flags, np.ndarray):
        call.check_device("resets", flags)
    if tuple(flags.shape) != shape:
        raise ValueError(
            f"resets must have the shape of x without its last dimension, {shape}; got "
            f"{tuple(flags.shape)}"
        )
    if flags.dtype.kind not in "biu":
        raise TypeError(f"resets must be bool or integers; got {flags.dtype}")
    if flags.dtype.name not in FLAG_DTYPES:
        if not hasattr(flags, "astype"):
            raise TypeError(
                f"resets of an allocator must be {', '.join(FLAG_DTYPES)}; got {flags.dtype}"
            )
        flags = flags != 0
    return call.backend.placed(ready("resets", flags), call.device)


def _state(call: CallArrays, name: str, state: Any, shape: tuple[int, ...]) -> AnyArray:
    """Return a state that replaces others, with a row for all or for each."""
    array = as_array(name, state)
    one = shape[0], 1, shape[2]
    if tuple(array.shape) not in (one, shape):
        raise ValueError(
            f"{name} must have shape {one}, one row for all, or {shape}; got {tuple(array.shape)}"
        )
    return call.array(name, array, tuple(array.shape))
