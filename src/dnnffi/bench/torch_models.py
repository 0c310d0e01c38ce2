"""Models of PyTorch: ``torch.nn``, called or captured in a CUDA graph, and scripted LSTMs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from dnnffi.bench import layer_norm, torch_script
from dnnffi.bench.array_models import DROPOUT
from dnnffi.bench.creator import LSTM, LSTM_LAYERS, LSTM_LENGTHS, Creator, Limits
from dnnffi.bench.model import ModelDef
from dnnffi.bench.shapes import Data, Shape
from dnnffi.device.interface import NDArray
from dnnffi.rnn.gradients import Gradients


def device(place: str) -> str:
    """Return PyTorch's name of a place, "cpu" or "gpu"."""
    return "cuda" if place == "gpu" else "cpu"


@contextmanager
def old_jit() -> Iterator[None]:
    """Suppress the warnings that ``torch.jit`` is deprecated: fastrnns measures it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch 2.15
        yield


def tensor(array: NDArray, place: str, gradient: bool) -> torch.Tensor:
    """Copy a host array to a tensor; ``gradient`` says whether it requires one."""
    # A copy, also on a CPU: models share no arrays. PyTorch does not read NumPy's bfloat16 arrays.
    if array.dtype.name == "bfloat16":
        copied = torch.tensor(array.view("int16"), device=device(place)).view(torch.bfloat16)
    else:
        copied = torch.tensor(array, device=device(place))
    return copied.requires_grad_(gradient)


def states_of(data: Data, place: str, gradient: bool) -> tuple[torch.Tensor, ...]:
    """Return (h_0, c_0) for an LSTM, (h_0,) for other networks."""
    given = (data.h_0,) if data.c_0 is None else (data.h_0, data.c_0)
    return tuple(tensor(array, place, gradient) for array in given)


def autograd_model(
    forward: Callable[[], Any],
    x: torch.Tensor,
    states: tuple[torch.Tensor, ...],
    params: list[torch.Tensor],
    gradient: torch.Tensor,
    training: bool,
) -> ModelDef:
    """Return a model with autograd's gradients of sum(gradient * y) for the first output y."""

    def backward(outputs: Any) -> Gradients:
        dx, *found = torch.autograd.grad(outputs[0], (x, *states, *params), gradient)
        dhx, dweights = tuple(found[: len(states)]), found[len(states) :]
        return Gradients(dx, dhx if len(dhx) > 1 else dhx[0], dweights)

    return ModelDef(forward, backward if training else None)


def module_of(
    shape: Any,
    weights: Sequence[NDArray],
    place: str,
    training: bool,
    *,
    package: Any = torch.nn,
    dropout: float = 0.0,
    batch_first: bool = False,
) -> Any:
    """Return the module of ``package``, ``torch.nn`` or `dnnffi.torch`, with these weights."""
    kind = {"lstm": "LSTM", "gru": "GRU"}.get(shape.mode, "RNN")
    keywords = {} if kind != "RNN" else {"nonlinearity": shape.mode.removeprefix("rnn_")}
    module = getattr(package, kind)(
        shape.input_size,
        shape.hidden_size,
        shape.layers,
        batch_first=batch_first,
        bidirectional=shape.directions == 2,
        dropout=dropout,
        device=device(place),
        dtype=getattr(torch, shape.dtype),
        **keywords,
    )
    with torch.no_grad():
        for parameter, array in zip(module.parameters(), weights, strict=True):
            parameter.copy_(tensor(array, "cpu", False))
    return module.requires_grad_(training).train(training)


def eager(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make a model of ``torch.nn.LSTM``, ``GRU`` or ``RNN``; a call packs ragged rows."""
    module = module_of(shape, data.weights, place, training)
    x, states = tensor(data.x, place, training), states_of(data, place, training)
    hx = states if shape.mode == "lstm" else states[0]
    forward: Callable[[], Any] = partial(module, x, hx)
    if shape.lengths:
        lengths = torch.tensor(shape.lengths)
        rnn = torch.nn.utils.rnn

        def forward() -> Any:
            packed = rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
            y, hx_n = module(packed, hx)
            return rnn.pad_packed_sequence(y, total_length=shape.steps)[0], hx_n

    dy = tensor(data.dy, place, False)
    return autograd_model(forward, x, states, list(module.parameters()), dy, training)


def captured(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make the eager model as one CUDA graph."""
    return in_a_graph(eager(shape, data, place, training))


def in_a_graph(model: ModelDef) -> ModelDef:
    """Capture all passes of ``model`` in one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model.once()
    torch.cuda.current_stream().wait_stream(stream)
    graph: Any = torch.cuda.CUDAGraph()
    graph.model = model  # keeps the arrays that the graph reads
    # XLA's threads may free memory during the capture. PyTorch's default mode forbids that, and
    # both libraries would fail.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = model.once()
    return ModelDef.of_graph(graph.replay, results)


def scripted(shape: Shape, data: Data, place: str, training: bool, *, variant: str) -> ModelDef:
    """Make a model of a compiled function of `torch_script`."""
    name = "multilayer" if variant == "dropout" else variant
    with old_jit():
        function: Any = torch.jit.script(getattr(torch_script, name))
    x, states = tensor(data.x, place, training), states_of(data, place, training)
    params = [tensor(array, place, training) for array in data.weights]
    gradient = tensor(data.dy, place, False)
    inputs: tuple[Any, ...]
    if variant == "simple":
        states = tuple(state[0].detach().requires_grad_(training) for state in states)
        inputs, gradient = (x, *states, *params), gradient[-1]
    elif variant in ("multilayer", "dropout"):
        dropout = DROPOUT if variant == "dropout" else 0.0
        inputs = (x, states, params, dropout, training)
    elif variant == "layer_norm":
        rows, hidden = data.weights[1].shape
        params = params[:2] + [
            make(size, dtype=x.dtype, device=x.device).requires_grad_(training)
            for size in (rows, rows, hidden)
            for make in (torch.ones, torch.zeros)
        ]
        inputs = (x, states, params, layer_norm.EPS)
    elif variant == "variable_length":
        assert shape.lengths is not None
        inputs = (x, states, list(shape.lengths), *params)
    else:
        inputs = (x, states, *params)
    return autograd_model(partial(function, *inputs), x, states, params, gradient, training)


PLACES = ("cpu", "gpu") if torch.cuda.is_available() else ("cpu",)
_VARIANTS = {
    "plain": LSTM,
    "premultiplied": LSTM,
    "premultiplied_bias": LSTM,
    "simple": LSTM,
    "multilayer": LSTM_LAYERS,
    "layer_norm": LSTM,
    "dropout": LSTM_LAYERS,
    "variable_length": LSTM_LENGTHS,
}

CREATORS = (
    Creator("torch eager", "torch", eager, places=PLACES, always=True),
    Creator(
        "torch graph",
        "torch",
        captured,
        Limits(lengths="refuses"),
        places=PLACES[1:],
        always=True,
        captures=True,
    ),
    *(
        Creator(
            f"torch script {variant.replace('_', ' ')}",
            "torch",
            partial(scripted, variant=variant),
            limits,
            PLACES,
        )
        for variant, limits in _VARIANTS.items()
    ),
)
