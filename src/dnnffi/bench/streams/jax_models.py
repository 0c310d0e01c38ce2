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

from dnnffi.bench.creator import Creator, Limits
from dnnffi.bench.jax_scan import network
from dnnffi.bench.streams.model import (
    JAX_BUCKETS,
    LEARNING_RATE,
    Results,
    StreamModel,
)
from dnnffi.bench.streams.problems import Batch, Stream, StreamData

UNROLL = 4
"""Steps in the body of the loop."""


class Loaded(NamedTuple):
    """The arrays of a batch, padded to its bucket."""

    x: Any  # [bucket, B, I]
    dy: Any  # [bucket, B, H]; None in inference


def bucket_of(steps: int, longest: int) -> int:
    """Return the next power of two, at most ``longest``.

    Examples
    --------
    >>> [bucket_of(steps, 100) for steps in (1, 5, 64, 65)]
    [1, 8, 64, 100]
    """
    return min(1 << (steps - 1).bit_length(), longest)


def scan(stream: Stream, data: StreamData, place: str, training: bool) -> StreamModel:
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
        return Loaded(x, cut(all_dy, lengths, bucket) if training else None)

    def forward(x: Any, weights: list[Any]) -> Any:
        return network(stream.mode, 1, x, hx, weights, unroll=UNROLL)[0]

    @partial(jax.jit, donate_argnums=(0, 1))
    def train(weights: list[Any], gradients: list[Any], x: Any, dy: Any) -> Any:
        weights = [w - LEARNING_RATE * g for w, g in zip(weights, gradients, strict=True)]
        y, pull = jax.vjp(forward, x, weights)
        return weights, y, *pull(dy)

    infer = jax.jit(forward)
    gradients = [jnp.zeros_like(weight) for weight in weights]

    def train_step(loaded: Loaded) -> Results:
        nonlocal weights, gradients
        weights, y, dx, gradients = train(weights, gradients, loaded.x, loaded.dy)
        return Results(y, dx, gradients)

    def infer_step(loaded: Loaded) -> Results:
        return Results(infer(loaded.x, weights))

    return StreamModel(load, train_step if training else infer_step)


_PLACES = ("gpu" if any(device.platform == "gpu" for device in jax.devices()) else "cpu",)

CREATORS = (Creator(JAX_BUCKETS, "jax", scan, Limits(dropout=False), places=_PLACES),)
