"""LSTMs in array code, forward and backward, as a CuPy user would write them by hand.

CuPy computes no gradients, so each backward pass is written out. The code also runs on NumPy, where
the tests check its results. Rows are packed: buffers [N, .] contain, step by step, the rows that
have this step; N is the sum of the batch sizes. For rows of equal length this is [T, B, .] without
a copy.

Symbols: T time steps, B batch, I input size, H hidden size, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import ModuleType
from typing import Literal, NamedTuple

import numpy as np

from dnnffi.bench.kernels import kernels
from dnnffi.device.interface import NDArray
from dnnffi.spec.sequences import lengths_to_batch_sizes

Product = Literal["each step", "ahead", "ahead with bias"]
"""Time of the input's product: in each step, ahead for all steps, or ahead with its bias added."""


class Weights(NamedTuple):
    """Weights of a layer: w_ih [4*H, I], w_hh [4*H, H], b_ih and b_hh [4*H]; gates i f g o."""

    w_ih: NDArray
    w_hh: NDArray
    b_ih: NDArray
    b_hh: NDArray


class Steps(NamedTuple):
    """Positions of the rows of each step in packed buffers.

    sizes, starts : number of rows of each step, and position of the first one
    previous : for each packed row, the position of its previous state in [B + N, H], whose first B
        rows are the initial states
    last : positions of the last states
    """

    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    previous: NDArray | slice
    last: NDArray | slice

    @classmethod
    def equal(cls, steps: int, batch: int) -> Steps:
        """Return the positions of ``batch`` rows of ``steps`` steps."""
        total = steps * batch
        return cls(
            (batch,) * steps,
            tuple(range(0, total, batch)),
            slice(0, total),
            slice(total, total + batch),
        )

    @classmethod
    def descending(cls, xp: ModuleType, lengths: Sequence[int]) -> Steps:
        """Return the positions of rows of ``lengths``, the longest first."""
        batch = len(lengths)
        sizes = lengths_to_batch_sizes(lengths)
        starts = tuple(accumulate(sizes, initial=0))[:-1]
        before = [0, *(batch + start for start in starts[:-1])]
        previous = np.concatenate([np.arange(s, s + n) for s, n in zip(before, sizes, strict=True)])
        last = [batch + starts[length - 1] + row for row, length in enumerate(lengths)]
        return cls(sizes, starts, xp.asarray(previous), xp.asarray(last))


@dataclass(frozen=True)
class Layer:
    """State of a forward pass. States are [B + N, H], the initial ones first."""

    x: NDArray  # [N, I]
    weights: Weights
    steps: Steps
    product: Product
    gates: NDArray  # [N, 4*H] after their activations; [B, 4*H] without a backward pass
    h: NDArray
    c: NDArray
    batch: int

    @property
    def y(self) -> NDArray:
        """Outputs [N, H]."""
        return self.h[self.batch :]

    @property
    def h_n(self) -> NDArray:
        """Last outputs [B, H]."""
        return self.h[self.steps.last]

    @property
    def c_n(self) -> NDArray:
        """Last cell states [B, H]."""
        return self.c[self.steps.last]


class LayerGradients(NamedTuple):
    """Gradients of one layer."""

    x: NDArray
    h_0: NDArray
    c_0: NDArray
    weights: tuple[NDArray, ...]


def forward(
    xp: ModuleType,
    x: NDArray,
    h_0: NDArray,
    c_0: NDArray,
    weights: Weights,
    steps: Steps,
    product: Product,
    keep: bool,
) -> Layer:
    """Run one layer over packed ``x`` [N, I]; ``keep`` saves the gates for `backward`."""
    batch, hidden = h_0.shape
    total = x.shape[0]
    h = xp.empty((batch + total, hidden), x.dtype)
    c = xp.empty_like(h)
    h[:batch], c[:batch] = h_0, c_0
    gates = xp.empty((total if keep else batch, 4 * hidden), x.dtype)
    w_ih_t, w_hh_t = weights.w_ih.T, weights.w_hh.T
    bias = weights.b_hh if product == "ahead with bias" else weights.b_ih + weights.b_hh
    ahead = None
    if product != "each step":
        ahead = x @ w_ih_t
        if product == "ahead with bias":
            ahead += weights.b_ih
    step = kernels(xp).step
    before = 0
    for start, size in zip(steps.starts, steps.sizes, strict=True):
        rows = slice(start, start + size)
        states = slice(batch + start, batch + start + size)
        gx = x[rows] @ w_ih_t if ahead is None else ahead[rows]
        gh = h[before : before + size] @ w_hh_t
        kept = gates[rows] if keep else gates[:size]
        step(gx, gh, bias, c[before : before + size], kept, c[states], h[states])
        before = batch + start
    return Layer(x, weights, steps, product, gates, h, c, batch)


def backward(
    xp: ModuleType, run: Layer, dy: NDArray | None, dh_n: NDArray | None = None
) -> LayerGradients:
    """Return the gradients, given those of y [N, H] and h_n [B, H]; None counts as zero."""
    batch, hidden = run.batch, run.h.shape[1]
    w = run.weights
    dh = xp.zeros((batch, hidden), run.h.dtype) if dh_n is None else dh_n.copy()
    dc = xp.zeros_like(dh)
    no_dy = xp.zeros_like(dh)
    d_gates = xp.empty_like(run.gates)
    step_backward = kernels(xp).step_backward
    starts = run.steps.starts
    befores = (0, *(batch + start for start in starts[:-1]))
    for start, size, before in reversed(list(zip(starts, run.steps.sizes, befores, strict=True))):
        rows = slice(start, start + size)
        step_backward(
            run.gates[rows],
            run.c[before : before + size],
            run.c[batch + start : batch + start + size],
            no_dy[:size] if dy is None else dy[rows],
            dh[:size],
            dc[:size],
            d_gates[rows],
            dc[:size],
        )
        dh[:size] = d_gates[rows] @ w.w_hh
    if run.product == "each step":
        dx = xp.empty_like(run.x)
        for start, size in zip(starts, run.steps.sizes, strict=True):
            dx[start : start + size] = d_gates[start : start + size] @ w.w_ih
    else:
        dx = d_gates @ w.w_ih
    db = d_gates.sum(axis=0)
    dw = (d_gates.T @ run.x, d_gates.T @ run.h[run.steps.previous], db, db)
    return LayerGradients(dx, dh, dc, dw)
