"""Models of dnnffi's functions: on CuPy arrays, and on arrays of a library with an allocator.

On a CPU the former run on NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import dnnffi
from dnnffi.bench.array_models import array_package, functional
from dnnffi.bench.callers.problems import FUNCTIONS, NEW_ARRAYS
from dnnffi.bench.creator import Creator
from dnnffi.bench.model import ModelDef
from dnnffi.bench.shapes import Data, Shape
from dnnffi.device.interface import NDArray
from dnnffi.rnn.gradients import Gradients
from dnnffi.spec.names import LayoutName

NUM_ARRAY_SETS = 64
"""Number of array sets that calls on new arrays cycle through: more than a plan has graphs."""


def new_arrays(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make a model of `dnnffi.lstm`, ``gru`` or ``rnn_*`` whose x and dy differ from call to call.

    The arrays repeat after `NUM_ARRAY_SETS` calls. They are made beforehand: a call copies nothing.
    """
    xp = array_package(place)
    layout: LayoutName = "cudnn" if place == "gpu" else "torch"
    weights = dnnffi.RNNWeights.pack(
        list(map(xp.asarray, data.weights)), shape.spec, backend=layout
    )
    hx = _states(data, xp.asarray)
    function = getattr(dnnffi, f"{shape.mode}_forward" if training else shape.mode)
    x, dy = xp.asarray(data.x), xp.asarray(data.dy)
    sets = [(x.copy(), dy.copy() if training else None) for _ in range(NUM_ARRAY_SETS)]
    turns = cycle(sets)

    def forward() -> Any:
        x, dy = next(turns)
        return *function(x, hx, weights), dy

    def backward(outputs: Any) -> Gradients:
        _, _, context, dy = outputs
        gradients: Gradients = context.backward(dy)
        return gradients

    return ModelDef(forward, backward if training else None)


def _states(data: Data, upload: Callable[[NDArray], Any]) -> Any:
    """Return hx of a call: (h_0, c_0), or h_0 without a cell state."""
    return upload(data.h_0) if data.c_0 is None else (upload(data.h_0), upload(data.c_0))


class ArrayLibrary(NamedTuple):
    """A library whose arrays dnnffi reads, and allocates through a function of the caller.

    upload : makes an array of the library from one on the host
    allocate : as in ``options["allocator"]``
    stream : as in ``options["stream"]``; None on a CPU
    """

    upload: Callable[[NDArray], Any]
    allocate: Callable[[tuple[int, ...], str], Any]
    stream: Callable[[], int] | None


def embedded(
    shape: Shape, data: Data, place: str, training: bool, *, library: Callable[[str], ArrayLibrary]
) -> ModelDef:
    """Make a model of dnnffi's functions with an allocator, without CuPy arrays."""
    arrays = library(place)
    layout: LayoutName = "cudnn" if place == "gpu" else "torch"
    packed = dnnffi.RNNWeights.pack(data.weights, shape.spec, backend=layout)
    weights = dnnffi.RNNWeights(arrays.upload(packed.flat), shape.spec, backend=layout)
    options: dict[str, Any] = {"allocator": arrays.allocate}
    if arrays.stream is not None:
        options["stream"] = arrays.stream
    function = getattr(dnnffi, f"{shape.mode}_forward" if training else shape.mode)
    backend = "cudnn" if place == "gpu" else "reference"
    x, hx = arrays.upload(data.x), _states(data, arrays.upload)
    forward = partial(function, x, hx, weights, backend=backend, options=options)
    dy = arrays.upload(data.dy)

    def backward(outputs: Any) -> Gradients:
        gradients: Gradients = outputs[2].backward(dy)
        return gradients

    return ModelDef(forward, backward if training else None)


CREATORS = (
    Creator(FUNCTIONS, "array", functional, tunes=True),
    Creator(NEW_ARRAYS, "array", new_arrays, tunes=True),
)
