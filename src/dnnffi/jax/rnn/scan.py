"""Recurrent networks in JAX itself: a fast ``lax.scan`` that runs on any platform.

The products of x of all steps are one product in front of the loop, and so are those that make the
gradients of the weights behind it: differentiated by itself, the loop would add up a gradient of
the weights at every step. Both hold for every derivative, forward-mode and of any order, because
they are said as a derivative (`_recurrence`) and transposed by JAX.

As the reference, float16 and bfloat16 are multiplied as they are and computed in float32 else.
Sequences are [T, B, .] here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dnnffi.spec.options import RNNOptions
from dnnffi.spec.rnn import RNNSpec

UNROLLED = 10
"""Steps in one round of the loop."""


class _Cell(NamedTuple):
    """What a step is; hashable."""

    mode: str
    reverse: bool
    precision: Any
    clip: tuple[float, float] | None
    clip_nan: str


class _Steps(NamedTuple):
    """Every step of one direction, and the states at the end."""

    h: Any  # [T, B, O]; of a row that has ended, its last
    unprojected: Any  # [T, B, H] where there is a projection
    h_n: Any
    c_n: Any


def network(
    spec: RNNSpec,
    x: Any,
    h_0: Any,
    c_0: Any,
    weights: Sequence[Any],
    *,
    batch_first: bool,
    lengths: Any,
    options: RNNOptions,
) -> tuple[Any, Any, Any]:
    """(y, h_n, c_n or None) of arrays in PyTorch's order; ``lengths`` is an array [B] or None.

    States may be None, for zeros.
    """
    if batch_first:
        x = jnp.swapaxes(x, 0, 1)
    steps = x.shape[0]
    wide = jnp.dtype("float32") if x.dtype.itemsize == 2 else x.dtype
    h_0 = None if h_0 is None else h_0.astype(wide)
    c_0 = None if c_0 is None else c_0.astype(wide)
    mask = None
    if lengths is not None:
        mask = (jnp.arange(steps)[:, None] < lengths[None])[..., None]
        # What is behind a row's end must not get anywhere, not even as a NaN times zero.
        x = jnp.where(mask, x, 0)
    precision = lax.Precision.HIGHEST if options.math == "strict" else None
    count = spec.arrays_per_direction
    ended: list[_Steps] = []
    for _ in range(spec.num_layers):
        outputs = []
        for direction in range(spec.num_directions):
            number = len(ended)
            cell = _Cell(spec.mode, direction == 1, precision, options.clip, options.clip_nan)
            arrays = weights[number * count : (number + 1) * count]
            state = None if h_0 is None else h_0[number], None if c_0 is None else c_0[number]
            found = _direction(cell, spec, x, state, arrays, mask)
            y = found.h if mask is None else jnp.where(mask, found.h, 0)
            outputs.append(y.astype(x.dtype))
            ended.append(found)
        x = outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, -1)
    y = jnp.swapaxes(x, 0, 1) if batch_first else x
    h_n = jnp.stack([one.h_n for one in ended]).astype(x.dtype)
    if not spec.has_cell:
        return y, h_n, None
    return y, h_n, jnp.stack([one.c_n for one in ended]).astype(x.dtype)


def _direction(
    cell: _Cell, spec: RNNSpec, x: Any, state: tuple[Any, Any], arrays: Sequence[Any], mask: Any
) -> _Steps:
    w_ih, w_hh, *rest = arrays
    inputs = _product(cell, x, w_ih)
    h, c = state
    # What begins at zero is divided among devices, and varies over them, as the inputs are.
    if h is None:
        h = jnp.zeros_like(inputs[0, :, : spec.output_size])
    if c is None and spec.has_cell:
        c = jnp.zeros_like(inputs[0, :, : spec.hidden_size])
    new_bias = None  # of a GRU: what the reset gate acts on
    if spec.bias:
        b_ih, b_hh = (bias.astype(inputs.dtype) for bias in rest[:2])
        if spec.mode == "gru":
            new_bias = b_hh[None, 2 * spec.hidden_size :]
            b_hh = jnp.where(jnp.arange(b_hh.size) < 2 * spec.hidden_size, b_hh, 0)
        inputs = inputs + (b_ih + b_hh)[None, None]
    if spec.mode == "gru" and new_bias is None:
        new_bias = jnp.zeros_like(inputs[0, :1, : spec.hidden_size])
    w_hr = rest[-1] if spec.proj_size else None
    if mask is not None:
        mask = jnp.broadcast_to(mask, (*inputs.shape[:2], 1))
    return _recurrence(cell, inputs, new_bias, h, c, w_hh, w_hr, mask)


def _product(cell: _Cell, a: Any, w: Any) -> Any:
    """``a`` [..., K] times the transposed ``w`` [N, K], in the wider dtype."""
    wide = jnp.dtype("float32") if w.dtype.itemsize == 2 else w.dtype
    # Transposed in so many words, the weights are once in front of a loop.
    return jnp.matmul(a.astype(w.dtype), w.T, precision=cell.precision, preferred_element_type=wide)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _recurrence(
    cell: _Cell, inputs: Any, new_bias: Any, h: Any, c: Any, w_hh: Any, w_hr: Any, mask: Any
) -> _Steps:
    """The loop. ``inputs`` [T, B, G*H] has the products of x and the biases.

    But for ``new_bias`` [1, H]: in a GRU that of the recurrent product, where the reset gate acts.
    """
    return _loop(cell, inputs, None, None, new_bias, h, c, w_hh, w_hr, mask)


@_recurrence.defjvp  # type: ignore[untyped-decorator]
def _recurrence_jvp(
    cell: _Cell, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[_Steps, _Steps]:
    """The derivative of the loop with its weights held, and those of its products all at once.

    What the weights' tangents add to the product of a step is known when all steps are.
    """
    inputs, new_bias, h, c, w_hh, w_hr, mask = primals
    d_inputs, d_new_bias, d_h, d_c, d_w_hh, d_w_hr, _ = tangents
    new = None if new_bias is None else jnp.zeros_like(inputs[..., : new_bias.size])
    projected = None if w_hr is None else jnp.zeros_like(inputs[..., : w_hr.shape[0]])

    def held(inputs: Any, new: Any, projected: Any, h: Any, c: Any) -> _Steps:
        return _loop(cell, inputs, new, projected, new_bias, h, c, w_hh, w_hr, mask)

    steps, derivative = jax.linearize(held, inputs, new, projected, h, c)
    before = (
        jnp.concatenate([steps.h[1:], h[None]])
        if cell.reverse
        else jnp.concatenate([h[None], steps.h[:-1]])
    )
    d_product = _product(cell, before.astype(w_hh.dtype), d_w_hh)
    d_new = None
    if new_bias is not None:
        size = new_bias.size
        d_inputs = d_inputs.at[..., : 2 * size].add(d_product[..., : 2 * size])
        d_new = d_product[..., 2 * size :] + d_new_bias[None]
    else:
        d_inputs = d_inputs + d_product
    d_projected = None
    if w_hr is not None:
        d_projected = _product(cell, steps.unprojected.astype(w_hr.dtype), d_w_hr)
    return steps, derivative(d_inputs, d_new, d_projected, d_h, d_c)


def _loop(
    cell: _Cell,
    inputs: Any,
    new: Any,
    projected: Any,
    new_bias: Any,
    h: Any,
    c: Any,
    w_hh: Any,
    w_hr: Any,
    mask: Any,
) -> _Steps:
    """``new`` and ``projected`` are added to a GRU's last product of h and to the projection.

    Both are [T, B, .], or None: they are zero, and stand for the weights in a derivative.
    """

    def step(state: tuple[Any, Any], of_step: tuple[Any, ...]) -> tuple[Any, Any]:
        h, c = state
        inputs, new, projected, running = of_step
        bias = new_bias if new is None else new_bias + new
        unprojected, new_c = _CELLS[cell.mode](cell, inputs, _product(cell, h, w_hh), bias, h, c)
        new_h = unprojected
        if w_hr is not None:
            new_h = _product(cell, unprojected, w_hr)
            if projected is not None:
                new_h = new_h + projected
        if running is not None:
            new_h = jnp.where(running, new_h, h)
            new_c = None if c is None else jnp.where(running, new_c, c)
        return (new_h, new_c), (new_h, None if w_hr is None else unprojected)

    (h_n, c_n), (hs, unprojected) = lax.scan(
        step, (h, c), (inputs, new, projected, mask), reverse=cell.reverse, unroll=UNROLLED
    )
    return _Steps(hs, unprojected, h_n, c_n)


def _lstm(cell: _Cell, inputs: Any, product: Any, _: Any, h: Any, c: Any) -> tuple[Any, Any]:
    i, f, g, o = jnp.split(inputs + product, 4, -1)
    c = jax.nn.sigmoid(f) * _clipped(cell, c) + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(_clipped(cell, c)), c


def _gru(cell: _Cell, inputs: Any, product: Any, bias: Any, h: Any, _: Any) -> tuple[Any, Any]:
    x_r, x_z, x_n = jnp.split(inputs, 3, -1)
    h_r, h_z, h_n = jnp.split(product, 3, -1)
    z = jax.nn.sigmoid(x_z + h_z)
    n = jnp.tanh(x_n + jax.nn.sigmoid(x_r + h_r) * (h_n + bias))
    return (1 - z) * n + z * h, None


def _tanh(cell: _Cell, inputs: Any, product: Any, _: Any, h: Any, c: Any) -> tuple[Any, Any]:
    return jnp.tanh(inputs + product), None


def _relu(cell: _Cell, inputs: Any, product: Any, _: Any, h: Any, c: Any) -> tuple[Any, Any]:
    return jax.nn.relu(inputs + product), None


_CELLS = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _tanh, "rnn_relu": _relu}


def _clipped(cell: _Cell, c: Any) -> Any:
    """The cell state where it is read, see `dnnffi.reference.cells.clip_cell`."""
    if cell.clip is None:
        return c
    low, high = cell.clip
    below = ~(c >= low) if cell.clip_nan == "clip" else c < low
    return jnp.where(below, low, jnp.where(c > high, high, c))
