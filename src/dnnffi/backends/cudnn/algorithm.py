"""Which of cuDNN's RNN algorithms a problem gets when the user names none.

The rule is PyTorch's for cuDNN 9: the persistent algorithm for small hidden sizes, then for half
precision its two heuristics, by sizes and by device. What the library was seen to refuse (9.19) is
taken out: the persistent algorithms want two biases a gate and rows of equal length, and the static
ones take no float64. It is a guess; only measuring finds the best.
"""

from __future__ import annotations

from dnnffi.arrays import Architecture
from dnnffi.spec.problem import PACKED, RNNProblem

# Largest hidden sizes for persist_static_small_h: inference, and training, whose backward must use
# the algorithm of its forward.
_SMALL_GATED = (192, 128)  # LSTM, GRU
_SMALL_PLAIN = (384, 256)


def rule(problem: RNNProblem, architecture: Architecture) -> str:
    """The algorithm for ``problem``: "standard", "persist_static" or "persist_static_small_h"."""
    spec = problem.spec
    if (
        not spec.bias
        or spec.proj_size
        or spec.dtype == "float64"
        or problem.layout == PACKED
        or problem.lengths is not None
    ):
        return "standard"
    smallest = _SMALL_GATED if spec.mode in ("lstm", "gru") else _SMALL_PLAIN
    if architecture.major >= 6 and spec.hidden_size <= smallest[problem.training]:
        return "persist_static_small_h"
    if spec.dtype == "float16" and _sizes_suit(problem) and _device_suits(problem, architecture):
        return "persist_static"
    return "standard"


def _sizes_suit(problem: RNNProblem) -> bool:
    spec = problem.spec
    return (
        spec.num_layers == 1
        and spec.num_directions == 1
        and spec.hidden_size <= 1024
        and spec.hidden_size % 128 == 0
        and spec.input_size % 128 == 0
    )


def _device_suits(problem: RNNProblem, architecture: Architecture) -> bool:
    batch, steps, spec = problem.batch, problem.steps, problem.spec
    if architecture.major == 7:
        # Volta; Turing (7.5) loses.
        return (
            architecture.minor != 5
            and ((batch % 16 == 0 and batch not in (80, 112)) or batch == 8)
            and (
                (steps >= 40 and batch <= 128)
                or (steps >= 20 and batch <= 96)
                or (steps >= 10 and batch <= 32)
            )
        )
    if architecture.major >= 8 and architecture.multiprocessors >= 98:
        if architecture.minor == 6 or spec.mode == "gru" or batch % 8 or batch > 128:
            return False
        return spec.mode == "lstm" or batch < 96 or spec.hidden_size < 896
    return False
