"""Recurrent networks as JAX programs write them: the fastest known form of ``lax.scan``.

The products of x are computed for all steps before the loop, and the loop is unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dnnffi.bench.model import ModelDef
from dnnffi.bench.shapes import Data, Shape
from dnnffi.rnn.gradients import Gradients

_UNROLLED = 10

State = tuple[Any, ...]


def scan(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make a model of `network` on [T, B, I]; training is one compiled function."""
    states = (data.h_0,) if data.c_0 is None else (data.h_0, data.c_0)
    x, dy, *arrays = map(jnp.asarray, (data.x, data.dy, *states, *data.weights))
    hx, weights = tuple(arrays[: len(states)]), arrays[len(states) :]
    run = partial(network, shape.mode, shape.directions)
    if not training:
        return ModelDef(partial(jax.jit(run), x, hx, weights))

    def train(x: Any, hx: State, weights: list[Any], dy: Any) -> Any:
        outputs, pull = jax.vjp(run, x, hx, weights)
        return outputs, pull((dy, jax.tree.map(jnp.zeros_like, outputs[1])))

    def backward(outputs: Any) -> Gradients:
        dx, dhx, dweights = outputs[2]
        return Gradients(dx, dhx if len(dhx) > 1 else dhx[0], dweights)

    def forward() -> Any:
        (y, states), gradients = trained(x, hx, weights, dy)
        return y, states, gradients

    trained = jax.jit(train)
    return ModelDef(forward, backward)


def network(
    mode: str,
    directions: int,
    x: Any,
    hx: State,
    weights: Sequence[Any],
    *,
    resets: Any = None,
    unroll: int = _UNROLLED,
) -> Any:
    """Return y, and h_n or (h_n, c_n).

    resets : [T, B], or None. Where it is true, the state before a step is replaced by zeros. It is
        for networks with one direction.
    unroll : number of steps in the loop's body
    """
    ended: list[State] = []
    for first in range(0, len(weights), 4 * directions):
        outputs = []
        for direction in range(directions):
            number = len(ended)
            w_ih, w_hh, b_ih, b_hh = weights[first + 4 * direction :][:4]
            inputs = x @ w_ih.T + b_ih
            if mode != "gru":
                inputs += b_hh
            step = partial(_STEPS[mode], w_hh.T, b_hh)
            if resets is not None:
                step, inputs = partial(_reset, step), (inputs, resets)
            state = tuple(array[number] for array in hx)
            reverse = direction == 1
            state, y = lax.scan(step, state, inputs, reverse=reverse, unroll=unroll)
            ended.append(state)
            outputs.append(y)
        x = jnp.concatenate(outputs, -1)
    states = tuple(jnp.stack(arrays) for arrays in zip(*ended, strict=True))
    return x, states if len(states) > 1 else states[0]


def _reset(step: Callable[..., Any], state: State, inputs: Any) -> tuple[State, Any]:
    inputs, reset = inputs
    return step(tuple(jnp.where(reset[:, None], 0, array) for array in state), inputs)


def _lstm(w: Any, b: Any, state: State, inputs: Any) -> tuple[State, Any]:
    h, c = state
    i, f, g, o = jnp.split(inputs + h @ w, 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def _gru(w: Any, b: Any, state: State, inputs: Any) -> tuple[State, Any]:
    (h,) = state
    (x_r, x_z, x_n), (h_r, h_z, h_n) = jnp.split(inputs, 3, -1), jnp.split(h @ w + b, 3, -1)
    z = jax.nn.sigmoid(x_z + h_z)
    n = jnp.tanh(x_n + jax.nn.sigmoid(x_r + h_r) * h_n)
    h = (1 - z) * n + z * h
    return (h,), h


def _tanh(w: Any, b: Any, state: State, inputs: Any) -> tuple[State, Any]:
    h = jnp.tanh(inputs + state[0] @ w)
    return (h,), h


def _relu(w: Any, b: Any, state: State, inputs: Any) -> tuple[State, Any]:
    h = jax.nn.relu(inputs + state[0] @ w)
    return (h,), h


_STEPS: dict[str, Callable[..., tuple[State, Any]]] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": _tanh,
    "rnn_relu": _relu,
}
