"""RNNs on NumPy or CuPy arrays, forward and backward: what the right answer is.

On CuPy's, so that ``options={"validate": True}`` compares on the device.

For each layer and direction: the products of the inputs of many steps at once, and one recurrent
product per step (`dnnffi.reference.direction`). The equations of a step are in
`dnnffi.reference.cells`.

Symbols: T time steps, B batch, I input size, H hidden size, P projection size (0 = none), O = P or
H, L layers, D directions, G gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from dnnffi.device.arrays import array_module
from dnnffi.device.dtypes import compute_dtype
from dnnffi.device.interface import NDArray
from dnnffi.reference.cells import Cell, ElmanCell, make_cell
from dnnffi.reference.direction import (
    Pass,
    PassGradients,
    Resets,
    Weights,
    backward_pass,
    forward_pass,
)
from dnnffi.reference.layout import Layout
from dnnffi.reference.plain import PlainInference
from dnnffi.reference.threads import on_one_thread
from dnnffi.spec.rnn import RNNSpec


class Network(NamedTuple):
    """A network without its arrays, as `run` takes it: the same for all calls of one shape."""

    spec: RNNSpec
    xp: ModuleType
    # None with lengths: it has index arrays, of which a stream of batches would keep too many.
    layout: Layout | None
    layout_arguments: tuple[Any, ...]
    cell: Cell
    dtype: Any  # of x and of the results
    compute_dtype: Any
    h_shape: tuple[int, ...]
    c_shape: tuple[int, ...] | None  # None without a cell state
    plain: PlainInference | None  # computes inference, if it can


class Tape(NamedTuple):
    """State saved by `forward` for `backward`. It holds the arrays given, not copies of them."""

    network: Network
    layout: Layout
    masks: list[NDArray] | None  # [T, B, O*D] each
    layers: list[list[Pass]]  # by layer, by direction


class Forward(NamedTuple):
    """Results of `forward`: y in the layout of x, h_n [L*D, B, O], c_n [L*D, B, H] or None."""

    y: NDArray
    h_n: NDArray
    c_n: NDArray | None
    tape: Tape | None  # None without ``training``


@dataclass(frozen=True)
class Gradients:
    """Results of `backward`, each of the shape of what it is the gradient of."""

    x: NDArray
    h_0: NDArray
    c_0: NDArray | None
    weights: list[NDArray]
    reset_to: tuple[NDArray, NDArray | None] | None = None  # with a row each; None without resets


@np.errstate(all="ignore")
def forward(
    spec: RNNSpec,
    x: NDArray,
    h_0: NDArray | None,
    c_0: NDArray | None,
    weights: Sequence[NDArray],
    *,
    batch_first: bool = False,
    lengths: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    resets: NDArray | None = None,
    reset_to: tuple[NDArray, NDArray | None] | None = None,
    dropout: float = 0.0,
    masks: Sequence[NDArray] | None = None,
    clip: tuple[float, float] | None = None,
    clip_nan: str = "propagate",
    training: bool = True,
) -> Forward:
    """Run the network of ``spec`` over ``x``.

    float32 and float64 are computed in the dtype of ``x``, float16 and bfloat16 in float32; the
    results have the dtype of ``x``. Shapes are not checked here.

    Parameters
    ----------
    x : [T, B, I]; [B, T, I] with ``batch_first``; or [sum(batch_sizes), I], packed
    h_0, c_0 : [L*D, B, O] and [L*D, B, H], or None for zeros; ``c_0`` is the LSTM's
    weights : arrays in PyTorch's order (`RNNSpec.parameter_shapes`)
    lengths : one length a row, in any order: past it y is zero, h_n and c_n are the state at it
    batch_sizes : the number of rows at each step of packed sequences, never rising
    resets : x's shape without its last dimension, bool or integers: where it is not zero at step
        t, the state before t is that of ``reset_to``, in every layer. The reverse direction is cut
        at the same border: step t - 1 reads it. What is past a row's length is not read
    reset_to : the state of a reset, as (h_0, c_0) or with one row for all; None for zeros
    dropout, masks : the output of layer l, of all directions, is multiplied by ``masks[l]`` before
        layer l + 1 reads it. L - 1 arrays, each [T, B, O*D] (packed: [sum(batch_sizes), O*D] too).
        The probability is not read, but one above 0 asks for masks: see `dropout_masks`.
    training : whether `backward` is to follow; without, nothing of the steps is kept
    clip, clip_nan : bounds of the LSTM's cell state, see `dnnffi.reference.cells.clip_cell`

    Raises
    ------
    ValueError
        If ``dropout`` is above 0 and ``masks`` are missing, or are not L - 1.
    """
    if masks is None and dropout > 0 and spec.num_layers > 1:
        raise ValueError(f"masks must be given for dropout {dropout}; see dropout_masks")
    if masks is not None and len(masks) != spec.num_layers - 1:
        raise ValueError(f"masks must be {spec.num_layers - 1} arrays; got {len(masks)}")
    network = prepare(
        *(spec, array_module(x), x.shape, x.dtype),
        batch_first=batch_first,
        lengths=lengths,
        batch_sizes=batch_sizes,
        clip=clip,
        clip_nan=clip_nan,
    )
    h_0, c_0 = (None if a is None else a.astype(x.dtype, copy=False) for a in (h_0, c_0))
    groups = grouped(spec, [w.astype(x.dtype, copy=False) for w in weights])
    states = None
    if resets is not None:
        states = resets, *(reset_to or (None, None))
    return run(network, x, h_0, c_0, groups, masks, training=training, resets=states)


def prepare(
    spec: RNNSpec,
    xp: ModuleType,
    shape: Sequence[int],
    dtype: Any,
    *,
    batch_first: bool = False,
    lengths: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    clip: tuple[float, float] | None = None,
    clip_nan: str = "propagate",
) -> Network:
    """Return the network of ``spec`` for an x of ``xp`` with a shape and dtype, see `forward`."""
    arguments = xp, shape, batch_first, lengths, batch_sizes
    layout = Layout.of(*arguments)
    computed = compute_dtype(dtype)
    cell = make_cell(spec.mode, xp, computed, clip, clip_nan)
    c_shape = spec.c_shape(layout.batch) if spec.has_cell else None
    h_shape = spec.h_shape(layout.batch)
    kept = layout if layout.active is None else None
    plain, is_computed = None, computed == dtype and dtype.isnative
    if isinstance(cell, ElmanCell) and xp is np and kept is not None and is_computed:
        plain = PlainInference(spec, kept, cell, dtype)
    return Network(spec, xp, kept, arguments, cell, dtype, computed, h_shape, c_shape, plain)


def grouped(spec: RNNSpec, weights: Sequence[NDArray]) -> list[Weights]:
    """Return flat weights, in PyTorch's order, by layer and direction."""
    count = spec.arrays_per_direction
    groups = []
    for start in range(0, len(weights), count):
        w_ih, w_hh, *rest = weights[start : start + count]
        b_ih, b_hh = rest[:2] if spec.bias else (None, None)
        groups.append(Weights(w_ih, w_hh, b_ih, b_hh, rest[-1] if spec.proj_size else None))
    return groups


