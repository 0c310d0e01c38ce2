"""Models in JAX: `dnnffi.jax`, ``jax.experimental.rnn`` (cuDNN's LSTM) and an unrolled scan."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import rnn

import dnnffi
from dnnffi import jax as djax
from dnnffi.bench.creator import Creator, Limits
from dnnffi.bench.jax_scan import scan
from dnnffi.bench.model import ModelDef
from dnnffi.bench.shapes import Data, Shape
from dnnffi.rnn.gradients import Gradients


def lstm(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make an LSTM of ``jax.experimental.rnn`` on [B, T, I]; training is one compiled function."""
    # JAX takes the weights in cuDNN's layout.
    weights = jnp.asarray(dnnffi.RNNWeights.pack(data.weights, shape.spec, backend="cudnn").flat)
    x, dy = (jnp.asarray(np.swapaxes(array, 0, 1)) for array in (data.x, data.dy))
    h_0, c_0 = jnp.asarray(data.h_0), jnp.asarray(data.c_0)
    lengths = jnp.asarray(shape.lengths or (shape.steps,) * shape.batch, jnp.int32)

    def run(x: Any, h_0: Any, c_0: Any, weights: Any) -> Any:
        y, h_n, c_n = rnn.lstm(
            x,
            h_0,
            c_0,
            weights,
            lengths,
            shape.input_size,
            shape.hidden_size,
            shape.layers,
            0.0,
            shape.directions == 2,
        )
        return y, (h_n, c_n)

    inputs = (x, h_0, c_0, weights)
    if not training:
        return ModelDef(partial(jax.jit(run), *inputs))

    def train(x: Any, h_0: Any, c_0: Any, weights: Any, dy: Any) -> Any:
        outputs, pull = jax.vjp(run, x, h_0, c_0, weights)
        zeros = (jnp.zeros_like(h_0), jnp.zeros_like(c_0))
        return outputs, pull((dy, zeros))

    def backward(outputs: Any) -> Gradients:
        dx, dh_0, dc_0, dweights = outputs[1]
        return Gradients(dx, (dh_0, dc_0), dweights)

    return ModelDef(partial(jax.jit(train), *inputs, dy), backward)


def ours(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make a model of `dnnffi.jax` on [T, B, I]; training is one compiled function."""
    spec = shape.spec
    states = tuple(jnp.asarray(one) for one in (data.h_0, data.c_0) if one is not None)
    hx = states if spec.has_cell else states[0]
    x, dy, weights = jnp.asarray(data.x), jnp.asarray(data.dy), djax.pack(data.weights, spec)
    run = partial(getattr(djax, shape.mode), lengths=shape.lengths)
    if not training:
        return ModelDef(partial(jax.jit(run), x, hx, weights))

    def train(x: Any, hx: Any, weights: Any, dy: Any) -> Any:
        outputs, pull = jax.vjp(run, x, hx, weights)
        return *outputs, pull((dy, jax.tree.map(jnp.zeros_like, outputs[1])))

    def backward(outputs: Any) -> Gradients:
        dx, dhx, dweights = outputs[2]
        return Gradients(dx, dhx, dweights)

    return ModelDef(partial(jax.jit(train), x, hx, weights, dy), backward)


_PLACES = ("gpu",) if any(device.platform == "gpu" for device in jax.devices()) else ()

CREATORS = (
    Creator("dnnffi jax", "jax", ours, places=_PLACES, always=True),
    Creator(
        "jax",
        "jax",
        lstm,
        # Its documentation says float32 only, and rows of equal length.
        Limits(modes=("lstm",), dtypes=("float32",), lengths="refuses"),
        places=_PLACES,
        always=True,
    ),
    Creator("jax scan", "jax", scan, Limits(lengths="refuses"), places=_PLACES),
)
