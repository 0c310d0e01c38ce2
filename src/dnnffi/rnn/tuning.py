"""Find the fastest candidate of a problem by running each on scratch data.

A candidate counts only if its results agree with the oracle's, within the dtype's rounding. Times
are those of a loop on the caller's stream, so that a candidate which keeps the host busy for longer
than the GPU is charged for it. Scratch memory comes from a pool that is returned to the driver.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from math import inf

from dnnffi.device.interface import MemoryWithGraphs
from dnnffi.execution.comparison import tolerance
from dnnffi.execution.measure import FAILURES, LONG_MS, HostArrays, disagreement
from dnnffi.execution.stored_results import MAX_CHECKED
from dnnffi.log import logger
from dnnffi.rnn.candidates import CandidateSet
from dnnffi.rnn.route_choice import RouteChoice, Times, choose, least_times
from dnnffi.rnn.trial import FAR_SLOWER, LaunchOn, Trial
from dnnffi.spec.problem import RNNProblem

BUDGET = 0.5
"""Seconds of measuring after which no further candidate is begun. Compiling does not count."""

OTHER_NUMBERS = "draws other random numbers for dropout, so it is only compared with"
"""The reason why the oracle is not a candidate of a network with dropout."""


def tune(
    candidates: CandidateSet,
    problem: RNNProblem,
    device: int,
    memory: MemoryWithGraphs,
    launch_on: LaunchOn,
    *,
    budget: float = BUDGET,
    borrowed: RouteChoice | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> RouteChoice | None:
    """Measure the candidates of a problem; return None if the oracle fails, or if none was timed.

    They are selected for the problem as it is, and measured without dropout, so that results can be
    compared. Runs on the current stream and waits for it. All arrays of the candidates are scratch
    memory, which is given back at the end.

    ``budget`` is in seconds: no candidate is begun later than that after the oracle's first runs. A
    first run of another candidate does not count, because it loads kernels; nor does the making of
    one of the vendor's, because its library may compile. ``borrowed`` is the result for other sizes
    of the network, after which `CandidateSet.left_out` says what is not measured. The oracle is
    compared with in any case.
    """
    trials = _Trials(candidates, problem, device, memory, launch_on)
    oracle, offers = trials.oracle, candidates.offers(problem)
    refused: dict[str, str] = {}
    if borrowed is not None:
        fastest_there = {name: taken.fastest for name, taken in borrowed.times.items()}
        refused.update(candidates.left_out(offers, fastest_there))
    timed = [name for name in offers if name not in refused]
    measurement = _Measurement(candidates, trials, timed, refused, clock)
    with memory.use(device), memory.scratch():
        # What compiles does so while the oracle is made and runs.
        wait = candidates.prepare(list(dict.fromkeys((oracle, *timed))), problem, device)
        try:
            measurement.run_oracle(wait, budget)
        except FAILURES as error:
            reason = f"{type(error).__name__}: {error}"
            logger.info("%s cannot be measured: %s: %s", problem, oracle, reason)
            return None
        measurement.run_others()
    if oracle not in offers:
        refused[oracle] = OTHER_NUMBERS
    return choose(measurement.times, refused) if measurement.times else None


def check(
    stored: RouteChoice,
    candidates: CandidateSet,
    problem: RNNProblem,
    device: int,
    memory: MemoryWithGraphs,
    launch_on: LaunchOn,
) -> RouteChoice | None:
    """Return the fastest candidates of a stored choice whose results are those of the oracle.

    Each is run once, on scratch data, as in `tune`; the oracle runs once, and only if another
    candidate is to be used. After `MAX_CHECKED` candidates only those that passed are left. None
    if no candidate is left, or if the oracle fails.
    """
    times, refused = dict(stored.times), dict(stored.refused)
    trials = _Trials(candidates, problem, device, memory, launch_on)
    right = {trials.oracle}
    for _ in range(MAX_CHECKED):
        choice = choose(times, refused, stored.source)
        unchecked = [name for name in choice.used if name not in right]
        if not unchecked:
            return choice
        name = unchecked[0]
        with memory.use(device), memory.scratch():
            try:
                trials.expected = trials.expected or trials.results(trials.oracle)
            except FAILURES:
                return None
            try:
                reason = trials.difference(trials.results(name))
            except FAILURES as error:
                reason = f"{type(error).__name__}: {error}"
        if not reason:
            right.add(name)
            continue
        refused[name] = reason
        del times[name]
        if not times:
            return None
    passed = {name: taken for name, taken in times.items() if name in right}
    not_checked = dict.fromkeys(times.keys() - passed.keys(), "not compared with the oracle")
    return choose(passed, refused | not_checked, stored.source) if passed else None


class _Trials:
    """Runs of a problem's candidates without dropout, and the results that they must have.

    ``expected`` are the results of the ``oracle``, empty until it has run.
    """

    def __init__(
        self,
        candidates: CandidateSet,
        problem: RNNProblem,
        device: int,
        memory: MemoryWithGraphs,
        launch_on: LaunchOn,
    ) -> None:
        self.oracle = candidates.oracle(problem)
        self.expected: HostArrays = []
        self._candidates, self._problem = candidates, problem
        self._device, self._memory, self._launch_on = device, memory, launch_on

    @contextmanager
    def run(self, name: str) -> Iterator[tuple[Trial, float]]:
        """Run a candidate once, and yield it with the milliseconds of that run.

        Raises one of `FAILURES` where it cannot be made or run. The memory goes back with the
        trial, which the caller must not keep.
        """
        launch = self._launch_on(self._device, self._memory.current_stream())
        measured = self._problem._replace(dropout=0.0)
        with closing(self._candidates.make(measured, name, launch)) as executor:
            trial = Trial(executor, self._memory, self._launch_on, launch)
            yield trial, trial.elapsed_ms()  # what fails late fails here

    def results(self, name: str) -> HostArrays:
        """Run a candidate once, and return its results on the host."""
        with self.run(name) as (trial, _):
            return trial.results()

    def difference(self, results: HostArrays) -> str:
        """Return how results differ from the oracle's; empty if they agree."""
        allowed = tolerance(self._problem)
        return disagreement(results, self.expected, allowed, f"those of {self.oracle}")


