"""Estimates of the time of a step, which decide which configurations are measured.

An estimate is the sum of what a block does in a step, each part times its cost in microseconds.
``cost_fit.json`` has the costs, fitted to measurements on an H200 (``own_costs.json`` in the
documentation) by ``benchmarks/own_costs.py``, which prints how well they predict. On other GPUs the
same costs are used: the tuner measures what they select.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from dnnffi.backends.own.recurrent.config import WORD_BYTES, KernelConfig, Layer
from dnnffi.backends.own.recurrent.divisions import MAX_LOADS, free_registers, step_registers

MEMORY_RATE = 3e6
"""Bytes a microsecond from device memory, about those of an H100."""

Work = tuple[float, ...]
"""Amounts of a block in a step, one for each name of a `Family`."""


class Family(NamedTuple):
    """Kernels whose costs are fitted together; ``work`` returns a number for each name."""

    name: str
    names: tuple[str, ...]
    work: Callable[[KernelConfig, Layer], Work]


def step_us(config: KernelConfig, layer: Layer) -> float:
    """Return about how many microseconds a step takes; groups that run in turn add up."""
    family = family_of(config)
    work = family.work(config, layer)
    return config.waves(layer) * sum(map(float.__mul__, costs_of(family.name), work))


def family_of(config: KernelConfig) -> Family:
    """Return the family of a configuration with tensor cores."""
    return CLUSTER if config.cluster else SCATTER if config.scatter else GATHER


@cache
def costs_of(family: str) -> tuple[float, ...]:
    """Return the costs of a family, in the order of its names."""
    text = files("dnnffi.backends.own.recurrent").joinpath("cost_fit.json").read_text("utf-8")
    costs = json.loads(text)[family]
    (names,) = (one.names for one in FAMILIES if one.name == family)
    return tuple(float(costs[name]) for name in names)


def _blocks_at_once(config: KernelConfig, layer: Layer) -> int:
    return config.group_blocks * config.groups_at_once(layer)


def _products(config: KernelConfig) -> float:
    """Tens of thousands of 16 x 8 x 16 products of a block: TF32 counts twice, strict six times."""
    kind = config.kind
    fragments = config.tile_warps * config.k_warps * config.warp_tiles * config.warp_k
    each = 3 if kind.strict else 1
    return 2e-4 * fragments * (config.rows / 8) * each * (2 if kind.factors == "float32" else 1)


def gathered_words(config: KernelConfig) -> int:
    """Words of h, and of shares, that a block reads from L2 in a step of a sub-tile."""
    of_h = config.k_words * config.rows * (1 if config.staged else config.tile_warps)
    return of_h + config.scatter * config.teams * config.share_words


def shared_words(config: KernelConfig) -> int:
    """Words of h and of partial sums that a block moves in shared memory in a step."""
    partial_sums = 0 if config.scatter else _partial_sum_words(config)
    of_h = config.staged * (config.tile_warps + 1) * config.k_words * config.rows
    return of_h + partial_sums


def _partial_sum_words(config: KernelConfig) -> int:
    """Words of partial sums that a block writes and reads in a step."""
    return 8 * config.k_warps * config.tiles * config.rows


def _weight_words(config: KernelConfig) -> int:
    """Words of weights that a block reads from shared memory."""
    steps = config.k_shared + (config.k_streamed if config.stream_ring else 0)
    return steps * config.shared_step_bytes // WORD_BYTES


_COMMON = (
    *("products", "shared words", "shared weights"),
    *("streamed bytes", "bytes asked for ahead", "far bytes"),
    *("cells", "ring words", "ring words of a thread", "warps"),
)


def _common(config: KernelConfig, layer: Layer) -> Work:
    """Amounts for the names in `_COMMON`, of all kernels that exchange through L2."""
    streamed = config.streamed_bytes
    far = _blocks_at_once(config, layer) * streamed / MEMORY_RATE if config.far else 0.0
    return (
        _products(config),
        1e-4 * shared_words(config),
        1e-4 * _weight_words(config),
        0.0 if config.stream_ring else 1e-5 * streamed,
        1e-5 * streamed if config.stream_ring else 0.0,
        far,
        float(config.thread_cells),
        1e-3 * config.ring_words,
        config.ring_words / config.threads,
        config.threads / 256,
    )


def _gather_work(config: KernelConfig, layer: Layer) -> Work:
    words = gathered_words(config)
    own = (
        1e-3 * words,
        max(0.0, words / config.threads / MAX_LOADS - 1),
        2e-6 * _blocks_at_once(config, layer) * words,
        float(config.staged),
        config.chunks - 1.0,
        1e-4 * max(0, -free_registers(config)) * config.threads,
        config.blocks / 100,
    )
    work = *_common(config, layer), *own
    return tuple(config.subtiles * one for one in work)


def _scatter_work(config: KernelConfig, layer: Layer) -> Work:
    words, shares = config.k_words * config.rows, config.teams * config.share_words
    gathered = words if config.team > 1 else 0
    kept = config.k_registers * step_registers(config)
    own = (
        1.0,
        float(config.team > 1),
        1e-3 * shares,
        max(0.0, shares / config.threads / MAX_LOADS - 1),
        2e-6 * _blocks_at_once(config, layer) * (gathered + 2 * shares),
        float(-(-config.share_words // config.threads)),
        1e-4 * max(0, kept - free_registers(config)) * config.threads,
        config.teams / 10,
    )
    return *_common(config, layer), *own


def _cluster_work(config: KernelConfig, layer: Layer) -> Work:
    kind = config.kind
    sent = config.group_blocks * kind.exchanged * min(layer.batch, config.rows)
    return (
        1.0,
        config.group_blocks / 10,
        1e-3 * sent,
        _products(config),
        1e-4 * _partial_sum_words(config),
        1e-4 * config.tile_warps * config.k_words * config.rows,
        float(config.thread_cells),
        config.ring_words / config.threads,
        config.threads / 256,
    )


GATHER = Family(
    "gather",
    (*_COMMON, "words", "rounds", "words of all", "staged", "chunks", "spilled", "blocks"),
    _gather_work,
)
SCATTER = Family(
    "scatter",
    (
        *_COMMON,
        *("exchange", "teams' exchange", "shares", "rounds", "words of all", "added"),
        *("spilled", "teams"),
    ),
    _scatter_work,
)
CLUSTER = Family(
    "cluster",
    (
        *("exchange", "blocks", "words sent", "products", "partial sums", "words of h"),
        *("cells", "ring words of a thread", "warps"),
    ),
    _cluster_work,
)
FAMILIES = GATHER, SCATTER, CLUSTER
