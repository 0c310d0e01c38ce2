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
        self._allocate = memory.allocate
        self._current_device = memory.current_device
        self._dtype = memory.dtype(self.problem.spec.dtype)
        self._bytes = memory.dtype("uint8")
        self.x_shape, self._y_shape = self.problem.x_shape, self.problem.y_shape
        self.h_shape, self.c_shape = self.problem.h_shape, self.problem.c_shape
        self._has_cell = self.problem.spec.has_cell

    def infer(
        self,
        x: Array,
        h_0: Array | None,
        c_0: Array | None,
        weights: Array,
        context: Any = None,
    ) -> tuple[Array, Array, Array | None]:
        """(y, h_n, c_n)."""
        if self._current_device() != self.device:
            with self._memory.use(self.device):
                return self.infer(x, h_0, c_0, weights, context)
        executor, empty, dtype = self.executor, self._empty, self._dtype
        x_at, h_0_at, c_0_at, weights_at = executor.check_inputs(x, h_0, c_0, weights)
        y, h_n = empty(self._y_shape, dtype), empty(self.h_shape, dtype)
        c_n, c_n_at = None, 0
        if self._has_cell:
            c_n = empty(self.c_shape, dtype)
            c_n_at = c_n.data.ptr
        # Freed on return, into a pool that hands it out again in the order of this stream.
        workspace = self._allocate(executor.least_workspace_bytes)
        executor.forward_at(
            (x_at, y.data.ptr, h_0_at, h_n.data.ptr, c_0_at, c_n_at, weights_at, workspace.ptr),
            context,
        )
        return y, h_n, c_n

    def forward(
        self, x: Array, h_0: Array | None, c_0: Array | None, weights: Array
    ) -> tuple[Array, Array, Array | None, Saved]:
        """(y, h_n, c_n, what `backward` needs)."""
        if self._current_device() != self.device:
            with self._memory.use(self.device):
                return self.forward(x, h_0, c_0, weights)
        context = self.executor.context(self._empty((self.executor.reserve_bytes,), self._bytes))
        y, h_n, c_n = self.infer(x, h_0, c_0, weights, context)
        return y, h_n, c_n, Saved(x, h_0, c_0, weights, y, context)

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
        memory, executor = self._memory, self.executor
        if self._current_device() != self.device:
            with memory.use(self.device):
                return self.backward(
                    saved, dy, dh_n, dc_n, weights_needed=weights_needed, retain=retain
                )
        x, h_0, c_0, weights, y, context = saved
        if retain:
            context = context.copy()
        if dy is None:
            dy = memory.zeros(self._y_shape, self._dtype)
        dx = self._empty(self.x_shape, self._dtype)
        dh_0 = self._empty(self.h_shape, self._dtype)
        dc_0 = self._empty(self.c_shape, self._dtype) if self._has_cell else None
        workspace = self._empty((executor.least_workspace_bytes,), self._bytes)
        # All memory before the first call: if there is too little, the context can be used again.
        dweights = self._empty((executor.weight_size,), self._dtype) if weights_needed else None
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
        if dweights is not None:
            executor.backward_weights(context, x, h_0, y, out=dweights, workspace=workspace)
        return dx, dh_0, dc_0, dweights
