"""Models on PyTorch's tensors: ``torch.nn``, padded and packed, and `dnnffi.torch`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

import dnnffi.torch
from dnnffi.bench.creator import Creator, Limits
from dnnffi.bench.streams.model import (
    EAGER,
    LEARNING_RATE,
    MODULE_PACKED,
    MODULE_PADDED,
    PACKED,
    PADDED,
    TORCH_FUNCTIONS,
    Results,
    StreamModel,
    with_resets,
)
from dnnffi.bench.streams.problems import Batch, Stream, StreamData
from dnnffi.bench.streams.resets import RESET_RATES
from dnnffi.bench.torch_models import PLACES, device, module_of, tensor


class Loaded(NamedTuple):
    """The tensors of a batch."""

    batch: Batch
    x: torch.Tensor  # [T, B, I]
    dy: torch.Tensor | None  # [T, B, H]; None in inference
    resets: torch.Tensor | None = None  # [T, B]; None without resets


def loader(
    data: StreamData, place: str, training: bool, reset_rate: float = 0.0
) -> Callable[[Batch], Loaded]:
    """Return a function that copies a batch out of tensors on the device, and draws its resets."""
    all_x, all_dy = tensor(data.x, place, False), tensor(data.dy, place, False)

    def load(batch: Batch) -> Loaded:
        x = all_x[: batch.steps, : batch.rows].clone(memory_format=torch.contiguous_format)
        resets = None
        if reset_rate:
            resets = torch.from_numpy(batch.resets(reset_rate)).to(device(place))
        if not training:
            return Loaded(batch, x, None, resets)
        lengths = torch.tensor(batch.lengths, device=device(place))
        inside = torch.arange(batch.steps, device=device(place))[:, None, None] < lengths[:, None]
        dy = (all_dy[: batch.steps, : batch.rows] * inside).contiguous()
        return Loaded(batch, x.requires_grad_(), dy, resets)

    return load


def stream_model(
    load: Callable[[Any], Any],
    forward: Callable[[Any], torch.Tensor],
    weights: list[torch.Tensor],
    training: bool,
    reset_rate: float = 0.0,
) -> StreamModel:
    """Return a model that trains ``weights`` by gradient descent with autograd's gradients.

    load : makes a batch, with tensors ``x`` and ``dy``
    forward : computes y of a batch
    """
    gradients = [torch.zeros_like(weight) for weight in weights]

    def train(loaded: Any) -> Results:
        nonlocal gradients
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-LEARNING_RATE)
        y = forward(loaded)
        dx, *gradients = torch.autograd.grad(y, (loaded.x, *weights), loaded.dy)
        return Results(y, dx, gradients)

    def infer(loaded: Any) -> Results:
        with torch.no_grad():
            return Results(forward(loaded))

    return StreamModel(load, train if training else infer, reset_rate)


def _module(stream: Stream, data: StreamData, place: str, training: bool, package: Any) -> Any:
    dropout = stream.dropout if training else 0.0
    return module_of(stream, data.weights, place, training, package=package, dropout=dropout)


def padded(
    stream: Stream,
    data: StreamData,
    place: str,
    training: bool,
    *,
    package: Any = torch.nn,
) -> StreamModel:
    """Make a model of ``torch.nn.LSTM``, ``GRU`` or ``RNN`` on padded batches, without lengths."""
    module = _module(stream, data, place, training, package)

    def forward(loaded: Loaded) -> torch.Tensor:
        return module(loaded.x)[0]

    load = loader(data, place, training)
    return stream_model(load, forward, list(module.parameters()), training)


def packed(
    stream: Stream,
    data: StreamData,
    place: str,
    training: bool,
    *,
    package: Any = torch.nn,
) -> StreamModel:
    """Make a model as `padded`, which packs the rows and unpacks the outputs of a batch."""
    module = _module(stream, data, place, training, package)
    rnn = torch.nn.utils.rnn

    def forward(loaded: Loaded) -> torch.Tensor:
        lengths = torch.tensor(loaded.batch.lengths)
        given = rnn.pack_padded_sequence(loaded.x, lengths, enforce_sorted=False)
        return rnn.pad_packed_sequence(module(given)[0])[0]

    load = loader(data, place, training)
    return stream_model(load, forward, list(module.parameters()), training)


def functions(
    stream: Stream, data: StreamData, place: str, training: bool, *, reset_rate: float = 0.0
) -> StreamModel:
    """Make a model of `dnnffi.torch` functions on the parameters of a ``torch.nn`` module."""
    module = _module(stream, data, place, training, torch.nn)
    weights = list(module.parameters())
    run = partial(getattr(dnnffi.torch, stream.mode), num_layers=stream.layers)
    if stream.dropout and training:
        run = partial(run, dropout=stream.dropout)

    def forward(loaded: Loaded) -> torch.Tensor:
        if loaded.resets is not None:
            return run(loaded.x, None, weights, resets=loaded.resets)[0]
        lengths = loaded.batch.lengths if stream.ragged else None
        return run(loaded.x, None, weights, lengths=lengths)[0]

    load = loader(data, place, training, reset_rate)
    return stream_model(load, forward, weights, training, reset_rate)


_RAGGED = Limits(lengths="needs")

CREATORS = (
    Creator(PADDED, "torch", padded, places=PLACES),
    Creator(PACKED, "torch", packed, _RAGGED, places=PLACES),
    Creator(TORCH_FUNCTIONS, "torch", functions, places=PLACES, tunes=True),
    Creator(
        MODULE_PADDED, "torch", partial(padded, package=dnnffi.torch), places=PLACES, tunes=True
    ),
    Creator(
        *(MODULE_PACKED, "torch", partial(packed, package=dnnffi.torch), _RAGGED),
        places=PLACES,
        tunes=True,
    ),
)

RESET_CREATORS = (
    Creator(EAGER, "torch", padded, places=PLACES),
    Creator(TORCH_FUNCTIONS, "torch", functions, places=PLACES, tunes=True),
    *(
        Creator(
            with_resets(TORCH_FUNCTIONS, rate),
            "torch",
            partial(functions, reset_rate=rate),
            places=PLACES,
            tunes=True,
        )
        for rate in RESET_RATES
    ),
)
"""Creators of models for `dnnffi.bench.streams.resets.ResetStream`."""
