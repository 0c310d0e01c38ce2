"""Limits of cuDNN, as data."""

from __future__ import annotations

from dnnffi.backends.cudnn.descriptors.rnn_data import MAX_STEPS
from dnnffi.backends.cudnn.library import MODES
from dnnffi.backends.vendor.limits import (
    DEVICE_LENGTHS,
    OUTPUT_PADDING,
    RESETS,
    STATE_ELEMENTS,
    Limit,
    Limits,
    mode_limit,
)
from dnnffi.spec.checks import INT32_MAX
from dnnffi.spec.conv_padding import PaddedImage
from dnnffi.spec.conv_problem import ConvProblem
from dnnffi.spec.problem import RNNProblem


def _uneven(problem: RNNProblem) -> bool:
    return problem.lengths is not None and min(problem.lengths) != max(problem.lengths)


BFLOAT16_MENDED = 9, 13, 0
"""The version from which PyTorch uses bfloat16 RNNs (pytorch/pytorch#164411). dnnffi ran 9.19."""

RNN_LIMITS: Limits[RNNProblem] = (
    mode_limit(MODES),
    RESETS,
    DEVICE_LENGTHS,
    STATE_ELEMENTS,
    Limit(
        lambda problem: problem.steps > MAX_STEPS,
        f"an RNN takes at most {MAX_STEPS} time steps; got {{asked.steps}}",
    ),
    Limit(
        lambda problem: problem.options.algorithm.startswith("persist") and _uneven(problem),
        "the algorithm {asked.options.algorithm} takes only rows of equal length",
        "use standard",
    ),
    Limit(
        lambda problem: problem.spec.dtype == "bfloat16",
        "before 9.13 bfloat16 RNNs are not used, as in PyTorch",
        "dnnffi's own kernels have them",
        mended=BFLOAT16_MENDED,
    ),
)
"""Checked before the library is asked. What else an algorithm refuses, only cuDNN can tell."""


def _max_size(problem: ConvProblem) -> int:
    image = PaddedImage.of(problem)
    shapes = problem.x_shape, problem.spec.weight_shape, problem.y_shape
    return max(map(max, shapes if image is None else (*shapes, image.padded_shape)))


CONV_LIMITS: Limits[ConvProblem] = (
    OUTPUT_PADDING,
    Limit(
        lambda problem: _max_size(problem) > INT32_MAX,
        f"an array has at most {INT32_MAX} positions in each dimension, with asymmetric padding "
        "also the padded image; x is {asked.x_shape}, w {asked.spec.weight_shape}, y "
        "{asked.y_shape}",
        "make the batch or the sizes smaller",
    ),
)
"""Checked before the library is asked. Only cuDNN can tell whether it has an engine."""
