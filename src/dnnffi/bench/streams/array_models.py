"""Models of dnnffi on CuPy arrays, or on NumPy arrays if there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import dnnffi
from dnnffi.bench.array_models import array_package
from dnnffi.bench.creator import Creator
from dnnffi.bench.streams.model import (
    FUNCTIONS,
    TUNED_PLAN,
    Results,
    StreamModel,
    descend,
    with_resets,
)
from dnnffi.bench.streams.problems import Batch, Stream, StreamData
from dnnffi.bench.streams.resets import RESET_RATES
from dnnffi.device.interface import NDArray
from dnnffi.spec.names import LayoutName


class Loaded(NamedTuple):
    """The arrays of a batch."""

    batch: Batch
    x: NDArray  # [T, B, I]
    dy: NDArray | None  # [T, B, H]; None in inference
    resets: NDArray | None = None  # [T, B]; None without resets


def loader(
    xp: ModuleType, data: StreamData, training: bool, reset_rate: float = 0.0
) -> Callable[[Batch], Loaded]:
    """Return a function that copies a batch out of arrays on the device, and draws its resets."""
    all_x, all_dy = xp.asarray(data.x), xp.asarray(data.dy)

    def load(batch: Batch) -> Loaded:
        x = all_x[: batch.steps, : batch.rows].copy()
        resets = xp.asarray(batch.resets(reset_rate)) if reset_rate else None
        if not training:
            return Loaded(batch, x, None, resets)
        dy = all_dy[: batch.steps, : batch.rows].copy()
        inside = xp.arange(batch.steps)[:, None, None] < xp.asarray(batch.lengths)[None, :, None]
        # The bits are multiplied, because not every package multiplies bfloat16.
        bits = dy.view(f"uint{8 * dy.dtype.itemsize}")
        bits *= inside.astype(bits.dtype)
        return Loaded(batch, x, dy, resets)

    return load


def packed_weights(
    xp: ModuleType, stream: Stream, data: StreamData, place: str
) -> dnnffi.RNNWeights:
    """Return the weights of a stream in the layout of the backend on ``place``."""
    layout: LayoutName = "cudnn" if place == "gpu" else "torch"
    arrays = [xp.asarray(array) for array in data.weights]
    return dnnffi.RNNWeights.pack(arrays, stream.spec, backend=layout)


def functions(
    stream: Stream, data: StreamData, place: str, training: bool, *, reset_rate: float = 0.0
) -> StreamModel:
    """Make a model of ``dnnffi.lstm``, ``gru`` or ``rnn_*`` with default options."""
    xp = array_package(place)
    weights = packed_weights(xp, stream, data, place)
    function = getattr(dnnffi, f"{stream.mode}_forward" if training else stream.mode)
    if stream.dropout and training:
        function = partial(function, dropout=stream.dropout)
    gradient = xp.zeros_like(weights.flat)

    def run(loaded: Loaded) -> Any:
        if loaded.resets is not None:
            return function(loaded.x, None, weights, resets=loaded.resets)
        if not stream.ragged:
            return function(loaded.x, None, weights)
        return function(loaded.x, None, weights, lengths=loaded.batch.lengths)

    def train(loaded: Loaded) -> Results:
        nonlocal gradient
        descend(xp, weights.flat, gradient)
        y, _, context = run(loaded)
        found = context.backward(loaded.dy)
        gradient = found.weights.flat
        return Results(y, found.x, found.weights)

    def infer(loaded: Loaded) -> Results:
        return Results(run(loaded)[0])

    load = loader(xp, data, training, reset_rate)
    return StreamModel(load, train if training else infer, reset_rate)


def tuned_plan(stream: Stream, data: StreamData, place: str, training: bool) -> StreamModel:
    """Make a model of a tuned and captured `RNNPlan` on batches whose rows all have the mean T.

    Its time is that of the GPU for a batch: all batches use the arrays of the plan.
    """
    xp = array_package(place)
    weights = packed_weights(xp, stream, data, place)
    plan = dnnffi.RNNPlan(
        stream.spec,
        batch=stream.batch,
        steps=data.epochs.mean_steps,
        training=training,
        dropout=stream.dropout if training else 0.0,
        backend="cudnn" if place == "gpu" else "reference",
        options={"tune": "now"} if place == "gpu" else None,
    )
    full = Batch((data.epochs.mean_steps,) * stream.batch)
    loaded = loader(xp, data, training)(full)

    def step() -> Results:
        y, _ = plan.forward(loaded.x, None, weights)
        if not training:
            return Results(y)
        (dx, _), dweights = plan.backward(loaded.dy)
        return Results(y, dx, dweights)

    run = step
    if place == "gpu":
        graph = plan.capture(step)

        def run() -> Results:
            graph.launch()
            return graph.result

    gradient = xp.zeros_like(weights.flat)

    def train(_: Batch) -> Results:
        nonlocal gradient
        descend(xp, weights.flat, gradient)
        results = run()
        gradient = results.dweights.flat
        return results

    return StreamModel(lambda batch: batch, train if training else lambda _: run())


CREATORS = (
    Creator(FUNCTIONS, "array", functions, tunes=True),
    Creator(TUNED_PLAN, "array", tuned_plan),
)

RESET_CREATORS = (
    Creator(FUNCTIONS, "array", functions, tunes=True),
    *(
        Creator(
            with_resets(FUNCTIONS, rate), "array", partial(functions, reset_rate=rate), tunes=True
        )
        for rate in RESET_RATES
    ),
)
"""Creators of models for `dnnffi.bench.streams.resets.ResetStream`."""
