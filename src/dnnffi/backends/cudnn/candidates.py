"""cuDNN's algorithms as candidates for a problem."""

from __future__ import annotations

from typing import Any

from dnnffi.backends.cudnn.algorithm import known_wrong
from dnnffi.backends.cudnn.library import Library
from dnnffi.backends.cudnn.rnn import RNNExecutor
from dnnffi.spec.problem import RNNProblem

# cuDNN compiles persist_dynamic for each problem, in 0.1 s to several seconds (9.19, H200), and
# beyond these sizes it was the slowest of all by far: it is tried where it can win.
_DYNAMIC_HIDDEN = 256
_DYNAMIC_BATCH = 16


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
        if len(set(problem.row_lengths)) > 1:
            return ("standard",)  # the call alone would refuse the others, which is too late
        offered = ["standard", "persist_static", "persist_static_small_h"]
        if problem.spec.hidden_size <= _DYNAMIC_HIDDEN and problem.batch <= _DYNAMIC_BATCH:
            offered.append("persist_dynamic")
        return tuple(a for a in offered if not known_wrong(problem, a))

    def make(
        self, problem: RNNProblem, candidate: str | None, device: int, generator: Any = None
    ) -> RNNExecutor:
        """The executor of an algorithm, or of the one that the rule picks."""
        if candidate is not None:
            problem = problem._replace(options=problem.options._replace(algorithm=candidate))
        return RNNExecutor(problem, generator=generator, device=device, library=self._library)
