"""Algorithms that a vendor offers: the one that was named, or that of the executor's rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dnnffi.backends.rnn_interface import AddressExecutor
from dnnffi.backends.vendor.dropout import Generator
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.backends.vendor.limits import Limits, network_refusal
from dnnffi.backends.vendor.rnn_executor import VendorRNNExecutor
from dnnffi.backends.vendor.row_groups import GroupedRNNExecutor, row_groups
from dnnffi.device.interface import Launch
from dnnffi.errors import UnsupportedError
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec


class VendorCandidates:
    """A `CandidateSource` over a vendor's executor."""

    costly: frozenset[str] = frozenset()

    def __init__(
        self,
        name: str,
        executor: type[VendorRNNExecutor],
        generator: Callable[[VendorLibrary, int, int], Generator],
        library: VendorLibrary,
        limits: Limits[RNNProblem],
    ) -> None:
        self.name = name
        self.version = f"{library.vendor} {library.version_text}"
        self._executor = executor
        self._generator = generator
        self._library = library
        self._limits = limits

    def has(self, spec: RNNSpec) -> bool:
        return True  # what else it refuses, only the library can tell

    def refusal(self, problem: RNNProblem) -> UnsupportedError | None:
        library = self._library
        return network_refusal(self.name, library.vendor, self._limits, problem, library)

    def may_offer(self, problem: RNNProblem) -> bool:
        return True

    def offers(self, problem: RNNProblem) -> tuple[str, ...]:
        return (problem.options.algorithm,)

    def prepare(self, problem: RNNProblem, device: int) -> Callable[[], object]:
        return lambda: None  # the library compiles when an executor is made

    def skip_reason(self, algorithm: str, times: Mapping[str, float]) -> str:
        return ""

    def network(
        self, problem: RNNProblem, algorithm: str | None, launch: Launch
    ) -> VendorAlgorithm:
        return VendorAlgorithm(self, algorithm)

    def make(
        self, problem: RNNProblem, algorithm: str | None, launch: Launch, generator: Any = None
    ) -> AddressExecutor:
        if error := self.refusal(problem):
            raise error
        if algorithm is not None:
            problem = problem._replace(options=problem.options._replace(algorithm=algorithm))
        groups = row_groups(problem, self._executor.max_positions(problem, self._library))

        def executor(problem: RNNProblem) -> AddressExecutor:
            made: AddressExecutor = self._executor(problem, launch, self._library, generator)
            return made

        if groups is None:
            return executor(problem)
        return GroupedRNNExecutor(problem, groups, executor, self._library.memory)

    def clear(self) -> None:
        """Do nothing: no networks are kept."""

    def generator(self, device: int, seed: int) -> Generator:
        return self._generator(self._library, device, seed)


class VendorAlgorithm:
    """An algorithm of a vendor, of which an executor is made for every problem."""

    def __init__(self, candidates: VendorCandidates, algorithm: str | None) -> None:
        self._candidates = candidates
        self._algorithm = algorithm

    def bind(
        self, problem: RNNProblem, launch: Launch, generator: Any = None, *, is_exact: bool = False
    ) -> AddressExecutor:
        """Return a new executor; it refuses as `VendorCandidates.make` does.

        An algorithm that the library compiles for each problem, for seconds, is not for sizes that
        may come once.
        """
        if not is_exact and self._algorithm in self._candidates.costly:
            raise UnsupportedError(
                self._candidates.name, "", f"{self._algorithm} is compiled for each problem"
            )
        return self._candidates.make(problem, self._algorithm, launch, generator)
