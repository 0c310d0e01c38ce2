"""An executor of any vendor with all its buffers by name, and its three calls."""

from __future__ import annotations

import numpy as np


class Setup:
    """``empty(shape, dtype)`` allocates; every buffer is zero."""

    def __init__(self, executor, empty):
        self.executor, self.problem = executor, executor.problem
        problem, dtype = self.problem, np.dtype(self.problem.spec.dtype)

        def array(shape):
            return empty(shape, dtype)

        cell = (lambda: array(problem.c_shape)) if problem.spec.has_cell else (lambda: None)
        self.buffers = {
            "x": array(problem.x_shape),
            "h_0": array(problem.h_shape),
            "c_0": cell(),
            "weights": array((executor.weight_size,)),
            "y": array(problem.y_shape),
            "h_n": array(problem.h_shape),
            "c_n": cell(),
            "dy": array(problem.y_shape),
            "dh_n": array(problem.h_shape),
            "dc_n": cell(),
            "dx": array(problem.x_shape),
            "dh_0": array(problem.h_shape),
            "dc_0": cell(),
            "out": array((executor.weight_size,)),
            "workspace": empty((executor.workspace_bytes,), np.dtype("uint8")),
        }
        for buffer in self.buffers.values():
            if buffer is not None:
                buffer.fill(0)
        reserve = empty((executor.reserve_bytes,), np.dtype("uint8"))
        self.context = executor.context(reserve) if problem.training else None

    def forward(self, executor=None, context=None, **other):
        b = self.buffers | other
        (executor or self.executor).forward(
            b["x"],
            b["h_0"],
            b["c_0"],
            b["weights"],
            out=(b["y"], b["h_n"], b["c_n"]),
            workspace=b["workspace"],
            context=self.context if context is None else context,
        )

    def backward_data(self, context=None, **other):
        b = self.buffers | other
        self.executor.backward_data(
            self.context if context is None else context,
            b["y"],
            b["dy"],
            b["h_0"],
            b["c_0"],
            b["dh_n"],
            b["dc_n"],
            b["weights"],
            out=(b["dx"], b["dh_0"], b["dc_0"]),
            workspace=b["workspace"],
        )

    def backward_weights(self, context=None, accumulate=False, **other):
        b = self.buffers | other
        self.executor.backward_weights(
            self.context if context is None else context,
            b["x"],
            b["h_0"],
            b["y"],
            out=b["out"],
            workspace=b["workspace"],
            accumulate=accumulate,
        )

    def prepare(self, call):
        """Bring the context to where ``call`` may run."""
        if call != "forward":
            self.forward()
        if call == "backward_weights":
            self.backward_data()

    def close(self):
        self.executor.close()
        self.buffers.clear()
        self.context = None


NAMES = {
    "forward": ("x", "h_0", "c_0", "weights", "y", "h_n", "c_n", "workspace"),
    "backward_data": (
        *("y", "dy", "h_0", "c_0", "dh_n", "dc_n", "weights", "dx", "dh_0", "dc_0", "workspace"),
    ),
    "backward_weights": ("x", "h_0", "y", "out", "workspace"),
}
"""The arrays of each call."""

SHARED = (
    ("forward", "y", "x"),
    ("forward", "h_n", "h_0"),
    ("forward", "c_n", "h_n"),
    ("forward", "workspace", "weights"),
    ("backward_data", "dx", "y"),
    ("backward_data", "dh_0", "dh_n"),
    ("backward_data", "dc_0", "c_0"),
    ("backward_weights", "out", "x"),
)
"""Two arrays of a call that must not share memory, since one is written."""
