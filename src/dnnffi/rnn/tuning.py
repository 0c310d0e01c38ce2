"""Which candidate runs a problem fastest: found by running each, on scratch data.

A candidate counts only if its results agree with those of the first one, the standard algorithm,
within the dtype's rounding. Times are those of a loop on the caller's stream, so that a candidate
which keeps the host busy for longer than the GPU is charged for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

from dnnffi.backends.vendor.context import Context
from dnnffi.device.interface import MemoryWithGraphs
from dnnffi.execution.measure import FAILURES, Filler, Results, disagreement, ends, median_time
from dnnffi.execution.store import Store
from dnnffi.execution.tolerance import tolerance
from dnnffi.rnn.candidates import Executor, Kernels
from dnnffi.rnn.staging import MOST_STAGED_BYTES, Staging, staged_bytes
from dnnffi.spec.problem import RNNProblem

BUDGET = 0.5
"""Seconds after which no further candidate is begun."""


class Times(NamedTuple):
    """Milliseconds of one call, for training of forward and both backwards; None: not measured.

    ``staged`` is ``replayed`` with the copies that a call with new addresses needs.
    """

    direct: float | None = None
    replayed: float | None = None
    staged: float | None = None


class Choice(NamedTuple):
    """What was found out about a problem.

    ``direct`` runs calls whose addresses no graph knows; ``replayed`` those that one does, or is
    None where graphs do not pay. ``staged`` says that copies and a graph are faster than
    ``direct``. ``times`` by candidate; ``refused`` has a reason for each candidate that is not
    eligible. ``source`` is "measured" or "disk".
    """

    direct: str
    replayed: str | None
    times: dict[str, Times]
    refused: dict[str, str]
    source: str = "measured"
    staged: bool = False


def tuning_problem(problem: RNNProblem) -> RNNProblem:
    """The problem that is measured: nothing is dropped, so that results can be compared."""
    return problem._replace(dropout=0.0)


def tune(
    kernels: Kernels,
    problem: RNNProblem,
    device: int,
    memory: MemoryWithGraphs,
    *,
    budget: float = BUDGET,
    clock: Callable[[], float] = time.perf_counter,
) -> Choice | None:
    """Measure the candidates of a problem, or None where not even the first one ran.

    Runs on the current stream and waits for it. What the candidates need beside the caller's own
    arrays is allocated, and given back at the end.
    """
    problem = tuning_problem(problem)
    times: dict[str, Times] = {}
    refused: dict[str, str] = {}
    end = clock() + budget
    expected: Results | None = None
    best = float("inf")
    with memory.use(device), memory.scratch():
        for candidate in kernels.offers(problem):
            if expected is not None and clock() >= end:
                refused[candidate] = "the time for measuring was over"
                continue
            try:
                found, measured = _try(kernels, problem, candidate, device, memory, expected, best)
            except FAILURES as error:
                refused[candidate] = f"{type(error).__name__}: {error}"
                if expected is None:
                    return None
                continue
            if isinstance(measured, str):
                refused[candidate] = measured
                continue
            expected = found if expected is None else expected
            times[candidate] = measured
            best = min(best, *(t for t in measured if t is not None))
    return choose(times, refused)


def _try(
    kernels: Kernels,
    problem: RNNProblem,
    candidate: str,
    device: int,
    memory: MemoryWithGraphs,
    expected: Results | None,
    best: float,
) -> tuple[Results, Times | str]:
    """Results and times of one candidate; instead of times why its results are wrong."""
    executor = kernels.make(problem, candidate, device)
    try:
        trial = Trial(executor, memory)
        memory.elapsed(trial.run)  # the first run loads kernels, and what fails late fails here
        found = trial.results()
        wrong = ""
        if expected is not None:
            allowed = tolerance(problem)
            wrong = disagreement(found, expected, allowed, "the standard algorithm's")
        return found, wrong or _measure(trial, memory, best)
    finally:
        executor.close()


def choose(times: dict[str, Times], refused: dict[str, str], source: str = "measured") -> Choice:
    """The fastest of the measured candidates, directly and replayed."""
    direct = min((t.direct, name) for name, t in times.items() if t.direct is not None)
    replays = [(t.replayed, name) for name, t in times.items() if t.replayed is not None]
    replayed = min(replays, default=(float("inf"), ""))
    if replayed[0] >= direct[0]:
        return Choice(direct[1], None, times, refused, source)
    staged = times[replayed[1]].staged
    pays = staged is not None and staged < direct[0]
    return Choice(direct[1], replayed[1], times, refused, source, pays)


def _measure(trial: Trial, memory: MemoryWithGraphs, best: float) -> Times:
    direct = median_time(trial.run, memory, best)
    try:
        graphs = [memory.capture(operation) for operation in trial.operations()]
    except FAILURES:
        return Times(direct)
    stream = memory.current_stream()

    def replay() -> None:
        for graph in graphs:
            graph.launch(stream)

    replayed = median_time(replay, memory, best)
    try:
        staged = trial.staged()
        return Times(direct, replayed, staged and median_time(staged, memory, best))
    except FAILURES:
        return Times(direct, replayed)


class Trial:
    """A candidate on scratch arrays of its problem."""

    def __init__(self, executor: Executor, memory: MemoryWithGraphs) -> None:
        self._executor = executor
        self._memory = memory
        problem = executor.problem
        spec = problem.spec
        dtype, byte = memory.dtype(spec.dtype), memory.dtype("uint8")
        fill = Filler(memory, dtype)
        cell = spec.has_cell
        x = fill(problem.x_shape)
        h_0 = fill(problem.h_shape)
        c_0 = fill(problem.c_shape) if cell else None
        weights = fill((executor.weight_size,), spec.hidden_size**-0.5)
        y, h_n = memory.empty(problem.y_shape, dtype), memory.empty(problem.h_shape, dtype)
        c_n = memory.empty(problem.c_shape, dtype) if cell else None
        workspace = memory.empty((executor.least_workspace_bytes,), byte)
        self._forward = executor.check_forward(x, y, h_0, h_n, c_0, c_n, weights, workspace)
        self._results = [y, h_n, c_n]
        self._kept: list[Any] = [x, h_0, c_0, weights, workspace]
        self._context: Context | None = None
        if problem.training:
            reserve = memory.empty((executor.reserve_bytes,), byte)
            self._context = Context(executor, reserve)
            dy, dh_n = fill(problem.y_shape), fill(problem.h_shape)
            dc_n = fill(problem.c_shape) if cell else None
            dx, dh_0 = memory.empty(problem.x_shape, dtype), memory.empty(problem.h_shape, dtype)
            dc_0 = memory.empty(problem.c_shape, dtype) if cell else None
            dweights = memory.empty((executor.weight_size,), dtype)
            self._data = executor.check_backward_data(
                *(y, dy, h_0, c_0, dh_n, dc_n, weights, dx, dh_0, dc_0, workspace)
            )
            self._weights = executor.check_backward_weights(x, h_0, y, dweights, workspace)
            self._results += [dx, dh_0, dc_0, dweights]
            self._kept += [dy, dh_n, dc_n]

    def operations(self) -> Iterator[Callable[[], object]]:
        """Forward and, for training, both backwards: what a plan makes a graph of."""
        executor, context = self._executor, self._context
        yield lambda: executor.forward_at(self._forward, context)
        if context is not None:
            yield self._backward

    def _backward(self) -> None:
        assert self._context is not None
        self._executor.backward_data_at(self._data, self._context)
        self._executor.backward_weights_at(self._weights, self._context)

    def run(self) -> None:
        """All operations once."""
        for operation in self.operations():
            operation()

    def staged(self) -> Callable[[], object] | None:
        """A call through copies and a graph, or None where a problem is not staged."""
        problem, memory = self._executor.problem, self._memory
        if problem.training or staged_bytes(problem) > MOST_STAGED_BYTES:
            return None
        staging = Staging(problem, memory)
        own = staging.stand_in(self._forward)
        graph = memory.capture(lambda: self._executor.forward_at(own))
        return partial(staging.run, graph, self._forward, memory.current_stream())

    def results(self) -> Results:
        """The arrays that the operations wrote, on the host; of a long one its two ends."""
        return [part for array in self._results if array is not None for part in ends(array)]


class Tuner:
    """What is known of the problems of one engine: in this process, then on disk, then measured."""

    def __init__(self, kernels: Kernels, memory: MemoryWithGraphs, store: Store) -> None:
        self._kernels = kernels
        self._memory = memory
        self._store = store
        self._known: dict[str, Choice | None] = {}

    def find(self, problem: RNNProblem, device: int) -> Choice | None:
        """What was found out before, in this process or another."""
        key = self._key(problem, device)
        name = json.dumps(key)
        if name not in self._known:
            self._known[name] = self._read(key, self._kernels.offers(problem))
        return self._known[name]

    def measure(self, problem: RNNProblem, device: int) -> Choice | None:
        """Measure now, and keep what was found out."""
        choice = tune(self._kernels, problem, device, self._memory)
        if choice is not None:
            key = self._key(problem, device)
            self._known[json.dumps(key)] = choice
            self._store.write(key, choice._asdict())
        return choice

    def clear(self) -> None:
        """Forget what is known in this process."""
        self._known.clear()

    def _read(self, key: dict[str, Any], offered: Sequence[str]) -> Choice | None:
        value = self._store.read(key)
        if value is None:
            return None
        try:
            times = {name: Times(*pair) for name, pair in value["times"].items()}
            refused = dict(value["refused"])
            if {*times, *refused} != set(offered):
                return None  # of a version with other candidates
            for name, pair in times.items():
                if not all(t is None or t > 0 for t in pair):
                    raise ValueError(f"{name} cannot have taken {tuple(pair)}")
            # Chosen anew: a file is not believed further than the times in it.
            return choose(times, refused, source="disk")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._store.warn(f"a tuning result is ignored: {error!r}")
            return None

    def _key(self, problem: RNNProblem, device: int) -> dict[str, Any]:
        problem = tuning_problem(problem)
        spec = problem.spec
        lengths = set(problem.row_lengths)
        rows = "full" if lengths == {problem.steps} else "equal" if len(lengths) == 1 else "unequal"
        return {
            "engine": self._kernels.version,
            "device": self._memory.device_name(device),
            "spec": {f.name: getattr(spec, f.name) for f in fields(spec) if f.init},
            "sequences": [problem.layout, problem.steps, problem.batch, rows],
            "training": problem.training,
            "options": [
                problem.options.algorithm,
                problem.options.math,
                bool(problem.options.clip),
            ],
        }