# Infinity and NaN are values, as on a device: see the rule of dnnffi.reference.
@on_one_thread
@np.errstate(all="ignore")
def run(
    network: Network,
    x: NDArray,
    h_0: NDArray | None,
    c_0: NDArray | None,
    weights: Sequence[Weights],
    masks: Sequence[NDArray] | None,
    *,
    training: bool,
    resets: tuple[NDArray, NDArray | None, NDArray | None] | None = None,
) -> Forward:
    """Run a prepared network over ``x``, as `forward` does, on arrays of the dtype of ``x``.

    ``resets`` has those of `forward`, h and c of ``reset_to``.
    """
    plain = None if resets is not None else network.plain
    if plain is not None and not training and masks is None and x.__class__ is np.ndarray:
        return Forward(*plain.compute(x, h_0, weights), None, None)
    spec, xp, kept, arguments, cell, given, dtype, h_shape, c_shape, _ = network
    layout = Layout.of(*arguments) if kept is None else kept
    h = xp.zeros(h_shape, dtype) if h_0 is None else h_0
    c = xp.zeros(c_shape, dtype) if c_0 is None and c_shape is not None else c_0
    if dtype != given:
        x, h = x.astype(dtype), h.astype(dtype)
        c = None if c is None else c.astype(dtype)
        weights = [
            Weights._make(w if w is None else w.astype(dtype) for w in group) for group in weights
        ]
    if masks is not None:
        masks = [_time_major_mask(layout, mask.astype(dtype, copy=False)) for mask in masks]

    borders = None if resets is None else _borders(layout, resets[0])
    layers: list[list[Pass]] = []
    passes: list[Pass]
    inputs = layout.time_major(x)
    k = 0
    for layer in range(spec.num_layers):
        if layer > 0 and masks is not None:
            inputs = inputs * masks[layer - 1]
        passes = []
        for direction in range(spec.num_directions):
            state = h[k], None if c is None else c[k]
            of_it = None
            if resets is not None and borders is not None:
                of_it = _resets_of(xp, borders[direction], resets[1:], k, *state)
            passes.append(
                forward_pass(
                    *(layout, cell, weights[k], inputs, *state, direction == 1, training, of_it)
                )
            )
            k += 1
        inputs = passes[0].y
        if direction:
            inputs = xp.concatenate([one.y for one in passes], axis=-1)
        layers.append(passes)

    y = layout.original(inputs)
    if training:
        y = xp.array(y, given)  # a copy: the tape reads these states, whatever is written into y
    elif dtype != given:
        y = y.astype(given)
    each = [one for passes in layers for one in passes]
    return Forward(
        y,
        _stacked(xp, given, [one.h_n for one in each]),
        None if c_shape is None else _stacked(xp, given, [one.c_n for one in each]),
        Tape(network, layout, masks, layers) if training else None,
    )


