"""Models of dnnffi on PyTorch's tensors, of ``torch.nn``, and of an empty autograd function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import dnnffi
import dnnffi.torch
from dnnffi.bench.callers.array_models import ArrayLibrary, embedded
from dnnffi.bench.callers.problems import (
    ALLOCATOR,
    EMPTY_AUTOGRAD,
    EMPTY_ONE_THREAD,
    NN_GRAPH,
    TORCH,
    TORCH_FLAT,
    TORCH_GRAPH,
    TORCH_LIST,
    TORCH_MODULE,
    TORCH_ONE_THREAD,
)
from dnnffi.bench.creator import Creator
from dnnffi.bench.model import ModelDef
from dnnffi.bench.shapes import Data, Shape
from dnnffi.bench.torch_models import (
    PLACES,
    autograd_model,
    captured,
    device,
    eager,
    in_a_graph,
    module_of,
    states_of,
    tensor,
)
from dnnffi.rnn.network import CALLS_BEFORE_TUNING
from dnnffi.spec.names import LayoutName


def _network(
    shape: Shape,
    data: Data,
    place: str,
    training: bool,
    weights: list[torch.Tensor],
    run: Callable[[torch.Tensor, Any], Any],
) -> ModelDef:
    """Return the model of ``run(x, hx)``, which returns y and the last states."""
    x, states = tensor(data.x, place, training), states_of(data, place, training)
    forward = partial(run, x, states if shape.mode == "lstm" else states[0])
    dy = tensor(data.dy, place, False)
    return autograd_model(forward, x, states, weights, dy, training)


def from_list(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make a model of `dnnffi.torch` functions on the parameters of a ``torch.nn`` module."""
    weights = list(module_of(shape, data.weights, place, training).parameters())
    function = getattr(dnnffi.torch, shape.mode)

    def run(x: torch.Tensor, hx: Any) -> Any:
        return function(
            x, hx, weights, num_layers=shape.layers, bidirectional=shape.directions == 2
        )

    return _network(shape, data, place, training, weights, run)


def flat(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make a model of `dnnffi.torch` functions on one flat tensor of weights."""
    layout: LayoutName = "cudnn" if place == "gpu" else "torch"
    spec = shape.spec
    packed = dnnffi.RNNWeights.pack(data.weights, spec, backend=layout)
    weights = tensor(packed.flat, place, training)
    function = getattr(dnnffi.torch, shape.mode)

    def run(x: torch.Tensor, hx: Any) -> Any:
        return function(x, hx, weights, spec=spec, layout=layout)

    return _network(shape, data, place, training, [weights], run)


def module(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make a model of ``dnnffi.torch.LSTM``, ``GRU`` or ``RNN``."""
    made = module_of(shape, data.weights, place, training, package=dnnffi.torch)
    return _network(shape, data, place, training, list(made.parameters()), made)


def module_in_a_graph(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make the model of `module` as one CUDA graph, once the class of its sizes is measured."""
    model = module(shape, data, place, training)
    for _ in range(CALLS_BEFORE_TUNING):
        model.once()
    return in_a_graph(model)


def torch_library(place: str) -> ArrayLibrary:
    """Return PyTorch's tensors and its allocator as a library."""

    def upload(array: Any) -> torch.Tensor:
        return tensor(array, place, False)

    where = device(place)

    def allocate(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=where)

    def stream() -> int:
        return int(torch.cuda.current_stream().cuda_stream)

    return ArrayLibrary(upload, allocate, stream if place == "gpu" else None)


class _Empty(torch.autograd.Function):  # type: ignore[misc]
    """A function of autograd that has the operands of a network and computes nothing.

    ``results`` are y and the last states, ``gradients`` those of all operands; both are made
    beforehand. Each call returns new views of the results, which autograd requires.
    """

    @staticmethod
    def forward(
        ctx: Any, results: tuple[torch.Tensor, ...], gradients: Any, *operands: Any
    ) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(*operands)
        ctx.set_materialize_grads(False)
        ctx.gradients = gradients
        return tuple(result.detach() for result in results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        ctx.saved_tensors  # noqa: B018 - reads its operands, as a network does
        return None, None, *ctx.gradients


def empty(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make a ``torch.autograd.Function`` with the operands of `from_list` that computes nothing."""
    weights = list(module_of(shape, data.weights, place, training).parameters())
    x, states = tensor(data.x, place, training), states_of(data, place, training)
    operands = (x, *states, *weights)
    dy = tensor(data.dy, place, False)
    results = (torch.zeros_like(dy), *(torch.zeros_like(state) for state in states))
    gradients = tuple(torch.zeros_like(operand) for operand in operands)

    def forward() -> Any:
        y, *last = _Empty.apply(results, gradients, *operands)
        return y, tuple(last) if len(last) > 1 else last[0]

    return autograd_model(forward, x, states, weights, dy, training)


def in_one_thread(
    create: Callable[..., ModelDef], shape: Shape, data: Data, place: str, training: bool
) -> ModelDef:
    """Make the model of ``create``, with its backward pass in the thread that asks for it."""
    model = create(shape, data, place, training)
    inner = model.backward
    if inner is None:
        return model

    def backward(outputs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return inner(outputs)

    return model._replace(backward=backward)


CREATORS = (
    Creator(
        ALLOCATOR, "torch", partial(embedded, library=torch_library), places=PLACES[1:], tunes=True
    ),
    Creator(TORCH_LIST, "torch", from_list, places=PLACES, tunes=True),
    Creator(TORCH_FLAT, "torch", flat, places=PLACES, tunes=True),
    Creator(TORCH_MODULE, "torch", module, places=PLACES, tunes=True),
    Creator(TORCH_ONE_THREAD, "torch", partial(in_one_thread, module), places=PLACES, tunes=True),
    Creator(TORCH_GRAPH, "torch", module_in_a_graph, places=PLACES[1:], captures=True),
    Creator(TORCH, "torch", eager, places=PLACES),
    Creator(NN_GRAPH, "torch", captured, places=PLACES[1:], captures=True),
    Creator(EMPTY_AUTOGRAD, "torch", empty, places=PLACES),
    Creator(EMPTY_ONE_THREAD, "torch", partial(in_one_thread, empty), places=PLACES),
)
