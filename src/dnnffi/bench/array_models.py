"""Models of dnnffi, and LSTMs in array code: CuPy on a GPU, NumPy elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import dnnffi
from dnnffi.bench import layer_norm, lstms
from dnnffi.bench.limits import Limits
from dnnffi.bench.model import Creator, ModelDef
from dnnffi.bench.shapes import Data, Shape
from dnnffi.device.cupy import import_cupy
from dnnffi.device.interface import NDArray
from dnnffi.rnn.executor_plan import ExecutorPlan
from dnnffi.rnn.functions import Gradients

DROPOUT = 0.4  # between the layers, as fastrnns has it


def array_package(place: str) -> Any:
    """CuPy on "gpu", NumPy on "cpu"."""
    return import_cupy() if place == "gpu" else np


def _states(xp: Any, data: Data) -> tuple[NDArray, NDArray | None]:
    return xp.asarray(data.h_0), None if data.c_0 is None else xp.asarray(data.c_0)


def _inputs(shape: Shape, data: Data, place: str) -> tuple[NDArray, Any, dnnffi.RNNWeights]:
    """x, the states and the weights, as dnnffi takes them."""
    xp = array_package(place)
    layout = "cudnn" if place == "gpu" else "torch"
    arrays = [xp.asarray(array) for array in data.weights]
    weights = dnnffi.RNNWeights.pack(arrays, shape.spec, backend=layout)
    h_0, c_0 = _states(xp, data)
    return xp.asarray(data.x), h_0 if c_0 is None else (h_0, c_0), weights


def functional(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """``dnnffi.lstm`` and its like, with default options."""
    inputs = _inputs(shape, data, place)
    function = getattr(dnnffi, shape.mode + "_forward" if training else shape.mode)
    if shape.lengths:
        function = partial(function, lengths=shape.lengths)
    about = _about_the_newest_plan if place == "gpu" else None
    if not training:
        return ModelDef(inputs, [inputs[2]], function, about=about)
    dy = array_package(place).asarray(data.dy)
    return ModelDef(
        inputs,
        [inputs[2]],
        function,
        lambda outputs: (outputs[2], dy),
        lambda ctx, gradient: ctx.backward(gradient),
        about,
    )


def _about_the_newest_plan() -> dict[str, Any]:
    """The algorithm that a call runs by, and its buffers."""
    *_, newest = (plan for plan in dnnffi.cached_plans() if isinstance(plan, ExecutorPlan))
    return newest.inspect()


def _held(
    shape: Shape, data: Data, place: str, training: bool
) -> tuple[dnnffi.RNNPlan, tuple[Any, ...]]:
    """A tuned `RNNPlan` and its inputs."""
    inputs = _inputs(shape, data, place)
    made = dnnffi.RNNPlan(
        shape.spec,
        shape.batch,
        shape.steps,
        training=training,
        lengths=shape.lengths or None,
        backend="cudnn" if place == "gpu" else "reference",
    )
    made.autotune()
    return made, inputs


def plan(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """`RNNPlan`, tuned, whose results go to the same arrays in every call."""
    made, inputs = _held(shape, data, place, training)
    forward = partial(made.forward, out=made.forward(*inputs))
    if not training:
        return ModelDef(inputs, [inputs[2]], forward)
    dy = array_package(place).asarray(data.dy)
    out, out_weights = made.backward(dy)

    def backward(gradient: NDArray) -> Gradients:
        (dx, dhx), dweights = made.backward(gradient, None, out, out_weights)
        return Gradients(dx, dhx, dweights)

    return ModelDef(inputs, [inputs[2]], forward, lambda outputs: (dy,), backward)


def plan_captured(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """`RNNPlan.capture`: forward, or forward and both backwards, as one CUDA graph."""
    made, inputs = _held(shape, data, place, training)
    dy = array_package(place).asarray(data.dy)

    def step() -> tuple[Any, Any]:
        outputs = made.forward(*inputs)
        if not training:
            return outputs, None
        (dx, dhx), dweights = made.backward(dy)
        return outputs, Gradients(dx, dhx, dweights)

    graph = made.capture(step)
    return ModelDef.of_graph(inputs, [inputs[2]], graph.launch, graph.result)


def _layers(shape: Shape, data: Data, xp: Any) -> list[lstms.Weights]:
    arrays = [xp.asarray(array) for array in data.weights]
    return [lstms.Weights(*arrays[4 * n : 4 * n + 4]) for n in range(shape.layers)]


def one_layer(
    shape: Shape, data: Data, place: str, training: bool, *, product: lstms.Product
) -> ModelDef:
    """One layer; ``product`` says when the input is multiplied."""
    xp = array_package(place)
    (weights,) = _layers(shape, data, xp)
    steps = lstms.Steps.equal(shape.steps, shape.batch)

    def forward(x: NDArray, hx: tuple[NDArray, NDArray]) -> Any:
        flat = x.reshape(-1, x.shape[-1])
        h_0, c_0 = hx[0][0], hx[1][0]
        run = lstms.forward(xp, flat, h_0, c_0, weights, steps, product, training)
        y = run.y.reshape(*x.shape[:2], -1)
        return y, (run.h_n[None], run.c_n[None]), run

    def backward(run: lstms.Layer, dy: NDArray) -> Gradients:
        d = lstms.backward(xp, run, dy.reshape(-1, dy.shape[-1]))
        return Gradients(
            d.x.reshape(*dy.shape[:2], -1), (d.h_0[None], d.c_0[None]), list(d.weights)
        )

    inputs = (xp.asarray(data.x), _states(xp, data))
    return _trained(inputs, list(weights), forward, backward, xp.asarray(data.dy), training)


def simple(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """The plain LSTM whose only result is the last state; its gradient is of sum(dh_n * h_n)."""
    xp = array_package(place)
    (weights,) = _layers(shape, data, xp)
    steps = lstms.Steps.equal(shape.steps, shape.batch)

    def forward(x: NDArray, h_0: NDArray, c_0: NDArray) -> Any:
        flat = x.reshape(-1, x.shape[-1])
        run = lstms.forward(xp, flat, h_0, c_0, weights, steps, "each step", training)
        return run.h_n, run.c_n, run

    def backward(run: lstms.Layer, dh_n: NDArray) -> Gradients:
        d = lstms.backward(xp, run, None, dh_n)
        dx = d.x.reshape(shape.steps, shape.batch, -1)
        return Gradients(dx, (d.h_0, d.c_0), list(d.weights))

    h_0, c_0 = _states(xp, data)
    assert c_0 is not None
    inputs = (xp.asarray(data.x), h_0[0], c_0[0])
    dh_n = xp.asarray(data.dy[-1])
    return _trained(inputs, list(weights), forward, backward, dh_n, training)


def stacked(
    shape: Shape,
    data: Data,
    place: str,
    training: bool,
    *,
    dropout: float = 0.0,
    masks: list[NDArray] | None = None,
) -> ModelDef:
    """Several plain layers; ``dropout`` acts between them in training.

    ``masks`` are L-1 arrays [T, B, H] of zeros and 1/(1 - dropout); without them every forward
    draws its own.
    """
    xp = array_package(place)
    layers = _layers(shape, data, xp)
    steps = lstms.Steps.equal(shape.steps, shape.batch)
    dropped = training and bool(dropout or masks)

    def drawn(y: NDArray) -> NDArray:
        return (xp.random.random_sample(y.shape) >= dropout).astype(y.dtype) / (1 - dropout)

    def forward(x: NDArray, hx: tuple[NDArray, NDArray]) -> Any:
        y = x.reshape(-1, x.shape[-1])
        runs: list[lstms.Layer] = []
        kept: list[NDArray] = []
        for n, weights in enumerate(layers):
            if n and dropped:
                mask = drawn(y) if masks is None else masks[n - 1].reshape(y.shape)
                kept.append(mask.astype(y.dtype))
                y = y * kept[-1]
            run = lstms.forward(xp, y, hx[0][n], hx[1][n], weights, steps, "each step", training)
            runs.append(run)
            y = run.y
        h_n, c_n = (xp.stack([getattr(run, name) for run in runs]) for name in ("h_n", "c_n"))
        return y.reshape(*x.shape[:2], -1), (h_n, c_n), (runs, kept)

    def backward(saved: tuple[list[lstms.Layer], list[NDArray]], dy: NDArray) -> Gradients:
        runs, kept = saved
        d_y = dy.reshape(-1, dy.shape[-1])
        found = []
        for n in reversed(range(len(runs))):
            d = lstms.backward(xp, runs[n], d_y)
            found.append(d)
            d_y = d.x * kept[n - 1] if n and kept else d.x
        found.reverse()
        dhx = (xp.stack([d.h_0 for d in found]), xp.stack([d.c_0 for d in found]))
        params = [array for d in found for array in d.weights]
        return Gradients(d_y.reshape(*dy.shape[:2], -1), dhx, params)

    inputs = (xp.asarray(data.x), _states(xp, data))
    params = [array for layer in layers for array in layer]
    return _trained(inputs, params, forward, backward, xp.asarray(data.dy), training)


def varying(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """One layer on rows of different length: sorted and packed, run, and unpacked again."""
    xp = array_package(place)
    (weights,) = _layers(shape, data, xp)
    lengths = shape.lengths
    assert lengths is not None

    def forward(x: NDArray, hx: tuple[NDArray, NDArray]) -> Any:
        # Every call begins with the lengths on the host, as every batch has its own.
        order = np.argsort([-length for length in lengths], kind="stable")
        steps = lstms.Steps.descending(xp, [lengths[row] for row in order])
        times = np.repeat(np.arange(len(steps.sizes)), steps.sizes)
        places = (
            xp.asarray(times),
            xp.asarray(np.concatenate([order[:size] for size in steps.sizes])),
        )
        rows = xp.asarray(order)
        run = lstms.forward(
            xp, x[places], hx[0][0][rows], hx[1][0][rows], weights, steps, "ahead", training
        )
        y = xp.zeros((*x.shape[:2], weights.w_hh.shape[1]), x.dtype)
        y[places] = run.y
        h_n, c_n = xp.empty_like(hx[0]), xp.empty_like(hx[1])
        h_n[0, rows], c_n[0, rows] = run.h_n, run.c_n
        return y, (h_n, c_n), (run, places, rows)

    def backward(saved: Any, dy: NDArray) -> Gradients:
        run, places, rows = saved
        d = lstms.backward(xp, run, dy[places])
        dx = xp.zeros((*dy.shape[:2], run.x.shape[1]), dy.dtype)
        dx[places] = d.x
        dhx = []
        for packed in (d.h_0, d.c_0):
            sorted_back = xp.empty_like(packed)
            sorted_back[rows] = packed
            dhx.append(sorted_back[None])
        return Gradients(dx, tuple(dhx), list(d.weights))

    inputs = (xp.asarray(data.x), _states(xp, data))
    return _trained(inputs, list(weights), forward, backward, xp.asarray(data.dy), training)


def normalised(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """One layer with layer normalisation."""
    xp = array_package(place)
    w_ih, w_hh = (xp.asarray(array) for array in data.weights[:2])
    rows, hidden = w_hh.shape
    dtype = w_hh.dtype
    scale_shift = [
        make(size, dtype) for size in (rows, rows, hidden) for make in (xp.ones, xp.zeros)
    ]
    weights = layer_norm.Weights(w_ih, w_hh, *scale_shift)

    def forward(x: NDArray, hx: tuple[NDArray, NDArray]) -> Any:
        run = layer_norm.forward(xp, x, hx[0][0], hx[1][0], weights, training)
        return run.h[1:], (run.h[-1:], run.c[-1:]), run

    def backward(run: layer_norm.Layer, dy: NDArray) -> Gradients:
        d = layer_norm.backward(xp, run, dy)
        return Gradients(d.x, (d.h_0[None], d.c_0[None]), list(d.weights))

    inputs = (xp.asarray(data.x), _states(xp, data))
    return _trained(inputs, list(weights), forward, backward, xp.asarray(data.dy), training)


def _trained(
    inputs: tuple[Any, ...],
    params: list[Any],
    forward: Callable[..., Any],
    backward: Callable[..., Gradients],
    gradient: NDArray,
    training: bool,
) -> ModelDef:
    """A model whose outputs end with what backward needs."""
    if not training:
        return ModelDef(inputs, params, forward)
    return ModelDef(inputs, params, forward, lambda outputs: (outputs[-1], gradient), backward)


_LSTM = Limits(
    modes=("lstm",), layers=1, both_directions=False, lengths="refuses", places=("cpu", "gpu")
)

CREATORS = (
    Creator("dnnffi", "array", functional, Limits(), always=True, tunes=True),
    Creator("dnnffi plan", "array", plan, Limits(), always=True, tunes=True),
    Creator(
        "dnnffi plan captured",
        "array",
        plan_captured,
        Limits(places=("gpu",)),
        always=True,
        tunes=True,
        captures=True,
    ),
    Creator("array plain", "array", partial(one_layer, product="each step"), _LSTM),
    Creator("array premultiplied", "array", partial(one_layer, product="ahead"), _LSTM),
    Creator(
        "array premultiplied bias", "array", partial(one_layer, product="ahead with bias"), _LSTM
    ),
    Creator("array simple", "array", simple, _LSTM),
    Creator("array multilayer", "array", stacked, _LSTM._replace(layers=None)),
    Creator("array layer norm", "array", normalised, _LSTM),
    Creator(
        "array dropout", "array", partial(stacked, dropout=DROPOUT), _LSTM._replace(layers=None)
    ),
    Creator("array variable length", "array", varying, _LSTM._replace(lengths="needs")),
)
