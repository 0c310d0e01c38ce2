"""Results of measuring convolutions, kept by size class of a layer (`size_class`).

Measuring itself is in `tuning`.
"""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any, NamedTuple

from dnnffi.backends.conv_interface import OWN, EngineChoice, Recipes, TunableSource
from dnnffi.convolution.size_class import ConvSizeClass, layer_of, size_class
from dnnffi.convolution.tuning import ConvTuning, TimedChoice, check, measure_executors
from dnnffi.execution.cache import PlanCache
from dnnffi.execution.locks import TryLock
from dnnffi.execution.store import checked_time
from dnnffi.execution.stored_results import StoredResults
from dnnffi.log import log_measurement, logger
from dnnffi.spec.checks import check_integer
from dnnffi.spec.conv_problem import ConvProblem

MAX_CLASSES = 4096
"""Size classes whose state is kept in a process, and layers whose recipes are kept."""

MAX_RECIPES = 4
"""Recipes of a layer that are kept. One takes 8 to 13 KB of host memory."""

MAX_KNOWN = 8
"""Candidates of a neighbouring class that are measured for another one."""


class Chosen(NamedTuple):
    """A choice without a measurement, and the shape of x that it was made for."""

    choice: EngineChoice
    x_shape: tuple[int, ...]


class ConvClassState:
    """Knowledge of this process about one size class of a layer on one device.

    It is shared by the plans of all sizes of the class. Each attribute is replaced as a whole, so
    that threads see an old or a new value; a count may miss a call of another thread.

    Attributes
    ----------
    tuning : what was measured for the class, in this process, or in another one and compared here
    neighbour : what was measured for a neighbouring class, compared for this one
    calls : calls since a measurement of the class was asked for and was not possible
    num_refused : how often a choice of the class could not be made for a problem of it
    is_looked_up : whether the measurements on disk and of neighbours were looked at
    recipes : what makes plans of the layer for further sizes, shared by its classes
    measuring : held by the thread that measures the class
    """

    def __init__(self, size: ConvSizeClass, recipes: Recipes) -> None:
        self.size = size
        self.recipes = recipes
        self.tuning: ConvTuning | None = None
        self.neighbour: ConvTuning | None = None
        self.calls = 0
        self.num_refused = 0
        self.is_looked_up = False
        self.measuring = TryLock()
        self._specialized: tuple[int, ...] | None = None
        self._by_heuristics: Chosen | None = None
        self._by_record: Chosen | None = None

    def specializes(self, problem: ConvProblem) -> bool:
        """Return whether kernels of dnnffi's have the sizes of ``problem`` as constants.

        They have the sizes of the first problem of the class, or of one measured in this process.
        """
        if self._specialized is None:
            self._specialized = problem.x_shape
        return problem.x_shape == self._specialized

    def adopt(self, tuning: ConvTuning) -> None:
        """Take over what was measured for a problem of the class."""
        self.tuning, self._specialized = tuning, tuning.x_shape

    def chosen(self, *, by_record: bool) -> Chosen | None:
        """Return what was chosen without a measurement, for problems with or without a record."""
        return self._by_record if by_record else self._by_heuristics

    def choose(self, choice: EngineChoice, problem: ConvProblem) -> None:
        """Let later problems of the class use a choice that was made for ``problem``."""
        chosen = Chosen(choice, problem.x_shape)
        if choice.engine == OWN:
            self._by_record = chosen
        else:
            self._by_heuristics = chosen


