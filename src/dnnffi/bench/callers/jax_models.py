"""Models of `dnnffi.jax`, and of a compiled function that computes nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dnnffi import jax as djax
from dnnffi.bench.callers.problems import EMPTY_JAX, JAX
from dnnffi.bench.creator import Creator
from dnnffi.bench.jax_models import ours
from dnnffi.bench.model import ModelDef
from dnnffi.bench.shapes import Data, Shape


def empty(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make a compiled function with the operands of `dnnffi.bench.jax_models.ours`.

    It returns the same number of results, which are constants.
    """
    spec = shape.spec
    states = [jnp.asarray(one) for one in (data.h_0, data.c_0) if one is not None]
    operands = [jnp.asarray(data.x), *states, djax.pack(data.weights, spec)]
    count = 1 + len(states)
    if training:
        count += len(jax.tree.leaves(operands))
        operands.append(jnp.asarray(data.dy))

    def run(*_: Any) -> Any:
        return tuple(jnp.zeros((), shape.dtype) for _ in range(count))

    return ModelDef(partial(jax.jit(run, keep_unused=True), *operands))


_PLACES = ("gpu" if any(device.platform == "gpu" for device in jax.devices()) else "cpu",)

CREATORS = (
    Creator(JAX, "jax", ours, places=_PLACES, tunes=True),
    Creator(EMPTY_JAX, "jax", empty, places=_PLACES),
)
