"""Find the fastest candidate of a problem by running each on scratch data.

A candidate counts only if its results agree with the oracle's, within the dtype's rounding. Times
are those of a loop on the caller's stream, so that a candidate which keeps the host busy for longer
than the GPU is charged for it. The user's arrays must not be written twice, and backward data
changes the reserve space, so candidates run on arrays of their own, from a pool that is returned to
the driver.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np

from dnnffi.backends.rnn_interface import (
    AddressExecutor,
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.interface import Array, Launch, MemoryWithGraphs, Stream
from dnnffi.execution.comparison import tolerance
from dnnffi.execution.measure import (
    FAILURES,
    LONG_MS,
    Filler,
    HostArrays,
    disagreement,
    median_time,
    sample,
)
from dnnffi.execution.stored_results import MAX_CHECKED
from dnnffi.log import logger
from dnnffi.rnn.candidates import CandidateSet
from dnnffi.rnn.staging import Staging, can_be_staged
from dnnffi.spec.problem import RNNProblem

HOST_LIMITED, HOST_MS = 1.2, 1.0
"""The host limits a call that takes less than `HOST_MS` milliseconds, and more than `HOST_LIMITED`
times as long as with a graph. In a longer call a graph may overlap work of the device."""

AS_FAST = 1.1
"""Ratio of two times that the host limits within which they count as the same."""

FAR_SLOWER = 10.0
"""Ratio of a call's time to that of the best so far above which it is not captured."""

BUDGET = 0.5
"""Seconds of measuring after which no further candidate is begun. Compiling does not count."""

OTHER_NUMBERS = "draws other random numbers for dropout, so it is only compared with"
"""The reason why the oracle is not a candidate of a network with dropout."""

LaunchOn = Callable[[int, Stream], Launch]
OnLaunch = Callable[[Launch], object]


class Times(NamedTuple):
    """Milliseconds of a call, in training forward and backward; None if not measured.

    ``staged`` is ``replayed`` with the copies that a call with new addresses needs.
    """

    direct: float | None = None
    replayed: float | None = None
    staged: float | None = None

    @property
    def fastest(self) -> float:
        """The shortest of the measured times."""
        return min(ms for ms in self if ms is not None)


class RouteChoice(NamedTuple):
    """Findings about a problem.

    ``direct`` runs calls whose addresses no graph knows; ``replayed`` those that one does, or is
    None where graphs do not pay. ``staged`` says that copies and a graph are faster than
    ``direct``. ``times`` are by candidate; ``refused`` has a reason for each candidate that is not
    eligible. ``source`` is "measured" or "disk".
    """

    direct: str
    replayed: str | None
    times: dict[str, Times]
    refused: dict[str, str]
    source: str = "measured"
    staged: bool = False

    @property
    def used(self) -> list[str]:
        """The candidates that run: ``direct`` and, if there is one, ``replayed``."""
        return [self.direct] if self.replayed is None else [self.direct, self.replayed]

    @property
    def direct_ms(self) -> float:
        """Milliseconds of a call without a graph."""
        return self.times[self.direct].direct or 0.0


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
    compared with in any case. `CandidateSet.is_behind` says which candidates are measured last. An
    oracle that takes long is timed at the end, if it may come near the others.
    """
    times: dict[str, Times] = {}
    refused: dict[str, str] = {}
    trial: Trial | None
    oracle = candidates.oracle(problem)
    offers = candidates.offers(problem)
    if borrowed is not None:
        fastest_there = {name: taken.fastest for name, taken in borrowed.times.items()}
        refused.update(candidates.left_out(offers, fastest_there))
    timed = [name for name in offers if name not in refused]
    names = list(dict.fromkeys((oracle, *timed)))
    measured = problem._replace(dropout=0.0)
    end, oracle_ms = clock() + budget, 0.0
    expected: HostArrays = []
    fastest: dict[str, float] = {}
    with memory.use(device), memory.scratch():
        wait = candidates.prepare(names, problem, device)  # while the oracle is made
        waiting, postponed = deque(names), set[str]()
        while waiting:
            name = waiting.popleft()
            is_first = not expected
            if name not in postponed and candidates.is_behind(name, fastest):
                postponed.add(name)
                waiting.append(name)
                continue
            if name != oracle and clock() >= end:
                refused[name] = "the time for measuring was over"
                continue
            if reason := candidates.skip_reason(name, fastest):
                refused[name] = reason
                continue
            if oracle_ms and name == oracle and _is_far_slower(oracle_ms, times):
                times[name] = Times(oracle_ms)
                continue
            launch = launch_on(device, memory.current_stream())
            begun = clock()
            try:
                with closing(candidates.make(measured, name, launch)) as executor:
                    trial = Trial(executor, memory, launch_on, launch)
                    took_ms = memory.elapsed(trial.run)  # what fails late fails here
                    end += clock() - begun if candidates.is_of_vendor(name) else took_ms / 1e3
                    if is_first:
                        expected = trial.results()
                        wait()  # compiling would disturb what follows
                        if took_ms > LONG_MS:  # perhaps it has loaded the library
                            took_ms = memory.elapsed(trial.run)
                        end = clock() + budget
                        if took_ms > LONG_MS and waiting and name in timed:
                            oracle_ms = fastest[name] = took_ms
                            waiting.append(name)
                            continue
                    elif name != oracle:
                        wrong = _differs(trial.results(), expected, problem, oracle)
                        if wrong:
                            refused[name] = wrong
                            continue
                    if name in timed:
                        times[name] = taken = trial.times(_least(times.values()))
                        fastest[name] = taken.fastest
            except FAILURES as error:
                refused[name] = f"{type(error).__name__}: {error}"
                if is_first:
                    logger.info("%s cannot be measured: %s: %s", problem, name, refused[name])
                    return None
                continue
            finally:
                trial = None  # its memory goes back first
    if oracle not in offers:
        refused[oracle] = OTHER_NUMBERS
    return choose(times, refused) if times else None


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
    oracle = candidates.oracle(problem)
    measured = problem._replace(dropout=0.0)
    right = {oracle}
    expected: HostArrays = []

    def results(name: str) -> HostArrays:
        launch = launch_on(device, memory.current_stream())
        with closing(candidates.make(measured, name, launch)) as executor:
            trial = Trial(executor, memory, launch_on, launch)
            memory.elapsed(trial.run)  # what fails late fails here
            return trial.results()

    for _ in range(MAX_CHECKED):
        choice = choose(times, refused, stored.source)
        unchecked = [name for name in choice.used if name not in right]
        if not unchecked:
            return choice
        name = unchecked[0]
        with memory.use(device), memory.scratch():
            try:
                expected = expected or results(oracle)
            except FAILURES:
                return None
            try:
                reason = _differs(results(name), expected, problem, oracle)
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


def _differs(found: HostArrays, expected: HostArrays, problem: RNNProblem, oracle: str) -> str:
    """Return how results differ from the oracle's; empty if they agree, or it has none."""
    if not expected:
        return ""
    return disagreement(found, expected, tolerance(problem), f"those of {oracle}")


