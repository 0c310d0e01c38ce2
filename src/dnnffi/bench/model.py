"""What is timed: a model as a record of calls, and what makes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from dnnffi.arrays import Array, dtype_object
from dnnffi.bench.shapes import Shape
from dnnffi.rnn import Gradients
from dnnffi.spec.rnn import GATES


class ModelDef(NamedTuple):
    """A network with its arrays, ready to be called.

    ``forward(*inputs)`` gives the outputs: ``y, (h_n, c_n)``, or ``y, h_n`` without a cell state,
    and in training perhaps more behind them. ``backward(*backward_setup(outputs))`` gives
    `Gradients` of sum(dy * y) with respect to x, the states and ``params``. The gradient dy was
    drawn when the model was made, so that no random numbers are timed. ``backward`` is None in a
    model for inference. ``about()`` is what the record says of it besides, behind the warm-up.
    """

    inputs: tuple[Any, ...]
    params: list[Any]
    forward: Callable[..., Any]
    backward_setup: Callable[[Any], tuple[Any, ...]] | None = None
    backward: Callable[..., Gradients] | None = None
    about: Callable[[], dict[str, Any]] | None = None

    def step(self) -> Callable[[], Any]:
        """One call of all there is: forward, and backward where the model has it."""
        forward = partial(self.forward, *self.inputs)
        setup, backward = self.backward_setup, self.backward
        if setup is None or backward is None:
            return forward

        def train() -> Gradients:
            return backward(*setup(forward()))

        return train


class Data(NamedTuple):
    """Host arrays of one problem; every model of it is made from the same."""

    x: Array  # [T, B, I]
    h_0: Array  # [L*D, B, H]
    c_0: Array | None  # [L*D, B, H]
    weights: list[Array]  # in PyTorch's order
    dy: Array  # [T, B, H*D]


# More numbers than this are repeated: drawing 10^8 of them would take longer than the measuring.
_DRAWN = 1 << 20


def draw(shape: Shape, seed: int = 0) -> Data:
    """Random arrays of the shape's dtype: inputs normal, weights uniform within 1/sqrt(H)."""
    spec = shape.spec
    rng = np.random.default_rng(seed)
    dtype = dtype_object(shape.dtype)

    def normal(size: tuple[int, ...]) -> Array:
        count = min(_DRAWN, int(np.prod(size)))
        return np.resize(rng.standard_normal(count, "float32").astype(dtype), size)

    def uniform(size: tuple[int, ...]) -> Array:
        count = min(_DRAWN, int(np.prod(size)))
        bound = 1 / sqrt(spec.hidden_size)
        return np.resize(rng.uniform(-bound, bound, count).astype(dtype), size)

    return Data(
        normal(spec.x_shape(shape.steps, shape.batch)),
        normal(spec.h_shape(shape.batch)),
        normal(spec.c_shape(shape.batch)) if spec.has_cell else None,
        [uniform(parameter.shape) for parameter in spec.parameter_shapes()],
        normal(spec.y_shape(shape.steps, shape.batch)),
    )


class Limits(NamedTuple):
    """On what a creator works. ``lengths`` is whether it takes ("may"), needs or refuses them."""

    modes: tuple[str, ...] = tuple(GATES)
    dtypes: tuple[str, ...] = ("float16", "float32")
    places: tuple[str, ...] = ("cpu", "gpu")
    layers: int | None = None  # at most
    both_directions: bool = True
    lengths: str = "may"

    def why_not(self, shape: Shape, place: str) -> str:
        """Why ``shape`` is not for it on ``place``, "cpu" or "gpu"; empty if it is."""
        if place not in self.places:
            return "needs a GPU" if place == "cpu" else "its library sees no GPU"
        if shape.mode not in self.modes:
            return f"{' and '.join(self.modes)} only"
        if shape.dtype not in self.dtypes:
            return f"{' and '.join(self.dtypes)} only"
        if self.layers is not None and shape.layers > self.layers:
            return f"at most {self.layers} layer{'s' * (self.layers > 1)}"
        if shape.directions == 2 and not self.both_directions:
            return "one direction only"
        if self.lengths == "refuses" and shape.lengths:
            return "rows of equal length only"
        if self.lengths == "needs" and not shape.lengths:
            return "rows of different length only"
        return ""


ANY = Limits()

Create = Callable[[Shape, Data, str, bool], ModelDef]
"""(shape, data, place, training) -> model; place is "cpu" or "gpu"."""


@dataclass(frozen=True)
class Creator:
    """What makes a model, and on what it works.

    ``library`` is whose arrays and clock it has: "array" (CuPy on a GPU, else NumPy), "torch" or
    "jax". ``always`` is False for networks that are of interest on the shapes of fastrnns alone.
    ``tunes`` says that the first calls look for the fastest way; ``captures`` that the model is
    captured in a graph while it is made.
    """

    name: str
    library: str
    create: Create
    limits: Limits = ANY
    always: bool = False
    tunes: bool = False
    captures: bool = False
    unavailable: str = ""

    def why_not(self, shape: Shape, place: str) -> str:
        """Why ``shape`` cannot be measured with it; empty if it can."""
        return self.unavailable or self.limits.why_not(shape, place)
