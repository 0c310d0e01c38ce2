"""Convolutions in NumPy, tap by tap, and the problems on which graphs are compared with them.

Everything is float64 and of any rank; groups follow from the channels of ``x`` and ``w``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from dnnffi.backends.cudnn.graph.build import UIDS
from dnnffi.backends.cudnn.graph.execution import VariantPacks, execute
from dnnffi.backends.cudnn.graph.geometry import Geometry, Layout
from dnnffi.backends.cudnn.graph.plans import Allowed, Candidates
from dnnffi.backends.vendor.handle import current_launch
from dnnffi.device.arrays import to_host
from dnnffi.device.dtypes import dtype_object

TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Allowed errors relative to the largest magnitude; that of float32 is for products in float32."""


class Case(NamedTuple):
    """One convolution; the number of its groups is ``x[1] / w[1]``."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def y(self):
        spatial = (
            (size + 2 * pad - dilation * (taps - 1) - 1) // step + 1
            for size, taps, step, pad, dilation in zip(
                self.x[2:], self.w[2:], self.stride, self.padding, self.dilation, strict=True
            )
        )
        return (self.x[0], self.w[0], *spatial)

    @property
    def steps(self):
        return self.stride, self.padding, self.dilation

    def geometry(self, dtype, channels_last=False):
        shapes = (Layout.packed(s, channels_last=channels_last) for s in (self.x, self.w, self.y))
        return Geometry(*shapes, dtype, *self.steps)

    def operands(self, seed=0):
        """Random x, w, y, residual and bias."""
        rng = np.random.default_rng(seed)
        shapes = {"x": self.x, "w": self.w, "y": self.y, "residual": self.y}
        values = {name: rng.normal(size=shape) for name, shape in shapes.items()}
        return values | {"bias": rng.normal(size=self.w[0])}


CASES = {
    "2d": Case((2, 8, 9, 7), (16, 8, 3, 3), (1, 1), (1, 1), (1, 1)),
    "2d strided": Case((2, 8, 11, 8), (8, 8, 3, 2), (2, 1), (1, 0), (1, 1)),
    "2d dilated": Case((1, 8, 9, 9), (8, 8, 3, 3), (1, 1), (2, 2), (2, 2)),
    "2d pointwise": Case((2, 16, 5, 6), (8, 16, 1, 1), (1, 1), (0, 0), (1, 1)),
    "2d groups": Case((2, 16, 7, 7), (16, 8, 3, 3), (1, 1), (1, 1), (1, 1)),
    "2d depthwise": Case((2, 16, 7, 7), (16, 1, 3, 3), (1, 1), (1, 1), (1, 1)),
    "2d odd": Case((1, 3, 6, 5), (5, 3, 2, 3), (1, 2), (0, 1), (1, 1)),
    "1d": Case((2, 8, 13), (8, 8, 3), (1,), (1,), (1,)),
    "1d strided": Case((2, 8, 17), (16, 4, 5), (3,), (2,), (2,)),
    "3d": Case((1, 8, 5, 6, 4), (8, 8, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    "3d strided": Case((1, 8, 7, 5, 6), (8, 8, 3, 1, 2), (2, 1, 2), (1, 0, 1), (1, 1, 1)),
}


def _taps(x, w, y, stride, padding, dilation):
    """Yield each tap of the filter: its index, the padded ``x``, and the part under the tap."""
    groups = x.shape[1] // w.shape[1]
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    padded = padded.reshape(x.shape[0], groups, -1, *padded.shape[2:])
    for tap in np.ndindex(w.shape[2:]):
        part = tuple(
            slice(t * d, t * d + s * (n - 1) + 1, s)
            for t, d, s, n in zip(tap, dilation, stride, y.shape[2:], strict=True)
        )
        yield tap, padded, (slice(None), slice(None), slice(None), *part)


def _grouped(array, axis, groups):
    shape = array.shape
    return array.reshape(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])


def forward(x, w, y_shape, *steps):
    groups = x.shape[1] // w.shape[1]
    y = np.zeros(y_shape)
    out, filters = _grouped(y, 1, groups), _grouped(w, 0, groups)
    for tap, padded, part in _taps(x, w, y, *steps):
        out += np.einsum("ngc...,gkc->ngk...", padded[part], filters[(..., *tap)])
    return y


def backward_data(dy, w, x_shape, *steps):
    padding = steps[1]
    groups = x_shape[1] // w.shape[1]
    grad, filters = _grouped(dy, 1, groups), _grouped(w, 0, groups)
    for tap, padded, part in _taps(np.zeros(x_shape), w, dy, *steps):
        if not any(tap):
            total = np.zeros_like(padded)
        total[part] += np.einsum("ngk...,gkc->ngc...", grad, filters[(..., *tap)])
    inner = tuple(slice(p, p + n) for p, n in zip(padding, x_shape[2:], strict=True))
    return total[(..., *inner)].reshape(x_shape)


def backward_weights(dy, x, w_shape, *steps):
    dw = np.zeros(w_shape)
    groups = x.shape[1] // w_shape[1]
    grad, filters = _grouped(dy, 1, groups), _grouped(dw, 0, groups)
    n, g, k = grad.shape[:3]
    flat = grad.reshape(n, g, k, -1)
    for tap, padded, part in _taps(x, dw, dy, *steps):
        under = padded[part].reshape(n, g, w_shape[1], -1)
        filters[(..., *tap)] = np.einsum("ngkp,ngcp->gkc", flat, under)
    return dw


def rounded(values, dtype):
    """``values`` as an array of ``dtype`` holds them."""
    return values.astype(dtype_object(dtype)).astype("float64")


def placed(memory, values, dtype, channels_last=False):
    """``values`` in an array of ``memory``, whose last dimension in memory may be the channels."""
    values = values.astype(dtype_object(dtype))
    if not channels_last or values.ndim < 3:
        return memory.asarray(np.ascontiguousarray(values))
    last = memory.asarray(np.ascontiguousarray(np.moveaxis(values, 1, -1)))
    return last.transpose(0, last.ndim - 1, *range(1, last.ndim - 1))


def first(candidates):
    """Return the first plan, or raise the reasons why there is none."""
    for candidate in candidates:
        return candidate
    pytest.fail(f"nothing runs: {'; '.join(map(str, candidates.refused))}")


def packs_of(graph):
    """The packs of the operands of a graph, in their order."""
    uids = [UIDS[name] for name in graph.operands]
    return VariantPacks(uids, library=graph.graph.library)


def run(handle, candidate, graph, arrays, memory):
    """Run a plan on ``arrays``, by the names of the operands."""
    size = candidate.plan.workspace_size
    workspace = memory.empty((size,), np.uint8) if size else None
    addresses = [arrays[name].data.ptr for name in graph.operands]
    library = graph.graph.library
    pack = packs_of(graph).at((*addresses, 0 if workspace is None else workspace.data.ptr))
    execute(current_launch(library), candidate.plan, pack)


def deviation(found, expected):
    """The largest difference, relative to the largest magnitude."""
    return np.abs(to_host(found).astype("float64") - expected).max() / np.abs(expected).max()


class Problem:
    """A case in arrays of ``memory``, and the numbers that they hold."""

    def __init__(self, case, dtype, channels_last, memory):
        self.case, self.dtype, self.channels_last, self.memory = case, dtype, channels_last, memory
        self.values = {name: rounded(value, dtype) for name, value in case.operands().items()}
        self.arrays = {name: self.place(value) for name, value in self.values.items()}
        self.tolerance = TOLERANCES[dtype]

    def place(self, values):
        return placed(self.memory, values, self.dtype, self.channels_last)

    def run(self, handle, candidate, graph, written):
        """Run a plan on an operand ``written`` that is filled with NaN; return that operand."""
        empty = self.place(np.full(self.arrays[written].shape, np.nan))
        run(handle, candidate, graph, self.arrays | {written: empty}, self.memory)
        return empty

    def check(self, handle, graph, written, expected, **allowed):
        """Run the first plan that is allowed, and compare."""
        candidate = first(Candidates(handle, graph, Allowed(**allowed)))
        found = self.run(handle, candidate, graph, written)
        difference = deviation(found, expected)
        assert difference < self.tolerance, f"{written} of {candidate.info}: {difference}"

    def forward(self):
        """Compute the convolution in NumPy."""
        return forward(self.values["x"], self.values["w"], self.case.y, *self.case.steps)

    def fused(self, parts, alpha=0.75):
        """The forward convolution with residual ("z"), bias ("b") and ReLU ("r"), and its graph."""
        expected, geometry = self.forward(), self.case.geometry(self.dtype, self.channels_last)
        if "z" in parts:
            expected += alpha * self.values["residual"]
        if "b" in parts:
            expected += self.values["bias"].reshape(1, -1, *[1] * len(self.case.stride))
        if "r" in parts:
            expected = np.maximum(expected, 0)
        options = {
            "bias": "b" in parts,
            "residual": "z" in parts,
            "alpha": alpha,
            "relu": "r" in parts,
        }
        return expected, geometry, options

    def gradients(self):
        """Return the operation, the written operand and the expected values of each gradient."""
        case = self.case
        x, w, y = (self.values[name] for name in ("x", "w", "y"))
        return (
            ("backward_data", "x", backward_data(y, w, case.x, *case.steps)),
            ("backward_weights", "w", backward_weights(y, x, case.w, *case.steps)),
        )
