"""Choose who runs a problem: by rule at first, then by stored results or after measuring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dnnffi.backends.resources import Resources
from dnnffi.backends.rnn_interface import AddressExecutor
from dnnffi.device.graphs import refuse_in_capture
from dnnffi.device.interface import Launch
from dnnffi.execution.locks import Turn
from dnnffi.execution.measure import FAILURES
from dnnffi.rnn.candidates import CandidateSet
from dnnffi.rnn.tuning import RNNTuner, RouteChoice
from dnnffi.spec.problem import RNNProblem

CALLS_BEFORE_TUNING = 8
"""Calls of a problem that run by the rule before it is measured."""


class Route(NamedTuple):
    """Who runs a problem. A call takes it once: another thread may tune in the middle.

    ``direct`` runs what no graph knows; ``replayed`` is captured, or None; with ``staged`` it runs
    inference on new addresses too, through copies. Both read the same layout of the weights, but
    what one leaves in the reserve space is not for the other: who ran a forward runs its backwards.
    The reserve space is large enough for both, so that it can be allocated before it is known which
    of them runs; the workspace for the one that is captured.
    """

    direct: AddressExecutor
    replayed: AddressExecutor | None
    staged: bool
    workspace_bytes: int
    reserve_bytes: int

    @classmethod
    def of(
        cls, direct: AddressExecutor, replayed: AddressExecutor | None = None, staged: bool = False
    ) -> Route:
        """The route with the sizes that follow."""
        main = replayed or direct
        reserve_bytes = max(direct.reserve_bytes, main.reserve_bytes)
        return cls(direct, replayed, staged, main.least_workspace_bytes, reserve_bytes)

    @property
    def main(self) -> AddressExecutor:
        """The one that runs most calls."""
        return self.replayed or self.direct


class RouteFinder:
    """The route of one plan: ``route`` now, the ``choice`` behind it, and when it is measured.

    ``countdown`` is how many calls are left until then; 0 where it is not to be measured. If the
    plan is made while its stream is captured, stored results are looked for after the capture.
    ``changed`` is told of every new route.
    """

    def __init__(
        self,
        problem: RNNProblem,
        device: int,
        candidates: CandidateSet,
        resources: Resources,
        generator: Any,
        tuner: RNNTuner | None,
        changed: Callable[[], object],
    ) -> None:
        self._problem = problem
        self._device = device
        self._candidates = candidates
        self._memory = resources.memory
        self._launch_on = resources.launch
        self._generator = generator
        self._tuner = tuner if problem.options.tune != "off" else None
        self._changed = changed
        self._turn = Turn()
        self.choice: RouteChoice | None = None
        self.countdown = 0
        self._is_looked_up = False
        with self._memory.use(device):
            self.route = Route.of(candidates.make(problem, None, self._launch(), generator))

    def _launch(self) -> Launch:
        stream = self._memory.current_stream()
        refuse_in_capture(stream.ptr)  # executors may allocate when they are made
        return self._launch_on(self._device, stream)

    def begin(self) -> None:
        """Take what was found before, or see to it that the problem is measured."""
        if self._tuner is None or self._take_known(self._tuner):
            return
        if self._problem.options.tune == "auto":
            self.countdown = CALLS_BEFORE_TUNING
        elif not self.autotune():
            self.countdown = 1  # inside the caller's capture: behind it, then

    def _take_known(self, tuner: RNNTuner) -> bool:
        """Use the result of this process or of another; False if there is none, or in a capture."""
        if tuner.is_capturing():
            return False  # stored results are run and compared first
        self._is_looked_up = True
        known = tuner.find(self._problem, self._device)
        if known is None:
            return False
        self.countdown = 0
        self._apply(known)
        return True

    def count(self) -> None:
        """Count a call; the last one measures, after the caller's capture if there is one."""
        if not self._is_looked_up and self._tuner is not None and self._take_known(self._tuner):
            return
        if self.countdown > 1:
            self.countdown -= 1
        else:
            self.autotune()

    def autotune(self) -> bool:
        """Measure the candidates and use the fastest. False where that cannot be done now."""
        with self._turn.take() as mine:
            if self._tuner is None or not mine:
                return False
            if self._memory.is_capturing(self._memory.current_stream()):
                return False
            self.countdown = 0
            choice = self._tuner.measure(self._problem, self._device)
            if choice is not None:
                self._apply(choice)
            return choice is not None

    def _apply(self, choice: RouteChoice) -> None:
        """Use what was measured; a candidate that cannot be made now is left out."""
        try:
            with self._memory.use(self._device):
                executors = {
                    name: self._candidates.make(
                        self._problem, name, self._launch(), self._generator
                    )
                    for name in {choice.direct, choice.replayed}
                    if name is not None
                }
        except FAILURES:
            return
        self.choice = choice
        replayed = None if choice.replayed is None else executors[choice.replayed]
        self.route = Route.of(executors[choice.direct], replayed, choice.staged)
        self._changed()

    def stop_replaying(self) -> None:
        """Go on without graphs: a capture has failed."""
        self.route = Route.of(self.route.direct)
        self._changed()

    def close(self) -> None:
        """Let go of the executors."""
        for executor in (self.route.direct, self.route.replayed):
            if executor is not None:
                executor.close()
