"""Creators of models, and the limits of the problems that they accept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dnnffi.bench.shapes import Shape
from dnnffi.spec.rnn import GATES


class Limits(NamedTuple):
    """Limits on the recurrent networks that a creator accepts.

    modes, dtypes : accepted ones; None for all dtypes
    layers : upper bound on the number of layers, or None
    lengths : "may", "needs" or "refuses" rows of different length
    dropout : whether a problem may have dropout between layers
    """

    modes: tuple[str, ...] = tuple(GATES)
    dtypes: tuple[str, ...] | None = None  # None for all
    layers: int | None = None  # at most
    both_directions: bool = True
    lengths: str = "may"
    dropout: bool = True

    def why_not(self, shape: Shape) -> str:
        """Return why ``shape`` is not accepted, or an empty text if it is."""
        if shape.mode not in self.modes:
            return f"{' and '.join(self.modes)} only"
        if self.dtypes is not None and shape.dtype not in self.dtypes:
            return f"{' and '.join(self.dtypes)} only"
        if self.layers is not None and shape.layers > self.layers:
            return f"at most {self.layers} layer{'s' * (self.layers > 1)}"
        if shape.directions == 2 and not self.both_directions:
            return "one direction only"
        if self.lengths == "refuses" and shape.lengths:
            return "rows of equal length only"
        if self.lengths == "needs" and not shape.lengths:
            return "rows of different length only"
        if not self.dropout and getattr(shape, "dropout", False):
            return "no dropout"
        return ""


# Limits of the LSTMs in array code.
LSTM = Limits(modes=("lstm",), layers=1, both_directions=False, lengths="refuses")
LSTM_LAYERS = LSTM._replace(layers=None)
LSTM_LENGTHS = LSTM._replace(lengths="needs")

Create = Callable[[Any, Any, str, bool], Any]
"""Function of (problem, result of its `draw`, place, training) that makes a model.

The place is "cpu" or "gpu". The model is a `dnnffi.bench.model.ModelDef`, or the kind of model that
the runner of the suite takes.
"""


@dataclass(frozen=True)
class Creator:
    """A function that makes a model, and the problems that it accepts.

    name : name of the model in tables and records
    library : library of its arrays and its clock: "array" (CuPy on a GPU, else NumPy), "torch" or
        "jax"
    limits : None if it accepts every problem
    places : where it runs: "cpu", "gpu"
    always : whether it is measured on every shape, and not on those of fastrnns only
    tunes : whether its first calls search for the fastest algorithm
    captures : whether making the model captures a CUDA graph
    share : its share of the image sizes of `dnnffi.bench.streams.images`
    """

    name: str
    library: str
    create: Create
    limits: Limits | None = None
    places: tuple[str, ...] = ("cpu", "gpu")
    always: bool = False
    tunes: bool = False
    captures: bool = False
    share: int = 0

    def why_not(self, shape: Any, place: str) -> str:
        """Return why it cannot run ``shape`` on ``place``, or an empty text if it can."""
        if place not in self.places:
            return "needs a GPU" if place == "cpu" else "its library sees no GPU"
        return "" if self.limits is None else self.limits.why_not(shape)
