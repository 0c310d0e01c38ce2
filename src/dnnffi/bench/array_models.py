"""Models of dnnffi, and LSTMs in array code: CuPy arrays on a GPU, NumPy arrays elsewhere."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import dnnffi
from dnnffi.bench import layer_norm, lstms
from dnnffi.bench.creator import LSTM, LSTM_LAYERS, LSTM_LENGTHS, Creator
from dnnffi.bench.model import ModelDef
from dnnffi.bench.shapes import Data, Shape
from dnnffi.device.cupy import import_cupy
from dnnffi.device.interface import NDArray
from dnnffi.rnn.executor_plan import ExecutorPlan
from dnnffi.rnn.gradients import Gradients
from dnnffi.spec.names import LayoutName

DROPOUT = 0.4  # probability between the layers, as in fastrnns


def array_package(place: str) -> Any:
    """Return CuPy for "gpu" and NumPy for "cpu"."""
    return import_cupy() if place == "gpu" else np


def _states(xp: Any, data: Data) -> tuple[NDArray, Any]:
    return xp.asarray(data.h_0), None if data.c_0 is None else xp.asarray(data.c_0)


def _inputs(shape: Shape, data: Data, place: str) -> tuple[NDArray, Any, dnnffi.RNNWeights]:
    """Return x, the first states and the packed weights."""
    xp = array_package(place)
    layout: LayoutName = "cudnn" if place == "gpu" else "torch"
    arrays = [xp.asarray(array) for array in data.weights]
    weights = dnnffi.RNNWeights.pack(arrays, shape.spec, backend=layout)
    h_0, c_0 = _states(xp, data)
    return xp.asarray(data.x), h_0 if c_0 is None else (h_0, c_0), weights


def functional(
    shape: Shape, data: Data, place: str, training: bool, lengths: Any = None
) -> ModelDef:
    """Make a model of ``dnnffi.lstm``, ``gru`` or ``rnn_*`` with default options.

    ``lengths`` [B], on the host or in device memory, replace those of the shape.
    """
    function = getattr(dnnffi, shape.mode + "_forward" if training else shape.mode)
    forward = partial(function, *_inputs(shape, data, place))
    lengths = shape.lengths if lengths is None else lengths
    if lengths is not None:
        forward = partial(forward, lengths=lengths)
    dy = array_package(place).asarray(data.dy)

    def backward(outputs: Any) -> Gradients:
        return outputs[2].backward(dy)

    about = _about_the_newest_plan if place == "gpu" else None
    return ModelDef(forward, backward if training else None, about)


def _about_the_newest_plan() -> dict[str, Any]:
    """Return the algorithm and the buffers of the plan that was made last."""
    *_, newest = (plan for plan in dnnffi.cached_plans() if isinstance(plan, ExecutorPlan))
    return newest.inspect()


def _held(
    shape: Shape, data: Data, place: str, training: bool, *, is_largest: bool = False
) -> tuple[dnnffi.RNNPlan, tuple[NDArray, Any, dnnffi.RNNWeights]]:
    """Return a tuned `RNNPlan` and its inputs; ``is_largest``: for all batches up to the shape."""
    inputs = _inputs(shape, data, place)
    batch, steps = ("max_batch", "max_steps") if is_largest else ("batch", "steps")
    sizes: Any = {batch: shape.batch, steps: shape.steps}
    made = dnnffi.RNNPlan(
        shape.spec,
        **sizes,
        training=training,
        lengths=shape.lengths or None,
        backend="cudnn" if place == "gpu" else "reference",
    )
    made.autotune()
    return made, inputs


def plan(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make a model of a tuned `RNNPlan` that writes its results to the same arrays in each call."""
    made, inputs = _held(shape, data, place, training)
    forward = partial(made.forward, *inputs, out=made.forward(*inputs))
    if not training:
        return ModelDef(forward)
    dy = array_package(place).asarray(data.dy)
    out, out_weights = made.backward(dy)

    def backward(outputs: Any) -> Gradients:
        (dx, dhx), dweights = made.backward(dy, None, out, out_weights)
        return Gradients(dx, dhx, dweights)

    return ModelDef(forward, backward)


