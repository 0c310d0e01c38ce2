"""Recurrent networks in JAX itself: a fast ``lax.scan`` that runs on any platform.

On devices the products of x of all steps are one product before the loop. On a CPU each step
multiplies its x: one product is not faster there, and its result, of all gates of all steps, would
be the largest array of the call.

The products that make the gradients of the weights are computed for all steps at once, after the
loop: differentiated by itself, the loop would add up a gradient of the weights at every step. This
holds for both modes of differentiation, because it is stated as a derivative (`_recurrence`) that
JAX transposes. The loop then keeps the slopes of each step, the coefficients of its derivative, of
which there are fewer than intermediate results.

As the reference, float16 and bfloat16 are multiplied as they are and computed in float32 else.
Sequences are [T, B, .] here.

A reset replaces the state that a step reads. At the same border, the other direction replaces the
state that the step before it reads::

    t               0     1     2     3     4          resets at 2
    forward   h_0 -> o --> o  |  o --> o --> o -> h_n    step 2 reads the state of a reset
    backward  h_n <- o <-- o  |  o <-- o <-- o <- h_0    step 1 reads it
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from dnnffi.spec.options import RNNOptions
from dnnffi.spec.rnn import RNNSpec

UNROLL = 10
"""Steps in one round of the loop on a device, which would wait for the host between rounds."""

UNROLL_ON_CPU = 1
"""On a CPU, longer rounds take longer, to compile and to run."""


class _Cell(NamedTuple):
    """Settings of a step; hashable."""

    mode: str
    reverse: bool
    unroll: int
    is_hoisted: bool  # whether the products of x are computed before the loop
    precision: Any
    clip: tuple[float, float] | None
    clip_nan: str


class _Operands(NamedTuple):
    """Arrays that the loop of one direction reads. Weights have PyTorch's shapes."""

    x: Any  # [T, B, I]
    w_ih: Any  # [G*H, I]
    w_hh: Any  # [G*H, O]
    bias: Any  # [1, G*H], the sum of both biases; None without biases
    b_hn: Any  # [1, H] or [B, H], GRU only: the recurrent bias of gate n, not contained in `bias`
    w_hr: Any  # [P, H]; None without a projection
    h: Any  # [B, O]
    c: Any  # [B, H], LSTM only
    mask: Any  # [T, B, 1], true before the end of a row; None where all rows have T steps
    resets: Any  # [T, B, 1], true at steps that read the state of a reset; None without resets
    reset_h: Any  # [B, O] or [1, O], that state; None without resets
    reset_c: Any  # [B, H] or [1, H], LSTM only


class _Steps(NamedTuple):
    """Results of the loop of one direction."""

    h: Any  # [T, B, O]; past the end of a row its last, or in reverse the initial state
    unprojected: Any  # [T, B, H], h before the projection; None without one
    h_n: Any  # [B, O]
    c_n: Any  # [B, H], LSTM only


class _Tangents(NamedTuple):
    """Tangents that enter the loop: what they add to a step, and those of states."""

    gates: Any  # [T, B, G*H]
    hn: Any  # [T, B, H], added to a GRU's recurrent product of gate n; may be None
    projected: Any  # [T, B, P], added to the projection; may be None
    h: Any  # [B, O]
    c: Any  # [B, H], LSTM only
    reset_h: Any  # as in `_Operands`
    reset_c: Any


class Resets(NamedTuple):
    """Steps that read the state of a reset, and that state."""

    steps: Any  # [T, B], not zero where the state before the step is replaced
    h: Any  # [L*D, B, O] or [L*D, 1, O]; None for zeros
    c: Any  # [L*D, B, H] or [L*D, 1, H], LSTM only; None for zeros

    def of(self, part: int | slice) -> Resets:
        """Return the resets of a part of the layers and directions."""
        h, c = (None if state is None else state[part] for state in self[1:])
        return Resets(self.steps, h, c)