class _Measurement:
    """The ``times`` of candidates, and the reasons for those that are ``refused``."""

    def __init__(
        self,
        candidates: CandidateSet,
        trials: _Trials,
        timed: Sequence[str],
        refused: dict[str, str],
        clock: Callable[[], float],
    ) -> None:
        self.times: dict[str, Times] = {}
        self.refused = refused
        self._candidates, self._trials, self._clock = candidates, trials, clock
        self._oracle_ms = 0.0
        self._end = inf
        self._waiting = deque(timed)
        self._fastest: dict[str, float] = {}
        """Milliseconds of the fastest call of each candidate so far."""

    def run_oracle(self, wait: Callable[[], object], budget: float) -> None:
        """Run the oracle for its results, and time it unless it takes long.

        Then it is timed after the others. ``wait`` is called before anything is timed. The
        ``budget`` begins after these runs.
        """
        oracle = self._trials.oracle
        with self._trials.run(oracle) as (trial, took_ms):
            self._trials.expected = trial.results()
            wait()
            if took_ms > LONG_MS:  # perhaps it has loaded the library
                took_ms = trial.elapsed_ms()
            self._end = self._clock() + budget
            if oracle not in self._waiting:
                return
            self._waiting.remove(oracle)
            if took_ms > LONG_MS and self._waiting:
                self._oracle_ms = self._fastest[oracle] = took_ms
                self._waiting.append(oracle)
            else:
                self._time(oracle, trial)

    def run_others(self) -> None:
        """Measure the other candidates in turn, the dominated ones last.

        An oracle that takes long is timed only if it may come near the others.
        """
        oracle, waiting, postponed = self._trials.oracle, self._waiting, set[str]()
        while waiting:
            name = waiting.popleft()
            if name not in postponed and self._candidates.is_dominated(name, self._fastest):
                postponed.add(name)
                waiting.append(name)
            elif reason := self._skip_reason(name):
                self.refused[name] = reason
            elif name == oracle and self._is_far_slower(self._oracle_ms):
                self.times[name] = Times(self._oracle_ms)
            else:
                try:
                    self._measure(name)
                except FAILURES as error:
                    self.refused[name] = f"{type(error).__name__}: {error}"

    def _skip_reason(self, name: str) -> str:
        if name != self._trials.oracle and self._clock() >= self._end:
            return "the time for measuring was over"
        return self._candidates.skip_reason(name, self._fastest)

    def _is_far_slower(self, direct_ms: float) -> bool:
        """Whether a call without a graph took far longer than the best so far."""
        best, *_ = least_times(self.times.values())
        return direct_ms > FAR_SLOWER * best

    def _measure(self, name: str) -> None:
        begun = self._clock()
        with self._trials.run(name) as (trial, took_ms):
            is_of_vendor = self._candidates.is_of_vendor(name)
            self._end += self._clock() - begun if is_of_vendor else took_ms / 1e3
            wrong = ""
            if name != self._trials.oracle:
                wrong = self._trials.difference(trial.results())
            if wrong:
                self.refused[name] = wrong
            else:
                self._time(name, trial)

    def _time(self, name: str, trial: Trial) -> None:
        self.times[name] = taken = trial.times(least_times(self.times.values()))
        self._fastest[name] = taken.fastest
