"""A problem on a vendor's executors: results allocated, graphs replayed, backward prepared."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from dnnffi.backends.vendor.context import Context, Phase, check_before_data, check_before_weights
from dnnffi.device.interface import Array, Graph, Memory
from dnnffi.execution.fork import guard
from dnnffi.execution.measure import FAILURES
from dnnffi.execution.replay import Addresses, GraphMemory, Replays
from dnnffi.execution.workspaces import PER_THREAD_STREAM, Workspaces
from dnnffi.rnn.candidates import Executor, Kernels
from dnnffi.rnn.staging import Staging
from dnnffi.rnn.tuning import Choice, Tuner
from dnnffi.spec.problem import RNNProblem

if TYPE_CHECKING:
    from dnnffi.rnn.buffer_plan import HeldPlan

CALLS_BEFORE_TUNING = 8
"""Calls of a problem that run by the rule before it is measured."""


class Saved(NamedTuple):
    """What a training forward keeps: its arrays, their addresses, and the executor's context."""

    arrays: tuple[Array | None, ...]
    addresses: Addresses
    context: Context


class Way(NamedTuple):
    """Who runs a problem. A call takes it once: another thread may tune in the middle.

    ``direct`` runs what no graph knows; ``replayed`` is captured, or None; with ``staged`` it runs
    inference on new addresses too, through copies. The reserve space is
    large enough for both, so that it can be allocated before it is known which of them runs; the
    workspace for the one that is captured.
    """

    direct: Executor
    replayed: Executor | None
    staged: bool
    workspace_bytes: int
    reserve_bytes: int

    @classmethod
    def of(cls, direct: Executor, replayed: Executor | None = None, staged: bool = False) -> Way:
        """The way with the sizes that follow."""
        main = replayed or direct
        reserve_bytes = max(direct.reserve_bytes, main.reserve_bytes)
        return cls(direct, replayed, staged, main.least_workspace_bytes, reserve_bytes)

    @property
    def main(self) -> Executor:
        """The one that runs most calls."""
        return self.replayed or self.direct


