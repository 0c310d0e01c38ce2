"""Where does a kernel of ours run without having been measured against the vendor's? By record.

A row is here because it was never slower than what cuDNN's heuristics choose, on all sizes between
those that it names, in a record in `docs/verification`. Where no row applies, cuDNN is asked.
"""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.spec.conv_problem import ConvProblem


class Measured(NamedTuple):
    """What a row is for: square kernels and images, padded by half of the kernel."""

    operation: str
    layout: str
    dtype: str
    kernel: int
    stride: int


class Sizes(NamedTuple):
    """The least and the most of what was measured: channels, and height and width of x."""

    channels: tuple[int, int]
    sizes: tuple[int, int]


LEAST_BATCH = 32
"""The images of the record. With fewer, other things than the kernels decide."""

FASTER: dict[Measured, Sizes] = {}


def is_faster(problem: ConvProblem) -> bool:
    """Whether a problem that `has_kernel` is known to run faster by it."""
    spec = problem.spec
    kernel, stride = spec.kernel[0], spec.stride[0]
    row = FASTER.get(
        Measured(problem.operation, problem.layout, spec.dtype, kernel, stride),
    )
    if row is None:
        return False
    usual = (
        spec.rank == 2
        and not spec.transposed
        and spec.kernel == (kernel, kernel)
        and spec.stride == (stride, stride)
        and spec.padding == (kernel // 2,) * 2
        and spec.dilation == (1, 1)
    )
    (fewest, most), (least, largest) = row
    return (
        usual
        and problem.batch >= LEAST_BATCH
        and fewest <= spec.in_channels <= most
        and all(least <= size <= largest for size in problem.sizes)
    )
