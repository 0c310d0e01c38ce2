"""A network on one device: what the calls of all its sizes share.

A network is prepared once; sizes belong to a call. Sizes form classes
(`dnnffi.spec.rnn_size_class`). The first class is measured after a few calls of the network,
whatever their sizes, and the choice serves all sizes of the class from then on. Another class
borrows the choice of the nearest measured one, and is measured once its calls have taken much
longer than measuring does. Among batches of ragged rows a few have rows of equal lengths: they
borrow from ragged rows, too. Before any class is measured, a rule chooses (`CandidateSet.by_rule`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from dnnffi.backends.resources import Resources
from dnnffi.backends.rnn_interface import AddressExecutor, PreparedNetwork
from dnnffi.backends.vendor.handle import launch_on
from dnnffi.device.interface import Array, Launch, Stream
from dnnffi.execution.cache import PlanCache, WeakRegistry
from dnnffi.execution.fork import guard
from dnnffi.execution.locks import TryLock
from dnnffi.execution.measure import FAILURES
from dnnffi.log import logger
from dnnffi.rnn.candidates import CandidateSet
from dnnffi.rnn.route_choice import RouteChoice
from dnnffi.rnn.tuner import RNNTuner
from dnnffi.rnn.tuning import BUDGET
from dnnffi.spec.problem import PACKED, RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.rnn_size_class import RNNSizeClass, RowKind, size_class

CALLS_BEFORE_TUNING = 4
"""Number of the call at which a network, or a class with no choice to borrow, is measured."""

MAX_CLASSES = 512
"""Classes that a network keeps; with tune="now" all sizes are a class of their own."""

FIRST_BUDGET, LATER_BUDGET = 0.15, 0.1
"""Seconds of measuring for the first class of a network, and for each other one."""

PATIENCE = 10
"""Multiple of `LATER_BUDGET` that the calls of a class that borrows take before it is measured."""

_RARELY = 1024
"""Multiple of the usual calls that pass before what failed to be measured is tried again."""


class Choice:
    """The candidates that run a class: what was measured, and the candidates themselves.

    ``origin`` is the class that was measured, another one for a choice that is borrowed.
    """

    def __init__(
        self, found: RouteChoice, networks: dict[str, PreparedNetwork], origin: RNNSizeClass
    ) -> None:
        self.found = found
        self.direct = networks[found.direct]
        self.replayed = None if found.replayed is None else networks[found.replayed]
        self.origin = origin

    def call_ms(self, sizes: RNNSizeClass) -> float:
        """Estimate the milliseconds of a call of a class that borrows the choice.

        The time of a recurrence grows with its steps, and with rows once they fill the device.
        """
        origin = self.origin
        rows = max(1.0, sizes.max_rows / origin.max_rows)
        return self.found.direct_ms * rows * sizes.max_steps / origin.max_steps

    def runs(self, problem: RNNProblem) -> bool:
        """Whether the candidates are for the layout of a problem whose class borrows the choice."""
        return self.origin.row_kind != "ragged" or problem.layout != PACKED

    def bind(
        self,
        candidate: PreparedNetwork,
        problem: RNNProblem,
        launch: Launch,
        generator: Any,
        *,
        is_exact: bool,
    ) -> AddressExecutor:
        """Return the executor of a problem on one of the candidates (`PreparedNetwork.bind`).

        One of ragged rows is given the lengths of all rows, equal or not.
        """
        is_full = problem.lengths is None and not problem.has_device_lengths
        if is_full and self.origin.row_kind == "ragged":
            problem = problem._replace(lengths=(problem.steps,) * problem.batch)
        return candidate.bind(problem, launch, generator, is_exact=is_exact)


class RNNClassState:
    """Knowledge of this process about one class of sizes of a network.

    It is measured once it has no ``calls_left``, those without a choice to borrow, or no
    ``ms_left``, the time of calls with one. ``choice`` is None until it is measured, here or by
    another process. ``borrowed`` is that of the nearest measured class when `Network.version` was
    ``borrowed_at``.
    """

    def __init__(self, sizes: RNNSizeClass) -> None:
        self.sizes = sizes
        self.calls_left = CALLS_BEFORE_TUNING
        self.ms_left = PATIENCE * LATER_BUDGET * 1e3
        self.is_looked_up = False
        self.choice: Choice | None = None
        self.borrowed: Choice | None = None
        self.borrowed_at = 0


_ON_DEVICE = nullcontext()

MAX_BATCHES = 64
"""Numbers of rows for which a network keeps shapes."""


class StateShapes(NamedTuple):
    """The shapes of states of a number of rows; ``new`` allocates one of each.

    Those are h_n and c_n, or the gradients of h_0 and c_0; the second is None without a cell.
    """

    h_shape: tuple[int, int, int]
    c_shape: tuple[int, int, int]
    new: Callable[[], tuple[Array, Array | None]]


class PlanParts:
    """Memory, dtype, stream and workspaces of all plans of a network on one device, found once.

    ``is_only_device`` says that the process has no other device.
    """

    def __init__(
        self, spec: RNNSpec, device: int, resources: Resources, operations: WeakRegistry[Any]
    ) -> None:
        self.spec, self.device = spec, device
        self.has_cell, self.y_width = spec.has_cell, spec.output_size * spec.num_directions
        self.operations = operations
        """The operations of plans that live, as far as they were needed."""
        self.memory = memory = resources.memory
        self.graphs = resources.graphs
        self.launch: Callable[[Stream], Launch] = partial(launch_on, resources.library, device)
        self.dtype, self.byte = memory.dtype(spec.dtype), memory.dtype("uint8")
        self.item_bytes: int = self.dtype.itemsize
        self.ndarray = memory.ndarray
        self.is_only_device = memory.device_count() == 1
        # Without another frame, because they are on the path of every call.
        self.current_device: Callable[[], int] = memory.current_device
        self.current_stream: Callable[[], Stream] = memory.current_stream
        self.is_capturing: Callable[[Stream], bool] = memory.is_capturing
        self.empty = memory.empty
        self.take_workspace = resources.workspaces.take
        self.give_back_workspace = resources.workspaces.give_back
        self._states: PlanCache[StateShapes] = PlanCache(MAX_BATCHES)
        guard(self)

    def states(self, batch: int) -> StateShapes:
        """Return the shapes of states of ``batch`` rows, and what allocates them."""
        found = self._states.find(batch)
        return self._states.add(batch, self._state_shapes(batch)) if found is None else found

    def _state_shapes(self, batch: int) -> StateShapes:
        h_shape, c_shape = self.spec.h_shape(batch), self.spec.c_shape(batch)
        if self.spec.has_cell:
            return StateShapes(h_shape, c_shape, self.memory.pairs(h_shape, c_shape, self.dtype))
        return StateShapes(h_shape, c_shape, lambda: (self.empty(h_shape, self.dtype), None))


class Network:
    """Choices by class for one network on one device.

    The key of a network is everything of a problem but its sizes. ``version`` grows with each new
    choice, so that plans notice it. ``parts`` are for its plans.
    """

    def __init__(
        self,
        candidates: CandidateSet,
        parts: PlanParts,
        tuner: RNNTuner | None,
    ) -> None:
        self._candidates = candidates
        self.parts = parts
        self.memory = parts.memory
        self.tuner = tuner
        self._try_lock = TryLock()
        self._classes: PlanCache[RNNClassState] = PlanCache(MAX_CLASSES)
        self._calls_left = CALLS_BEFORE_TUNING  # before the first measurement
        self.version = 0

    def class_of(self, problem: RNNProblem) -> RNNClassState:
        """Return the class of a problem, with what another process has measured for it.

        With the option tune="now" a problem is a class of its own: it is to be measured as it is.
        """
        sizes = size_class(problem)
        key: Hashable = sizes
        if problem.options.tune == "now":
            key = sizes, problem.steps, problem.batch
        found = self._classes.find(key)
        if found is None:
            found = self._classes.get(key, lambda: RNNClassState(sizes))
        if not found.is_looked_up and self.tuner is not None and problem.options.tune != "off":
            self._look_up(self.tuner, found, problem)
        return found

    def _look_up(self, tuner: RNNTuner, found: RNNClassState, problem: RNNProblem) -> None:
        """Use what this or another process has measured for a class, unless in a capture."""
        if tuner.is_capturing():
            return  # stored results are run and compared first
        found.is_looked_up = True
        with self.on_device():
            known = tuner.find(problem, self.parts.device)
        if known is not None:
            self._apply(found, problem, known)

    def is_due(self, found: RNNClassState, call_ms: float | None) -> bool:
        """Count a call of a class that is not measured; return whether it is to be measured now.

        ``call_ms`` is about what the call takes with a borrowed choice, in milliseconds; None if
        there is no choice to borrow.
        """
        if call_ms is not None:
            found.ms_left -= call_ms
        else:
            found.calls_left -= 1
            self._calls_left -= 1
        is_first_due = self._calls_left <= 0 and self.version == 0
        return found.calls_left <= 0 or found.ms_left <= 0 or is_first_due

    def measure(self, found: RNNClassState, problem: RNNProblem, *, in_full: bool = False) -> bool:
        """Measure the candidates of a class on scratch data. False if that cannot be done now.

        ``in_full``: all candidates, whatever was measured for other classes.
        """
        with self._try_lock.take() as mine:
            if self.tuner is None or not mine or self.tuner.is_capturing():
                return False
            # What fails is not tried in every call.
            found.calls_left = self._calls_left = _RARELY * CALLS_BEFORE_TUNING
            found.ms_left = _RARELY * PATIENCE * LATER_BUDGET * 1e3
            budget, borrowed = FIRST_BUDGET, None
            if problem.options.tune == "now":
                budget = BUDGET
            elif self.version and not in_full:
                budget, borrowed = LATER_BUDGET, self.choice_for(found)
            of_others = None
            if borrowed is not None and borrowed.origin.row_kind == found.sizes.row_kind:
                of_others = borrowed.found
            with self.on_device():
                choice = self.tuner.measure(problem, self.parts.device, budget, of_others)
            return choice is not None and self._apply(found, problem, choice)

    def choice_for(self, found: RNNClassState) -> Choice | None:
        """Return the choice of a class, or the one that it borrows; None if there is none.

        It borrows from the nearest measured class of its kind. If no full rows were measured, they
        borrow from the nearest ragged rows, unless the vendor runs these. A plan uses it if the
        choice `runs` its layout.
        """
        if found.choice is not None:
            return found.choice
        version = self.version  # first: another thread may measure
        if found.borrowed_at != version:
            found.borrowed, found.borrowed_at = self._nearest_choice(found), version
        return found.borrowed

    def _nearest_choice(self, found: RNNClassState) -> Choice | None:
        nearest = self._nearest_of_kind(found.sizes, found.sizes.row_kind)
        if nearest is None and found.sizes.row_kind == "full":
            of_ragged = self._nearest_of_kind(found.sizes, "ragged")
            if of_ragged and not any(map(self._candidates.is_of_vendor, of_ragged.found.used)):
                return of_ragged
        return nearest

    def _nearest_of_kind(self, sizes: RNNSizeClass, row_kind: RowKind) -> Choice | None:
        found = [
            one.choice
            for one in self._classes.values()
            if one.choice is not None and one.sizes.row_kind == row_kind
        ]
        return min(found, key=lambda one: sizes.distance(one.origin), default=None)

    def launch(self) -> Launch:
        """Return a launch on the current stream of the network's device, which is current."""
        return self.parts.launch(self.parts.current_stream())

    def on_device(self) -> AbstractContextManager[Any]:
        """Return a context in which the network's device is the current one."""
        if self.parts.current_device() == self.parts.device:
            return _ON_DEVICE
        return self.memory.use(self.parts.device)

    def check(self, problem: RNNProblem) -> None:
        """Raise `UnsupportedError` for sizes that are known not to run; the device is current."""
        self._candidates.check(problem)

    def by_rule(self, problem: RNNProblem, generator: Any) -> AddressExecutor:
        """Return the executor of a problem that was not measured.

        Raises `UnsupportedError` if there is none.
        """
        return self._candidates.by_rule(problem, self.launch(), generator)

    def _apply(self, found: RNNClassState, problem: RNNProblem, known: RouteChoice) -> bool:
        """Use what was measured, unless one of its candidates cannot be made now."""
        try:
            with self.on_device():
                launch = self.launch()
                networks = {
                    name: self._candidates.network(problem, name, launch) for name in known.used
                }
        except FAILURES as error:
            names = " or ".join(known.used)
            reason = f"{type(error).__name__}: {error}"
            logger.info("%s cannot be made for %s: %s", names, problem, reason)
            return False
        found.choice = Choice(known, networks, found.sizes)
        self.version += 1
        return True

    def forget(self) -> None:
        """Forget what was measured in this process."""
        self._classes.clear()
