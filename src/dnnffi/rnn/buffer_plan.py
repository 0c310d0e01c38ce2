"""A vendor's plan with its own workspace and reserve space, on results that the caller may hold."""

from __future__ import annotations

from collections.abc import Callable
from operator import call, is_
from typing import Any
from weakref import WeakSet, ref

from dnnffi.backends.vendor.context import Context
from dnnffi.device.interface import Array
from dnnffi.errors import ContextError, UnsupportedError
from dnnffi.rnn.vendor_plan import VendorPlan, Way
from dnnffi.weights import RNNWeights

State = Array | None
Triple = tuple[Any, ...]


class HeldPlan:
    """Forward and backward into given arrays; what stays the same from call to call is kept.

    There is one reserve space: a forward fills it for the backwards that follow, and the next
    forward fills it anew.
    """

    def __init__(self, plan: VendorPlan) -> None:
        self.plan = plan
        self._memory = plan.memory
        self._dtype = plan.memory.dtype(plan.problem.spec.dtype)
        self._bytes = plan.memory.dtype("uint8")
        self._training = plan.problem.training
        self._reserve: Array | None = None
        self._given: tuple[Array, State, State, Array, Array] | None = None
        self._context: Context | None = None
        self._captured: WeakSet[Any] = WeakSet()
        self._forward = _LastChecked(lambda executor: executor.check_forward)
        self._data = _LastChecked(lambda executor: executor.check_backward_data)
        self._weights = _LastChecked(lambda executor: executor.check_backward_weights)

    def forward(
        self, x: Array, h_0: State, c_0: State, weights: Array, out: Triple | None
    ) -> Triple:
        """Fill and return (y, h_n, c_n)."""
        plan = self.plan
        if plan.closed:
            self._open()
        if plan.current_device() != plan.device:
            with self._memory.use(plan.device):
                return self.forward(x, h_0, c_0, weights, out)
        if plan.countdown:
            plan.count()
        if out is None:
            out = self._empty(plan.y_shape), *plan.states()
        y, h_n, c_n = out
        way = plan.way
        stream = plan.own_stream()
        arrays = (x, y, h_0, h_n, c_0, c_n, weights, plan.workspace(way, stream, kept=True))
        addresses = self._forward.addresses(arrays, way.main)
        if self._training:
            self._context = None  # whatever happens now, what an earlier forward left is gone
            self._given = x, h_0, c_0, weights, y
            reserve = self._reserve_space(way)
            self._context = plan.run_forward(way, addresses, stream, reserve)
        else:
            plan.run_forward(way, addresses, stream)
        return out

    def backward_data(self, dy: State, dh_n: State, dc_n: State, out: Triple | None) -> Triple:
        """Fill and return (dx, dh_0, dc_0)."""
        plan = self.plan
        if plan.current_device() != plan.device:
            with self._memory.use(plan.device):
                return self.backward_data(dy, dh_n, dc_n, out)
        stream = plan.own_stream()
        context, arrays = self._data_arrays(dy, dh_n, dc_n, out, stream)
        addresses = self._data.addresses(arrays, context.executor)
        plan.run_backward_data(plan.way, addresses, context, stream)
        return arrays[7:10]

    def backward_weights(
        self, weights: RNNWeights | None, out: RNNWeights | None, accumulate: bool
    ) -> RNNWeights:
        """Fill and return the gradient of the weights."""
        plan = self.plan
        if plan.current_device() != plan.device:
            with self._memory.use(plan.device):
                return self.backward_weights(weights, out, accumulate)
        stream = plan.own_stream()
        context, out, arrays = self._weight_arrays(weights, out, stream, accumulate)
        addresses = self._weights.addresses(arrays, context.executor)
        plan.run_backward_weights(plan.way, addresses, context, stream, accumulate)
        return out

    def backward(
        self,
        dy: State,
        dh_n: State,
        dc_n: State,
        weights: RNNWeights | None,
        out: Triple | None,
        out_weights: RNNWeights | None,
    ) -> tuple[Triple, RNNWeights]:
        """Both backwards: fill and return (dx, dh_0, dc_0), gradient of the weights."""
        plan = self.plan
        if plan.current_device() != plan.device:
            with self._memory.use(plan.device):
                return self.backward(dy, dh_n, dc_n, weights, out, out_weights)
        stream = plan.own_stream()
        context, data = self._data_arrays(dy, dh_n, dc_n, out, stream)
        _, out_weights, arrays = self._weight_arrays(weights, out_weights, stream)
        plan.run_backward(
            plan.way,
            self._data.addresses(data, context.executor),
            self._weights.addresses(arrays, context.executor),
            context,
            stream,
        )
        return data[7:10], out_weights

    def _data_arrays(
        self, dy: State, dh_n: State, dc_n: State, out: Triple | None, stream: Any
    ) -> tuple[Context, tuple[Any, ...]]:
        """The context, and the arrays of backward data: whoever calls keeps them alive."""
        plan = self.plan
        context, (_, h_0, c_0, weights, y) = self._filled()
        if dy is None:
            dy = self._memory.zeros(plan.y_shape, self._dtype)
        if out is None:
            out = self._empty(plan.x_shape), *plan.states()
        executor: Any = context.executor
        workspace = plan.backward_workspace(plan.way, executor, stream, kept=True)
        return context, (y, dy, h_0, c_0, dh_n, dc_n, weights, *out, workspace)

    def _weight_arrays(
        self,
        weights: RNNWeights | None,
        out: RNNWeights | None,
        stream: Any,
        accumulate: bool = False,
    ) -> tuple[Context, RNNWeights, tuple[Any, ...]]:
        """The context, the gradient, and the arrays of backward weights, likewise."""
        plan = self.plan
        context, (x, h_0, _, _, y) = self._filled()
        if out is None:
            assert weights is not None
            out = RNNWeights.of_result(self._empty((weights.layout.size,)), weights.layout)
        executor: Any = context.executor
        workspace = plan.backward_workspace(plan.way, executor, stream, True, accumulate)
        return context, out, (x, h_0, y, out.buffer, workspace)

    def autotune(self) -> None:
        """Measure now."""
        self._open()
        self.plan.autotune()

    def capture(self, step: Callable[[], Any]) -> Any:
        """What ``step()`` enqueues, as a graph."""
        self._open()
        if self._memory.kind != "cuda" or not hasattr(self._memory, "capture_step"):
            raise UnsupportedError("this plan", "", "captures on CuPy arrays on CUDA only")
        with self._memory.use(self.plan.device):
            graph = self._memory.capture_step(step)
        self._captured.add(graph)
        return graph

    def report(self) -> str:
        """The plan's report, and what is held here."""
        return f"{self.plan.report()}\n{self.nbytes:,} bytes held for the reserve space"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.plan.closed

    def _open(self) -> None:
        if self.plan.closed:
            raise ValueError("this plan is closed")

    def _filled(self) -> tuple[Context, tuple[Array, State, State, Array, Array]]:
        self._open()
        if not self._training:
            raise ContextError("this plan is for inference; make it with training=True")
        if self._context is None or self._given is None:
            raise ContextError("backward needs a forward before it")
        return self._context, self._given

    def _reserve_space(self, way: Way) -> Array:
        if self._reserve is None or self._reserve.nbytes < way.reserve_bytes:
            self._reserve = self._memory.empty((way.reserve_bytes,), self._bytes)
        return self._reserve

    def _empty(self, shape: tuple[int, ...]) -> Array:
        return self._memory.empty(shape, self._dtype)

    @property
    def nbytes(self) -> int:
        """Device memory of the reserve space."""
        return 0 if self._reserve is None else int(self._reserve.nbytes)

    def close(self) -> None:
        """Let go of everything."""
        for graph in list(self._captured):
            graph.close()
        self.plan.close()
        self._reserve = self._given = self._context = None


def _nothing() -> None:
    """Stand in for the weak reference to an array that is None."""


class _LastChecked:
    """The arrays of the last call of an operation, known again if they are the same."""

    def __init__(self, check: Callable[[Any], Callable[..., tuple[int, ...]]]) -> None:
        self._check = check
        self._executor: Any = _nothing
        self._arrays: tuple[Callable[[], Any], ...] = ()
        self._addresses: tuple[int, ...] = ()

    def addresses(self, arrays: tuple[Any, ...], executor: Any) -> tuple[int, ...]:
        """Addresses of ``arrays``, which ``executor`` has checked now or before."""
        if executor is self._executor() and all(map(is_, map(call, self._arrays), arrays)):
            return self._addresses
        self._addresses = self._check(executor)(*arrays)
        # Weak, so that a plan keeps no array of its caller's alive.
        self._arrays = tuple(_nothing if array is None else ref(array) for array in arrays)
        self._executor = ref(executor)
        return self._addresses
