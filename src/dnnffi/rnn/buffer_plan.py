"""A plan that writes into given arrays, with a reserve space of its own and few checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dnnffi.backends.rnn_interface import (
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.interface import Array, Stream
from dnnffi.device.spans import Span, check_apart, span_of, spans_of
from dnnffi.errors import ContextError, UnsupportedError
from dnnffi.execution.cache import WeakRegistry
from dnnffi.execution.remembered import Remembered
from dnnffi.rnn.context import Context, Phase
from dnnffi.rnn.executor_plan import ExecutorPlan
from dnnffi.rnn.resets import Resets, row_spans
from dnnffi.rnn.route import Route
from dnnffi.weights import RNNWeights

MaybeArray = Array | None
Triple = tuple[Any, ...]
_BESIDE = ("dx", "dh_0", "dc_0", "dy", "dh_n", "dc_n", "c_0", "weights", "resets")


class _Filled(NamedTuple):
    """State of the last forward pass: its context, and arrays that backward passes read again."""

    context: Context
    x: Array
    h_0: MaybeArray
    c_0: MaybeArray
    weights: Array
    y: Array
    resets: Resets | None


class BufferPlan:
    """Forward and backward into given arrays; what stays the same from call to call is kept.

    There is one reserve space: a forward pass fills it for the backward passes that follow, and the
    next forward pass fills it anew.
    """

    def __init__(self, plan: ExecutorPlan) -> None:
        self.plan = plan
        self.closed = False
        plan.finder.complete()
        self._memory = plan.memory
        self._training = plan.problem.training
        self._reserve: Array | None = None
        self._filled: _Filled | None = None
        self._captured: WeakRegistry[Any] = WeakRegistry()
        self._forward: Remembered[ForwardAddresses] = Remembered()
        self._data: Remembered[BackwardDataAddresses] = Remembered()
        self._weights: Remembered[BackwardWeightsAddresses] = Remembered()

    def forward(
        self,
        x: Array,
        h_0: MaybeArray,
        c_0: MaybeArray,
        weights: Array,
        out: Triple | None,
        lengths: MaybeArray = None,
        resets: Resets | None = None,
    ) -> Triple:
        """Fill and return (y, h_n, c_n)."""
        plan = self.plan
        if self.closed:
            self._open()
        if plan.parts.current_device() != plan.device:
            with self._memory.use(plan.device):
                return self.forward(x, h_0, c_0, weights, out, lengths, resets)
        route = plan.next_route()
        if out is None:
            out = plan.empty(plan.y_shape), *plan.states()
        y, h_n, c_n = out
        stream, captured = self._stream()
        workspace = plan.take_workspace(route.workspace_bytes, stream, own=not captured)
        try:
            reserve = None
            if self._training:
                # Whatever happens now, the state of an earlier forward pass is lost, also for a
                # backward call of another thread that has begun with it.
                earlier, self._filled = self._filled, None
                if earlier is not None:
                    earlier.context.empty()
                reserve = self._reserve_space(route)
            given = x, y, h_0, h_n, c_0, c_n, weights
            arrays = (*given, workspace, reserve, lengths, *(resets or ()))
            identities = tuple(map(id, arrays))
            at = self._forward.find(identities)
            if at is None:
                at = plan.arguments.forward(
                    *given,
                    workspace=workspace,
                    min_bytes=route.main.least_workspace_bytes,
                )
                if reserve is not None:
                    at = at._replace(reserve=reserve.data.ptr)
                if lengths is not None:
                    at = at._replace(lengths=lengths.data.ptr)
                if resets is not None:
                    names = "resets", "reset_h", "reset_c", "reset_rows"
                    at = at._replace(**dict(zip(names, resets.addresses, strict=True)))
                of_rows = row_spans(resets, lengths)
                check_apart(spans_of(("y", "h_n", "c_n"), out), of_rows)
                self._forward.add(identities, arrays, at)
            executor = plan.operations.forward(route, at, stream, captured)
            if reserve is not None:
                context = Context(executor, at.reserve, reserve, Phase.FORWARD)
                self._filled = _Filled(context, x, h_0, c_0, weights, y, resets)
        finally:
            plan.give_back_workspace(workspace, stream, own=not captured)
        return out

    def backward(
        self,
        gradients: Triple | None,
        weights: RNNWeights | None,
        out: Triple | None = None,
        out_weights: RNNWeights | None = None,
        accumulate: bool = False,
    ) -> tuple[Triple | None, RNNWeights | None]:
        """Run backward data on ``gradients``, (dy, dh_n, dc_n), and backward weights.

        Each is left out if its argument is None. Fills and returns (dx, dh_0, dc_0) with the
        gradients of the states of resets, a pair or None, and the gradient of the weights.
        """
        plan = self.plan
        if plan.parts.current_device() != plan.device:
            with self._memory.use(plan.device):
                return self.backward(gradients, weights, out, out_weights, accumulate)
        filled = self._begun()
        context = filled.context
        route = plan.finder.route
        stream, captured = self._stream()
        executor = context.executor
        nbytes = executor.workspace_bytes if accumulate else executor.least_workspace_bytes
        own = not captured and nbytes <= route.workspace_bytes
        workspace = plan.take_workspace(max(nbytes, route.workspace_bytes), stream, own=own)
        try:
            data = of_weights = results = None
            beside: Triple = ()
            if gradients is not None:
                dy, dh_n, dc_n = gradients
                if dy is None:
                    dy = self._memory.zeros(plan.y_shape, filled.y.dtype)
                if out is None:
                    out = plan.empty(plan.x_shape), *plan.states()
                of_resets = None
                if filled.resets is not None and filled.resets.h is not None:
                    of_resets = plan.states()
                data = self._data_at(filled, (dy, dh_n, dc_n), out, of_resets or (), workspace)
                results = *out, of_resets
                flags = None if filled.resets is None else filled.resets.flags
                beside = (*out, dy, dh_n, dc_n, filled.c_0, filled.weights, flags)
            if weights is not None:
                if out_weights is None:
                    flat = plan.empty((weights.layout.size,))
                    out_weights = RNNWeights._of_result(flat, weights.layout)
                buffer = out_weights._buffer
                of_weights = self._weights_at(filled, buffer, workspace, accumulate, beside)
            plan.operations.backward(route, context, data, of_weights, stream, captured, accumulate)
        finally:
            plan.give_back_workspace(workspace, stream, own=own)
        return results, out_weights

    def _stream(self) -> tuple[Stream, bool]:
        """Return the current stream, and whether the caller captures it."""
        stream = self.plan.parts.current_stream()
        return stream, self.plan.is_captured(stream)

    def _data_at(
        self,
        filled: _Filled,
        gradients: Triple,
        out: Triple,
        of_resets: Triple,
        workspace: Array,
    ) -> BackwardDataAddresses:
        """Return the checked addresses of backward data."""
        given = (filled.y, filled.h_0, filled.c_0, filled.weights, *gradients, *out)
        arrays = (*given, filled.x, workspace, self._reserve, *(filled.resets or ()), *of_resets)
        identities = tuple(map(id, arrays))
        at = self._data.find(identities)
        if at is None:
            executor = filled.context.executor
            at = self.plan.arguments.backward_data(
                *given,
                workspace=workspace,
                min_bytes=executor.least_workspace_bytes,
                reserve=Span("reserve", filled.context.reserve, executor.reserve_bytes),
            )
            read = [span_of("x", filled.x)]  # backward weights reads it later
            if filled.resets is not None:
                read.append(span_of("resets", filled.resets.flags))
                found = [0 if one is None else one.data.ptr for one in of_resets] or [0, 0]
                flags = filled.resets.addresses[0]
                at = at._replace(resets=flags, dreset_h=found[0], dreset_c=found[1])
            check_apart(spans_of(("dx", "dh_0", "dc_0"), out), read)
            self._data.add(identities, arrays, at)
        return at

    def _weights_at(
        self, filled: _Filled, out: Array, workspace: Array, accumulate: bool, beside: Triple
    ) -> BackwardWeightsAddresses:
        """Return the checked addresses of backward weights.

        ``beside`` are the arrays of backward data in the same graph: the two overlap.
        """
        given = (filled.x, filled.h_0, filled.y, out)
        arrays = (*given, *beside, workspace, self._reserve)
        identities = tuple(map(id, arrays))
        at = self._weights.find(identities)
        if at is None:
            executor = filled.context.executor
            at = self.plan.arguments.backward_weights(
                *given,
                workspace=workspace,
                min_bytes=executor.workspace_bytes
                if accumulate
                else executor.least_workspace_bytes,
                reserve=Span("reserve", filled.context.reserve, executor.reserve_bytes),
            )
            check_apart([span_of("out_weights", out)], spans_of(_BESIDE, beside))
            self._weights.add(identities, arrays, at)
        return at

    def autotune(self) -> None:
        """Measure the candidates now and use the fastest."""
        self._open()
        self.plan.autotune()

    def capture(self, step: Callable[[], Any]) -> Any:
        """Return what ``step()`` enqueues, as a graph."""
        self._open()
        if self._memory.kind != "cuda" or not hasattr(self._memory, "capture_step"):
            raise UnsupportedError("this plan", "", "captures on CuPy arrays on CUDA only")
        with self._memory.use(self.plan.device):
            graph = self._memory.capture_step(step)
        self._captured.add(graph)
        return graph

    def report(self) -> str:
        """Return the plan's report, and the bytes of the reserve space."""
        return f"{self.plan.report()}\n{self.nbytes:,} bytes held for the reserve space"

    def _open(self) -> None:
        if self.closed:
            raise ValueError("this plan is closed")

    def _begun(self) -> _Filled:
        self._open()
        if not self._training:
            raise ContextError("this plan is for inference; make it with training=True")
        filled = self._filled
        if filled is None:
            raise ContextError("backward needs a forward pass before it: call forward first")
        return filled

    def _reserve_space(self, route: Route) -> Array:
        reserve = self._reserve  # read once: another thread may close the plan
        if reserve is None or reserve.nbytes < route.reserve_bytes:
            reserve = self._memory.empty((route.reserve_bytes,), self._memory.dtype("uint8"))
            self._reserve = reserve
        return reserve

    @property
    def nbytes(self) -> int:
        """Device memory of the reserve space."""
        reserve = self._reserve
        return 0 if reserve is None else int(reserve.nbytes)

    def close(self) -> None:
        """Release everything. A second call does nothing."""
        self.closed = True
        for graph in self._captured.snapshot():
            graph.close()
        self.plan.finder.close()
        self._reserve = self._filled = None
