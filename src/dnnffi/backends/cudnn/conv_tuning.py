"""Which of cuDNN's plans runs a convolution fastest? Measured on scratch data, kept on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from dnnffi.backends.conv_interface import ConvAddresses, ConvResources, addresses_of
from dnnffi.backends.cudnn.conv_executor import ConvExecutors, EngineChoice, EngineExecutor
from dnnffi.device.interface import AnyArray, MemoryWithGraphs, Stream
from dnnffi.execution.measure import (
    FAILURES,
    HOPELESS,
    Filler,
    HostArrays,
    disagreement,
    median_time,
    sample,
)
from dnnffi.execution.store import checked_time
from dnnffi.execution.tolerance import tolerance
from dnnffi.execution.tuner import Tuner
from dnnffi.spec.conv_problem import ConvProblem

BUDGET = 8.0
"""Seconds after which no further candidate is begun. Some are compiled when they are made."""

_GRAPHED_CALLS = 10  # in one graph, so that what is measured is the GPU and not the launch
_LAUNCH_MS = 0.05  # what a call may take longer than its kernels
_HOPELESS = 1.5  # times slower than the best in a first graph, which is many calls
_NEAR, _FINALISTS = 1.2, 8  # who is within so much of the best is measured again,
_PLACES, _TURNS = 3, 2  # on so many sets of arrays, so often on each
_COMPARED = 2**17  # elements of a result: candidates are many, and copies to the host slow


OnStream = Callable[[Stream], object]
"""A call to be enqueued on a stream."""


class ConvTuning(NamedTuple):
    """What was found out about a problem.

    ``choice`` is the fastest; ``times`` in milliseconds, and ``refused`` with a reason, by
    candidate. ``source`` is "measured" or "disk".
    """

    choice: EngineChoice
    times: dict[str, float]
    refused: dict[str, str]
    source: str = "measured"


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

    def found(self) -> HostArrays:
        """The result on the host; of a long one elements from all over it."""
        result = self.result
        if self._last and result.ndim > 1:
            result = result.transpose(0, *range(2, result.ndim), 1)
        flat = result.reshape(-1)
        # Odd, so that it meets all channels.
        return [sample(flat[:: flat.size // _COMPARED | 1])]

    def elsewhere(self) -> ConvTrial:
        """The same on other memory."""
        return ConvTrial(self._problem, self._device, self._resources)

    def _image(self, shape: tuple[int, ...], fill: Filler) -> AnyArray:
        if len(shape) == 1 or not self._last:
            return fill(shape)
        n, c, *spatial = shape
        made = fill((n, *spatial, c))
        return made.transpose(0, made.ndim - 1, *range(1, made.ndim - 1))

    def workspace(self, size: int) -> AnyArray | None:
        """A buffer of ``size`` bytes; None for none."""
        return self.memory.empty((size,), self.memory.dtype("uint8")) if size else None

    def call(self, executor: EngineExecutor, workspace: AnyArray | None) -> OnStream:
        """What runs an executor once; ``workspace`` has at least the bytes that it needs."""
        at = ConvAddresses(
            *addresses_of(self.arrays),
            self.result.data.ptr,
            workspace.data.ptr if workspace is not None and executor.workspace_bytes else 0,
        )
        launch_on, device = self._resources.launch, self._device

        def call(stream: Stream, kept: object = workspace) -> None:
            # For each call anew: a capture in between has moved the thread's handle.
            executor.run(launch_on(device, stream), at)

        return call


def measure_plans(problem: ConvProblem, device: int, resources: ConvResources) -> ConvTuning | None:
    """Measure the plans of a problem, or None where not one ran.

    A plan counts if its result agrees with those of most others, within the dtype's rounding; the
    heuristics' best alone proves nothing. Runs on the current stream and waits for it. What is
    needed is allocated, and given back at the end.
    """
    times: dict[str, float] = {}
    choices: dict[str, EngineChoice] = {}
    refused: dict[str, str] = {}
    alike: list[tuple[HostArrays, list[str]]] = []
    end = time.perf_counter() + BUDGET
    memory: MemoryWithGraphs = resources.memory
    with memory.use(device), memory.scratch():
        try:
            trial = ConvTrial(problem, device, resources)
        except FAILURES:
            return None
        stream = memory.current_stream()
        launch = resources.launch(device, stream)
        executors = ConvExecutors(resources.library, problem, launch, to_measure=True)
        for executor in executors:
            name = str(executor.choice)
            try:
                call = trial.call(executor, trial.workspace(executor.workspace_bytes))
                # What others wrote is not to count as this one's.
                memory.clear(trial.result.data.ptr, trial.result.nbytes, stream)
                memory.elapsed(partial(call, stream))  # what fails late fails here
                found = trial.found()
                times[name] = _time(call, memory, min(times.values(), default=float("inf")))
                choices[name] = executor.choice
                _group(alike, found, tolerance(problem)).append(name)
            except FAILURES as error:
                refused[name] = f"{type(error).__name__}: {error}"
            finally:
                call = None  # type: ignore[assignment]
                executor.close()
            if times and time.perf_counter() >= end:
                refused["others"] = "the time for measuring was over"
                break
        if times:
            _refuse(alike, times, refused, tolerance(problem))
            final = _in_turns(trial, executors, _first(times, choices))
        del trial
    if not times:
        return None
    for one in executors.refused:
        refused[f"engine {one.engine}" if one.engine is not None else one.mode] = one.reason
    decisive = final or times
    choice = choices[min(decisive, key=decisive.__getitem__)]
    return ConvTuning(choice, times | final, refused)


def _refuse(
    alike: list[tuple[HostArrays, list[str]]],
    times: dict[str, float],
    refused: dict[str, str],
    allowed: float,
) -> None:
    """Move those whose results are not what most found from ``times`` to ``refused``."""
    right, agreeing = max(alike, key=lambda group: len(group[1]))
    for result, names in alike:
        if names is not agreeing:
            wrong = disagreement(result, right, allowed, "those of most")
            for name in names:
                refused[name] = wrong or "its results differ from those of most"
                del times[name]


def _group(
    alike: list[tuple[HostArrays, list[str]]], found: HostArrays, allowed: float
) -> list[str]:
    """The names of those whose results agree with ``found``; a new list where none do."""
    for other, names in alike:
        if not disagreement(found, other, allowed, ""):
            return names
    alike.append((found, []))
    return alike[-1][1]


def _first(times: dict[str, float], choices: dict[str, EngineChoice]) -> dict[str, EngineChoice]:
    """Those between which one measurement each does not decide."""
    fastest = sorted(times, key=times.__getitem__)
    near = [name for name in fastest[:_FINALISTS] if times[name] <= _NEAR * times[fastest[0]]]
    return {name: choices[name] for name in near} if len(near) > 1 else {}


def _in_turns(
    trial: ConvTrial, executors: ConvExecutors, choices: dict[str, EngineChoice]
) -> dict[str, float]:
    """Milliseconds of several plans, means over sets of arrays that lie in different places.

    A plan's time depends on their addresses. On each set the plans take turns, since clocks change
    from second to second. Empty where there is nothing to decide, or nothing could be measured:
    then the first measurement decides.
    """
    if not choices:
        return {}
    found: list[dict[str, float]] = []
    made: dict[str, EngineExecutor] = {}
    trials = [trial]
    try:
        for name, choice in choices.items():
            made[name] = executors.made_again(choice)
        for place in range(_PLACES):
            if place:
                trials.append(trial.elsewhere())  # while the others stay where they are
            found.append(_turns(trials[place], made))
    except FAILURES:
        pass  # no memory for more, say
    finally:
        for executor in made.values():
            executor.close()
    return {name: fmean(times[name] for times in found) for name in choices} if found else {}


def _turns(trial: ConvTrial, executors: dict[str, EngineExecutor]) -> dict[str, float]:
    """Milliseconds of several plans on one set of arrays."""
    memory = trial.memory
    workspace = trial.workspace(max(one.workspace_bytes for one in executors.values()))
    calls = {name: _captured(trial.call(e, workspace), memory) for name, e in executors.items()}
    turns: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_TURNS):
        for name, call in calls.items():
            turns[name].append(memory.elapsed(call) / _GRAPHED_CALLS)
    return {name: min(values) for name, values in turns.items()}


def _captured(call: OnStream, memory: MemoryWithGraphs) -> Callable[[], object]:
    """What launches several calls as one graph."""

    def calls(stream: Stream) -> None:
        for _ in range(_GRAPHED_CALLS):
            call(stream)

    graph, stream = memory.capture(calls), memory.current_stream()
    return lambda kept=call: graph.launch(stream)  # type: ignore[misc]


def _time(call: OnStream, memory: MemoryWithGraphs, best: float) -> float:
    """Milliseconds of a call, of several in a graph where that can be captured."""
    direct = partial(call, memory.current_stream())
    if (once := memory.elapsed(direct)) > HOPELESS * best + _LAUNCH_MS:
        return once
    try:
        launch = _captured(call, memory)
    except FAILURES:
        return median_time(direct, memory, best)
    return median_time(launch, memory, best * _GRAPHED_CALLS, _HOPELESS) / _GRAPHED_CALLS


class ConvTuner(Tuner[ConvProblem, ConvTuning]):
    """What is known of convolutions."""

    def __init__(self, resources: ConvResources) -> None:
        super().__init__("conv", resources.memory)
        self._resources = resources

    def _measured(self, problem: ConvProblem, device: int) -> ConvTuning | None:
        return measure_plans(problem, device, self._resources)

    def _about(self, problem: ConvProblem) -> dict[str, Any]:
        spec, options = problem.spec, problem.options
        return {
            "engine": f"cuDNN {self._resources.library.version_text}",
            "spec": {field.name: _plain(getattr(spec, field.name)) for field in fields(spec)},
            "operation": problem.operation,
            "x": list(problem.x_shape),
            "layout": problem.layout,
            "epilogue": [problem.activation, problem.residual, problem.alpha, problem.bias],
            "options": [options.math, options.deterministic, options.workspace_limit],
        }

    def _read(self, value: Any, problem: ConvProblem) -> ConvTuning:
        times = {str(name): checked_time(one) for name, one in value["times"].items()}
        choice = EngineChoice.read(value["choice"])
        return ConvTuning(choice, times, dict(value["refused"]), source="disk")


def _plain(value: Any) -> Any:
    """A field as it comes back from a file."""
    return list(value) if isinstance(value, tuple) else value