class VendorPlan:
    """Forward and backward of one problem on one device.

    Starts with the candidate that the rule picks. Once the problem is tuned, a call whose addresses
    a graph knows replays it, and any other runs the candidate that is fastest without one.
    """

    def __init__(
        self,
        problem: RNNProblem,
        device: int,
        kernels: Kernels,
        memory: Memory,
        *,
        generator: Any = None,
        tuner: Tuner | None = None,
        graphs: GraphMemory | None = None,
        workspaces: Workspaces | None = None,
    ) -> None:
        self.problem = problem
        self.device = device
        self.closed = False
        self.forgotten = False  # the plans were cleared: no new call of the functional API uses it
        self.choice: Choice | None = None
        self._kernels = kernels
        self.memory: Any = memory  # with graphs where there is a tuner
        self._empty = memory.empty
        self._workspaces = workspaces or Workspaces(memory)
        self._workspace = self._workspaces.get
        self.current_device = memory.current_device
        self._current_stream = memory.current_stream
        self._dtype = memory.dtype(problem.spec.dtype)
        self._bytes = memory.dtype("uint8")
        self._ndarray = memory.ndarray
        self._only_device = memory.device_count() == 1
        self.x_shape, self.y_shape = problem.x_shape, problem.y_shape
        self.h_shape, self.c_shape = problem.h_shape, problem.c_shape
        self._has_cell = problem.spec.has_cell
        if self._has_cell:
            self._empty_pair = memory.pairs(self.h_shape, self.c_shape, self._dtype)
        self._generator = generator
        self._tuner = tuner if problem.options.tune != "off" else None
        self.countdown = 0
        self._lock = threading.Lock()
        self._graph_memory = graphs or GraphMemory()
        self._operations = tuple(Replays(self._graph_memory) for _ in range(4))
        self._forwards, self._datas, self._weights, self._backwards = self._operations
        self.forward_graphs = self._forwards.graphs
        self._staging: tuple[Staging, int] | None = None
        self._staging_lock = threading.Lock()
        self.way = Way.of(kernels.make(problem, None, device, generator))
        guard(self)
        if self._tuner is not None:
            known = self._tuner.find(problem, device)
            if known is not None:
                self._apply(known)
            elif problem.options.tune == "auto":
                self.countdown = CALLS_BEFORE_TUNING
            elif not self.autotune():
                self.countdown = 1  # inside the caller's capture: behind it, then

    # Tuning

    def autotune(self) -> bool:
        """Measure the candidates and use the fastest. False where that cannot be done now."""
        tuner = self._tuner
        self.current_device()  # refuses in a forked process
        if tuner is None or not self._lock.acquire(blocking=False):
            return False
        try:
            if self.own_stream() is None:
                return False
            self.countdown = 0
            choice = tuner.measure(self.problem, self.device)
            if choice is not None:
                self._apply(choice)
            return choice is not None
        finally:
            self._lock.release()

    def count(self) -> None:
        """One call nearer to being measured; inside the caller's capture it waits."""
        if self.countdown > 1:
            self.countdown -= 1
        else:
            self.autotune()

    def _apply(self, choice: Choice) -> None:
        """Use what was measured; a candidate that cannot be made now is left out."""
        make, problem = self._kernels.make, self.problem
        try:
            with self.memory.use(self.device):
                executors = {
                    name: make(problem, name, self.device, self._generator)
                    for name in {choice.direct, choice.replayed}
                    if name is not None
                }
        except FAILURES:
            return
        self.choice = choice
        self._drop_graphs()
        replayed = None if choice.replayed is None else executors[choice.replayed]
        self.way = Way.of(executors[choice.direct], replayed, choice.staged)

    # One operation: replayed, captured and replayed, or run

    def own_stream(self) -> Any:
        """The current stream; None where the caller captures it, so that calls go into his graph.

        A call asks once.
        """
        stream = self._current_stream()
        return None if stream.ptr and self.memory.is_capturing(stream) else stream

    def workspace(self, way: Way, stream: Any, kept: bool = False) -> Array:
        """The buffer for a forward on `own_stream`.

        The stream's own, always at the same address, for one that a graph may replay or whose
        caller wants to be known again (``kept``); else a new one. Where the caller is capturing it
        is new too: what his graph uses must be his.
        """
        if stream is None or not (kept or way.replayed is not None):
            return self._empty((way.workspace_bytes,), self._bytes)
        return self._workspace(self.device, stream.ptr, way.workspace_bytes)

    def backward_workspace(
        self,
        way: Way,
        executor: Executor,
        stream: Any,
        kept: bool = False,
        accumulate: bool = False,
    ) -> Array:
        """The buffer for the backwards of ``executor``, likewise."""
        nbytes = executor.workspace_bytes if accumulate else executor.least_workspace_bytes
        if nbytes <= way.workspace_bytes:
            return self.workspace(way, stream, kept)
        return self._empty((nbytes,), self._bytes)

    def _graph(
        self,
        replays: Replays,
        key: Addresses,
        executor: Executor,
        call: Callable[[], object],
    ) -> Graph | None:
        """The graph of ``call`` on known addresses, captured if it is time for one; else None."""
        known = replays.graphs.get(key)
        if known is not None and known.executor is executor:
            return known
        if not replays.due(key):
            return None
        try:
            graph: Graph = self.memory.capture(call)
        except FAILURES:
            self._drop_graphs()
            self.way = Way.of(self.way.direct)
            return None
        # Kernels may go with the descriptors they were compiled for, as persist_dynamic's do.
        graph.executor = executor
        replays.add(key, graph)
        return graph

    def _drop_graphs(self) -> None:
        for replays in self._operations:
            replays.clear()
        self._staging = None

    def run_forward(
        self, way: Way, addresses: Addresses, stream: Any, reserve: Array | None = None
    ) -> Context | None:
        """Forward on checked addresses, in the order of the executor's ``forward_at``."""
        executor, replayed = way.direct, way.replayed
        if replayed is not None:
            context = None if reserve is None else Context(replayed, reserve)
            if stream is None:
                executor = replayed  # in the caller's graph what is fastest in a graph
                self._graph_memory.of_users.add(replayed)
            else:
                graph = self._graph(
                    self._forwards,
                    addresses if reserve is None else (*addresses, reserve.data.ptr),
                    replayed,
                    lambda: replayed.forward_at(addresses, context, ordered=False),
                )
                if graph is not None:
                    self._launch_in_order(graph, stream)
                    if context is not None:
                        context.phase = Phase.FORWARD
                    return context
                if way.staged and self._run_staged(replayed, addresses, stream):
                    return None
        context = None if reserve is None else Context(executor, reserve)
        if executor.least_workspace_bytes > way.workspace_bytes:
            workspace = self._empty((executor.least_workspace_bytes,), self._bytes)
            addresses = (*addresses[:-1], workspace.data.ptr)
        executor.forward_at(addresses, context)
        return context

    def _run_staged(self, executor: Executor, addresses: Addresses, stream: Any) -> bool:
        """Inference through the plan's own arrays; False where that cannot be done now.

        They are of one stream, the first one, since another could overwrite what it still reads.
        """
        with self._staging_lock:
            if self._staging is None:
                try:
                    self._staging = Staging(self.problem, self.memory), stream.ptr
                except FAILURES:
                    return False
            staging, own_stream = self._staging
            if stream.ptr != own_stream or stream.ptr == PER_THREAD_STREAM:
                return False
            own = staging.stand_in(addresses)
            graph = self._graph(
                self._forwards, own, executor, lambda: executor.forward_at(own, ordered=False)
            )
            if graph is None:
                return False
            staging.run(graph, addresses, stream)
            return True

    def _launch_in_order(self, graph: Graph, stream: Any) -> None:
        if self._generator is None:
            graph.launch(stream)
        else:
            with self._generator:
                graph.launch(stream)

    def run_backward_data(
        self, way: Way, addresses: Addresses, context: Context, stream: Any
    ) -> None:
        """Backward data on checked addresses, by the executor that ran the forward."""
        executor: Any = context.executor
        if context.phase is not Phase.FORWARD:
            check_before_data(context, executor)
        if self._replays(way, executor, stream):
            graph = self._graph(
                self._datas,
                (*addresses, context.reserve.data.ptr),
                executor,
                lambda: executor.backward_data_at(addresses, context),
            )
            if graph is not None:
                graph.launch(stream)
                context.phase = Phase.DATA
                return
            context.phase = Phase.FORWARD  # a capture that failed has moved it
        executor.backward_data_at(addresses, context)

    def run_backward_weights(
        self,
        way: Way,
        addresses: Addresses,
        context: Context,
        stream: Any,
        accumulate: bool = False,
    ) -> None:
        """Backward weights on checked addresses, by the executor that ran the forward."""
        executor: Any = context.executor
        if context.phase is not Phase.DATA:
            check_before_weights(context, executor)
        if self._replays(way, executor, stream):
            graph = self._graph(
                self._weights,
                (*addresses, context.reserve.data.ptr, int(accumulate)),
                executor,
                lambda: executor.backward_weights_at(addresses, context, accumulate),
            )
            if graph is not None:
                graph.launch(stream)
                context.phase = Phase.SPENT
                return
        executor.backward_weights_at(addresses, context, accumulate)

    def run_backward(
        self, way: Way, data: Addresses, weights: Addresses, context: Context, stream: Any
    ) -> None:
        """Both backwards: as one graph, in which cuDNN lets them overlap (9.19, H200)."""
        executor: Any = context.executor
        if context.phase is not Phase.FORWARD:
            check_before_data(context, executor)

        def both() -> None:
            executor.backward_data_at(data, context)
            executor.backward_weights_at(weights, context)

        if self._replays(way, executor, stream):
            key = (*data, *weights, context.reserve.data.ptr)
            graph = self._graph(self._backwards, key, executor, both)
            if graph is not None:
                graph.launch(stream)
                context.phase = Phase.SPENT
                return
            context.phase = Phase.FORWARD
        both()

    def _replays(self, way: Way, executor: Executor, stream: Any) -> bool:
        if executor is not way.replayed:
            return False
        if stream is None:
            self._graph_memory.of_users.add(executor)
            return False
        return True

    # The functional API

    def takes(self, array: Array, shape: tuple[int, ...]) -> bool:
        """Whether a call can use an array as it is: contiguous, of this shape, dtype and device."""
        return (
            array.__class__ is self._ndarray
            and array._c_contiguous
            and array.shape == shape
            and array.dtype == self._dtype
            and (self._only_device or array.data.device_id == self.device)
        )

    def check_weights(self, weights: Array) -> int:
        """The address of flat weights that it can take, else an error that names what is wrong."""
        return self.way.direct.check_weights(weights)

    def infer(
        self,
        x: Array,
        h_0: Array | None,
        c_0: Array | None,
        weights: Array,
        weights_at: int | None = None,
    ) -> tuple[Array, Array, Array | None]:
        """(y, h_n, c_n) of arrays that it `takes`.

        Weights that came without their address are checked here.
        """
        if self.current_device() != self.device:
            with self.memory.use(self.device):
                return self.infer(x, h_0, c_0, weights, weights_at)
        if self.countdown:
            self.count()
        way = self.way
        if weights_at is None:
            weights_at = self.check_weights(weights)
        y = self._empty(self.y_shape, self._dtype)
        h_n, c_n = self.states()
        stream = self.own_stream()
        workspace = self.workspace(way, stream)
        addresses = (
            x.data.ptr,
            y.data.ptr,
            0 if h_0 is None else h_0.data.ptr,
            h_n.data.ptr,
            0 if c_0 is None else c_0.data.ptr,
            0 if c_n is None else c_n.data.ptr,
            weights_at,
            workspace.data.ptr,
        )
        graph = None if stream is None else self.forward_graphs.get(addresses)
        if graph is None or graph.executor is not way.replayed:
            self.run_forward(way, addresses, stream)
        else:
            graph.launch(stream)
        return y, h_n, c_n

    def states(self) -> tuple[Array, Array | None]:
        """New (h_n, c_n), or (dh_0, dc_0)."""
        if self._has_cell:
            return self._empty_pair()
        return self._empty(self.h_shape, self._dtype), None

    def forward(
        self,
        x: Array,
        h_0: Array | None,
        c_0: Array | None,
        weights: Array,
        weights_at: int | None = None,
    ) -> tuple[Array, Array, Array | None, Saved]:
        """(y, h_n, c_n, what `backward` needs), likewise."""
        if self.current_device() != self.device:
            with self.memory.use(self.device):
                return self.forward(x, h_0, c_0, weights, weights_at)
        if self.countdown:
            self.count()
        way = self.way
        if weights_at is None:
            weights_at = self.check_weights(weights)
        reserve = self._empty((way.reserve_bytes,), self._bytes)
        y = self._empty(self.y_shape, self._dtype)
        h_n, c_n = self.states()
        stream = self.own_stream()
        workspace = self.workspace(way, stream)
        addresses = (
            x.data.ptr,
            y.data.ptr,
            0 if h_0 is None else h_0.data.ptr,
            h_n.data.ptr,
            0 if c_0 is None else c_0.data.ptr,
            0 if c_n is None else c_n.data.ptr,
            weights_at,
            workspace.data.ptr,
        )
        context = self.run_forward(way, addresses, stream, reserve)
        assert context is not None
        return y, h_n, c_n, Saved((x, h_0, c_0, weights, y), addresses, context)

    def backward(
        self,
        saved: Saved,
        dy: Array | None,
        dh_n: Array | None,
        dc_n: Array | None,
        *,
        weights_needed: bool,
        retain: bool,
    ) -> tuple[Array, Array, Array | None, Array | None]:
        """(dx, dh_0, dc_0, gradient of the flat weights or None)."""
        if self.current_device() != self.device:
            with self.memory.use(self.device):
                return self.backward(
                    saved, dy, dh_n, dc_n, weights_needed=weights_needed, retain=retain
                )
        context = saved.context.copy() if retain else saved.context
        executor: Any = context.executor
        if dy is None:
            dy = self.memory.zeros(self.y_shape, self._dtype)
        dx = self._empty(self.x_shape, self._dtype)
        dh_0, dc_0 = self.states()
        # All memory before the first call: if there is too little, the context can be used again.
        dweights = self._empty((executor.weight_size,), self._dtype) if weights_needed else None
        way = self.way
        stream = self.own_stream()
        workspace = self.backward_workspace(way, executor, stream)
        x_at, y_at, h_0_at, _, c_0_at, _, weights_at, _ = saved.addresses
        data = (
            y_at,
            dy.data.ptr,
            h_0_at,
            c_0_at,
            0 if dh_n is None else dh_n.data.ptr,
            0 if dc_n is None else dc_n.data.ptr,
            weights_at,
            dx.data.ptr,
            dh_0.data.ptr,
            0 if dc_0 is None else dc_0.data.ptr,
            workspace.data.ptr,
        )
        if dweights is None:
            self.run_backward_data(way, data, context, stream)
        else:
            weights = (x_at, h_0_at, y_at, dweights.data.ptr, workspace.data.ptr)
            self.run_backward(way, data, weights, context, stream)
        return dx, dh_0, dc_0, dweights

    # What it is

    @property
    def graph_bytes(self) -> int:
        """Device memory of the plan's graphs, as far as it could be seen."""
        return sum(replays.nbytes for replays in self._operations)

    @property
    def staged_bytes(self) -> int:
        """Device memory that is held for copies."""
        staging = self._staging  # once: another thread may drop it
        return 0 if staging is None else staging[0].nbytes

    @property
    def graph_count(self) -> int:
        """How many graphs the plan holds."""
        return sum(len(replays.graphs) for replays in self._operations)

    def hold(self) -> HeldPlan:
        """The plan for one who keeps it: with its own workspace and reserve space."""
        from dnnffi.rnn.buffer_plan import HeldPlan

        return HeldPlan(self)

    def report(self) -> str:
        """Which candidate runs, and why, in plain words."""
        return describe(self)

    def close(self) -> None:
        """Let go of graphs and descriptors. A second call does nothing."""
        self.closed = True
        self._drop_graphs()
        for executor in (self.way.direct, self.way.replayed):
            if executor is not None:
                executor.close()


