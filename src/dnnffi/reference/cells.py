"""One step of each recurrent cell, and its derivative.

Every cell reads the two products of its step, each [B, G*H] with the gates side by side,

    gx = W x_t + b_W        gh = R h_{t-1} + b_R

and the state before the step. Its derivative maps the gradients of the state after the step to
those of ``gx``, of ``gh`` and of the state before, the latter without the way through ``gh``:
the recurrent product and the LSTM's projection belong to the layer. ``xp`` is the module that the
arrays come from, NumPy or CuPy.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple, Protocol

from dnnffi.device.interface import NDArray

Saved = tuple[Any, ...]


class State(NamedTuple):
    """The state after a step, h [B, H] and c [B, H] (LSTM), and what the derivative needs."""

    h: NDArray
    c: NDArray | None
    saved: Saved


class StateGradients(NamedTuple):
    """Gradients of ``gx`` and ``gh``, and of the state before the step (None: no direct way)."""

    gx: NDArray
    gh: NDArray
    h: NDArray | None
    c: NDArray | None


class Cell(Protocol):
    """The step of one mode."""

    def step(self, gx: NDArray, gh: NDArray, h: NDArray, c: NDArray | None) -> State: ...

    def step_backward(self, saved: Saved, dh: NDArray, dc: NDArray | None) -> StateGradients: ...


def make_cell(mode: str, xp: ModuleType, clip: tuple[float, float] | None, clip_nan: str) -> Cell:
    """The cell of ``mode``; ``clip`` and ``clip_nan`` are the LSTM's."""
    if mode == "lstm":
        return LSTMCell(xp, clip, clip_nan)
    if mode == "gru":
        return GRUCell(xp)
    return ElmanCell(xp, relu=mode == "rnn_relu")


class LSTMCell:
    """c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g);  h_t = sigmoid(o) tanh(c_t).

    i f g o are the quarters of gx + gh. With ``clip``, c_{t-1} and the c_t in h_t are clipped where
    they are read, the initial state too; c_t itself is kept as it is, so c_n may lie outside. That
    is what cuDNN 9.19 was seen to do. Where there is a projection, h_t here is what is projected.
    """

    def __init__(self, xp: ModuleType, clip: tuple[float, float] | None, clip_nan: str) -> None:
        self.xp = xp
        self.clip = clip
        self.clip_nan = clip_nan

    def step(self, gx: NDArray, gh: NDArray, h: NDArray, c: NDArray | None) -> State:
        assert c is not None
        xp = self.xp
        i, f, g, o = xp.split(gx + gh, 4, axis=-1)
        i, f, g, o = sigmoid(xp, i), sigmoid(xp, f), xp.tanh(g), sigmoid(xp, o)
        c_before, clipped_before = clip_cell(xp, c, self.clip, self.clip_nan)
        c = f * c_before + i * g
        c_read, clipped = clip_cell(xp, c, self.clip, self.clip_nan)
        tanh_c = xp.tanh(c_read)
        return State(o * tanh_c, c, (i, f, g, o, c_before, clipped_before, tanh_c, clipped))

    def step_backward(self, saved: Saved, dh: NDArray, dc: NDArray | None) -> StateGradients:
        xp = self.xp
        i, f, g, o, c_before, clipped_before, tanh_c, clipped = saved
        dc_read = dh * o * (1 - tanh_c * tanh_c)
        dc = dc + (dc_read if clipped is None else xp.where(clipped, 0, dc_read))
        di = dc * g * i * (1 - i)
        df = dc * c_before * f * (1 - f)
        dg = dc * i * (1 - g * g)
        do = dh * tanh_c * o * (1 - o)
        gates = xp.concatenate([di, df, dg, do], axis=-1)
        dc_before = dc * f
        if clipped_before is not None:
            dc_before = xp.where(clipped_before, 0, dc_before)
        return StateGradients(gates, gates, None, dc_before)


class GRUCell:
    """r z = sigmoid(gx + gh);  n = tanh(gx_n + r gh_n);  h_t = (1 - z) n + z h_{t-1}.

    Reset after: r acts on the recurrent product, its bias included.
    """

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp

    def step(self, gx: NDArray, gh: NDArray, h: NDArray, c: NDArray | None) -> State:
        xp = self.xp
        gx_r, gx_z, gx_n = xp.split(gx, 3, axis=-1)
        gh_r, gh_z, gh_n = xp.split(gh, 3, axis=-1)
        r, z = sigmoid(xp, gx_r + gh_r), sigmoid(xp, gx_z + gh_z)
        n = xp.tanh(gx_n + r * gh_n)
        return State((1 - z) * n + z * h, None, (r, z, n, gh_n, h))

    def step_backward(self, saved: Saved, dh: NDArray, dc: NDArray | None) -> StateGradients:
        xp = self.xp
        r, z, n, gh_n, h_before = saved
        dz = dh * (h_before - n) * z * (1 - z)
        dn = dh * (1 - z) * (1 - n * n)
        dr = dn * gh_n * r * (1 - r)
        gx = xp.concatenate([dr, dz, dn], axis=-1)
        gh = xp.concatenate([dr, dz, dn * r], axis=-1)
        return StateGradients(gx, gh, dh * z, None)


class ElmanCell:
    """h_t = tanh(gx + gh), or relu(gx + gh)."""

    def __init__(self, xp: ModuleType, *, relu: bool) -> None:
        self.xp = xp
        self.relu = relu

    def step(self, gx: NDArray, gh: NDArray, h: NDArray, c: NDArray | None) -> State:
        a = gx + gh
        h = self.xp.maximum(a, 0) if self.relu else self.xp.tanh(a)
        return State(h, None, (h,))

    def step_backward(self, saved: Saved, dh: NDArray, dc: NDArray | None) -> StateGradients:
        (h,) = saved
        # where, not a product: an infinite gradient stops at a unit that is off; NaN is not off.
        da = self.xp.where(h <= 0, 0, dh) if self.relu else dh * (1 - h * h)
        return StateGradients(da, da, None, None)


def sigmoid(xp: ModuleType, a: NDArray) -> NDArray:
    """1 / (1 + exp(-a)) to full relative precision at both ends, without overflow."""
    e = xp.exp(-abs(a))
    return xp.where(a < 0, e, 1) / (1 + e)


def clip_cell(
    xp: ModuleType, c: NDArray, clip: tuple[float, float] | None, clip_nan: str
) -> tuple[NDArray, NDArray | None]:
    """``c`` clipped to [lo, hi], and where that changed it: no gradient passes there.

    NaN stays NaN and counts as not clipped ("propagate"), or becomes lo ("clip"). Without
    ``clip`` there is nothing to do, for NaN neither.
    """
    if clip is None:
        return c, None
    lo, hi = (c.dtype.type(bound) for bound in clip)
    # Comparisons with NaN are false, so "not (c >= lo)" takes NaN along.
    low = ~(c >= lo) if clip_nan == "clip" else c < lo
    high = c > hi
    return xp.where(low, lo, xp.where(high, hi, c)), low | high
