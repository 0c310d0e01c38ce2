"""The rule that chooses one of cuDNN's RNN algorithms, and the algorithms known to be wrong.

The rule for "auto" is PyTorch's for half precision: two heuristics, by sizes and by device. What
the library was seen to refuse (9.19) is taken out: the persistent algorithms want two biases a gate
and rows of equal length. It is a guess; only measuring finds the best.
"""

from __future__ import annotations

from dnnffi.device.interface import Architecture
from dnnffi.spec.problem import PACKED, RNNProblem


def rule(problem: RNNProblem, architecture: Architecture) -> str:
    """Return the algorithm for ``problem``: "standard" or "persist_static"."""
    spec = problem.spec
    if (
        spec.dtype == "float16"
        and spec.bias
        and not spec.proj_size
        and problem.layout != PACKED
        and problem.lengths is None
        and spec.num_layers == spec.num_directions == 1
        and spec.hidden_size <= 1024
        and spec.hidden_size % 128 == spec.input_size % 128 == 0
        and _device_suits(problem, architecture)
    ):
        return "persist_static"
    return "standard"


def known_wrong(problem: RNNProblem, algorithm: str) -> str:
    """Return why ``algorithm``, which cuDNN takes, is refused: it was seen to give wrong numbers.

    Empty where nothing is known against it. Seen on an H200 with 9.19, compared with the reference
    and with the standard algorithm.
    """
    spec = problem.spec
    if algorithm != "persist_static_small_h" or spec.dtype != "float16":
        return ""
    size = spec.hidden_size
    if spec.mode in ("lstm", "gru"):
        if problem.options.math != "strict" and size > 32 and size % 32 == 16:
            return "its outputs are wrong for hidden sizes of 16 more than a multiple of 32"
    elif spec.bidirectional and problem.training and size % 32 == 0:
        return "its gradients are wrong in two directions for hidden sizes that are multiples of 32"
    return ""


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
