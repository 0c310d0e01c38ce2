"""Models of TorchRL: its recurrent modules on tensor dictionaries, which reset states.

These modules take batches [B, T, I], so the arrays are stored in this order. The results are views
in the order [T, B, .] of the other models.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torchrl.modules import GRUModule, LSTMModule

from dnnffi.bench.creator import Creator, Limits
from dnnffi.bench.streams.model import (
    TORCHRL_BF16,
    TORCHRL_PAD,
    TORCHRL_TF32,
    StreamModel,
    with_resets,
)
from dnnffi.bench.streams.problems import Batch, Stream, StreamData
from dnnffi.bench.streams.resets import RESET_RATES
from dnnffi.bench.streams.torch_models import stream_model
from dnnffi.bench.torch_models import PLACES, device, module_of, tensor


class Loaded(NamedTuple):
    """The tensors of a batch."""

    x: torch.Tensor  # [T, B, I]
    dy: torch.Tensor | None  # [T, B, H]; None in inference
    rollout: Any  # TensorDict [B, T] of x, the flags "is_init" and the states before each step


def loader(
    stream: Stream, data: StreamData, place: str, training: bool, reset_rate: float
) -> Callable[[Batch], Loaded]:
    """Return a function that copies a batch out of tensors on the device, and draws its resets."""
    all_x, all_dy = (
        tensor(array, place, False).transpose(0, 1).contiguous() for array in (data.x, data.dy)
    )
    shape = stream.batch, stream.longest, 1, stream.hidden_size
    zeros = torch.zeros(shape, dtype=all_x.dtype, device=device(place))

    def load(batch: Batch) -> Loaded:
        x = all_x[: batch.rows].clone().transpose(0, 1).requires_grad_(training)
        dy = all_dy[: batch.rows].clone().transpose(0, 1) if training else None
        flags = torch.from_numpy(batch.resets(reset_rate)).to(device(place))
        entries = {
            "x": x.transpose(0, 1),
            "is_init": flags.T.contiguous().unsqueeze(-1),
            **dict.fromkeys(_states(stream), zeros[: batch.rows]),
        }
        return Loaded(x, dy, TensorDict(entries, batch_size=[batch.rows, batch.steps]))

    return load


def module(
    stream: Stream,
    data: StreamData,
    place: str,
    training: bool,
    *,
    reset_rate: float,
    **options: Any,
) -> StreamModel:
    """Make a model of ``GRUModule`` or ``LSTMModule``; ``options`` are those of its constructor."""
    network = module_of(stream, data.weights, place, training, batch_first=True)
    states = _states(stream)
    keywords = {
        "in_keys": ["x", *states],
        "out_keys": ["y", *(("next", state) for state in states)],
        "default_recurrent_mode": True,
        **options,
    }
    made = (
        LSTMModule(lstm=network, **keywords)
        if stream.spec.has_cell
        else GRUModule(gru=network, **keywords)
    )

    def forward(loaded: Loaded) -> torch.Tensor:
        rollout = made(loaded.rollout)
        # Results that stay in the rollout would be kept until the end of the epoch.
        rollout.pop("next")
        return rollout.pop("y").transpose(0, 1)

    load = loader(stream, data, place, training, reset_rate)
    return stream_model(load, forward, list(network.parameters()), training, reset_rate)


def _states(stream: Stream) -> tuple[str, ...]:
    return ("h", "c") if stream.spec.has_cell else ("h",)


_GATED = Limits(modes=("gru", "lstm"))
_FLOAT32 = _GATED._replace(dtypes=("float32",))  # the kernels take no other arrays
_TRITON: dict[str, Any] = {"recurrent_backend": "triton", "recurrent_matmul_precision": "tf32"}

RESET_CREATORS = (
    *(
        Creator(
            with_resets(TORCHRL_PAD, rate),
            "torch",
            partial(module, reset_rate=rate, recurrent_backend="pad"),
            _GATED,
            places=PLACES,
        )
        for rate in RESET_RATES
    ),
    *(
        Creator(
            with_resets(name, RESET_RATES[-1]),
            "torch",
            partial(module, reset_rate=RESET_RATES[-1], recurrent_compute_dtype=dtype, **_TRITON),
            _FLOAT32,
            places=PLACES[1:],
        )
        for name, dtype in ((TORCHRL_TF32, torch.float32), (TORCHRL_BF16, torch.bfloat16))
    ),
)
"""Creators of models for `dnnffi.bench.streams.resets.ResetStream`.

One rate is enough for the kernels in Triton, which do the same work wherever states are reset.
"""