def plan_captured(
    shape: Shape, data: Data, place: str, training: bool, lengths: Any = None
) -> ModelDef:
    """Make a model of `RNNPlan.capture`: the forward pass, or all passes, as one CUDA graph.

    With ``lengths`` [B] in device memory the plan is for all batches up to the shape.
    """
    made, inputs = _held(shape, data, place, training, is_largest=lengths is not None)
    dy = array_package(place).asarray(data.dy)

    def step() -> tuple[Any, Any]:
        outputs = made.forward(*inputs, lengths=lengths)
        if not training:
            return outputs, None
        (dx, dhx), dweights = made.backward(dy)
        return outputs, Gradients(dx, dhx, dweights)

    graph = made.capture(step)
    return ModelDef.of_graph(graph.launch, graph.result)


def _layers(shape: Shape, data: Data, xp: Any) -> list[lstms.Weights]:
    arrays = [xp.asarray(array) for array in data.weights]
    return [lstms.Weights(*arrays[4 * n : 4 * n + 4]) for n in range(shape.layers)]


def simple(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make a plain LSTM that returns the last state only; gradients are of sum(dh_n * h_n)."""
    xp = array_package(place)
    (weights,) = _layers(shape, data, xp)
    steps = lstms.Steps.equal(shape.steps, shape.batch)
    x, hx, dh_n = xp.asarray(data.x), _states(xp, data), xp.asarray(data.dy[-1])

    def forward() -> Any:
        flat = x.reshape(-1, x.shape[-1])
        run = lstms.forward(xp, flat, hx[0][0], hx[1][0], weights, steps, "each step", training)
        return run.h_n, run.c_n, run

    def backward(outputs: Any) -> Gradients:
        d = lstms.backward(xp, outputs[-1], None, dh_n)
        return Gradients(d.x.reshape(x.shape), (d.h_0, d.c_0), list(d.weights))

    return ModelDef(forward, backward if training else None)


def stacked(
    shape: Shape,
    data: Data,
    place: str,
    training: bool,
    *,
    product: lstms.Product = "each step",
    dropout: float = 0.0,
) -> ModelDef:
    """Make an LSTM of one or more layers; ``product`` says when the input is multiplied.

    ``dropout`` acts between layers in training; each forward pass draws new masks.
    """
    xp = array_package(place)
    layers = _layers(shape, data, xp)
    steps = lstms.Steps.equal(shape.steps, shape.batch)
    x, (h_0, c_0), dy = xp.asarray(data.x), _states(xp, data), xp.asarray(data.dy)

    def mask(y: NDArray) -> NDArray:
        """Return a mask of zeros and of 1 / (1 - dropout)."""
        return (xp.random.random_sample(y.shape) >= dropout).astype(y.dtype) / (1 - dropout)

    def of_all(states: list[NDArray]) -> NDArray:
        """Return [L, B, H]; without a copy for one layer."""
        return xp.stack(states) if len(states) > 1 else states[0][None]

    def forward() -> Any:
        y = x.reshape(-1, x.shape[-1])
        runs: list[lstms.Layer] = []
        masks: list[NDArray] = []
        for n, weights in enumerate(layers):
            if n and dropout and training:
                masks.append(mask(y))
                y = y * masks[-1]
            runs.append(lstms.forward(xp, y, h_0[n], c_0[n], weights, steps, product, training))
            y = runs[-1].y
        hx = of_all([run.h_n for run in runs]), of_all([run.c_n for run in runs])
        return y.reshape(*x.shape[:2], -1), hx, (runs, masks)

    def backward(outputs: Any) -> Gradients:
        runs, masks = outputs[-1]
        d_y = dy.reshape(-1, dy.shape[-1])
        found: list[lstms.LayerGradients] = []
        for n in reversed(range(len(runs))):
            found.insert(0, lstms.backward(xp, runs[n], d_y))
            d_y = found[0].x * masks[n - 1] if n and masks else found[0].x
        dhx = of_all([d.h_0 for d in found]), of_all([d.c_0 for d in found])
        return Gradients(d_y.reshape(x.shape), dhx, [array for d in found for array in d.weights])

    return ModelDef(forward, backward if training else None)


def varying(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make a layer for rows of different length: a call sorts, packs, runs and unpacks them."""
    xp = array_package(place)
    (weights,) = _layers(shape, data, xp)
    x, (h_0, c_0), dy = xp.asarray(data.x), _states(xp, data), xp.asarray(data.dy)
    lengths = shape.lengths
    assert lengths is not None

    def forward() -> Any:
        # Each call starts from the lengths on the host: each batch of a program has other lengths.
        order = np.argsort([-length for length in lengths], kind="stable")
        steps = lstms.Steps.descending(xp, [lengths[row] for row in order])
        times = np.repeat(np.arange(len(steps.sizes)), steps.sizes)
        places = (
            xp.asarray(times),
            xp.asarray(np.concatenate([order[:size] for size in steps.sizes])),
        )
        rows = xp.asarray(order)
        run = lstms.forward(
            xp, x[places], h_0[0][rows], c_0[0][rows], weights, steps, "ahead", training
        )
        y = xp.zeros((*x.shape[:2], weights.w_hh.shape[1]), x.dtype)
        y[places] = run.y
        h_n, c_n = xp.empty_like(h_0), xp.empty_like(c_0)
        h_n[0, rows], c_n[0, rows] = run.h_n, run.c_n
        return y, (h_n, c_n), (run, places, rows)

    def backward(outputs: Any) -> Gradients:
        run, places, rows = outputs[-1]
        d = lstms.backward(xp, run, dy[places])
        dx, dh_0, dc_0 = xp.zeros_like(x), xp.empty_like(h_0), xp.empty_like(c_0)
        dx[places] = d.x
        dh_0[0, rows], dc_0[0, rows] = d.h_0, d.c_0
        return Gradients(dx, (dh_0, dc_0), list(d.weights))

    return ModelDef(forward, backward if training else None)


def normalised(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make an LSTM of one layer with layer normalisation."""
    xp = array_package(place)
    w_ih, w_hh = (xp.asarray(array) for array in data.weights[:2])
    rows, hidden = w_hh.shape
    scale_shift = [
        make(size, w_hh.dtype) for size in (rows, rows, hidden) for make in (xp.ones, xp.zeros)
    ]
    weights = layer_norm.Weights(w_ih, w_hh, *scale_shift)
    x, (h_0, c_0), dy = xp.asarray(data.x), _states(xp, data), xp.asarray(data.dy)

    def forward() -> Any:
        run = layer_norm.forward(xp, x, h_0[0], c_0[0], weights, training)
        return run.h[1:], (run.h[-1:], run.c[-1:]), run

    def backward(outputs: Any) -> Gradients:
        d = layer_norm.backward(xp, outputs[-1], dy)
        return Gradients(d.x, (d.h_0[None], d.c_0[None]), list(d.weights))

    return ModelDef(forward, backward if training else None)


CREATORS = (
    Creator("dnnffi", "array", functional, always=True, tunes=True),
    Creator("dnnffi plan", "array", plan, always=True, tunes=True),
    Creator(
        "dnnffi plan captured",
        "array",
        plan_captured,
        places=("gpu",),
        always=True,
        tunes=True,
        captures=True,
    ),
    Creator("array plain", "array", stacked, LSTM),
    Creator("array premultiplied", "array", partial(stacked, product="ahead"), LSTM),
    Creator("array premultiplied bias", "array", partial(stacked, product="ahead with bias"), LSTM),
    Creator("array simple", "array", simple, LSTM),
    Creator("array multilayer", "array", stacked, LSTM_LAYERS),
    Creator("array layer norm", "array", normalised, LSTM),
    Creator("array dropout", "array", partial(stacked, dropout=DROPOUT), LSTM_LAYERS),
    Creator("array variable length", "array", varying, LSTM_LENGTHS),
)
