"""One direction of one layer, forward and backward.

Sequences are [T, B, .] here; the symbols are those of `dnnffi.reference.rnn`. A row of the batch
that has ended keeps its state, so the state after the last step taken is that of every row's own
last step; in the reverse direction a row keeps its initial state until its last step is reached.
Where a state is reset, the step reads another one, and no gradient passes from it to the step
before.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from dnnffi.device.interface import NDArray
from dnnffi.reference.cells import Cell, Saved
from dnnffi.reference.layout import Layout
from dnnffi.reference.threads import matmul_of

MAX_ROWS = 256
"""Rows of x that are multiplied at once.

A BLAS is as fast with as many as with more, and their products stay in a cache: 512 KB in float32
where G*H is 512.
"""


class Weights(NamedTuple):
    """The arrays of one layer and direction; their gradients have the same form."""

    w_ih: NDArray  # [G*H, I or O*D]
    w_hh: NDArray  # [G*H, O]
    b_ih: NDArray | None  # [G*H]
    b_hh: NDArray | None
    w_hr: NDArray | None  # [P, H]


class Resets(NamedTuple):
    """The steps of one direction that read another state than the one before them, and which."""

    steps: NDArray  # [T, B, 1], bool
    h: NDArray  # [B, O] or [1, O]
    c: NDArray | None  # [B, H] or [1, H]

    def replace(self, xp: ModuleType, t: int, h: NDArray, c: NDArray | None) -> Any:
        """Return the state that step ``t`` reads, of h and c before it."""
        of_step = self.steps[t]
        h = xp.where(of_step, self.h, h)
        return h, None if c is None else xp.where(of_step, self.c, c)


class Pass(NamedTuple):
    """One direction of one layer as forward left it."""

    weights: Weights
    order: range  # the steps in the order they were taken
    x: NDArray  # [T, B, I or O*D]
    y: NDArray  # [T, B, O]
    h_n: NDArray  # [B, O]
    c_n: NDArray | None  # [B, H]
    h_before: NDArray  # [T, B, O]: the state that each step read
    cell_h: NDArray  # [T, B, H]: the cell's output, in front of a projection
    saved: list[Saved]  # by step: what the cell keeps for its derivative
    resets: Resets | None


class PassGradients(NamedTuple):
    """Gradients of one direction of one layer."""

    x: NDArray
    h_0: NDArray
    c_0: NDArray | None
    weights: Weights
    reset_h: NDArray | None  # [B, O], None without resets
    reset_c: NDArray | None


def forward_pass(
    layout: Layout,
    cell: Cell,
    w: Weights,
    x: NDArray,
    h: NDArray,
    c: NDArray | None,
    reverse: bool,
    training: bool,
    resets: Resets | None = None,
) -> Pass:
    """One direction of one layer from the state h [B, O], c [B, H].

    Steps of ``resets`` past a row's length are false. Without ``training`` it keeps nothing of a
    step but its h: no ``saved``, and no ``cell_h``.
    """
    xp, steps, batch, new = layout.xp, layout.steps, layout.batch, layout.empty
    order = range(steps - 1, -1, -1) if reverse else range(steps)
    rows, outputs = w.w_hh.shape
    hidden = rows // cell.gates
    # The states of all steps; the initial state is before the first, or after the last in reverse.
    states = new(x, (steps + 1, batch, outputs))
    y, h_before = (states[:-1], states[1:]) if reverse else (states[1:], states[:-1])
    h_before[order[0]] = h
    places = steps if training else 1
    kept = new(x, (places, cell.kept, batch, hidden))
    cell_h = y if w.w_hr is None else new(x, (places, batch, hidden))

    gh = new(x, (batch, rows))
    gh_by_gate = gh.reshape(batch, cell.gates, hidden).swapaxes(0, 1)
    w_hh, w_hr = w.w_hh.T, None if w.w_hr is None else w.w_hr.T
    multiply_hh = matmul_of(xp, batch * rows * outputs)
    multiply_hr = xp.matmul if w_hr is None else matmul_of(xp, batch * w_hr.size)
    new_bias = None if cell.sums else w.b_hh
    saved: list[Saved] = [()] * places
    for some, products in _input_products(layout, cell, w, x, order):
        for t, gx in zip(some, products, strict=True):
            h = h_before[t]
            if resets is not None:
                h, c = resets.replace(xp, t, h, c)
            multiply_hh(h, w_hh, out=gh)
            if new_bias is not None:
                gh += new_bias
            place = t % places
            h_out = y[t] if w_hr is None else cell_h[place]
            c_new, saved[place] = cell.step(gx, gh_by_gate, h, c, kept[place], h_out)
            if w_hr is not None:
                multiply_hr(h_out, w_hr, out=y[t])
            if layout.active is not None:
                y[t] = layout.update(t, y[t], h)
                if c is not None and c_new is not None:
                    c_new = layout.update(t, c_new, c)
            c = c_new

    h_n = y[order[-1]]
    if resets is not None and training:
        h_before = xp.where(resets.steps, resets.h, h_before)
    if layout.active is not None:
        y = layout.zero_past_end(y)
        if training:
            h_before = layout.zero_past_end(h_before)
            cell_h = y if w.w_hr is None else layout.zero_past_end(cell_h)
    return Pass(w, order, x, y, h_n, c, h_before, cell_h, saved, resets)


def _input_products(
    layout: Layout, cell: Cell, w: Weights, x: NDArray, order: range
) -> Iterator[tuple[range, NDArray]]:
    """Yield successive parts of ``order``, and gx [steps, G, B, H] of each.

    b_hh is in gx where the cell ``sums``. The memory of gx is that of the gx before.
    """
    xp, batch = layout.xp, layout.batch
    max_steps = min(max(1, MAX_ROWS // batch), len(order))
    bias = w.b_ih
    if bias is not None and cell.sums:
        bias = bias + w.b_hh
    w_ih = w.w_ih.T
    multiply = matmul_of(xp, max_steps * batch * w_ih.size)
    buffer = layout.empty(x, (max_steps * batch, w_ih.shape[1]))
    for start in range(0, len(order), max_steps):
        some = order[start : start + max_steps]
        first, rows = min(some[0], some[-1]), len(some) * batch
        inputs = x[first : first + len(some)].reshape(rows, -1)
        gx = multiply(inputs, w_ih, out=buffer[:rows])
        if bias is not None:
            gx += bias[None]  # NumPy adds two single rows faster than a row and a vector
        by_gate = gx.reshape(len(some), batch, cell.gates, -1).swapaxes(1, 2)
        yield some, by_gate[:: order.step]


def backward_pass(
    layout: Layout, cell: Cell, run: Pass, dy: NDArray, dh: NDArray, dc: NDArray | None
) -> PassGradients:
    """Gradients from those of y [T, B, O] and of the last state, dh [B, O] and dc [B, H].

    Steps of ``dy`` past a row's length are zero.
    """
    w, xp = run.weights, layout.xp
    multiply_hh = matmul_of(xp, layout.batch * w.w_hh.size)
    multiply_hr = xp.matmul if w.w_hr is None else matmul_of(xp, layout.batch * w.w_hr.size)
    shape = layout.steps, layout.batch, w.w_hh.shape[0]
    gx = layout.empty(run.x, shape)
    gx_by_gate = gx.reshape(*shape[:2], cell.gates, -1).swapaxes(1, 2)
    gh, gh_by_gate = gx, gx_by_gate
    if not cell.sums:
        gh = layout.empty(run.x, shape)
        gh_by_gate = gh.reshape(*shape[:2], cell.gates, -1).swapaxes(1, 2)
    d_h = None if w.w_hr is None else layout.empty(run.x, run.y.shape)
    resets, reset_h, reset_c = run.resets, None, None
    if resets is not None:
        reset_h = xp.zeros_like(dh)
        reset_c = None if dc is None else xp.zeros_like(dc)
    for t in reversed(run.order):
        dh = dh + dy[t]
        d_output = dh
        if d_h is not None:
            d_h[t] = dh
            d_output = multiply_hr(dh, w.w_hr)
        d = cell.step_backward(run.saved[t], d_output, dc, gx_by_gate[t], gh_by_gate[t])
        dh_before = multiply_hh(gh[t], w.w_hh)
        if d.h is not None:
            dh_before += d.h
        dh = layout.update(t, dh_before, dh)
        if dc is not None and d.c is not None:
            dc = layout.update(t, d.c, dc)
        if resets is not None:
            of_step = resets.steps[t]
            reset_h += xp.where(of_step, dh, 0)
            dh = xp.where(of_step, 0, dh)
            if dc is not None:
                reset_c += xp.where(of_step, dc, 0)
                dc = xp.where(of_step, 0, dc)

    # Steps past a row's length were computed too.
    gx = layout.zero_past_end(gx)
    gh = gx if cell.sums else layout.zero_past_end(gh)
    b_ih = b_hh = None
    if w.b_ih is not None:
        b_ih = gx.sum(axis=(0, 1))
        b_hh = b_ih.copy() if cell.sums else gh.sum(axis=(0, 1))
    weights = Weights(
        w_ih=_outer(xp, gx, run.x),
        w_hh=_outer(xp, gh, run.h_before),
        b_ih=b_ih,
        b_hh=b_hh,
        w_hr=None if d_h is None else _outer(xp, layout.zero_past_end(d_h), run.cell_h),
    )
    dx = layout.zero_past_end(_product(xp, gx, w.w_ih))
    return PassGradients(dx, dh, dc, weights, reset_h, reset_c)


def _product(xp: ModuleType, a: NDArray, w: NDArray) -> NDArray:
    """Return a [T, B, M] times w [M, N] as one product over all steps: [T, B, N]."""
    product: NDArray = matmul_of(xp, a.size * w.shape[1])(a.reshape(-1, a.shape[-1]), w)
    return product.reshape(*a.shape[:-1], -1)


def _outer(xp: ModuleType, a: NDArray, b: NDArray) -> NDArray:
    """Return the outer products of a [T, B, M] and b [T, B, N], summed over T and B: [M, N]."""
    rows, columns = a.reshape(-1, a.shape[-1]).T, b.reshape(-1, b.shape[-1])
    product: NDArray = matmul_of(xp, rows.size * columns.shape[1])(rows, columns)
    return product
