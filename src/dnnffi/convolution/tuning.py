"""Measuring the executors of a convolution on scratch data, and checking stored results."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from statistics import fmean
from typing import NamedTuple

from dnnffi.backends.conv_interface import (
    OWN,
    ChosenExecutor,
    ConvAddresses,
    ConvResources,
    EngineChoice,
    TunableExecutors,
    TunableSource,
    addresses_of,
)
from dnnffi.device.arrays import is_external
from dnnffi.device.interface import AnyArray, MemoryWithGraphs, Stream
from dnnffi.execution.comparison import tolerance
from dnnffi.execution.measure import (
    FAILURES,
    PRUNING_RATIO,
    Filler,
    HostArrays,
    disagreement,
    first_time,
    median_time,
    sample,
)
from dnnffi.execution.stored_results import MAX_CHECKED
from dnnffi.spec.conv_problem import ConvProblem

BUDGET = 8.0
"""Seconds after which no further candidate is begun. Some are compiled when they are made."""

CLASS_BUDGET = 0.1
"""Seconds after which no further candidate is begun where a neighbouring class was measured.

They begin when the arrays are made.
"""

_GRAPHED_CALLS = 10  # in one graph, so that the GPU is measured and not the launch
_MAX_LAUNCH_MS = 0.05  # by which a call may take longer than its kernels
_MAX_GRAPH_SLOWDOWN = 1.5  # factor over the best time; a slower first graph is not run again
# Candidates that are measured again: at most the number, each within the factor of the best time.
_MAX_FINALIST_SLOWDOWN, _MAX_FINALISTS = 1.2, 8
_NUM_ARRAY_SETS, _GRAPH_LAUNCHES_PER_SET = 3, 2  # measured for each finalist
# Approximate elements compared per result: copies to the host are slow, candidates many.
_COMPARED_ELEMENTS = 2**17


OnStream = Callable[[Stream], object]
"""A call to be enqueued on a stream."""


class TimedChoice(NamedTuple):
    """A candidate and the milliseconds of one call."""

    choice: EngineChoice
    milliseconds: float


class ConvTuning(NamedTuple):
    """The result of measuring a problem.

    ``candidates`` are in the order of preference: first those that were measured in turns, then
    the others, each group by time. ``refused`` with a reason, by candidate. ``x_shape`` is that of
    the problem that was measured. ``source`` is "measured" or "disk".
    """

    candidates: tuple[TimedChoice, ...]
    refused: dict[str, str]
    x_shape: tuple[int, ...]
    source: str = "measured"

    @property
    def choice(self) -> EngineChoice:
        """The preferred candidate."""
        return self.candidates[0].choice

    @property
    def times(self) -> dict[str, float]:
        """Milliseconds by candidate."""
        return {str(choice): milliseconds for choice, milliseconds in self.candidates}


class ConvTrial:
    """A problem's arrays, on scratch memory of the device that is current."""

    def __init__(self, problem: ConvProblem, device: int, resources: ConvResources) -> None:
        self._problem = problem
        self._device = device
        self._resources = resources
        self.memory = memory = resources.memory
        self._last = problem.channels_last
        fill = Filler(memory, memory.dtype(problem.spec.dtype))
        self.arrays = [
            self._image(shape, fill) if present else None
            for shape, present in zip(problem.argument_shapes, problem.present, strict=True)
        ]
        self.result = self._image(problem.result_shape, fill)

    @property
    def addresses(self) -> ConvAddresses:
        """The addresses of the arrays, without a workspace."""
        return ConvAddresses(*addresses_of(self.arrays), self.result.data.ptr)

    def found(self) -> HostArrays:
        """Copy the result to the host; of a long one, a sample from all of its parts."""
        flat = self.result.reshape(-1)
        if is_external(flat.__class__):
            return [sample(flat)]  # external arrays have no slices with a step
        # An odd step meets all channels if their number is a power of two.
        return [sample(flat[:: flat.size // _COMPARED_ELEMENTS | 1])]

    def run(self, call: OnStream) -> HostArrays:
        """Run a call, wait for it, and return what it wrote."""
        stream = self.memory.current_stream()
        # A call that writes nothing must not pass with the result of another candidate.
        self.memory.clear(self.result.data.ptr, self.result.nbytes, stream)
        self.memory.elapsed(partial(call, stream))  # waits: asynchronous errors are raised here
        return self.found()

    def elsewhere(self) -> ConvTrial:
        """Return a trial of the same problem on other memory."""
        return ConvTrial(self._problem, self._device, self._resources)

    def _image(self, shape: tuple[int, ...], fill: Filler) -> AnyArray:
        """Return a contiguous array with the dimensions in the order of memory."""
        if len(shape) == 1 or not self._last:
            return fill(shape)
        n, c, *spatial = shape
        return fill((n, *spatial, c))

    def workspace(self, size: int) -> AnyArray | None:
        """Return a buffer of ``size`` bytes; None for none."""
        return self.memory.empty((size,), self.memory.dtype("uint8")) if size else None

    def call(self, executor: ChosenExecutor, workspace: AnyArray | None) -> OnStream:
        """Return a function that runs an executor once, in a ``workspace`` that is large enough."""
        at = self.addresses
        if workspace is not None and executor.workspace_bytes:
            at = at._replace(workspace=workspace.data.ptr)
        launch_on, device = self._resources.launch, self._device

        def call(stream: Stream, kept: object = workspace) -> None:
            # For each call anew: a capture in between has moved the thread's handle.
            executor.run(launch_on(device, stream), at)

        return call


def measure_executors(
    problem: ConvProblem,
    device: int,
    source: TunableSource,
    known: Sequence[EngineChoice] | None = None,
) -> ConvTuning | None:
    """Measure the executors of a problem. Return None if none ran, or without memory for arrays.

    With ``known``, only these choices and the heuristics' best are measured, within `CLASS_BUDGET`,
    and once each; without, all executors are, within `BUDGET`.

    An executor counts if its result agrees with those of most engines, within the dtype's rounding;
    the heuristics' best alone proves nothing. Runs on the current stream and waits for it. What is
    needed is allocated, and given back at the end.
    """
    times: dict[str, float] = {}
    choices: dict[str, EngineChoice] = {}
    refused: dict[str, str] = {}
    alike: list[tuple[HostArrays, list[str]]] = []
    resources = source.resources
    memory: MemoryWithGraphs = resources.memory
    with memory.use(device), memory.scratch():
        try:
            trial = ConvTrial(problem, device, resources)
        except FAILURES:
            return None
        end = time.perf_counter() + (BUDGET if known is None else CLASS_BUDGET)
        launch = resources.launch(device, memory.current_stream())
        executors = source.executors(problem, launch, to_measure=known is None)
        for executor in _until_failure(
            executors if known is None else _chosen_executors(executors, known, refused), refused
        ):
            if times and time.perf_counter() >= end:
                refused["others"] = "the time for measuring was over"
                executor.close()
                break
            name = str(executor.choice)
            try:
                call = trial.call(executor, trial.workspace(executor.workspace_bytes))
                found = trial.run(call)
                times[name] = _time(call, memory, min(times.values(), default=float("inf")))
                choices[name] = executor.choice
                _group(alike, found, tolerance(problem)).append(name)
            except FAILURES as error:
                refused[name] = f"{type(error).__name__}: {error}"
            finally:
                call = None  # type: ignore[assignment]
                executor.close()
        if times:
            _refuse(alike, times, refused, tolerance(problem), choices)
            final = {}
            if known is None:
                final = _in_turns(trial, executors, _first(times, choices))
        del trial
    if not times:
        return None
    refused |= executors.reasons()
    others = {name: taken for name, taken in times.items() if name not in final}
    candidates = [
        TimedChoice(choices[name], group[name])
        for group in (final, others)
        for name in sorted(group, key=group.__getitem__)
    ]
    return ConvTuning(tuple(candidates), refused, problem.x_shape)


def _until_failure(
    executors: Iterator[ChosenExecutor], refused: dict[str, str]
) -> Iterator[ChosenExecutor]:
    """Yield executors until one cannot be made, which does not end a measurement with an error."""
    try:
        yield from executors
    except FAILURES as error:
        refused["others"] = f"{type(error).__name__}: {error}"


def _chosen_executors(
    executors: TunableExecutors, choices: Sequence[EngineChoice], refused: dict[str, str]
) -> Iterator[ChosenExecutor]:
    """Yield the executors of known choices, and of the heuristics' best if it is another one."""
    for choice in choices:
        try:
            yield executors.made_again(choice)
        except (*FAILURES, ValueError) as error:
            refused[str(choice)] = f"{type(error).__name__}: {error}"
    best = next(executors, None)
    if best is not None:
        if best.choice in choices:
            best.close()
        else:
            yield best


def check(
    stored: ConvTuning, problem: ConvProblem, device: int, source: TunableSource
) -> ConvTuning | None:
    """Return a stored result from the first of its candidates that may be used; None if none may.

    A candidate has to be admitted for the problem's options, and to have the result that `_Judge`
    expects. Runs on the current stream and waits for it, on scratch memory.
    """
    resources = source.resources
    memory: MemoryWithGraphs = resources.memory
    with memory.use(device), memory.scratch():
        try:
            launch = resources.launch(device, memory.current_stream())
            executors = source.executors(problem, launch)
            return _first_right(stored, executors, partial(ConvTrial, problem, device, resources))
        except FAILURES:
            return None


def _first_right(
    stored: ConvTuning, executors: TunableExecutors, make_trial: Callable[[], ConvTrial]
) -> ConvTuning | None:
    """`check` on scratch memory, of which nothing is left when it returns."""
    refused = dict(stored.refused)
    with closing(_Judge(executors, make_trial)) as judge:
        for place, (choice, milliseconds) in enumerate(stored.candidates[:MAX_CHECKED]):
            try:
                with closing(executors.made_again(choice)) as executor:
                    used = TimedChoice(executor.choice, milliseconds)
                    reason = judge.objection(executor)
            except (*FAILURES, ValueError) as error:
                reason = f"{type(error).__name__}: {error}"
            if not reason:
                rest = stored.candidates[place + 1 :]
                return stored._replace(candidates=(used, *rest), refused=refused)
            refused[str(choice)] = reason
    return None


class _Judge:
    """Compares stored candidates with executors that the heuristics propose for the same problem.

    The heuristics' best is what runs without a stored result, so a candidate that is this executor,
    or has its result, is right as far as anyone knows. If the results differ, one of the two is
    wrong; then an executor of a third engine decides, because two engines that agree are right,
    while one alone proves nothing. If the candidate stands alone, it is not used. Each executor is
    made when it is needed and runs once: usually the candidate and the heuristics' best, instead of
    the dozens that a measurement runs. The reference on the host would take seconds for a large
    problem.
    """

    _MAX_PROPOSED = 4  # of the heuristics: one may fail to run, or share the candidate's engine

    def __init__(self, proposed: TunableExecutors, make_trial: Callable[[], ConvTrial]) -> None:
        self._make_trial = make_trial
        self._trial: ConvTrial | None = None
        self._allowed = tolerance(proposed.problem)
        self._best = next(proposed, None)
        first = () if self._best is None else (self._best,)
        self._proposed = itertools.islice(itertools.chain(first, proposed), self._MAX_PROPOSED)
        self._results: list[tuple[EngineChoice, HostArrays]] = []

    def objection(self, candidate: ChosenExecutor) -> str:
        """Return why a candidate may not be used, or an empty string."""
        if self._best is not None and candidate.choice == self._best.choice:
            return ""
        found = self._run(candidate)
        objection = "there is no executor to compare its results with"
        for number in itertools.count():
            expected = self._expected(number)
            if expected is None:
                break
            choice, result = expected
            if number and choice.engine == candidate.choice.engine:
                continue  # one kernel with other knobs may be wrong in the same way
            differs = disagreement(found, result, self._allowed, f"those of {choice}")
            if not differs:
                return ""
            if number:
                break
            objection = differs
        return objection

    def _expected(self, number: int) -> tuple[EngineChoice, HostArrays] | None:
        """Return the result of an executor of the heuristics, by its number among those run."""
        while len(self._results) <= number:
            executor = next(self._proposed, None)
            if executor is None:
                return None
            with closing(executor), suppress(*FAILURES):
                self._results.append((executor.choice, self._run(executor)))
        return self._results[number]

    def _run(self, executor: ChosenExecutor) -> HostArrays:
        trial = self._trial = self._trial or self._make_trial()
        return trial.run(trial.call(executor, trial.workspace(executor.workspace_bytes)))

    def close(self) -> None:
        """Close the executor that was made to know its choice."""
        if self._best is not None:
            self._best.close()


def _refuse(
    alike: list[tuple[HostArrays, list[str]]],
    times: dict[str, float],
    refused: dict[str, str],
    allowed: float,
    choices: dict[str, EngineChoice],
) -> None:
    """Move executors whose results differ from those of most engines from ``times`` to ``refused``.

    Engines count, not executors: an engine with many settings would outvote the others.
    """

    def agreement(group: tuple[HostArrays, list[str]]) -> tuple[int, bool]:
        engines = {choices[name].engine for name in group[1]}
        return len(engines), engines != {OWN}  # of two that stand alone the library is believed

    right, agreeing = max(alike, key=agreement)
    for result, names in alike:
        if names is not agreeing:
            wrong = disagreement(result, right, allowed, "those of most")
            for name in names:
                refused[name] = wrong or "its results differ from those of most"
                del times[name]


def _group(
    alike: list[tuple[HostArrays, list[str]]], found: HostArrays, allowed: float
) -> list[str]:
    """Return the names of the executors whose results are like ``found``; else a new list."""
    for other, names in alike:
        if not disagreement(found, other, allowed, ""):
            return names
    alike.append((found, []))
    return alike[-1][1]


def _first(times: dict[str, float], choices: dict[str, EngineChoice]) -> dict[str, EngineChoice]:
    """Return the fastest candidates, between which a single measurement cannot decide."""
    fastest = sorted(times, key=times.__getitem__)
    near = [
        name
        for name in fastest[:_MAX_FINALISTS]
        if times[name] <= _MAX_FINALIST_SLOWDOWN * times[fastest[0]]
    ]
    return {name: choices[name] for name in near} if len(near) > 1 else {}


def _in_turns(
    trial: ConvTrial, executors: TunableExecutors, choices: dict[str, EngineChoice]
) -> dict[str, float]:
    """Measure the milliseconds of several executors: means over arrays in different memory.

    An executor's time depends on their addresses. On each set the executors take turns, since
    clocks change from second to second. Empty if there is nothing to decide, or nothing could be
    measured: then the first measurement decides.
    """
    if not choices:
        return {}
    found: list[dict[str, float]] = []
    made: dict[str, ChosenExecutor] = {}
    trials = [trial]
    try:
        for name, choice in choices.items():
            made[name] = executors.made_again(choice)
        for place in range(_NUM_ARRAY_SETS):
            if place:
                trials.append(trial.elsewhere())  # while the others stay where they are
            found.append(_turns(trials[place], made))
    except FAILURES:
        pass  # no memory for more, say
    finally:
        for executor in made.values():
            executor.close()
    return {name: fmean(times[name] for times in found) for name in choices} if found else {}


def _turns(trial: ConvTrial, executors: dict[str, ChosenExecutor]) -> dict[str, float]:
    """Measure the milliseconds of a call of each executor on one set of arrays."""
    memory = trial.memory
    workspace = trial.workspace(max(one.workspace_bytes for one in executors.values()))
    calls = {name: _captured(trial.call(e, workspace), memory) for name, e in executors.items()}
    turns: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_GRAPH_LAUNCHES_PER_SET):
        for name, call in calls.items():
            turns[name].append(memory.elapsed(call) / _GRAPHED_CALLS)
    return {name: min(values) for name, values in turns.items()}


def _captured(call: OnStream, memory: MemoryWithGraphs) -> Callable[[], object]:
    """Return a function that launches several calls as one graph."""

    def calls(stream: Stream) -> None:
        for _ in range(_GRAPHED_CALLS):
            call(stream)

    graph, stream = memory.capture(calls), memory.current_stream()
    return lambda kept=call: graph.launch(stream)  # type: ignore[misc]


def _time(call: OnStream, memory: MemoryWithGraphs, best: float) -> float:
    """Measure the milliseconds of a call, in a graph of several calls if it can be captured."""
    direct = partial(call, memory.current_stream())
    limit = PRUNING_RATIO * best + _MAX_LAUNCH_MS
    if (once := first_time(direct, memory, limit)) > limit:
        return once
    try:
        launch = _captured(call, memory)
    except FAILURES:
        return median_time(direct, memory, best)
    return median_time(launch, memory, best * _GRAPHED_CALLS, _MAX_GRAPH_SLOWDOWN) / _GRAPHED_CALLS