class ConvTuner(StoredResults[ConvProblem, ConvTuning]):
    """Tuning results of convolutions, by size class of a layer (`size_class`)."""

    def __init__(self, source: TunableSource) -> None:
        super().__init__("conv", source.resources.memory)
        self.source = source
        self._states: PlanCache[ConvClassState] = PlanCache(MAX_CLASSES)
        self._recipes: PlanCache[Recipes] = PlanCache(MAX_CLASSES)

    def state(self, problem: ConvProblem, device: int, *, look_up: bool = True) -> ConvClassState:
        """Return what is known about the class of a problem.

        At the first problem of a class, its result on disk is looked up, or else those of its
        neighbours, and compared on the current stream; not while that is captured, nor without
        ``look_up``.
        """
        size = size_class(problem)
        layer = layer_of(problem)
        key = layer, size, device
        state = self._states.find(key)
        if state is None:
            recipes = self._recipes.get((layer, device), lambda: PlanCache(MAX_RECIPES))
            state = self._states.get(key, lambda: ConvClassState(size, recipes))
        if not look_up or state.is_looked_up or state.tuning is not None:
            return state
        if not self.is_capturing():
            found = self._from_disk(self._key(problem, device), problem, device)
            if state.tuning is None:  # else another thread has measured meanwhile
                state.tuning = found
            if state.tuning is None:
                state.neighbour = self._of_neighbour(problem, layer, size, device)
            state.is_looked_up = True
        return state

    def find(self, problem: ConvProblem, device: int) -> ConvTuning | None:
        """Return what was measured for the class of a problem; None if nothing was."""
        return self.state(problem, device).tuning

    def measure(
        self, problem: ConvProblem, device: int, known: ConvTuning | None = None
    ) -> ConvTuning | None:
        """Measure a problem; the result is that of its class from now on.

        With ``known``, the result of a neighbouring class, only what is fast there is measured.
        """
        choices = None
        if known is not None:
            choices = [choice for choice, _ in known.candidates[:MAX_KNOWN]]
        begun = time.perf_counter()
        found = measure_executors(problem, device, self.source, choices)
        if found is None:
            logger.info("%s cannot be measured", problem)
        else:
            seconds = time.perf_counter() - begun
            log_measurement(problem, str(found.choice), found.times, found.refused, seconds)
            self.state(problem, device, look_up=False).adopt(found)
            for other in size_class(problem).neighbours():
                state = self._states.find((layer_of(problem), other, device))
                if state is not None and state.tuning is None and state.neighbour is None:
                    state.is_looked_up = False
            self._store.write(self._key(problem, device), found._asdict())
        return found

    def _of_neighbour(
        self, problem: ConvProblem, layer: ConvProblem, size: ConvSizeClass, device: int
    ) -> ConvTuning | None:
        """Return the result of the nearest class that has one, if it passes for ``problem``."""
        own_key = self._key(problem, device)
        for other in size.neighbours():
            state = self._states.find((layer, other, device))
            known = None if state is None else state.tuning
            if known is not None:
                found = self._checked(known, problem, device)
            else:
                key = {**own_key, "class": list(other)}
                found = self._from_disk(key, problem, device)
            if found is not None:
                return found
        return None

    def clear(self) -> None:
        super().clear()
        self._states.clear()
        self._recipes.clear()

    def _about(self, problem: ConvProblem) -> dict[str, Any]:
        spec, options = problem.spec, problem.options
        return {
            "format": 4,  # 2 was for one problem
            "engine": self.source.version,
            "spec": {field.name: _plain(getattr(spec, field.name)) for field in fields(spec)},
            "operation": problem.operation,
            "layout": problem.layout,
            "epilogue": [problem.activation, problem.residual, problem.alpha, problem.bias],
            "options": [options.math, options.deterministic, options.workspace_limit],
            "class": list(size_class(problem)),
        }

    def _read(self, value: Any, problem: ConvProblem) -> ConvTuning | None:
        candidates = [
            TimedChoice(EngineChoice.read(choice), checked_time(milliseconds))
            for choice, milliseconds in value["candidates"]
        ]
        refused = {name: str(reason) for name, reason in value["refused"].items()}
        x_shape = tuple(check_integer("x_shape", size) for size in value["x_shape"])
        if not candidates:
            return None
        return ConvTuning(tuple(candidates), refused, x_shape, source="disk")

    def _checked(self, found: ConvTuning, problem: ConvProblem, device: int) -> ConvTuning | None:
        return check(found, problem, device, self.source)


def _plain(value: Any) -> Any:
    """Return a field of a spec as it comes back from a file."""
    return list(map(_plain, value)) if isinstance(value, tuple) else value
