"""cuDNN's algorithms as candidates for a problem."""

from __future__ import annotations

from typing import Any

from dnnffi.backends.cudnn.algorithm import known_wrong
from dnnffi.backends.cudnn.library import Library
from dnnffi.backends.cudnn.rnn import RNNExecutor
from dnnffi.spec.options import ALGORITHMS
from dnnffi.spec.problem import RNNProblem


class CudnnKernels:
    """The algorithms of a libcudnn. What else it refuses is found out when a candidate is made."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.version = f"cuDNN {library.version_text}"

    def offers(self, problem: RNNProblem) -> tuple[str, ...]:
        """The standard algorithm first; none but the one that the caller named."""
        named = problem.options.algorithm
        if named != "auto":
            return (named,)
        # Unequal lengths are refused by the call alone, which would be too late.
        unequal = len(set(problem.row_lengths)) > 1
        persistent = () if unequal else ALGORITHMS[2:]
        return ("standard", *(a for a in persistent if not known_wrong(problem, a)))

    def make(
        self, problem: RNNProblem, candidate: str | None, device: int, generator: Any = None
    ) -> RNNExecutor:
        """The executor of an algorithm, or of the one that the rule picks."""
        if candidate is not None:
            problem = problem._replace(options=problem.options._replace(algorithm=candidate))
        return RNNExecutor(problem, generator=generator, device=device, library=self._library)