@on_one_thread
@np.errstate(all="ignore")
def backward(
    tape: Tape, dy: NDArray | None = None, dh_n: NDArray | None = None, dc_n: NDArray | None = None
) -> Gradients:
    """Gradients of sum(dy * y) + sum(dh_n * h_n) + sum(dc_n * c_n).

    ``dy`` is in the layout of y; a missing argument counts as zero. What ``dy`` holds past a
    row's length is not read. The tape stays valid; the dtypes are as in `forward`.
    """
    spec, xp, _, _, cell, given, dtype, h_shape, c_shape, _ = tape.network
    layout = tape.layout
    steps, batch, directions = layout.steps, layout.batch, spec.num_directions
    outputs = spec.output_size
    if dy is None:
        d_outputs = xp.zeros(spec.y_shape(steps, batch), dtype)
    else:
        d_outputs = layout.time_major(dy.astype(dtype, copy=False))
    dh = _cast(dh_n, dtype, xp, h_shape)
    dc = None if c_shape is None else _cast(dc_n, dtype, xp, c_shape)

    by_pass: list[PassGradients] = []  # last layer first
    for layer in reversed(range(spec.num_layers)):
        of_layer = []
        for direction in range(directions):
            d_output = d_outputs[..., direction * outputs : (direction + 1) * outputs]
            k = layer * directions + direction
            taken, d_state = tape.layers[layer][direction], (dh[k], None if dc is None else dc[k])
            of_layer.append(backward_pass(layout, cell, taken, d_output, *d_state))
        d_outputs = of_layer[0].x if directions == 1 else of_layer[0].x + of_layer[1].x
        if layer > 0 and tape.masks is not None:
            d_outputs = d_outputs * tape.masks[layer - 1]
        by_pass = of_layer + by_pass

    def result(a: NDArray) -> NDArray:
        return a.astype(given, copy=False)

    return Gradients(
        x=result(layout.original(d_outputs)),
        h_0=_stacked(xp, given, [one.h_0 for one in by_pass]),
        c_0=None if c_shape is None else _stacked(xp, given, [one.c_0 for one in by_pass]),
        weights=[result(w) for one in by_pass for w in one.weights if w is not None],
        reset_to=_reset_gradients(xp, given, by_pass),
    )


