"""Inference of plain RNNs on NumPy arrays: a step allocates nothing.

In a small network a call takes little longer than the calls of NumPy's functions that it consists
of. So the sums of a step are computed in the memory of y, and the products of the states in the
memory of h_n. `dnnffi.reference.direction` computes the same bits in arrays that a backward pass
needs; it also takes rows of unequal length.

Symbols are those of `dnnffi.reference.rnn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnnffi.device.interface import NDArray
from dnnffi.reference.cells import ElmanCell
from dnnffi.reference.direction import MAX_ROWS, Weights
from dnnffi.reference.layout import Layout
from dnnffi.reference.threads import dot_of, on_one_thread
from dnnffi.spec.rnn import RNNSpec


class PlainInference:
    """Inference of one network on arrays of one shape, in which all rows have T steps."""

    def __init__(self, spec: RNNSpec, layout: Layout, cell: ElmanCell, dtype: Any) -> None:
        steps, batch, hidden = layout.steps, layout.batch, spec.hidden_size
        self._cell, self._dtype = cell, dtype
        self._batch_first = layout.batch_first
        self._directions = spec.num_directions
        self._batch, self._num_rows = batch, steps * batch
        self._y_shape = steps, batch, hidden  # of one direction
        self._h_shape = spec.h_shape(batch)
        max_steps = min(max(1, MAX_ROWS // batch), steps)
        self._starts = range(0, steps, max_steps)
        """First steps of those whose inputs are multiplied at once."""
        self._macs_per_input = max_steps * batch * hidden
        self._multiply_hh = dot_of(np, batch * hidden * hidden)

    @on_one_thread
    @np.errstate(all="ignore")
    def run(
        self, x: NDArray, h_0: NDArray | None, weights: Sequence[Weights]
    ) -> tuple[NDArray, NDArray]:
        """`compute` as a whole call, see `dnnffi.reference.rnn.run`."""
        return self.compute(x, h_0, weights)

    def compute(
        self, x: NDArray, h_0: NDArray | None, weights: Sequence[Weights]
    ) -> tuple[NDArray, NDArray]:
        """Return y in the layout of x, and h_n [L*D, B, H]."""
        h_n = np.empty(self._h_shape, self._dtype)
        if h_0 is None:
            h_0 = np.zeros(self._h_shape, self._dtype)
        y = x.swapaxes(0, 1) if self._batch_first else x
        k = 0
        while k < len(weights):
            inputs = y
            y = self._direction(weights[k], inputs, h_0[k], h_n[k], reverse=False)
            k += 1
            if self._directions == 2:
                reverse = self._direction(weights[k], inputs, h_0[k], h_n[k], reverse=True)
                y = np.concatenate((y, reverse), axis=-1)
                k += 1
        if self._batch_first:
            y = np.ascontiguousarray(y.swapaxes(0, 1))
        return y, h_n

    def _direction(
        self, w: Weights, x: NDArray, h: NDArray, h_n: NDArray, *, reverse: bool
    ) -> NDArray:
        """Return y [T, B, H] of x [T, B, .] and the state h [B, H]; fill h_n [B, H]."""
        y = np.empty(self._y_shape, self._dtype)
        w_ih, w_hh, b_ih, b_hh, _ = w
        w_ih, w_hh = w_ih.T, w_hh.T
        # [1, H]: NumPy adds two single rows in a third of the time of a row and a vector.
        bias = None if b_ih is None or b_hh is None else (b_ih + b_hh)[None]
        multiply_ih = dot_of(np, self._macs_per_input * len(w_ih))
        multiply_hh, add = self._multiply_hh, np.add
        activate = self._cell.activate
        # [T*B, .]
        x_rows, y_rows = x.reshape(self._num_rows, -1), y.reshape(self._num_rows, -1)
        batch, starts = self._batch, self._starts
        is_divided = len(starts) > 1
        inputs, sums, states = x_rows, y_rows, y
        for first in reversed(starts) if reverse else starts:
            if is_divided:
                stop = first + starts.step
                rows = slice(first * batch, stop * batch)
                inputs, sums, states = x_rows[rows], y_rows[rows], y[first:stop]
            multiply_ih(inputs, w_ih, out=sums)
            if bias is not None:
                add(sums, bias, out=sums)
            for h_new in states[::-1] if reverse else states:
                multiply_hh(h, w_hh, out=h_n)
                add(h_new, h_n, out=h_new)
                activate(h_new)
                h = h_new
        h_n[...] = h
        return y