def choose(
    times: dict[str, Times], refused: dict[str, str], source: str = "measured"
) -> RouteChoice:
    """Return the fastest of the measured candidates replayed, and directly as `_choose_direct`."""
    direct_ms, direct = _choose_direct(times)
    replays = [
        (t.replayed, inf if t.direct is None else t.direct, name)
        for name, t in times.items()
        if t.replayed is not None
    ]
    replayed_ms, _, replayed = min(replays, default=(inf, inf, ""))
    if replayed_ms >= direct_ms:
        return RouteChoice(direct, None, times, refused, source)
    staged = times[replayed].staged
    least, *_ = _least(times.values())
    pays = staged is not None and staged < least
    return RouteChoice(direct, replayed, times, refused, source, pays)


def _is_far_slower(direct_ms: float, times: dict[str, Times]) -> bool:
    """Whether a call without a graph took far longer than the best of these."""
    best, *_ = _least(times.values())
    return direct_ms > FAR_SLOWER * best


def _least(times: Iterable[Times]) -> list[float]:
    """Return the least time of each kind (direct, replayed, staged), or infinity for none."""
    kinds = zip(Times(), *times, strict=True)
    return [min((ms for ms in kind if ms is not None), default=inf) for kind in kinds]


def _choose_direct(times: dict[str, Times]) -> tuple[float, str]:
    """Return the time and the name of the candidate for calls without a graph.

    If the host limits the fastest, then candidates that are as fast differ only in the time of the
    device. That time decides: on a faster host, or with more rows, the device limits them.
    """
    least, name = min((t.direct, name) for name, t in times.items() if t.direct is not None)
    replayed = times[name].replayed
    if replayed is None or not HOST_LIMITED * replayed < least < HOST_MS:
        return least, name
    as_fast = [
        (t.replayed, t.direct, name)
        for name, t in times.items()
        if t.direct is not None and t.replayed is not None and t.direct <= AS_FAST * least
    ]
    _, least, name = min(as_fast)
    return least, name


def numbers_for(problem: RNNProblem, memory: MemoryWithGraphs, dtype: Any) -> tuple[Filler, float]:
    """Return the numbers that fill scratch arrays, and the scale of the weights.

    Gradients of ReLU jump where its argument is about 0, where candidates round to either side. In
    training all numbers are positive, and the weights so small that nothing grows: no argument is
    about 0, and candidates that round differently agree.
    """
    spec = problem.spec
    if spec.mode == "rnn_relu" and problem.training:
        return Filler(memory, dtype, least=0.25), 0.5 / spec.hidden_size
    return Filler(memory, dtype), spec.hidden_size**-0.5


