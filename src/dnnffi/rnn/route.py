"""The executors that run one problem: by rule at first, then by what its class has measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dnnffi.backends.rnn_interface import AddressExecutor, PreparedNetwork
from dnnffi.device.graphs import refuse_in_capture
from dnnffi.execution.measure import FAILURES
from dnnffi.log import logger
from dnnffi.rnn.network import Choice, Network
from dnnffi.rnn.route_choice import RouteChoice
from dnnffi.spec.problem import RNNProblem

CAPTURE_MS = 1.0
"""About how many milliseconds a capture takes on the host."""

MAX_CALLS_BEFORE_CAPTURE = 32


class Route(NamedTuple):
    """The implementation that runs a problem. A call takes it once: another thread may be tuning.

    ``direct`` runs what no graph knows; ``replayed`` is captured, or None; with ``staged`` it runs
    inference on new addresses too, through copies. Both read the same layout of the weights, but
    one cannot read what the other saved in the reserve space: who runs a forward pass runs its
    backward passes. The reserve space is large enough for both, so that it can be allocated before
    it is known which of them runs; the workspace for the one that is captured.
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
        """Make a route with the sizes that the executors need."""
        main = replayed or direct
        reserve_bytes = max(direct.reserve_bytes, main.reserve_bytes)
        return cls(direct, replayed, staged, main.least_workspace_bytes, reserve_bytes)

    @property
    def main(self) -> AddressExecutor:
        """The executor that runs most calls: ``replayed``, or ``direct`` without it."""
        return self.replayed or self.direct


def _do_nothing() -> None:
    """Do nothing: the initial ``forget_graphs``."""


