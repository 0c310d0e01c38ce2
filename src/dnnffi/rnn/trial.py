"""A candidate on scratch arrays of its problem, which the tuner times.

The user's arrays must not be written twice, and backward data changes the reserve space, so
candidates run on arrays of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dnnffi.backends.rnn_interface import (
    AddressExecutor,
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.interface import Array, Launch, MemoryWithGraphs, Stream
from dnnffi.execution.measure import FAILURES, Filler, HostArrays, median_time, sample
from dnnffi.rnn.route_choice import Times
from dnnffi.rnn.staging import Staging, can_be_staged
from dnnffi.spec.problem import RNNProblem

FAR_SLOWER = 10.0
"""Ratio of a call's time to that of the best so far above which it is not captured."""

LaunchOn = Callable[[int, Stream], Launch]
OnLaunch = Callable[[Launch], object]


def numbers_for(problem: RNNProblem, memory: MemoryWithGraphs, dtype: Any) -> tuple[Filler, float]:
    """Return the numbers that fill scratch arrays, and the scale of the weights.

    Gradients of ReLU jump where its argument is about 0, where candidates round to either side. In
    training all numbers are positive, and the weights so small that nothing grows: no argument is
    about 0, and candidates that round differently agree.
    """
    spec = problem.spec
    if spec.mode == "rnn_relu" and problem.training:
        return Filler(memory, dtype, minimum=0.25), 0.5 / spec.hidden_size
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

    def elapsed_ms(self) -> float:
        """Run all operations once, and return how many milliseconds the device took."""
        return self._memory.elapsed(self.run)

    def results(self) -> HostArrays:
        """Return the results of the operations on the host; of a long array some elements."""
        return [sample(array) for array in self._results if array is not None]

    def times(self, best: Sequence[float]) -> Times:
        """Measure direct, replayed and staged calls, as far as possible; see `median_time`.

        ``best`` are the `least_times` so far.
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
