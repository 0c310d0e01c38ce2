"""The LSTM with layer normalisation in array code, forward and backward.

    i f g o = activations of N(W x_t; w_i, b_i) + N(R h_{t-1}; w_h, b_h)
    c_t = N(f c_{t-1} + i g; w_c, b_c);  h_t = o tanh(c_t)

N(a; w, b) = w (a - mean a) / sqrt(var a + eps) + b, over the last dimension. The recurrence has no
other biases than those of N.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

from dnnffi.bench.kernels import kernels
from dnnffi.bench.lstms import LayerGradients
from dnnffi.device.interface import NDArray

EPS = 1e-5


class Weights(NamedTuple):
    """Weights: w_ih [4*H, I], w_hh [4*H, H]; scale and shift of the three normalisations."""

    w_ih: NDArray
    w_hh: NDArray
    w_i: NDArray  # [4*H]
    b_i: NDArray
    w_h: NDArray  # [4*H]
    b_h: NDArray
    w_c: NDArray  # [H]
    b_c: NDArray


class Normal(NamedTuple):
    """State for the derivative of N: (a - mean) / deviation, and 1 / deviation."""

    unit: NDArray
    scale: NDArray


def normalise(xp: ModuleType, a: NDArray, w: NDArray, b: NDArray) -> tuple[NDArray, Normal]:
    """Return N(a; w, b), and the state for its derivative."""
    centred = a - a.mean(axis=-1, keepdims=True)
    scale = 1 / xp.sqrt((centred * centred).mean(axis=-1, keepdims=True) + EPS)
    unit = centred * scale
    return unit * w + b, Normal(unit, scale)


def normalise_backward(d: NDArray, saved: Normal, w: NDArray) -> NDArray:
    """Return the gradient of a."""
    d_unit = d * w
    mean = d_unit.mean(axis=-1, keepdims=True)
    along = (d_unit * saved.unit).mean(axis=-1, keepdims=True)
    return (d_unit - mean - saved.unit * along) * saved.scale


@dataclass(frozen=True)
class Layer:
    """State of a forward pass. ``h`` and ``c`` are [1 + T, B, H], the initial states first."""

    x: NDArray  # [T, B, I]
    weights: Weights
    gates: NDArray  # [T, B, 4*H]
    h: NDArray
    c: NDArray
    normal_x: Normal
    normal_h: list[Normal]
    normal_c: list[Normal]


def forward(
    xp: ModuleType, x: NDArray, h_0: NDArray, c_0: NDArray, w: Weights, keep: bool
) -> Layer:
    """Run the layer over ``x`` [T, B, I]; ``keep`` saves the state for `backward`."""
    steps, batch = x.shape[:2]
    hidden = h_0.shape[1]
    h = xp.empty((1 + steps, batch, hidden), x.dtype)
    c = xp.empty_like(h)
    h[0], c[0] = h_0, c_0
    gates = xp.empty((steps if keep else 1, batch, 4 * hidden), x.dtype)
    raw_c = xp.empty_like(h_0)
    no_bias = xp.zeros(4 * hidden, x.dtype)
    gx, normal_x = normalise(xp, x.reshape(steps * batch, -1) @ w.w_ih.T, w.w_i, w.b_i)
    gx = gx.reshape(steps, batch, -1)
    normal_h, normal_c = [], []
    fused = kernels(xp)
    for t in range(steps):
        kept = gates[t if keep else 0]
        gh, saved = normalise(xp, h[t] @ w.w_hh.T, w.w_h, w.b_h)
        fused.activate(gx[t], gh, no_bias, c[t], kept, raw_c)
        c[t + 1], saved_c = normalise(xp, raw_c, w.w_c, w.b_c)
        fused.emit(kept, c[t + 1], h[t + 1])
        if keep:
            normal_h.append(saved)
            normal_c.append(saved_c)
    return Layer(x, w, gates, h, c, normal_x, normal_h, normal_c)


def backward(xp: ModuleType, run: Layer, dy: NDArray) -> LayerGradients:
    """Return the gradients, given those of y [T, B, H]."""
    w, fused = run.weights, kernels(xp)
    steps, batch, hidden = dy.shape
    dh = xp.zeros((batch, hidden), dy.dtype)
    dc, d_c = xp.zeros_like(dh), xp.empty_like(dh)
    d_gates = xp.empty_like(run.gates)
    d_product = xp.empty_like(run.gates)  # of h_{t-1} and R
    dw_h, dw_c, db_c = xp.zeros_like(w.w_h), xp.zeros_like(w.w_c), xp.zeros_like(w.b_c)
    for t in reversed(range(steps)):
        normal_h, normal_c = run.normal_h[t], run.normal_c[t]
        fused.emit_backward(run.gates[t], run.c[t + 1], dy[t], dh, dc, d_gates[t], d_c)
        dw_c += (d_c * normal_c.unit).sum(axis=0)
        db_c += d_c.sum(axis=0)
        raw = normalise_backward(d_c, normal_c, w.w_c)
        fused.activate_backward(run.gates[t], run.c[t], raw, d_gates[t], dc)
        dw_h += (d_gates[t] * normal_h.unit).sum(axis=0)
        d_product[t] = normalise_backward(d_gates[t], normal_h, w.w_h)
        dh = d_product[t] @ w.w_hh
    flat = d_gates.reshape(steps * batch, -1)
    db = flat.sum(axis=0)
    d_input = normalise_backward(flat, run.normal_x, w.w_i)
    products = d_product.reshape(steps * batch, -1)
    return LayerGradients(
        (d_input @ w.w_ih).reshape(run.x.shape),
        dh,
        dc,
        (
            d_input.T @ run.x.reshape(steps * batch, -1),
            products.T @ run.h[:-1].reshape(steps * batch, -1),
            (flat * run.normal_x.unit).sum(axis=0),
            db,
            dw_h,
            db,
            dw_c,
            db_c,
        ),
    )
