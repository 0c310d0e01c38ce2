"""JAX's ``lax.scan`` on batches that are padded to a few lengths, so that JAX compiles less.

T is padded to the next power of two, at most the longest row of the stream; a batch with fewer rows
is padded to the full number. The warm-up epoch compiles the few programs that a stream then has.
The loop is unrolled by fewer steps than in `dnnffi.bench.jax_scan`: a longer body takes longer to
compile, and a stream compiles several programs.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dnnffi.bench.creator import Creator, Limits
from dnnffi.bench.jax_scan import network
from dnnffi.bench.streams.model import (
    JAX_BUCKETS,
    JAX_SCAN,
    LEARNING_RATE,
    Results,
    StreamModel,
    with_resets,
)
from dnnffi.bench.streams.problems import Batch, Stream, StreamData
from dnnffi.bench.streams.resets import RESET_RATES

UNROLL = 4
"""Steps in the body of the loop."""

RESET_UNROLL = 8
"""The same in streams with resets: all batches have the same T, so that one program is compiled."""


class Loaded(NamedTuple):
    """The arrays of a batch, padded to its bucket."""

    x: Any  # [bucket, B, I]
    dy: Any  # [bucket, B, H]; None in inference
    resets: Any = None  # [bucket, B]; None without resets


def bucket_of(steps: int, longest: int) -> int:
    """Return the next power of two, at most ``longest``.

    Examples
    --------
    >>> [bucket_of(steps, 100) for steps in (1, 5, 64, 65)]
    [1, 8, 64, 100]
    """
    return min(1 << (steps - 1).bit_length(), longest)


def scan(
    stream: Stream,
    data: StreamData,
    place: str,
    training: bool,
    *,
    reset_rate: float = 0.0,
    unroll: int = UNROLL,
) -> StreamModel:
    """Make a model of `dnnffi.bench.jax_scan.network`; a batch is one compiled call."""
    all_x, all_dy, *weights = map(jnp.asarray, (data.x, data.dy, *data.weights))
    has_cell = stream.spec.has_cell
    zeros = jnp.zeros(stream.spec.h_shape(stream.batch), all_x.dtype)
    hx = (zeros, zeros) if has_cell else (zeros,)

    @partial(jax.jit, static_argnums=2)
    def cut(source: Any, lengths: Any, bucket: int) -> Any:
        """Return [bucket, B, ...] of ``source``, with zeros after the end of each row."""
        inside = jnp.arange(bucket)[:, None] < lengths
        return jnp.where(inside[:, :, None], source[:bucket], 0)

    def load(batch: Batch) -> Loaded:
        bucket = bucket_of(batch.steps, stream.longest)
        lengths = jnp.asarray(batch.lengths + (0,) * (stream.batch - batch.rows), jnp.int32)
        x = cut(all_x, lengths, bucket)
        resets = None
        if reset_rate:
            flags = np.zeros((bucket, stream.batch), bool)
            flags[: batch.steps, : batch.rows] = batch.resets(reset_rate)
            resets = jnp.asarray(flags)
        return Loaded(x, cut(all_dy, lengths, bucket) if training else None, resets)

    def forward(x: Any, weights: list[Any], resets: Any) -> Any:
        return network(stream.mode, 1, x, hx, weights, resets=resets, unroll=unroll)[0]

    @partial(jax.jit, donate_argnums=(0, 1))
    def train(weights: list[Any], gradients: list[Any], x: Any, dy: Any, resets: Any) -> Any:
        weights = [w - LEARNING_RATE * g for w, g in zip(weights, gradients, strict=True)]
        y, pull = jax.vjp(partial(forward, resets=resets), x, weights)
        return weights, y, *pull(dy)

    infer = jax.jit(forward)
    gradients = [jnp.zeros_like(weight) for weight in weights]

    def train_step(loaded: Loaded) -> Results:
        nonlocal weights, gradients
        weights, y, dx, gradients = train(weights, gradients, loaded.x, loaded.dy, loaded.resets)
        return Results(y, dx, gradients)

    def infer_step(loaded: Loaded) -> Results:
        return Results(infer(loaded.x, weights, loaded.resets))

    return StreamModel(load, train_step if training else infer_step, reset_rate)


_PLACES = ("gpu" if any(device.platform == "gpu" for device in jax.devices()) else "cpu",)

CREATORS = (Creator(JAX_BUCKETS, "jax", scan, Limits(dropout=False), places=_PLACES),)

RESET_CREATORS = (
    Creator(
        with_resets(JAX_SCAN, RESET_RATES[-1]),
        "jax",
        partial(scan, reset_rate=RESET_RATES[-1], unroll=RESET_UNROLL),
        places=_PLACES,
    ),
)
"""Creators of models for `dnnffi.bench.streams.resets.ResetStream`.

One rate is enough: the loop does the same work wherever states are reset.
"""
