"""Records of problems for which dnnffi's kernel runs without being measured against the vendor's.

A row is here because on an H200 the kernel was faster than PyTorch without a search, which takes
kernels of its own or what cuDNN's heuristics choose, for all layers of MobileNetV2 and V3,
EfficientNet-B0 and ConvNeXt-T. `docs/verification` has the record (`bench_depthwise.json`). If
no row applies, cuDNN is asked.
"""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.spec.conv_problem import BACKWARD_DATA, FORWARD, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST


class Measured(NamedTuple):
    """Key of a row: problems with square kernels and images, padded by half of the kernel."""

    operation: str
    layout: str
    dtype: str
    kernel: int
    stride: int


class Sizes(NamedTuple):
    """Ranges that were measured, least and most: channels, and height and width of x."""

    channels: tuple[int, int]
    sizes: tuple[int, int]


MIN_BATCH = 32
"""Images of a batch in the record. With fewer, the time is not decided by the kernels."""

_ARRAYS = (
    (CHANNELS_FIRST, "float32"),
    (CHANNELS_FIRST, "float16"),
    (CHANNELS_LAST, "float16"),
    (CHANNELS_LAST, "bfloat16"),
)
_LAYERS = {
    # kernel, stride
    (3, 1): Sizes(channels=(16, 1152), sizes=(7, 112)),
    (3, 2): Sizes(channels=(16, 576), sizes=(14, 112)),
    (5, 1): Sizes(channels=(120, 1152), sizes=(7, 28)),
    (5, 2): Sizes(channels=(72, 672), sizes=(14, 56)),
    (7, 1): Sizes(channels=(96, 768), sizes=(7, 56)),
}
FASTER = {
    Measured(operation, layout, dtype, *layer): sizes
    for operation in (FORWARD, BACKWARD_DATA)
    for layout, dtype in _ARRAYS
    for layer, sizes in _LAYERS.items()
}


def is_faster(problem: ConvProblem) -> bool:
    """Return whether dnnffi's kernel is known to be faster for a problem that `has_kernel`."""
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
        and problem.batch >= MIN_BATCH
        and fewest <= spec.in_channels <= most
        and all(least <= size <= largest for size in problem.sizes)
    )
