"""Creators of models, and the limits of the problems that they accept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dnnffi.bench.shapes import Shape
from dnnffi.spec.rnn import GATES


class Limits(NamedTuple):
    """The recurrent networks that a creator takes.

    lengths : whether it may have rows of different length ("may"), or "needs" or "refuses" them
    dropout : whether it drops outputs between layers, where a problem asks for it
    """

    modes: tuple[str, ...] = tuple(GATES)
    dtypes: tuple[str, ...] | None = None  # None for all
    layers: int | None = None  # at most
    both_directions: bool = True
    lengths: str = "may"
    dropout: bool = True

    def why_not(self, shape: Shape) -> str:
        """Why ``shape`` is not for it; empty if it is."""
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


# Of the LSTMs in array code.
LSTM = Limits(modes=("lstm",), layers=1, both_directions=False, lengths="refuses")
LSTM_LAYERS = LSTM._replace(layers=None)
LSTM_LENGTHS = LSTM._replace(lengths="needs")

Create = Callable[[Any, Any, str, bool], Any]
"""(problem, what its `draw` gave, place, training) -> model, as the suite's runner has it.

The place is "cpu" or "gpu"; the model is a `dnnffi.bench.model.ModelDef` or of another kind.
"""


@dataclass(frozen=True)
class Creator:
    """What makes a model, and on what it works.

    ``library`` is whose arrays and clock it has: "array" (CuPy on a GPU, else NumPy), "torch" or
    "jax". Without ``limits`` it takes every problem. ``always`` is False for networks that are of
    interest on the shapes of fastrnns alone. ``tunes`` says that the first calls look for the
    fastest way; ``captures`` that the model is captured in a graph while it is made. ``share`` is
    its share of the sizes of `dnnffi.bench.streams.images`.
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
        """Why ``shape`` cannot be measured with it on ``place``; empty if it can."""
        if place not in self.places:
            return "needs a GPU" if place == "cpu" else "its library sees no GPU"
        return "" if self.limits is None else self.limits.why_not(shape)
