"""A problem on a vendor's executor: allocates results and workspace, keeps what backward needs."""

from __future__ import annotations

from typing import Any, NamedTuple

from dnnffi.arrays import Array, Memory
from dnnffi.spec.problem import RNNProblem


class Saved(NamedTuple):
    """What a training forward keeps: the arrays as given, y, and the executor's context."""

    x: Array
    h_0: Array | None
    c_0: Array | None
    weights: Array
    y: Array
    context: Any


class VendorPlan:
    """Forward and backward of one problem on one device, on new result arrays."""

    def __init__(self, executor: Any, memory: Memory) -> None:
        self.executor = executor
        self.problem: RNNProblem = executor.problem
        self.device: int = executor.device
        self._memory = memory
        self._empty = memory.empty
        self._dtype = memory.dtype(self.problem.spec.dtype)
        self._bytes = memory.dtype("uint8")
        self._shapes = (self.problem.y_shape, self.problem.h_shape, self.problem.c_shape)
        self._has_cell = self.problem.spec.has_cell

    def infer(
        self, x: Array, h_0: Array | None, c_0: Array | None, weights: Array
    ) -> tuple[Array, Array, Array | None]:
        """(y, h_n, c_n)."""
        if self._memory.current_device() != self.device:
            with self._memory.use(self.device):
                return self.infer(x, h_0, c_0, weights)
        out = self._results()
        self.executor.forward(x, h_0, c_0, weights, out=out, workspace=self._workspace())
        return out

    def forward(
        self, x: Array, h_0: Array | None, c_0: Array | None, weights: Array
    ) -> tuple[Array, Array, Array | None, Saved]:
        """(y, h_n, c_n, what `backward` needs)."""
        if self._memory.current_device() != self.device:
            with self._memory.use(self.device):
                return self.forward(x, h_0, c_0, weights)
        executor = self.executor
        out = self._results()
        context = executor.context(self._empty((executor.reserve_bytes,), self._bytes))
        executor.forward(
            x, h_0, c_0, weights, out=out, workspace=self._workspace(), context=context
        )
        return (*out, Saved(x, h_0, c_0, weights, out[0], context))

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
        memory, executor, problem = self._memory, self.executor, self.problem
        if memory.current_device() != self.device:
            with memory.use(self.device):
                return self.backward(
                    saved, dy, dh_n, dc_n, weights_needed=weights_needed, retain=retain
                )
        x, h_0, c_0, weights, y, context = saved
        if retain:
            context = context.copy()
        if dy is None:
            dy = memory.zeros(problem.y_shape, self._dtype)
        dx = self._empty(problem.x_shape, self._dtype)
        dh_0 = self._empty(problem.h_shape, self._dtype)
        dc_0 = self._empty(problem.c_shape, self._dtype) if self._has_cell else None
        workspace = self._workspace()
        executor.backward_data(
            context,
            y,
            dy,
            h_0,
            c_0,
            dh_n,
            dc_n,
            weights,
            out=(dx, dh_0, dc_0),
            workspace=workspace,
        )
        dweights = None
        if weights_needed:
            dweights = self._empty((executor.weight_size,), self._dtype)
            executor.backward_weights(context, x, h_0, y, out=dweights, workspace=workspace)
        return dx, dh_0, dc_0, dweights

    def _results(self) -> tuple[Array, Array, Array | None]:
        empty, dtype, (y_shape, h_shape, c_shape) = self._empty, self._dtype, self._shapes
        c_n = empty(c_shape, dtype) if self._has_cell else None
        return empty(y_shape, dtype), empty(h_shape, dtype), c_n

    def _workspace(self) -> Array:
        return self._empty((self.executor.workspace_bytes,), self._bytes)
