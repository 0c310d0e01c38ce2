"""One step of each recurrent cell, and its derivative.

Every cell reads the two products of its step, gate by gate, [G, B, H],

    gx = W x_t + b_W        gh = R h_{t-1} + b_R

and the state before the step. Its derivative maps the gradients of the state after the step to
those of ``gx``, of ``gh`` and of the state before, the latter without the way through ``gh``:
the recurrent product and the LSTM's projection belong to the layer. ``xp`` is the module that the
arrays come from, NumPy or CuPy.

A step computes in place, in arrays that the layer gives it: in a small network most of its time
would go into making new ones.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple, Protocol

from dnnffi.device.interface import NDArray

Saved = tuple[Any, ...]


class StateGradients(NamedTuple):
    """Gradients of the state before the step (None: no direct way)."""

    h: NDArray | None
    c: NDArray | None


class Cell(Protocol):
    """The step of one mode.

    A step fills ``kept`` [K, B, H] for its derivative, leaves its h in ``h_out`` [B, H], and
    returns its c [B, H] (LSTM) and all that the derivative reads. The derivative fills ``d_gx`` and
    ``d_gh`` [G, B, H].
    """

    gates: int  # G
    kept: int  # K
    sums: bool  # only gx + gh is read: gx has both biases, and d_gx is d_gh

    def step(
        self, gx: NDArray, gh: NDArray, h: NDArray, c: NDArray | None, kept: NDArray, h_out: NDArray
    ) -> tuple[NDArray | None, Saved]: ...

    def step_backward(
        self, saved: Saved, dh: NDArray, dc: NDArray | None, d_gx: NDArray, d_gh: NDArray
    ) -> StateGradients: ...


def make_cell(
    mode: str, xp: ModuleType, dtype: Any, clip: tuple[float, float] | None, clip_nan: str
) -> Cell:
    """Return the cell of ``mode`` on arrays of ``dtype``; ``clip`` is for the LSTM."""
    one = xp.array(1, dtype)  # of a number NumPy would make an array in each operation
    if mode == "lstm":
        return LSTMCell(xp, one, clip, clip_nan)
    if mode == "gru":
        return GRUCell(xp, one)
    if mode in ("rnn_tanh", "rnn_relu"):
        return ElmanCell(xp, one, relu=mode == "rnn_relu")
    raise ValueError(f"the reference has no cell for the mode {mode!r}")


class LSTMCell:
    """c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g);  h_t = sigmoid(o) tanh(c_t).

    i f g o are the gates of gx + gh. With ``clip``, c_{t-1} and the c_t in h_t are clipped where
    they are read, the initial state too; c_t itself is kept as it is, so c_n may lie outside. That
    is what cuDNN 9.19 was seen to do. Where there is a projection, h_t here is what is projected.
    """

    gates, kept, sums = 4, 5, True

    def __init__(
        self, xp: ModuleType, one: NDArray, clip: tuple[float, float] | None, clip_nan: str
    ) -> None:
        self.xp = xp
        self.one = one
        self.clip = clip
        self.clip_nan = clip_nan

    def step(
        self, gx: NDArray, gh: NDArray, h: NDArray, c: NDArray | None, kept: NDArray, h_out: NDArray
    ) -> tuple[NDArray | None, Saved]:
        assert c is not None
        xp, one = self.xp, self.one
        i, f, g, o, tanh_c = kept
        xp.add(gx, gh, out=kept[:4])
        i_f = kept[:2]
        sigmoid(xp, i_f, one, out=i_f)
        sigmoid(xp, o, one, out=o)
        xp.tanh(g, out=g)
        c_before, clipped_before, clipped = c, None, None
        if self.clip is not None:
            c_before, clipped_before = clip_cell(xp, c, self.clip, self.clip_nan)
        c = f * c_before
        c += i * g
        c_read = c
        if self.clip is not None:
            c_read, clipped = clip_cell(xp, c, self.clip, self.clip_nan)
        xp.tanh(c_read, out=tanh_c)
        xp.multiply(o, tanh_c, out=h_out)
        return c, (kept, c_before, clipped_before, clipped)

    def step_backward(
        self, saved: Saved, dh: NDArray, dc: NDArray | None, d_gx: NDArray, d_gh: NDArray
    ) -> StateGradients:
        xp, one = self.xp, self.one
        kept, c_before, clipped_before, clipped = saved
        i, f, g, o, tanh_c = kept
        # Through h_t: dh o (1 - tanh(c)^2)
        dc_read = tanh_c * tanh_c
        xp.subtract(one, dc_read, out=dc_read)
        dc_read *= o
        dc_read *= dh
        dc = dc + (dc_read if clipped is None else xp.where(clipped, 0, dc_read))
        # Slopes of the gates' functions: s (1 - s), of tanh 1 - g^2
        slopes = xp.subtract(one, kept[:4])
        slopes *= kept[:4]
        xp.multiply(g, g, out=slopes[2])
        xp.subtract(one, slopes[2], out=slopes[2])
        of_gates = xp.empty_like(slopes)
        xp.multiply(dc, g, out=of_gates[0])
        xp.multiply(dc, c_before, out=of_gates[1])
        xp.multiply(dc, i, out=of_gates[2])
        xp.multiply(dh, tanh_c, out=of_gates[3])
        xp.multiply(of_gates, slopes, out=d_gx)
        dc_before = dc * f
        if clipped_before is not None:
            dc_before = xp.where(clipped_before, 0, dc_before)
        return StateGradients(None, dc_before)


class GRUCell:
    """r z = sigmoid(gx + gh);  n = tanh(gx_n + r gh_n);  h_t = (1 - z) n + z h_{t-1}.

    Reset after: r acts on the recurrent product, its bias included.
    """

    gates, kept, sums = 3, 4, False

    def __init__(self, xp: ModuleType, one: NDArray) -> None:
        self.xp = xp
        self.one = one

    def step(
        self, gx: NDArray, gh: NDArray, h: NDArray, c: NDArray | None, kept: NDArray, h_out: NDArray
    ) -> tuple[NDArray | None, Saved]:
        xp, one = self.xp, self.one
        r, z, n, gh_n = kept
        r_z = xp.add(gx[:2], gh[:2], out=kept[:2])
        sigmoid(xp, r_z, one, out=r_z)
        gh_n[...] = gh[2]
        xp.multiply(r, gh_n, out=n)
        n += gx[2]
        xp.tanh(n, out=n)
        xp.subtract(one, z, out=h_out)
        h_out *= n
        h_out += z * h
        return None, (kept, h)

    def step_backward(
        self, saved: Saved, dh: NDArray, dc: NDArray | None, d_gx: NDArray, d_gh: NDArray
    ) -> StateGradients:
        xp, one = self.xp, self.one
        kept, h_before = saved
        r, z, n, gh_n = kept
        slopes = xp.subtract(one, kept[:2])  # 1 - r, 1 - z
        # dn = dh (1 - z) (1 - n^2)
        dn = n * n
        xp.subtract(one, dn, out=dn)
        dn *= slopes[1]
        dn *= dh
        # dr = dn gh_n r (1 - r);  dz = dh (h - n) z (1 - z)
        slopes *= kept[:2]
        of_gates = xp.empty_like(slopes)
        xp.multiply(dn, gh_n, out=of_gates[0])
        xp.subtract(h_before, n, out=of_gates[1])
        of_gates[1] *= dh
        xp.multiply(of_gates, slopes, out=d_gx[:2])
        d_gx[2] = dn
        d_gh[:2] = d_gx[:2]
        xp.multiply(dn, r, out=d_gh[2])
        return StateGradients(dh * z, None)


class ElmanCell:
    """h_t = tanh(gx + gh), or relu(gx + gh)."""

    gates, kept, sums = 1, 0, True

    def __init__(self, xp: ModuleType, one: NDArray, *, relu: bool) -> None:
        self.xp = xp
        self.one, self.zero = one, xp.zeros((), one.dtype)
        self.relu = relu

    def step(
        self, gx: NDArray, gh: NDArray, h: NDArray, c: NDArray | None, kept: NDArray, h_out: NDArray
    ) -> tuple[NDArray | None, Saved]:
        self.xp.add(gx[0], gh[0], out=h_out)
        self.activate(h_out)
        return None, (h_out,)

    def activate(self, h: NDArray) -> None:
        """Replace sums of products by the state; `PlainInference` computes all the rest itself."""
        if self.relu:
            self.xp.maximum(h, self.zero, out=h)
        else:
            self.xp.tanh(h, out=h)

    def step_backward(
        self, saved: Saved, dh: NDArray, dc: NDArray | None, d_gx: NDArray, d_gh: NDArray
    ) -> StateGradients:
        xp = self.xp
        (h,) = saved
        if self.relu:
            # where, not a product: an infinite gradient stops at a unit that is off; NaN is not.
            d_gx[0] = xp.where(h <= 0, 0, dh)
        else:
            slope = h * h
            xp.subtract(self.one, slope, out=slope)
            xp.multiply(dh, slope, out=d_gx[0])
        return StateGradients(None, None)


def sigmoid(
    xp: ModuleType, a: NDArray, one: NDArray | int = 1, out: NDArray | None = None
) -> NDArray:
    """1 / (1 + exp(-a)) to full relative precision at both ends; ``out`` may be ``a``.

    Where exp overflows the result is 0, which is right; NumPy warns unless it is told not to.
    """
    out = xp.negative(a, out=out)
    xp.exp(out, out=out)
    xp.add(out, one, out=out)
    return xp.divide(one, out, out=out)


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
