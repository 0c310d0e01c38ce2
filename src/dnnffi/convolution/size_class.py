"""Size classes of a convolution: problems of one layer that share the choice of an engine.

* A **layer** is a problem without its number of images and their sizes: weights, dtype, stride,
  padding, dilation, groups, memory layout, operation, what is fused to it, and the options that
  decide which engines may run.
* A **size class** of a layer has all problems whose number of output positions (N times the spatial
  sizes of y) lies between two powers of four, and whose rows of images are multiples of 16 bytes,
  or are not.

A layer has in practice one to four classes. What was measured or chosen for one problem
of a class is used for all of them, so that a new batch or image size measures nothing and asks no
heuristic. Whether an engine computes a problem is still decided by cuDNN for each problem, when its
plan is finalized.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from dnnffi.device.interface import ALIGNMENT
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.conv_options import DEFAULTS
from dnnffi.spec.conv_problem import ConvProblem

MAX_NEIGHBOUR_STEPS = 2
"""Powers of four between a class and a measured one whose choice it takes over."""


class ConvSizeClass(NamedTuple):
    """A range of sizes of a layer.

    ``magnitude`` is the logarithm to base 4, rounded down, of the number of output positions;
    ``is_aligned`` whether the rows of the images, or with channels last the channels of a position,
    are multiples of 16 bytes in both x and y.
    """

    magnitude: int
    is_aligned: bool

    def neighbours(self) -> Iterator[ConvSizeClass]:
        """Yield the classes whose choice may stand in for that of this one, nearest first."""
        yield self._replace(is_aligned=not self.is_aligned)
        for step in range(1, MAX_NEIGHBOUR_STEPS + 1):
            for aligned in (self.is_aligned, not self.is_aligned):
                for magnitude in (self.magnitude - step, self.magnitude + step):
                    if magnitude >= 0:
                        yield ConvSizeClass(magnitude, aligned)

    def __str__(self) -> str:
        low, high = 4**self.magnitude, 4 ** (self.magnitude + 1) - 1
        rows = "multiples" if self.is_aligned else "no multiples"
        return f"{low:,} to {high:,} output positions, rows are {rows} of {ALIGNMENT} bytes"


def output_positions(problem: ConvProblem) -> int:
    """Return N times the spatial sizes of y."""
    return problem.batch * prod(problem.y_shape[2:])


def size_class(problem: ConvProblem) -> ConvSizeClass:
    """Return the size class of a problem with a batch."""
    x_shape, y_shape = problem.x_shape, problem.y_shape
    magnitude = (output_positions(problem).bit_length() - 1) // 2
    item = ITEM_SIZES[problem.spec.dtype]
    dimension = 1 if problem.channels_last else -1
    rows = x_shape[dimension] * item | y_shape[dimension] * item
    return ConvSizeClass(magnitude, rows % ALIGNMENT == 0)


def layer_of(problem: ConvProblem) -> ConvProblem:
    """Return the layer of a problem, as a problem without images.

    Of the options it keeps those that decide which engines may run.
    """
    options = problem.options
    kept = DEFAULTS._replace(
        math=options.math,
        deterministic=options.deterministic,
        workspace_limit=options.workspace_limit,
    )
    return problem._replace(batch=0, sizes=(), options=kept)
