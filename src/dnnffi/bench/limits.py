"""On what problems a creator works, and why not on others."""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.bench.images import ImageShape
from dnnffi.bench.shapes import Shape
from dnnffi.spec.rnn import GATES

_DTYPES = ("float16", "float32")
_PLACES = ("cpu", "gpu")


class Limits(NamedTuple):
    """Of a recurrent network. ``lengths`` is whether it takes ("may"), needs or refuses them."""

    modes: tuple[str, ...] = tuple(GATES)
    dtypes: tuple[str, ...] = _DTYPES
    places: tuple[str, ...] = _PLACES
    layers: int | None = None  # at most
    both_directions: bool = True
    lengths: str = "may"

    def why_not(self, shape: Shape, place: str) -> str:
        """Why ``shape`` is not for it on ``place``, "cpu" or "gpu"; empty if it is."""
        if why := _why_not_at(place, self.places):
            return why
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


class ImageLimits(NamedTuple):
    """Of an image CNN."""

    dtypes: tuple[str, ...] = _DTYPES
    places: tuple[str, ...] = _PLACES

    def why_not(self, shape: ImageShape, place: str) -> str:
        """As of `Limits`."""
        if why := _why_not_at(place, self.places):
            return why
        return "" if shape.dtype in self.dtypes else f"{' and '.join(self.dtypes)} only"


def _why_not_at(place: str, places: tuple[str, ...]) -> str:
    if place in places:
        return ""
    return "needs a GPU" if place == "cpu" else "its library sees no GPU"
