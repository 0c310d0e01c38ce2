"""The candidates of a problem from several sources, and the oracle among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dnnffi.backends.rnn_interface import AddressExecutor, CandidateSource, PreparedNetwork
from dnnffi.device.interface import Launch
from dnnffi.errors import UnsupportedError
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

_LIKELY = 4
"""Number of candidates of other sources that are measured before the vendor's other ones."""

_FAR_BEHIND = 2.0
"""Ratio of the vendor's best time to the best of all above which its other algorithms are measured
last, and none is measured again."""

_FAR_AHEAD = 1.15
"""Ratio of a source's best time to the best of all from which its costly algorithms are not tried.

cuDNN's persist_dynamic, whose compilation is a large part of a measurement, was never so far ahead
of its other algorithms (12 networks of the records bench_rnn.json and bench_own.json).
"""


class CandidateSet:
    """The candidates of several sources, each named after its source and its algorithm.

    The first source is the vendor's. Unless it refuses a problem, its first algorithm is the
    oracle, with which the others must agree, and its rule picks the executor before a measurement
    (with dropout see `drawer`). An algorithm that has a source's name selects that source alone.
    """

    def __init__(self, *sources: CandidateSource) -> None:
        self._sources = {source.name: source for source in sources}
        self._vendor = sources[0]

    def version(self, problem: RNNProblem) -> str:
        """Return the versions for which times are valid, with the device and the problem.

        They are those of the sources that may have candidates. The problem's device is current.
        """
        sources = self._sources.values()
        return ", ".join(one.version for one in sources if one.may_offer(problem))

    @property
    def of_vendor(self) -> CandidateSet:
        """The set with the vendor's candidates alone."""
        return CandidateSet(self._vendor)

    def source(self, algorithm: str) -> CandidateSource:
        """Return the source that an algorithm names, the vendor for all others."""
        return self._sources.get(algorithm, self._vendor)

    def drawer(self, spec: RNNSpec, algorithm: str) -> CandidateSource:
        """Return the source that runs networks with dropout, and draws the random numbers of it.

        Sources draw different numbers, and results must not depend on which candidate is fastest.
        So unless an algorithm is named, it is the first source other than the vendor that has the
        network.
        """
        if algorithm == "auto":
            for source in self._sources.values():
                if source is not self._vendor and source.has(spec):
                    return source
        return self.source(algorithm)

    def _first(self, problem: RNNProblem) -> CandidateSource:
        """Return the source that runs a problem that was not measured."""
        if problem.drops:
            return self.drawer(problem.spec, problem.options.algorithm)
        return self._trusted(problem)

    def _trusted(self, problem: RNNProblem) -> CandidateSource:
        """Return the source whose results are right: the vendor, unless it refuses the problem.

        Then it is the first other source that does not, if the algorithm is free to choose.
        """
        source = self.source(problem.options.algorithm)
        if problem.options.algorithm == "auto" and source.refusal(problem):
            others = (one for one in self._sources.values() if not one.refusal(problem))
            return next(others, source)
        return source

    def check(self, problem: RNNProblem) -> None:
        """Raise `UnsupportedError` for a problem that is known not to run, without a launch.

        With the algorithm "auto" the error has the limits of all sources.
        """
        first = self._first(problem)
        error = first.refusal(problem)
        if error is None:
            return
        limits = [error.limit]
        if problem.options.algorithm == "auto":
            others = (one.refusal(problem) for one in self._sources.values() if one is not first)
            limits += [one.limit for one in others if one is not None]
        raise UnsupportedError(error.vendor, error.version, "; ".join(limits))

    def is_for_vendor(self, problem: RNNProblem) -> bool:
        """Whether the vendor runs a problem that was not measured and drops nothing."""
        return self._trusted(problem) is self._vendor

    def by_rule(self, problem: RNNProblem, launch: Launch, generator: Any) -> AddressExecutor:
        """Return the executor of a problem that was not measured."""
        network = self._first(problem).network(problem, None, launch)
        return network.bind(problem, launch, generator)

    def oracle(self, problem: RNNProblem) -> str:
        """Return the candidate whose results the others must agree with."""
        source = self._trusted(problem)
        return f"{source.name} {source.offers(problem)[0]}"

    def offers(self, problem: RNNProblem) -> tuple[str, ...]:
        """Return the candidates to measure: the oracle, then those that are likely to be faster.

        There may not be time for all: the first candidates of the other sources come before the
        rest of the vendor's, the remaining ones after it.
        """
        first = self._first(problem)
        found = _named(first, problem)
        if first is self._vendor:
            others = [one for one in self._sources.values() if one is not first]
            more = [name for source in others for name in _named(source, problem)]
            found = [*found[:1], *more[:_LIKELY], *found[1:], *more[_LIKELY:]]
        return tuple(found)

    def prepare(
        self, names: Iterable[str], problem: RNNProblem, device: int
    ) -> Callable[[], object]:
        """Begin the slow part of making the named candidates; the result waits for its end."""
        sources = dict.fromkeys(_source(name) for name in names)
        waits = [self._sources[name].prepare(problem, device) for name in sources]
        return lambda: [wait() for wait in waits]

    def left_out(self, offers: Iterable[str], times: Mapping[str, float]) -> dict[str, str]:
        """Return the candidates that are not worth measuring for further sizes, with the reason.

        ``times`` are those for other sizes of the network. If all algorithms of the vendor took
        much longer than the best, none is measured again. Other sources name candidates by class.
        """
        vendor, ratio = self._vendor.name, self._vendor_ratio(times)
        if ratio <= _FAR_BEHIND:
            return {}
        reason = f"the best of {vendor} took {ratio:.1f} times as long for other sizes"
        return {name: reason for name in offers if _source(name) == vendor}

    def is_of_vendor(self, candidate: str) -> bool:
        """Whether a candidate is one of the vendor's."""
        return _source(candidate) == self._vendor.name

    def is_dominated(self, candidate: str, times: Mapping[str, float]) -> bool:
        """Whether a candidate is to be measured after all others.

        The vendor's are, if the vendor's best time is more than `_FAR_BEHIND` times the best of
        all: each takes long to measure, and the time may be over before faster ones are begun.
        """
        return self.is_of_vendor(candidate) and self._vendor_ratio(times) > _FAR_BEHIND

    def _vendor_ratio(self, times: Mapping[str, float]) -> float:
        """Return the ratio of the vendor's best time to the best of all; 0 without both."""
        of_vendor = [ms for name, ms in times.items() if _source(name) == self._vendor.name]
        return min(of_vendor, default=0.0) / min(times.values(), default=1.0)

    def skip_reason(self, candidate: str, times: Mapping[str, float]) -> str:
        """Return why a candidate is not worth measuring; empty if it may be.

        A candidate is left out if it is costly to make and another source is far ahead, or if its
        source rules it out. ``times`` are the milliseconds measured so far, by candidate.
        """
        name, _, algorithm = candidate.partition(" ")
        source = self._sources[name]
        of_source = {
            other.partition(" ")[2]: time for other, time in times.items() if _source(other) == name
        }
        if algorithm not in source.costly or not of_source:
            return source.skip_reason(algorithm, of_source)
        fastest = min(times, key=times.__getitem__)
        ahead = min(of_source.values()) / times[fastest]
        if ahead < _FAR_AHEAD:
            return ""
        return f"takes long to compile, and {fastest} is {ahead:.1f} times as fast as {name}'s best"

    def make(
        self, problem: RNNProblem, candidate: str | None, launch: Launch, generator: Any = None
    ) -> AddressExecutor:
        """Return the executor of a candidate or, if it is None, of the one that a rule picks.

        Raises `DnnffiError` if it does not run the problem.
        """
        if candidate is None:
            return self._trusted(problem).make(problem, None, launch, generator)
        name, _, algorithm = candidate.partition(" ")
        return self._sources[name].make(problem, algorithm, launch, generator)

    def clear(self) -> None:
        """Forget the networks that are ready."""
        for source in self._sources.values():
            source.clear()

    def network(self, problem: RNNProblem, candidate: str, launch: Launch) -> PreparedNetwork:
        """Return a candidate that is ready for any sizes of the problem's network."""
        name, _, algorithm = candidate.partition(" ")
        return self._sources[name].network(problem, algorithm, launch)


def _source(candidate: str) -> str:
    return candidate.partition(" ")[0]


def _named(source: CandidateSource, problem: RNNProblem) -> list[str]:
    return [f"{source.name} {algorithm}" for algorithm in source.offers(problem)]