def network(
    spec: RNNSpec,
    x: Any,
    h_0: Any,
    c_0: Any,
    weights: Sequence[Any],
    *,
    batch_first: bool,
    lengths: Any,
    resets: Resets | None,
    options: RNNOptions,
    unroll: int,
    is_on_cpu: bool,
) -> tuple[Any, Any, Any]:
    """(y, h_n, c_n or None) of arrays in PyTorch's order; ``lengths`` is an array [B] or None.

    States may be None, for zeros. ``resets`` has steps [B, T] with ``batch_first``. ``unroll`` is
    the number of steps in one round of the loop.
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
        # Steps after the end of a row must not reach any result, not even as NaN times zero.
        x = jnp.where(mask, x, 0)
    if resets is not None:
        borders = _borders(resets.steps.T if batch_first else resets.steps, mask)
    precision = lax.Precision.HIGHEST if options.math == "strict" else None
    count = spec.arrays_per_direction
    ended: list[_Steps] = []
    for _ in range(spec.num_layers):
        outputs = []
        for direction in range(spec.num_directions):
            number = len(ended)
            reverse, clip = direction == 1, (options.clip, options.clip_nan)
            cell = _Cell(spec.mode, reverse, unroll, not is_on_cpu, precision, *clip)
            arrays = weights[number * count : (number + 1) * count]
            state = None if h_0 is None else h_0[number], None if c_0 is None else c_0[number]
            own_resets = resets and resets.of(number)._replace(steps=borders[direction])
            found = _direction(cell, spec, x, state, arrays, mask, own_resets)
            y = found.h if mask is None else jnp.where(mask, found.h, 0)
            outputs.append(y.astype(x.dtype))
            ended.append(found)
        x = outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, -1)
    y = jnp.swapaxes(x, 0, 1) if batch_first else x
    h_n = jnp.stack([one.h_n for one in ended]).astype(x.dtype)
    if not spec.has_cell:
        return y, h_n, None
    return y, h_n, jnp.stack([one.c_n for one in ended]).astype(x.dtype)


def _borders(resets: Any, mask: Any) -> tuple[Any, Any]:
    """Return for each direction the steps that read the state of a reset, [T, B, 1]."""
    forward = (resets != 0)[..., None]
    if mask is not None:
        forward = forward & mask  # a row has no border past its end
    return forward, jnp.concatenate([forward[1:], jnp.zeros_like(forward[:1])])


def _direction(
    cell: _Cell,
    spec: RNNSpec,
    x: Any,
    state: tuple[Any, Any],
    arrays: Sequence[Any],
    mask: Any,
    resets: Resets | None,
) -> _Steps:
    w_ih, w_hh, *rest = arrays
    like = _product(cell, x[0], w_ih)  # of which only shape, dtype and devices are used
    h, c = state
    # What begins at zero is divided among devices, and varies over them, as the products are. It
    # has all rows: a mesh of explicit axes refuses to take one out of a batch that it divides.
    if h is None:
        h = jnp.zeros_like(like[:, : spec.output_size])
    if c is None and spec.has_cell:
        c = jnp.zeros_like(like[:, : spec.hidden_size])
    bias = b_hn = None
    if spec.bias:
        b_ih, b_hh = (bias.astype(like.dtype) for bias in rest[:2])
        if spec.mode == "gru":
            b_hn = b_hh[None, 2 * spec.hidden_size :]
            b_hh = jnp.where(jnp.arange(b_hh.size) < 2 * spec.hidden_size, b_hh, 0)
        bias = (b_ih + b_hh)[None]
    if spec.mode == "gru" and b_hn is None:
        b_hn = jnp.zeros_like(like[:, : spec.hidden_size])
    w_hr = rest[-1] if spec.proj_size else None
    if mask is not None:
        mask = jnp.broadcast_to(mask, (*x.shape[:2], 1))
    borders = reset_h = reset_c = None
    if resets is not None:
        borders = jnp.broadcast_to(resets.steps, (*x.shape[:2], 1))
        reset_h = jnp.zeros_like(h) if resets.h is None else resets.h.astype(h.dtype)
    if resets is not None and spec.has_cell:
        reset_c = jnp.zeros_like(c) if resets.c is None else resets.c.astype(c.dtype)
    weights = w_ih, w_hh, bias, b_hn, w_hr
    return _recurrence(cell, _Operands(x, *weights, h, c, mask, borders, reset_h, reset_c))


def _product(cell: _Cell, a: Any, w: Any) -> Any:
    """Return ``a`` [..., K] times the transposed ``w`` [N, K], in the wider dtype."""
    return _matmul(cell, a, w.T)


def _matmul(cell: _Cell, a: Any, w: Any) -> Any:
    """Return ``a`` [..., K] times ``w`` [K, N], in the wider dtype."""
    wide = jnp.dtype("float32") if w.dtype.itemsize == 2 else w.dtype
    return jnp.matmul(a.astype(w.dtype), w, precision=cell.precision, preferred_element_type=wide)


def _transposed(w: Any) -> Any:
    return w.T


def _stored_transposed(w: Any) -> Any:
    """Return the transposed ``w``, a part of a flat array, by one copy of it.

    XLA copies ``w.T`` out of the flat array in the order of ``w``, and then into another array in
    the order in which it multiplies. There is only one order for a vector of the elements.
    """
    return lax.optimization_barrier(w.T.reshape(-1)).reshape(w.T.shape)


def _with_transposed(w: Any) -> tuple[Any, Any]:
    return w, w.T


def _matmul_of_row(cell: _Cell, a: Any, w: tuple[Any, Any]) -> Any:
    """Return ``a`` [1, K] times a matrix, given as [N, K] and as [K, N], of which one is read.

    XLA multiplies a single row by the rows of [N, K] as fast, and need not transpose it. Several
    rows, as `jax.vmap` makes them, it does not: these are multiplied by [K, N].
    """

    def multiply(a: Any, w: Any, _: Any) -> Any:
        wide = jnp.dtype("float32") if w.dtype.itemsize == 2 else w.dtype
        contracted = ((1,), (1,)), ((), ())
        precision = {"precision": cell.precision, "preferred_element_type": wide}
        return lax.dot_general(a.astype(w.dtype), w, contracted, **precision)

    def multiply_rows(_: int, batched: Sequence[bool], a: Any, __: Any, w: Any) -> tuple[Any, bool]:
        axes = 0 if batched[0] else None, 0 if batched[2] else None
        return jax.vmap(partial(_matmul, cell), axes)(a, w), True

    product = custom_vmap(multiply)
    product.def_vmap(multiply_rows)
    return product(a, *w)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _recurrence(cell: _Cell, operands: _Operands) -> _Steps:
    """Run the loop over all steps."""
    return _loop(cell, operands)[0]


def _recurrence_jvp(
    cell: _Cell, primals: tuple[_Operands], tangents: tuple[_Operands]
) -> tuple[_Steps, _Steps]:
    """Return the derivative of the loop, with all products of tangents of weights at once.

    What they add to the gates of a step is known when all steps are.
    """
    (operands,) = primals
    d = _Operands(*(None if isinstance(one, SymbolicZero) else one for one in tangents[0]))
    x, w_hh, h, c = operands.x, operands.w_hh, operands.h, operands.c
    steps, slopes = _loop(cell, operands, keeps_slopes=True)

    def added(*terms: Any) -> Any:
        """Return the sum of the terms that are not None; None if all are."""
        known = [term for term in terms if term is not None]
        return sum(known[1:], known[0]) if known else None

    d_product = None
    if d.w_hh is not None:
        before = _reset(operands.resets, operands.reset_h, _states_before(cell, steps.h, h))
        d_product = _product(cell, before.astype(w_hh.dtype), d.w_hh)
    d_gates = added(
        None if d.x is None else _product(cell, d.x, operands.w_ih),
        None if d.w_ih is None else _product(cell, x, d.w_ih),
        None if d.bias is None else d.bias[None],
    )
    d_hn = None
    if operands.b_hn is None:
        d_gates = added(d_product, d_gates)
    else:
        size = 2 * operands.b_hn.shape[-1]
        d_hn = None if d.b_hn is None else d.b_hn[None]
        if d_product is not None:
            is_first = (jnp.arange(d_product.shape[-1]) < size)[None, None]
            first = jnp.where(is_first, d_product, 0)
            d_gates = added(first, d_gates)
            d_hn = added(d_product[..., size:], d_hn)
    gates_shape = (*x.shape[:2], w_hh.shape[0])
    zeros = jnp.zeros_like(_product(cell, x[0], operands.w_ih))
    d_gates = jnp.broadcast_to(zeros if d_gates is None else d_gates, gates_shape)
    if d_hn is not None:
        d_hn = jnp.broadcast_to(d_hn, (*x.shape[:2], d_hn.shape[-1]))
    d_projected = None
    if d.w_hr is not None:
        d_projected = _product(cell, steps.unprojected.astype(d.w_hr.dtype), d.w_hr)
    d_h = jnp.zeros_like(h) if d.h is None else d.h
    d_c = jnp.zeros_like(c) if d.c is None and c is not None else d.c
    d_reset_h, d_reset_c = d.reset_h, d.reset_c
    if d_reset_h is None and operands.reset_h is not None:
        d_reset_h = jnp.zeros_like(operands.reset_h)
    if d_reset_c is None and operands.reset_c is not None:
        d_reset_c = jnp.zeros_like(operands.reset_c)
    entering = _Tangents(d_gates, d_hn, d_projected, d_h, d_c, d_reset_h, d_reset_c)
    return steps, _tangent_loop(cell, operands, slopes, entering)


_recurrence.defjvp(_recurrence_jvp, symbolic_zeros=True)


def _reset(resets: Any, state_of_reset: Any, state: Any) -> Any:
    """Return the state that is read: ``state_of_reset`` where ``resets`` is true."""
    if resets is None or state is None:
        return state
    return jnp.where(resets, state_of_reset, state)


def _states_before(cell: _Cell, hs: Any, h: Any) -> Any:
    """Return the states before the steps: ``h`` and, of ``hs``, all but the last."""
    if cell.reverse:
        return jnp.concatenate([hs[1:], h[None]])
    return jnp.concatenate([h[None], hs[:-1]])


def _loop(cell: _Cell, operands: _Operands, *, keeps_slopes: bool = False) -> tuple[_Steps, Any]:
    """Run all steps; return their results and, with ``keeps_slopes``, the slopes of each."""
    x, w_ih, w_hh, bias, b_hn, w_hr, h, c, mask, resets, reset_h, reset_c = operands
    multiply, transpose = _matmul, _transposed
    if not cell.is_hoisted and not keeps_slopes:
        if h.shape[0] == 1:
            multiply, transpose = _matmul_of_row, _with_transposed
        else:
            transpose = _stored_transposed
    # Before the loop, so that no step transposes them.
    w_ih, w_hh, w_hr = transpose(w_ih), transpose(w_hh), None if w_hr is None else transpose(w_hr)

    def gates_of(x: Any) -> Any:
        product = multiply(cell, x, w_ih)
        return product if bias is None else product + bias.reshape(*[1] * (x.ndim - 1), -1)

    def step(state: tuple[Any, Any], of_step: tuple[Any, Any, Any]) -> tuple[Any, Any]:
        h, c = state
        x, running, is_reset = of_step
        h, c = _reset(is_reset, reset_h, h), _reset(is_reset, reset_c, c)
        gates = x if cell.is_hoisted else gates_of(x)
        unprojected, new_c, slopes = _CELLS[cell.mode](
            cell, gates, multiply(cell, h, w_hh), b_hn, h, c
        )
        new_h = unprojected if w_hr is None else multiply(cell, unprojected, w_hr)
        if running is not None:
            new_h = jnp.where(running, new_h, h)
            new_c = None if c is None else jnp.where(running, new_c, c)
        kept = new_h, None if w_hr is None else unprojected, slopes if keeps_slopes else None
        return (new_h, new_c), kept

    inputs = gates_of(x) if cell.is_hoisted else x
    (h_n, c_n), (hs, unprojected, slopes) = lax.scan(
        step, (h, c), (inputs, mask, resets), reverse=cell.reverse, unroll=cell.unroll
    )
    return _Steps(hs, unprojected, h_n, c_n), slopes


def _tangent_loop(cell: _Cell, operands: _Operands, slopes: Any, entering: _Tangents) -> _Steps:
    """Return the tangents of all steps, linear in the tangents that enter."""
    w_hh, w_hr = operands.w_hh, operands.w_hr

    def step(state: tuple[Any, Any], of_step: tuple[Any, ...]) -> tuple[Any, Any]:
        d_h, d_c = state
        slopes, d_gates, d_hn, d_projected, running, is_reset = of_step
        d_h = _reset(is_reset, entering.reset_h, d_h)
        d_c = _reset(is_reset, entering.reset_c, d_c)
        d_unprojected, new_d_c = _DERIVATIVES[cell.mode](
            slopes, d_gates, _product(cell, d_h, w_hh), d_hn, d_h, d_c
        )
        new_d_h = d_unprojected
        if w_hr is not None:
            new_d_h = _product(cell, d_unprojected, w_hr)
            if d_projected is not None:
                new_d_h = new_d_h + d_projected
        if running is not None:
            new_d_h = jnp.where(running, new_d_h, d_h)
            new_d_c = None if d_c is None else jnp.where(running, new_d_c, d_c)
        return (new_d_h, new_d_c), (new_d_h, None if w_hr is None else d_unprojected)

    masks = operands.mask, operands.resets
    inputs = slopes, entering.gates, entering.hn, entering.projected, *masks
    (d_h_n, d_c_n), (d_hs, d_unprojected) = lax.scan(
        step, (entering.h, entering.c), inputs, reverse=cell.reverse, unroll=cell.unroll
    )
    return _Steps(d_hs, d_unprojected, d_h_n, d_c_n)


# A cell returns h before a projection, c, and the slopes that its derivative reads: those of c with
# respect to gates and to c before the step, and those of h. The derivative returns the tangents of
# h and c. An infinite tangent stops at a bound of clipping and at a unit that is off, because these
# select and do not multiply.


def _lstm(cell: _Cell, gates: Any, product: Any, _: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
    i, f, g, o = jnp.split(gates + product, 4, -1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    c_before, is_inside = _clipped(cell, c)
    new_c = f * c_before + i * g
    c_read, is_read = _clipped(cell, new_c)
    tanh_c = jnp.tanh(c_read)
    slope_i, slope_f = g * i * (1 - i), c_before * f * (1 - f)
    slope_g, slope_o = i * (1 - g * g), tanh_c * o * (1 - o)
    slopes = slope_i, slope_f, slope_g, slope_o, f, o * (1 - tanh_c * tanh_c)
    return o * tanh_c, new_c, (*slopes, is_inside, is_read)


def _lstm_derivative(
    slopes: Any, d_gates: Any, d_product: Any, _: Any, d_h: Any, d_c: Any
) -> tuple[Any, Any]:
    slope_i, slope_f, slope_g, slope_o, slope_c, slope_h, is_inside, is_read = slopes
    d_i, d_f, d_g, d_o = jnp.split(d_gates + d_product, 4, -1)
    d_kept = d_c if is_inside is None else jnp.where(is_inside, d_c, 0)
    d_c = slope_c * d_kept + slope_i * d_i + slope_f * d_f + slope_g * d_g
    d_read = d_c if is_read is None else jnp.where(is_read, d_c, 0)
    return slope_o * d_o + slope_h * d_read, d_c


def _gru(cell: _Cell, gates: Any, product: Any, bias: Any, h: Any, _: Any) -> tuple[Any, Any, Any]:
    x_r, x_z, x_n = jnp.split(gates, 3, -1)
    h_r, h_z, h_n = jnp.split(product, 3, -1)
    r, z = jax.nn.sigmoid(x_r + h_r), jax.nn.sigmoid(x_z + h_z)
    h_n = h_n + bias
    n = jnp.tanh(x_n + r * h_n)
    slope_n = (1 - z) * (1 - n * n)
    slopes = slope_n * h_n * r * (1 - r), (h - n) * z * (1 - z), slope_n, r, z
    return (1 - z) * n + z * h, None, slopes


def _gru_derivative(
    slopes: Any, d_gates: Any, d_product: Any, d_hn: Any, d_h: Any, _: Any
) -> tuple[Any, Any]:
    slope_r, slope_z, slope_n, r, z = slopes
    d_x_r, d_x_z, d_x_n = jnp.split(d_gates, 3, -1)
    d_h_r, d_h_z, d_h_n = jnp.split(d_product, 3, -1)
    if d_hn is not None:
        d_h_n = d_h_n + d_hn
    d_n = slope_n * (d_x_n + r * d_h_n)
    return slope_r * (d_x_r + d_h_r) + slope_z * (d_x_z + d_h_z) + d_n + z * d_h, None


def _tanh(cell: _Cell, gates: Any, product: Any, _: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
    new_h = jnp.tanh(gates + product)
    return new_h, None, 1 - new_h * new_h


def _tanh_derivative(
    slope: Any, d_gates: Any, d_product: Any, _: Any, d_h: Any, d_c: Any
) -> tuple[Any, Any]:
    return slope * (d_gates + d_product), None


def _relu(cell: _Cell, gates: Any, product: Any, _: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
    gate = gates + product
    return jax.nn.relu(gate), None, ~(gate <= 0)


def _relu_derivative(
    is_on: Any, d_gates: Any, d_product: Any, _: Any, d_h: Any, d_c: Any
) -> tuple[Any, Any]:
    return jnp.where(is_on, d_gates + d_product, 0), None


_CELLS = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _tanh, "rnn_relu": _relu}
_DERIVATIVES = {
    "lstm": _lstm_derivative,
    "gru": _gru_derivative,
    "rnn_tanh": _tanh_derivative,
    "rnn_relu": _relu_derivative,
}


def _clipped(cell: _Cell, c: Any) -> tuple[Any, Any]:
    """Return ``c`` clipped, and a mask that is true where it was inside; None without bounds.

    See `dnnffi.reference.cells.clip_cell`.
    """
    if cell.clip is None:
        return c, None
    low, high = cell.clip
    below = ~(c >= low) if cell.clip_nan == "clip" else c < low
    above = c > high
    return jnp.where(below, low, jnp.where(above, high, c)), ~(below | above)
