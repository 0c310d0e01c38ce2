"""Results of measuring networks, kept by class of sizes, in this process and on disk."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from dnnffi.device.interface import MemoryWithGraphs
from dnnffi.execution.cache import keep_newest
from dnnffi.execution.store import checked_time
from dnnffi.execution.stored_results import StoredResults
from dnnffi.log import log_measurement
from dnnffi.rnn.candidates import CandidateSet
from dnnffi.rnn.route_choice import RouteChoice, Times, choose
from dnnffi.rnn.staging import can_be_staged
from dnnffi.rnn.trial import LaunchOn
from dnnffi.rnn.tuning import BUDGET, check, tune
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn_size_class import size_class

MAX_RESULTS = 4096
"""Results that a process keeps. With the option tune="now" all sizes have one."""


class RNNTuner(StoredResults[RNNProblem, RouteChoice]):
    """Findings about the networks of one backend."""

    def __init__(
        self, candidates: CandidateSet, memory: MemoryWithGraphs, launch_on: LaunchOn
    ) -> None:
        super().__init__("rnn", memory)
        self._results: dict[str, RouteChoice | None] = {}
        self._candidates = candidates
        self._launch_on = launch_on

    def find(self, problem: RNNProblem, device: int) -> RouteChoice | None:
        """Return the result of this process or, checked now, of another; None if there is none.

        While the current stream is captured, nothing can be run and stored results are not used; a
        later call finds them.
        """
        key = self._key(problem, device)
        name = json.dumps(key)
        try:
            return self._results[name]
        except KeyError:
            pass
        if self.is_capturing():
            return None
        # A measurement of another thread, which ended meanwhile, is kept.
        found = self._results.setdefault(name, self._from_disk(key, problem, device))
        keep_newest(self._results, MAX_RESULTS)
        return found

    def measure(
        self,
        problem: RNNProblem,
        device: int,
        budget: float = BUDGET,
        borrowed: RouteChoice | None = None,
    ) -> RouteChoice | None:
        """Measure now, with ``budget`` seconds and ``borrowed`` (see `tune`), and keep the result.

        What is measured with the option tune="now" is the result of these sizes alone, and of their
        class if that has none yet.
        """
        where = device, self._memory, self._launch_on
        begun = time.perf_counter()
        found = tune(self._candidates, problem, *where, budget=budget, borrowed=borrowed)
        if found is None:
            return None
        times = {name: taken.fastest for name, taken in found.times.items()}
        used = " and as a CUDA graph ".join(found.used)
        log_measurement(problem, used, times, found.refused, time.perf_counter() - begun)
        self._keep(problem, device, found)
        in_class = problem._replace(options=problem.options._replace(tune="auto"))
        if in_class != problem and self.find(in_class, device) is None:
            self._keep(in_class, device, found)
        return found

    def _keep(self, problem: RNNProblem, device: int, found: RouteChoice) -> None:
        """Keep a result in this process and on disk."""
        key = self._key(problem, device)
        self._results[json.dumps(key)] = found
        keep_newest(self._results, MAX_RESULTS)
        self._store.write(key, found._asdict())

    def clear(self) -> None:
        super().clear()
        self._results.clear()

    def _about(self, problem: RNNProblem) -> dict[str, Any]:
        spec = problem.spec
        is_exact = problem.options.tune == "now"
        return {
            "engine": self._candidates.version(problem),
            "spec": asdict(spec),
            "sizes": [*size_class(problem), *((problem.steps, problem.batch) if is_exact else ())],
            "training": problem.training,
            "drops": problem.drops,
            "resets": problem.has_resets,
            "device_lengths": problem.has_device_lengths,
            "options": [
                problem.options.algorithm,
                problem.options.math,
                bool(problem.options.clip),
            ],
        }

    def _read(self, value: Any, problem: RNNProblem) -> RouteChoice | None:
        times = {name: _times(*three) for name, three in value["times"].items()}
        refused = {name: str(reason) for name, reason in value["refused"].items()}
        names = {self._candidates.oracle(problem), *self._candidates.offers(problem)}
        if {*times, *refused} != names or not times:
            return None  # stored by a version with other candidates
        if not can_be_staged(problem):
            times = {name: taken._replace(staged=None) for name, taken in times.items()}
        return choose(times, refused, source="disk")

    def _checked(self, found: RouteChoice, problem: RNNProblem, device: int) -> RouteChoice | None:
        where = self._memory, self._launch_on
        return check(found, self._candidates, problem, device, *where)


def _times(direct: object, *others: object) -> Times:
    """Check times that were read from a file."""
    return Times(
        checked_time(direct), *(None if one is None else checked_time(one) for one in others)
    )