def dropout_masks(spec: RNNSpec, T: int, B: int, dropout: float, rng: Any) -> list[NDArray]:
    """Return masks for `forward`: L - 1 arrays [T, B, O*D] of 0 (probability p) or 1/(1-p).

    ``dropout`` is p. ``rng`` is a generator of NumPy or CuPy (``default_rng``) and decides where
    the masks are; they are float64. The same state of the generator gives the same masks.
    """
    keep = 0.0 if dropout == 1 else 1 / (1 - dropout)
    shape = spec.y_shape(T, B)
    return [(rng.random(shape) >= dropout) * keep for _ in range(spec.num_layers - 1)]


def _borders(layout: Layout, resets: NDArray) -> tuple[NDArray, NDArray]:
    """Return for each direction the steps that read the state of a reset, [T, B, 1]."""
    xp = layout.xp
    forward = layout.time_major((xp.asarray(resets) != 0)[..., None]) != 0
    return forward, xp.concatenate([forward[1:], xp.zeros_like(forward[:1])])


def _resets_of(
    xp: ModuleType,
    borders: NDArray,
    reset_to: tuple[NDArray | None, ...],
    k: int,
    h: NDArray,
    c: NDArray | None,
) -> Resets:
    """Return the resets of the layer and direction number ``k``, whose states are like h and c."""

    def of(state: NDArray | None, like: NDArray) -> NDArray:
        if state is None:
            return xp.zeros_like(like[:1])
        return xp.asarray(state[k]).astype(like.dtype, copy=False)

    reset_h, reset_c = reset_to
    return Resets(borders, of(reset_h, h), None if c is None else of(reset_c, c))


def _reset_gradients(
    xp: ModuleType, dtype: Any, by_pass: Sequence[PassGradients]
) -> tuple[NDArray, NDArray | None] | None:
    """Return the gradients of the state of resets, [L*D, B, .]; None without resets."""
    if by_pass[0].reset_h is None:
        return None
    c = [one.reset_c for one in by_pass]
    h = _stacked(xp, dtype, [one.reset_h for one in by_pass])
    return h, None if c[0] is None else _stacked(xp, dtype, c)


def _cast(a: NDArray | None, dtype: Any, xp: ModuleType, shape: tuple[int, ...]) -> NDArray:
    """Return ``a`` in ``dtype``; zeros of ``shape`` for None."""
    return xp.zeros(shape, dtype) if a is None else a.astype(dtype, copy=False)


def _stacked(xp: ModuleType, dtype: Any, arrays: Sequence[Any]) -> NDArray:
    """``arrays`` of one shape as one array; ``xp.stack`` takes longer than a small network."""
    if len(arrays) == 1:
        one: NDArray = xp.array(arrays[0], dtype, order="C")
        return one[None]
    stacked = xp.empty((len(arrays), *arrays[0].shape), dtype)
    for place, array in enumerate(arrays):
        stacked[place] = array
    return stacked


def _time_major_mask(layout: Layout, mask: NDArray) -> NDArray:
    """Return a mask as [T, B, O*D]; that of packed sequences may be packed."""
    return layout.time_major(mask) if mask.ndim == 2 else layout.zero_past_end(mask)