class Trial:
    """A candidate on scratch arrays of its problem."""

    def __init__(
        self,
        executor: AddressExecutor,
        memory: MemoryWithGraphs,
        launch_on: LaunchOn,
        launch: Launch,
    ) -> None:
        self._executor = executor
        self._memory = memory
        self._launch_on = launch_on
        self._launch = launch
        problem = executor.problem
        spec = problem.spec
        dtype, byte = memory.dtype(spec.dtype), memory.dtype("uint8")
        self._kept: list[Array | None] = []
        self._results: list[Array | None] = []
        fill, weight_scale = numbers_for(problem, memory, dtype)

        def given(shape: tuple[int, ...], there: bool = True, scale: float = 1.0) -> int:
            self._kept.append(fill(shape, scale) if there else None)
            return _address(self._kept[-1])

        def result(shape: tuple[int, ...], there: bool = True) -> int:
            self._results.append(memory.empty(shape, dtype) if there else None)
            return _address(self._results[-1])

        def buffer(nbytes: int) -> int:
            self._kept.append(memory.empty((nbytes,), byte))
            return _address(self._kept[-1])

        x_shape, y_shape, h_shape, c_shape = (
            *(problem.x_shape, problem.y_shape),
            *(problem.h_shape, problem.c_shape),
        )
        cell, size = spec.has_cell, executor.weight_size
        resets = 0
        if problem.has_resets:  # all flags are 0: reading them takes as long as reading set ones
            self._kept.append(memory.zeros(problem.leading_shape, byte))
            resets = _address(self._kept[-1])
        lengths = 0
        if problem.has_device_lengths:  # from half of the steps to all
            spread = np.linspace(problem.steps / 2, problem.steps, problem.batch)
            self._kept.append(memory.constant(np.ceil(spread).astype(np.int32)))
            lengths = _address(self._kept[-1])
        self._forward = at = ForwardAddresses(
            x=given(x_shape),
            y=result(y_shape),
            h_0=given(h_shape),
            h_n=result(h_shape),
            c_0=given(c_shape, cell),
            c_n=result(c_shape, cell),
            weights=given((size,), scale=weight_scale),
            workspace=buffer(executor.least_workspace_bytes),
            reserve=buffer(executor.reserve_bytes) if problem.training else 0,
            resets=resets,
            lengths=lengths,
        )
        self._training = problem.training
        if self._training:
            self._data = BackwardDataAddresses(
                *(at.y, at.h_0, at.c_0, at.weights),
                dy=given(y_shape),
                dh_n=given(h_shape),
                dc_n=given(c_shape, cell),
                dx=result(x_shape),
                dh_0=result(h_shape),
                dc_0=result(c_shape, cell),
                workspace=at.workspace,
                reserve=at.reserve,
                resets=resets,
            )
            self._weights = BackwardWeightsAddresses(
                *(at.x, at.h_0, at.y, result((size,)), at.workspace, at.reserve)
            )

    def _operations(self) -> tuple[OnLaunch, ...]:
        """Return the parts that a plan captures: forward and, for training, both backward calls."""
        return (self._run_forward, self._run_backward) if self._training else (self._run_forward,)

    def _run_forward(self, launch: Launch) -> None:
        self._executor.forward(launch, self._forward)

    def _run_backward(self, launch: Launch) -> None:
        self._executor.backward(launch, self._data, self._weights)

    def run(self) -> None:
        """Run all operations once."""
        for operation in self._operations():
            operation(self._launch)

    def results(self) -> HostArrays:
        """Return the results of the operations on the host; of a long array some elements."""
        return [sample(array) for array in self._results if array is not None]

    def times(self, best: Sequence[float]) -> Times:
        """Measure direct, replayed and staged calls, as far as possible; see `median_time`.

        ``best`` are the least times of each kind so far.
        """
        memory, stream = self._memory, self._launch.stream
        best_direct, best_replayed, best_staged = best
        # The capture below moves the thread's handle, and the first call after it moves it back.
        direct = median_time(self.run, memory, best_direct)
        if direct > FAR_SLOWER * best_direct:
            return Times(direct)
        try:
            graphs = [self._captured(operation) for operation in self._operations()]
        except FAILURES:
            return Times(direct)

        def replay() -> None:
            for graph in graphs:
                graph.launch(stream)

        replayed = median_time(replay, memory, best_replayed)
        try:
            staged = self._staged()
            return Times(direct, replayed, staged and median_time(staged, memory, best_staged))
        except FAILURES:
            return Times(direct, replayed)

    def _captured(self, operation: OnLaunch) -> Any:
        """Return what ``operation`` enqueues, as a graph."""
        device = self._launch.device
        return self._memory.capture(lambda stream: operation(self._launch_on(device, stream)))

    def _staged(self) -> Callable[[], object] | None:
        """Return a call through copies and a graph, or None if the problem cannot be staged."""
        problem = self._executor.problem
        if not can_be_staged(problem):
            return None
        staging = Staging(problem, self._memory)
        own = staging.stand_in(self._forward)
        graph = self._captured(lambda launch: self._executor.forward(launch, own))
        return partial(staging.run, graph, self._forward, self._launch.stream)


def _address(array: Array | None) -> int:
    return 0 if array is None else int(array.data.ptr)
