"""Lengths of the rows of a batch, and the batch size at each step of packed sequences."""

from __future__ import annotations

from collections.abc import Sized
from functools import lru_cache
from itertools import pairwise

from dnnffi.spec.checks import is_ordered, is_peculiar, shown
from dnnffi.spec.names import Integers

MAX_ENTRIES = 2**24
"""Steps, and rows of a batch, that a problem may have: lists have an entry for each of them."""


_INTEGER = {int}


def as_integers(name: str, values: object) -> tuple[int, ...]:
    """``values`` as a tuple of Python integers.

    Accepts any ordered iterable of integers on the host (list, tuple, NumPy array, generator).
    Raises ``TypeError`` naming the argument for anything else: sets, dicts, text, bytes, masked
    arrays and matrices, floats and booleans among the entries. Raises ``ValueError`` for more than
    16,777,216 entries.
    """
    if (type(values) is tuple or type(values) is list) and set(map(type, values)) <= _INTEGER:
        if len(values) > MAX_ENTRIES:
            raise ValueError(f"{name} must have at most {MAX_ENTRIES} entries")
        return tuple(values)
    # NumPy's arrays without dimensions have __iter__ too.
    if not is_ordered(values) or getattr(values, "shape", None) == () or is_peculiar(type(values)):
        raise TypeError(f"{name} must be a sequence of integers; got {type(values).__name__}")
    too_many = ValueError(f"{name} must have at most {MAX_ENTRIES} entries")
    if isinstance(values, Sized) and len(values) > MAX_ENTRIES:
        raise too_many
    result: list[int] = []
    for index, value in enumerate(values):
        if index == MAX_ENTRIES:
            raise too_many
        if _is_boolean(dtype := getattr(value, "dtype", None)):
            raise TypeError(f"{name}[{index}] must be an integer; got {dtype}")
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{name}[{index}] must be an integer; got {type(value).__name__}")
        try:
            result.append(value.__index__())
        except TypeError:
            raise TypeError(
                f"{name}[{index}] must be a host integer; got {type(value).__name__}"
            ) from None
    return tuple(result)


@lru_cache(maxsize=64)
def _is_boolean(dtype: object) -> bool:
    """Whether a library's dtype is that of booleans. PyTorch's have ``__index__``."""
    return str(dtype) in ("bool", "torch.bool")


def check_lengths(lengths: object, steps: int, batch: int, *, shortest: int = 0) -> tuple[int, ...]:
    """``lengths`` checked: an integer for each of B rows, from ``shortest`` to T, in any order."""
    checked = as_integers("lengths", lengths)
    shortest_length(checked, steps, batch, shortest)
    return checked


def shortest_length(lengths: tuple[int, ...], steps: int, batch: int, minimum: int = 0) -> int:
    """Return the length of the shortest row, T of an empty batch. Raises as `check_lengths`."""
    if len(lengths) != batch:
        raise ValueError(
            f"lengths must have one entry for each of the {batch} rows of the batch; "
            f"got {len(lengths)}"
        )
    if not lengths:
        return steps
    shortest = min(lengths)
    if shortest < minimum or max(lengths) > steps:
        row = next(row for row, length in enumerate(lengths) if not minimum <= length <= steps)
        raise ValueError(
            f"lengths[{row}] must be from {minimum} to {steps} (T); got {shown(lengths[row])}"
        )
    return shortest


def check_batch_sizes(batch_sizes: object, total: int | None = None) -> tuple[int, ...]:
    """``batch_sizes`` checked: T positive integers that never rise and sum to ``total``.

    Those of an empty batch are T zeros.
    """
    checked = as_integers("batch_sizes", batch_sizes)
    if not checked:
        raise ValueError("batch_sizes must have at least one entry")
    for step, (before, size) in enumerate(pairwise(checked), 1):
        if size > before:
            raise ValueError(
                f"batch_sizes must never rise; batch_sizes[{step}] is {shown(size)} after "
                f"{shown(before)}"
            )
    if checked[-1] < (1 if checked[0] > 0 else 0):
        raise ValueError(
            f"batch_sizes must be 1 or more, or all of them 0; got {shown(checked[-1])}"
        )
    if checked[0] > MAX_ENTRIES:
        raise ValueError(f"batch_sizes must be at most {MAX_ENTRIES}; got {shown(checked[0])}")
    if total is not None and sum(checked) != total:
        raise ValueError(
            f"batch_sizes must sum to the first dimension of x ({total}); they sum to "
            f"{sum(checked)}"
        )
    return checked


def integers_or_none(name: str, values: object) -> tuple[int, ...] | None:
    """As `as_integers`; None stays None."""
    return None if values is None else as_integers(name, values)


def lengths_to_batch_sizes(lengths: Integers) -> tuple[int, ...]:
    """Return the number of rows that have not ended before each step.

    ``lengths`` in any order, each from 1 to 16,777,216.
    """
    checked = as_integers("lengths", lengths)
    least, most = min(checked, default=0), max(checked, default=0)
    if least < 1 or most > MAX_ENTRIES:
        raise ValueError(
            f"lengths must be one or more integers from 1 to {MAX_ENTRIES}; they go from "
            f"{shown(least)} to {shown(most)}"
        )
    # ends[t]: rows whose last step is t
    ends = [0] * max(checked)
    for length in checked:
        ends[length - 1] += 1
    sizes, running = [], len(checked)
    for ended in ends:
        sizes.append(running)
        running -= ended
    return tuple(sizes)


def batch_sizes_to_lengths(batch_sizes: Integers) -> tuple[int, ...]:
    """Return the length of each row, descending: the inverse of `lengths_to_batch_sizes`."""
    checked = check_batch_sizes(batch_sizes)
    lengths: list[int] = []
    for step in range(len(checked), 0, -1):
        lengths += [step] * (checked[step - 1] - len(lengths))
    return tuple(lengths)