def describe(plan: VendorPlan) -> str:
    """`VendorPlan.report`."""
    problem, choice, way = plan.problem, plan.choice, plan.way
    lines = [str(problem), f"algorithm {way.main.algorithm}, math {problem.options.math}"]
    tune = problem.options.tune
    if choice is None:
        why = "tuning is off" if tune == "off" else "not measured yet"
        lines.append(f"picked by the rule for {problem.options.algorithm!r}; {why}")
    else:
        if way.replayed is not None:
            elsewhere = f"{choice.direct} called directly elsewhere"
            if way.staged:
                elsewhere = "through copies to addresses that are known elsewhere"
            lines.append(
                f"{choice.replayed} as a CUDA graph where the addresses of a call are known, "
                f"{elsewhere}"
            )
        where = "measured in this process" if choice.source == "measured" else "read from disk"
        what = "forward and both backwards" if problem.training else "forward"
        lines.append(f"{where}, milliseconds of {what}:")
        for name, times in choice.times.items():
            replayed = (
                "not captured" if times.replayed is None else f"{times.replayed:.4f} as graph"
            )
            lines.append(f"  {name}: {times.direct:.4f} directly, {replayed}")
        lines += [f"  {name}: {reason}" for name, reason in choice.refused.items()]
    lines.append(f"workspace {way.workspace_bytes:,} bytes, reserve {way.reserve_bytes:,} bytes")
    lines.append(f"{plan.graph_count} graphs, {plan.graph_bytes:,} bytes")
    if plan.staged_bytes:
        lines.append(f"{plan.staged_bytes:,} bytes for copies")
    return "\n".join(lines)
