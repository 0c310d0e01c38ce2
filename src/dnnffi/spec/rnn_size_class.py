"""Classes of sizes: numbers of rows and steps that are prepared and measured together.

A network is called with many sizes. What is measured for one of them serves all of its class, so
that a process measures a few classes and not each size. Within a class the number of groups of
eight rows differs by less than a quarter, and the number of steps by a factor of at most four.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from dnnffi.spec.problem import PACKED, RNNProblem

RowKind = Literal["full", "ragged", "packed"]
"""full: padded rows of T steps, or packed rows of one length. ragged: padded rows of other lengths,
or of lengths in device memory. packed: packed rows of unequal lengths. Kernels for ragged rows run
full padded rows, too."""


class RNNSizeClass(NamedTuple):
    """Upper bounds of a class, and the kind of its rows, for which kernels are compiled."""

    max_rows: int
    max_steps: int
    row_kind: RowKind

    @property
    def is_ragged(self) -> bool:
        """Whether rows may have unequal lengths."""
        return self.row_kind != "full"

    def distance(self, other: RNNSizeClass) -> tuple[bool, float]:
        """Order other classes by how well their choice serves this one, the best first.

        Classes with at least as many rows come first, then the nearest.
        """
        rows = self.max_rows / other.max_rows
        steps = self.max_steps / other.max_steps
        far = max(rows, 1 / rows) ** 2 * max(steps, 1 / steps)
        return rows > 1, far

    def __str__(self) -> str:
        return f"up to {self.max_rows} {self.row_kind} rows of up to {self.max_steps} steps"


@lru_cache(1024)
def max_rows(batch: int) -> int:
    """Return the upper bound on rows of the class of ``batch`` rows.

    1, 2, 4, 8, multiples of 8 up to 64, then four equally spaced bounds up to each power of two.

    >>> [max_rows(batch) for batch in (1, 3, 9, 64, 65, 129, 1000)]
    [1, 4, 16, 64, 80, 160, 1024]
    """
    if batch <= 8:
        return 1 << (batch - 1).bit_length()
    step = max(8, 1 << (batch - 1).bit_length() - 3)
    return -(-batch // step) * step


@lru_cache(1024)
def max_steps(steps: int) -> int:
    """Return the upper bound on steps of the class of ``steps`` steps: 1, 8, 32, 128, 512, ...

    >>> [max_steps(steps) for steps in (1, 2, 8, 9, 100, 200)]
    [1, 8, 8, 32, 128, 512]
    """
    if steps == 1:
        return 1
    exponent = max(3, (steps - 1).bit_length())
    return 1 << exponent + (exponent + 1) % 2


def size_class(problem: RNNProblem) -> RNNSizeClass:
    """Return the class of a problem with at least one row."""
    lengths = problem.lengths
    longest = problem.steps if lengths is None else max(lengths)
    row_kind: RowKind = "full"
    if problem.layout == PACKED:
        if lengths is not None and min(lengths) != longest:
            row_kind = "packed"
    elif lengths is not None or problem.has_device_lengths:
        row_kind = "ragged"
    return RNNSizeClass(max_rows(problem.batch), max_steps(longest), row_kind)
