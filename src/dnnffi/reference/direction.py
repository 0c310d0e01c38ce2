"""One direction of one layer, forward and backward.

Sequences are [T, B, .] here; the symbols are those of `dnnffi.reference.rnn`. A row of the batch
that has ended keeps its state, so the state after the last step taken is that of every row's own
last step; in the reverse direction a row keeps its initial state until its last step is reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dnnffi.device.interface import NDArray
from dnnffi.reference.cells import Cell, Saved
from dnnffi.reference.layout import Layout


class Weights(NamedTuple):
    """The arrays of one layer and direction; their gradients have the same form."""

    w_ih: NDArray  # [G*H, I or O*D]
    w_hh: NDArray  # [G*H, O]
    b_ih: NDArray | None  # [G*H]
    b_hh: NDArray | None
    w_hr: NDArray | None  # [P, H]


@dataclass(frozen=True)
class Pass:
    """One direction of one layer as forward left it."""

    weights: Weights
    order: range  # the steps in the order they were taken
    x: NDArray  # [T, B, I or O*D]
    y: NDArray  # [T, B, O]
    h_n: NDArray  # [B, O]
    c_n: NDArray | None  # [B, H]
    h_before: NDArray  # [T, B, O]: the state that each step read
    unprojected: NDArray | None  # [T, B, H]: the cell's output before the projection
    saved: list[Saved]  # by step: what the cell keeps for its derivative


class PassGradients(NamedTuple):
    """Gradients of one direction of one layer."""

    x: NDArray
    h_0: NDArray
    c_0: NDArray | None
    weights: Weights


def forward_pass(
    layout: Layout,
    cell: Cell,
    w: Weights,
    x: NDArray,
    h: NDArray,
    c: NDArray | None,
    *,
    reverse: bool,
) -> Pass:
    """One direction of one layer from the state h [B, O], c [B, H]."""
    steps = layout.steps
    order = range(steps - 1, -1, -1) if reverse else range(steps)
    gx = _product(x, w.w_ih.T)
    if w.b_ih is not None:
        gx = gx + w.b_ih
    hs, befores, cell_hs = [h] * steps, [h] * steps, [h] * steps
    saved: list[Saved] = [()] * steps
    for t in order:
        befores[t] = h
        gh = h @ w.w_hh.T
        if w.b_hh is not None:
            gh = gh + w.b_hh
        new = cell.step(gx[t], gh, h, c)
        cell_hs[t], saved[t] = new.h, new.saved
        h = layout.update(t, new.h if w.w_hr is None else new.h @ w.w_hr.T, h)
        if c is not None and new.c is not None:
            c = layout.update(t, new.c, c)
        hs[t] = h

    return Pass(
        weights=w,
        order=order,
        x=x,
        y=layout.sequence(hs),
        h_n=h,
        c_n=c,
        h_before=layout.sequence(befores),
        unprojected=None if w.w_hr is None else layout.sequence(cell_hs),
        saved=saved,
    )


def backward_pass(
    layout: Layout, cell: Cell, run: Pass, dy: NDArray, dh: NDArray, dc: NDArray | None
) -> PassGradients:
    """Gradients from those of y [T, B, O] and of the last state, dh [B, O] and dc [B, H].

    Rows of ``dy`` past their length are zero.
    """
    w = run.weights
    d_gx, d_gh, d_h = [dh] * layout.steps, [dh] * layout.steps, [dh] * layout.steps
    for t in reversed(run.order):
        dh = dh + dy[t]
        d_h[t] = dh
        d = cell.step_backward(run.saved[t], dh if w.w_hr is None else dh @ w.w_hr, dc)
        d_gx[t], d_gh[t] = d.gx, d.gh
        dh_before = d.gh @ w.w_hh
        if d.h is not None:
            dh_before = dh_before + d.h
        dh = layout.update(t, dh_before, dh)
        if dc is not None and d.c is not None:
            dc = layout.update(t, d.c, dc)

    # Steps past a row's length were computed too; `sequence` puts zero over their gradients.
    gx = layout.sequence(d_gx)
    gh = gx if d_gh[0] is d_gx[0] else layout.sequence(d_gh)
    weights = Weights(
        w_ih=_outer(gx, run.x),
        w_hh=_outer(gh, run.h_before),
        b_ih=None if w.b_ih is None else gx.sum(axis=(0, 1)),
        b_hh=None if w.b_hh is None else gh.sum(axis=(0, 1)),
        w_hr=None if run.unprojected is None else _outer(layout.sequence(d_h), run.unprojected),
    )
    return PassGradients(layout.zero_past_end(_product(gx, w.w_ih)), dh, dc, weights)


def _product(a: NDArray, w: NDArray) -> NDArray:
    """a [T, B, M] times w [M, N] as one product over all steps: [T, B, N]."""
    return (a.reshape(-1, a.shape[-1]) @ w).reshape(*a.shape[:-1], -1)


def _outer(a: NDArray, b: NDArray) -> NDArray:
    """The sum over steps and rows of the outer products of a [T, B, M] and b [T, B, N]: [M, N]."""
    return a.reshape(-1, a.shape[-1]).T @ b.reshape(-1, b.shape[-1])
