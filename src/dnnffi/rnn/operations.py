"""The operations of a plan: replayed, captured and replayed, or run by an executor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dnnffi.backends.rnn_interface import (
    AddressExecutor,
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.interface import Launch, Stream
from dnnffi.execution.locks import TryLock
from dnnffi.execution.measure import FAILURES
from dnnffi.execution.replay import CapturedOperation
from dnnffi.execution.workspaces import PER_THREAD_STREAM
from dnnffi.log import logger
from dnnffi.rnn.context import Context, Phase
from dnnffi.rnn.network import PlanParts
from dnnffi.rnn.route import Route
from dnnffi.rnn.staging import Staging
from dnnffi.spec.problem import RNNProblem


class Operations:
    """The operations of one plan, on checked addresses.

    ``stream`` is the caller's, and ``captured`` whether the caller is capturing it: then calls are
    recorded into the caller's graph, which has to own what they use. ``failed`` is called after
    a capture that fails.
    """

    def __init__(
        self,
        problem: RNNProblem,
        parts: PlanParts,
        generator: Any,
        failed: Callable[[], object],
    ) -> None:
        self._problem = problem
        self._memory = parts.memory
        self._empty, self._bytes = parts.empty, parts.byte
        self._generator = generator if problem.drops else None
        self._launch = parts.launch

        def operation() -> CapturedOperation:
            return CapturedOperation(self._memory, self._launch, parts.graphs, failed)

        self._all = tuple(operation() for _ in range(4))
        self._forward, self._data, self._weights, self._both = self._all
        self.forward_graphs = self._forward.graphs
        """The graphs of forward passes, which the path of a call looks into."""
        self._staging: tuple[Staging, int] | None = None
        self._staging_lock = TryLock()

    def forward(
        self,
        route: Route,
        at: ForwardAddresses,
        stream: Stream,
        captured: bool,
    ) -> AddressExecutor:
        """Run a forward pass; return the implementation, which has to run its backward passes."""
        executor, replayed = route.direct, route.replayed
        if captured:
            executor = route.main  # in the caller's graph what is fastest in a graph
            self._forward.keep_for_user(executor, self._launch(stream))
        elif replayed is not None:
            graph = self._forward.graph(at, replayed, lambda launch: replayed.forward(launch, at))
            if graph is not None:
                if self._generator is None:
                    graph.launch(stream)
                else:
                    launch = self._launch(stream)
                    self._generator.in_order(launch, lambda: graph.launch(stream))
                return replayed
            if (
                route.staged
                and not at.resets
                and not at.lengths
                and self._run_staged(replayed, at, stream)
            ):
                return replayed
        if executor.least_workspace_bytes > route.workspace_bytes:
            workspace = self._empty((executor.least_workspace_bytes,), self._bytes)
            at = at._replace(workspace=workspace.data.ptr)
        run_forward(executor, self._launch(stream), at)
        return executor

    def _run_staged(self, executor: AddressExecutor, at: ForwardAddresses, stream: Stream) -> bool:
        """Run inference through the plan's own arrays; False if that cannot be done now.

        The arrays belong to the first stream that used them, since a call on another stream could
        overwrite what it still reads, and to one call at a time: a call of another thread, or of a
        signal handler during this one, runs without them.
        """
        with self._staging_lock.take() as mine:
            if not mine:
                return False
            known = self._staging
            if known is None:
                try:
                    known = self._staging = Staging(self._problem, self._memory), stream.ptr
                except FAILURES as error:
                    logger.debug("no arrays for copies: %s: %s", type(error).__name__, error)
                    return False
            staging, own_stream = known
            if stream.ptr != own_stream or stream.ptr == PER_THREAD_STREAM:
                return False
            own = staging.stand_in(at)
            graph = self._forward.graph(own, executor, lambda launch: executor.forward(launch, own))
            if graph is None:
                return False
            staging.run(graph, at, stream)
            return True

    def backward(
        self,
        route: Route,
        context: Context,
        data: BackwardDataAddresses | None,
        weights: BackwardWeightsAddresses | None,
        stream: Stream,
        captured: bool,
        accumulate: bool = False,
    ) -> None:
        """Backward data and backward weights, or one of them, as the forward pass was run.

        Both are one graph, in which cuDNN lets them overlap (9.19, H200).
        """
        executor = context.executor

        def call(launch: Launch) -> None:
            _backward(executor, launch, data, weights, accumulate)

        operation = self._both
        if data is None:
            operation = self._weights
        elif weights is None:
            operation = self._data
        context.take(Phase.DATA if data is None else Phase.FORWARD)
        graph = None
        if executor is route.replayed and not captured:
            graph = operation.graph((*(data or ()), *(weights or ()), accumulate), executor, call)
        if graph is not None:
            graph.launch(stream)
        else:
            launch = self._launch(stream)
            if captured:
                operation.keep_for_user(executor, launch)
            call(launch)
        context.reach(Phase.DATA if weights is None else Phase.SPENT)

    def clear(self) -> None:
        """Release graphs and the arrays for copies."""
        for operation in self._all:
            operation.clear()
        self._staging = None

    @property
    def graph_bytes(self) -> int:
        """Device memory of the plan's graphs, as far as it could be seen."""
        return sum(operation.nbytes for operation in self._all)

    @property
    def graph_count(self) -> int:
        """Number of graphs that the plan holds."""
        return sum(len(operation.graphs) for operation in self._all)

    @property
    def staged_bytes(self) -> int:
        """Device memory that is held for copies."""
        staging = self._staging  # once: another thread may drop it
        return 0 if staging is None else staging[0].nbytes


def run_forward(executor: AddressExecutor, launch: Launch, at: ForwardAddresses) -> None:
    """Run a forward pass without a graph."""
    generator = executor.generator
    if generator is None:
        executor.forward(launch, at)
    else:
        generator.in_order(launch, lambda: executor.forward(launch, at))


def run_backward(
    context: Context,
    launch: Launch,
    data: BackwardDataAddresses | None,
    weights: BackwardWeightsAddresses | None,
    accumulate: bool = False,
) -> None:
    """Run backward data and backward weights, or one of them, without a graph."""
    context.take(Phase.DATA if data is None else Phase.FORWARD)
    _backward(context.executor, launch, data, weights, accumulate)
    context.reach(Phase.DATA if weights is None else Phase.SPENT)


def _backward(
    executor: AddressExecutor,
    launch: Launch,
    data: BackwardDataAddresses | None,
    weights: BackwardWeightsAddresses | None,
    accumulate: bool,
) -> None:
    if data is not None and weights is not None:
        executor.backward(launch, data, weights, accumulate)
    elif data is not None:
        executor.backward_data(launch, data)
    elif weights is not None:
        executor.backward_weights(launch, weights, accumulate)
