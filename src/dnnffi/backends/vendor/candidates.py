"""A vendor's executor as the only candidate for a problem."""

from __future__ import annotations

from typing import Any

from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.backends.vendor.rnn_executor import RNNExecutor
from dnnffi.spec.problem import RNNProblem


class OneCandidate:
    """The algorithm that the caller named, or the one of the executor's rule."""

    def __init__(self, executor: type[Any], library: VendorLibrary) -> None:
        self._executor = executor
        self._library = library
        self.version = f"{library.vendor} {library.version_text}"

    def offers(self, problem: RNNProblem) -> tuple[str, ...]:
        """The candidates for a problem, the one to compare with first."""
        return (problem.options.algorithm,)

    def make(
        self, problem: RNNProblem, candidate: str | None, device: int, generator: Any = None
    ) -> RNNExecutor:
        """The executor of an algorithm, or of the one that the rule picks."""
        if candidate is not None:
            problem = problem._replace(options=problem.options._replace(algorithm=candidate))
        executor: RNNExecutor = self._executor(
            problem, generator=generator, device=device, library=self._library
        )
        return executor
