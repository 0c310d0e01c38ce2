"""The executors that run one convolution: in the order of a source, or by what was measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from dnnffi.backends.conv_interface import (
    OWN,
    ChosenExecutor,
    ConvAddresses,
    ConvExecutors,
    ConvSource,
    SearchedExecutors,
    SearchedSource,
    TunableExecutors,
    TunableSource,
)
from dnnffi.convolution.size_class import output_positions
from dnnffi.convolution.tuner import ConvTuner
from dnnffi.convolution.tuning import ConvTrial, ConvTuning
from dnnffi.device.interface import Launch
from dnnffi.errors import StatusError, UnsupportedError
from dnnffi.execution.measure import FAILURES
from dnnffi.log import logger
from dnnffi.spec.conv_problem import ConvProblem

CALLS_PER_ATTEMPT = 8
"""Calls of a size class between two attempts to measure it, where the first was not possible: in a
capture, without memory, or while another thread was measuring.
"""


E = TypeVar("E", bound=ConvExecutors)


class ExecutorFinder(ABC, Generic[E]):
    """The executors of one problem, from a source that has ``E``.

    ``is_pending`` says that the next call has to call `advance`. ``refused`` are the reasons why
    what was chosen for other sizes cannot run these, by choice.
    """

    is_pending = False

    def __init__(self, problem: ConvProblem, device: int, source: ConvSource) -> None:
        self.problem = problem
        self.device = device
        self.refused: dict[str, str] = {}
        self.source = source
        self._resources = source.resources
        self._may_measure = problem.options.tune != "off"

    @abstractmethod
    def executors(self, launch: Launch) -> E:
        """Return the executors for the calling thread."""

    def first(self, executors: E) -> ChosenExecutor:
        """Return the executor that is to run. Raises the error of `ConvExecutors.nothing`."""
        executor = next(executors, None)
        if executor is None:
            raise executors.nothing()
        return executor

    def autotune(self) -> bool:
        """Measure everything; return whether threads have to ask for their `first` again."""
        return self._may_measure and self._measure()

    @abstractmethod
    def _measure(self) -> bool:
        """Measure in full, unless the current stream is captured."""

    @abstractmethod
    def advance(self) -> bool:
        """Count a call, and measure if that is due; return as `autotune`."""

    @abstractmethod
    def notes(self, executor: ChosenExecutor, executors: E) -> list[str]:
        """Return the lines of a report on why ``executor`` runs."""

    def _is_captured(self) -> bool:
        memory = self._resources.memory
        return memory.is_capturing(memory.current_stream())


class SearchFinder(ExecutorFinder[SearchedExecutors]):
    """The executors of one problem in the order of a library that measures by itself.

    With the option tune="now" it searches when the finder is made, or where that is captured, in
    the first call that is not. After a search that failed, for want of memory say, calls run in the
    order of the library's list, and every eighth call tries again.
    """

    source: SearchedSource

    def __init__(self, problem: ConvProblem, device: int, source: SearchedSource) -> None:
        super().__init__(problem, device, source)
        self._calls_to_wait = 0
        self.is_pending = problem.options.tune == "now" and not self._measure()

    def executors(self, launch: Launch) -> SearchedExecutors:
        return self.source.executors(self.problem, launch)

    def _measure(self) -> bool:
        if self._is_captured():
            return False
        memory = self._resources.memory
        trials: list[ConvTrial] = []

        def scratch(problem: ConvProblem) -> ConvAddresses:
            try:
                trials.append(ConvTrial(problem, self.device, self._resources))
            except Exception as error:  # of the caller's allocator, whatever it raises
                raise MemoryError(f"no memory for scratch arrays: {error}") from error
            return trials[-1].addresses

        with memory.use(self.device):
            launch = self._resources.launch(self.device, memory.current_stream())
            try:
                self.source.search(self.problem, launch, scratch)
            except FAILURES as error:
                logger.info("%s cannot be searched: %s", self.problem, error)
                self._calls_to_wait = CALLS_PER_ATTEMPT
                return False
            finally:
                trials.clear()
        self.is_pending = False
        return True

    def advance(self) -> bool:
        self._calls_to_wait -= 1
        return self._calls_to_wait <= 0 and self._measure()

    def notes(self, executor: ChosenExecutor, executors: SearchedExecutors) -> list[str]:
        return executors.notes(executor)


class TunedFinder(ExecutorFinder[TunableExecutors]):
    """The executors of one problem, first the choice of its size class (`size_class`).

    That is what was measured for the class or for a neighbouring one, here or in another process,
    else what the heuristics or a record said for an earlier problem of the class. If that cannot
    compute the problem, or with the option tune="off", they are asked for the problem itself.
    """

    source: TunableSource

    def __init__(self, problem: ConvProblem, device: int, tuner: ConvTuner) -> None:
        super().__init__(problem, device, tuner.source)
        self._tuner = tuner
        self._class = state = tuner.state(problem, device, look_up=self._may_measure)
        self.tuning: ConvTuning | None = None
        if self._may_measure:
            self.tuning = state.tuning or state.neighbour
        is_asked_for = problem.options.tune == "now"
        if is_asked_for and state.tuning is None and not state.calls:
            self._measure(state.neighbour)
        # The measurement that the options ask for is tried again at a later call of the class.
        self.is_pending = is_asked_for and state.tuning is None

    def executors(self, launch: Launch) -> TunableExecutors:
        return self.source.executors(
            self.problem,
            launch,
            specialized=self._class.specializes(self.problem),
            recipes=self._class.recipes,
        )

    def first(self, executors: TunableExecutors) -> ChosenExecutor:
        """Make the executor of the choice that is known, or else of what the heuristics say."""
        state = self._class
        # With the option tune="off" no other size of the class decides.
        chosen = state.chosen(by_record=executors.run_by_record) if self._may_measure else None
        measured = None if self.tuning is None else self.tuning.choice
        for choice in dict.fromkeys((measured, None if chosen is None else chosen.choice)):
            if choice is None:
                continue
            try:
                return executors.made_again(choice)
            except (StatusError, UnsupportedError, ValueError) as error:
                self.refused[str(choice)] = str(error)
                logger.info("%s of the size class cannot run %s: %s", choice, self.problem, error)
                state.num_refused += 1
        executor = super().first(executors)
        if self._may_measure:
            state.choose(executor.choice, self.problem)
        return executor

    def _measure(self, known: ConvTuning | None = None) -> bool:
        """Measure the problem for its class: everything, or what is in ``known``.

        Return False where nothing was measured: in a capture, while another thread measures the
        class, or without memory.
        """
        with self._class.measuring.take() as mine, self._resources.memory.use(self.device):
            if not mine or self._is_captured():
                return False
            tuning = self._tuner.measure(self.problem, self.device, known)
        if tuning is None:
            return False
        self._adopt(tuning)
        return True

    def _adopt(self, tuning: ConvTuning) -> None:
        """Use a result of the class from the next call on."""
        self.tuning, self.is_pending = tuning, False

    def advance(self) -> bool:
        """Count a call of a class that could not be measured, and try again if it is time."""
        state = self._class
        if state.tuning is None:
            state.calls += 1
            if state.calls % CALLS_PER_ATTEMPT == 0 and self._measure(state.neighbour):
                return True
        if state.tuning is None:
            return False
        self._adopt(state.tuning)  # measured by another plan of the class
        return True

    def notes(self, executor: ChosenExecutor, executors: TunableExecutors) -> list[str]:
        state, tuning = self._class, self.tuning
        here = f"x has {output_positions(self.problem):,}"
        lines = [f"size class of the layer: {state.size} ({here})"]
        if state.num_refused:
            lines.append(f"the choice of the class was refused {state.num_refused} time(s)")
        if tuning is None:
            why = "not measured" if self._may_measure else "tuning is off"
            own = executor.choice.engine == OWN
            by = "by a record of such layers" if own else "by the library's heuristics"
            chosen = state.chosen(by_record=own) if self._may_measure else None
            shape = self.problem.x_shape if chosen is None else chosen.x_shape
            return [*lines, f"picked {by} for x {list(shape)}; {why}"]
        if tuning is state.neighbour:
            source = "taken over from a neighbouring class"
        elif tuning.source == "disk":
            source = "read from disk"
        else:
            source = "measured in this process"
        lines.append(f"{source}, for x {list(tuning.x_shape)}, ms:")
        lines += [f"  {name}: {time:.4f}" for name, time in tuning.times.items()]
        return lines + [f"  {name}: {reason}" for name, reason in tuning.refused.items()]