class RouteFinder:
    """The route of one plan, and the events that change it.

    ``is_pending`` says that the next call has to call `advance`: the class is not measured yet, or
    the route has no executor for replays yet. A new plan binds only the candidate for plain
    launches; the one for replays is bound when the plan was called often enough.
    ``forget_graphs`` drops the graphs of the route, if the plan has any.
    """

    def __init__(
        self,
        problem: RNNProblem,
        network: Network,
        generator: Any,
    ) -> None:
        self._problem = problem
        self.network = network
        self._generator = generator
        self.forget_graphs: Callable[[], object] = _do_nothing
        self._is_tuned = network.tuner is not None and problem.options.tune != "off"
        self._class = network.class_of(problem)
        self._used: Choice | None = None
        self._calls = 0
        self._stopped = False  # a capture has failed
        self._runs_choice = False
        self.version = network.version  # before the choice is read: another thread may measure
        parts = network.parts
        self.route: Route
        if parts.current_device() == parts.device:
            self.route = self._first_route()
        else:
            with parts.memory.use(parts.device):
                self.route = self._first_route()
        self.is_pending = self._is_unmeasured or self._is_incomplete
        if problem.options.tune == "now" and self._is_unmeasured and not self.autotune():
            self._class.calls_left = 0  # captured by the caller: measure after that

    @property
    def choice(self) -> RouteChoice | None:
        """Measured choice of the plan's class of sizes, if the plan uses it."""
        used = self._used
        return None if used is None or used is not self._class.choice else used.found

    @property
    def borrowed(self) -> Choice | None:
        """The choice of another class that the plan uses until its own class is measured."""
        return self._used if self._class.choice is None and self._runs_choice else None

    @property
    def sizes(self) -> object:
        """The class of sizes."""
        return self._class.sizes

    @property
    def calls_before_capture(self) -> int:
        """Calls of the plan after which captures are worth their time.

        A capture costs about `CAPTURE_MS`; each replay gains what was measured. Sizes of a stream
        come again rarely.
        """
        choice = None if self._used is None else self._used.found
        if choice is None or choice.replayed is None or not choice.times:
            return 2
        gain = choice.direct_ms - (choice.times[choice.replayed].replayed or 0.0)
        return min(max(2, round(CAPTURE_MS / max(gain, 1e-3))), MAX_CALLS_BEFORE_CAPTURE)

    @property
    def _is_unmeasured(self) -> bool:
        return self._is_tuned and self._class.choice is None

    @property
    def _newest_choice(self) -> Choice | None:
        """The choice that the plan is to use now, its own or a borrowed one."""
        choice = self.network.choice_for(self._class) if self._is_tuned else None
        return choice if choice is not None and choice.runs(self._problem) else None

    @property
    def _is_incomplete(self) -> bool:
        return (
            self._used is not None
            and self._used.replayed is not None
            and self.route.replayed is None
            and not self._stopped
        )

    def advance(self) -> None:
        """Count a call, measure the class if that is due, and complete the route."""
        network, found = self.network, self._class
        if self._is_unmeasured:
            if not found.is_looked_up:
                network.class_of(self._problem)  # the first look was captured
            borrowed = self.borrowed
            call_ms = None if borrowed is None else borrowed.call_ms(found.sizes)
            if found.choice is None and network.is_due(found, call_ms):
                network.measure(found, self._problem)
        if self.version != network.version:
            self.update()
        self._calls += 1
        if self._is_incomplete and self._calls >= self.calls_before_capture:
            self._complete()
        self.is_pending = self._is_unmeasured or self._is_incomplete

    def update(self) -> None:
        """Use the newest choice of the network, unless in a capture."""
        if self._is_captured():
            return
        self.version = self.network.version
        choice = self._newest_choice
        if choice is not None and choice is not self._used:
            self._use(choice)

    def autotune(self) -> bool:
        """Measure the candidates and use the fastest. False if that cannot be done now."""
        if not self._is_tuned or not self.network.measure(self._class, self._problem, in_full=True):
            return False
        self.update()
        return True

    def complete(self) -> None:
        """Bind the executor for replays now: for a plan whose sizes will recur."""
        if self._is_incomplete:
            self._complete()
        self.is_pending = self._is_unmeasured or self._is_incomplete

    def _first_route(self) -> Route:
        """Return the first route of a new plan, on the network's device."""
        network = self.network
        stream = network.parts.current_stream()
        refuse_in_capture(stream.ptr)  # executors may allocate when made
        network.check(self._problem)
        choice = self._newest_choice
        if choice is not None:
            self._used = choice  # also if it cannot be bound, so that it is not tried in each call
            launch = network.parts.launch(stream)
            try:
                direct = choice.bind(
                    choice.direct, self._problem, launch, self._generator, is_exact=False
                )
            except FAILURES as error:  # it is not for these sizes
                self._log_refused(choice.found.direct, error)
            else:
                self._runs_choice = True
                logger.debug("%s runs %s, as was measured", choice.found.direct, self._problem)
                return Route.of(direct)
        executor = network.by_rule(self._problem, self._generator)
        logger.debug("%s runs %s by rule", executor.algorithm, self._problem)
        return Route.of(executor)

    def _use(self, choice: Choice) -> None:
        """Use a choice for all calls from now on; one that cannot be bound is left out."""
        try:
            with self.network.on_device():
                direct = self._bound(choice, choice.direct)
                replayed = None
                if choice.replayed is choice.direct:
                    replayed = direct
                elif choice.replayed is not None:
                    replayed = self._bound(choice, choice.replayed)
        except FAILURES as error:
            self._log_refused(" or ".join(choice.found.used), error)
            return
        logger.debug("%s runs %s from now on", " and ".join(choice.found.used), self._problem)
        self._used, self._runs_choice, self._stopped = choice, True, False
        self.route = Route.of(direct, replayed, choice.found.staged)
        self.forget_graphs()

    def _is_captured(self) -> bool:
        """Whether the current stream is captured: executors may allocate and compile when made."""
        tuner = self.network.tuner
        return tuner is not None and tuner.is_capturing()

    def _complete(self) -> None:
        if self._is_captured():
            return
        choice, direct = self._used, self.route.direct
        assert choice is not None
        assert choice.replayed is not None
        try:
            with self.network.on_device():
                replayed = self._bound(choice, choice.replayed)
        except FAILURES as error:
            self._log_refused(str(choice.found.replayed), error)
            self._stopped = True
            return
        self.route = Route.of(direct, replayed, choice.found.staged)
        self.forget_graphs()

    def _bound(self, choice: Choice, candidate: PreparedNetwork) -> AddressExecutor:
        launch = self.network.launch()
        return choice.bind(candidate, self._problem, launch, self._generator, is_exact=True)

    def _log_refused(self, candidate: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        logger.info("%s was measured but cannot run %s: %s", candidate, self._problem, reason)

    def stop_replaying(self) -> None:
        """Go on without graphs: a capture has failed."""
        self._stopped = True
        self.route = Route.of(self.route.direct)
        self.forget_graphs()

    def close(self) -> None:
        """Release graphs and executors."""
        self.forget_graphs()
        for executor in (self.route.direct, self.route.replayed):
            if executor is not None:
                executor.close()
