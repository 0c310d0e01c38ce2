"""The few configurations that are worth measuring, the most likely first.

All divisions with tensor cores that fit on the device are compared by the cost model. Of those that
gather words, a typical one of each shape (units, rows and sub-tiles of a block) is compared first.
The tuner measures what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import log2

from dnnffi.backends.own.recurrent.config import KernelConfig, Kind, Layer, of_whole_rows
from dnnffi.backends.own.recurrent.cost_model import step_us
from dnnffi.backends.own.recurrent.divisions import (
    find_divisions,
    find_scatter_divisions,
    min_units,
    row_registers,
    set_streaming,
)

_MAX_KERNELS = 5
"""Kernels of a pass that are measured."""

_MAX_RATIO = 1.7
"""The largest estimate of what is measured, as a multiple of the least one."""

_MAX_OF_SHAPE = 2
"""Kernels of one shape, way to exchange and number of warps that are measured."""

_FEW_PARTS = 2
"""Parts of k of a forward pass in clusters: a kernel with at most this number is measured, and one
with more. Each cell adds up one partial sum per part, whose cost is estimated as too low."""

_MAX_SHAPES = 6
"""Shapes of blocks that gather words whose divisions among warps are all compared."""

_MIN_WIDE_WORDS = 3000
"""Words of a block in a step; with fewer, neither more rows nor chunks were faster."""

_CHUNKS = 2, 3, 4, 6, 8, 12, 16
_MIN_WIDE_THREADS = 256

_MAX_CLUSTER_BLOCKS = 8
"""Blocks of a cluster on every device that has clusters."""

_CLUSTER_BLOCKS = 8, 5, 4, 3
"""Blocks of clusters; with fewer, each has more to do and sends less."""

_BEST_ROW_THREADS, _MAX_ROW_THREADS = 160, 512
"""Threads of a block without tensor cores: the best number, and the largest."""

_MAX_ROW_PRODUCTS = 66_000
"""Limit of the multiply-adds of a block without tensor cores in a step."""

_MAX_EXCHANGED_BYTES = 64_000_000
"""Bytes that layers which run at once exchange in the longest sequences of a class of sizes: their
words are all kept."""


@lru_cache(maxsize=256)
def select_configs(kind: Kind, layer: Layer) -> tuple[KernelConfig, ...]:
    """Return the configurations with tensor cores to measure, the most likely first.

    The tuple is empty if none fits. A forward pass in float32 can also have products of float16.
    """
    kinds = (kind, kind._replace(narrow=True)) if kind.can_be_narrow else (kind,)
    found = [
        one
        for each in kinds
        for one in (
            *find_gathers(each, layer),
            *find_scatters(each, layer),
            *find_clusters(each, layer),
        )
    ]
    return tuple(_select_likely(found, layer, _MAX_KERNELS))


def _select_likely(found: Iterable[KernelConfig], layer: Layer, most: int) -> list[KernelConfig]:
    """Return the kernels with the least estimates: first the best of each way to exchange.

    Estimates of different ways are the least comparable. Of the rest, few have the same shape; none
    has a far larger estimate than the first.
    """
    estimates = sorted(((step_us(one, layer), one) for one in found), key=lambda pair: pair[0])
    likely = [one for us, one in estimates if us <= _MAX_RATIO * estimates[0][0]]
    ways: dict[object, KernelConfig] = {}
    for one in likely:
        has_few_parts = one.cluster and not one.kind.backward and one.k_warps <= _FEW_PARTS
        ways.setdefault((one.cluster, one.scatter, one.chunks > 1, has_few_parts), one)
    chosen = [*ways.values()]
    shapes: Counter[object] = Counter()
    for one in likely:
        way = one.cluster, one.scatter, one.kind.narrow
        shape = one.units, one.rows, one.subtiles, one.threads, *way
        shapes[shape] += 1
        if shapes[shape] <= _MAX_OF_SHAPE and len(chosen) < most and one not in chosen:
            chosen.append(one)
    return chosen


@lru_cache(maxsize=64)
def find_gathers(kind: Kind, layer: Layer) -> tuple[KernelConfig, ...]:
    """Return configurations whose blocks gather words through L2, in the likely shapes."""
    by_shape: dict[tuple[int, int, int], list[KernelConfig]] = {}
    least: dict[tuple[int, int, int], float] = {}
    for units, rows, subtiles, chunks in dict.fromkeys(_list_shapes(kind, layer)):
        fitting = [
            one
            for one in find_divisions(kind, layer.chip, units, rows, subtiles, chunks=chunks)
            if one.group_blocks <= layer.chip.multiprocessors
            and (rows <= 16 or one.threads >= _MIN_WIDE_THREADS)
        ]
        if fitting:
            shape = units, rows, subtiles
            by_shape.setdefault(shape, []).extend(fitting)
            typical = min(fitting, key=lambda one: abs(one.tile_warps * one.k_warps - 8))
            estimate = step_us(set_streaming(typical, layer), layer)
            least[shape] = min(estimate, least.get(shape, estimate))
    best = sorted(by_shape, key=lambda shape: (least[shape], shape))[:_MAX_SHAPES]
    return tuple(set_streaming(one, layer) for shape in best for one in by_shape[shape])


def _list_shapes(kind: Kind, layer: Layer) -> Iterator[tuple[int, int, int, int]]:
    """Yield units of a block, rows and sub-tiles of a group, and chunks of a step's words.

    Groups of 32 or 64 rows read weights from shared memory, or from L2, for all of them at once.
    Layers that run at once keep theirs in registers, and have smaller groups.
    """
    multiprocessors = layer.chip.multiprocessors // kind.layers
    for rows, subtiles in ((8, 1), (16, 1), (16, 2), (32, 1), (64, 1)):
        group_rows = rows * subtiles
        groups = -(-layer.batch // group_rows) * layer.directions
        many = kind.exchanged * group_rows >= _MIN_WIDE_WORDS
        if (rows > 8 and group_rows >= 2 * layer.batch) or (rows > 16 and not many):
            continue
        if rows > 16 and kind.layers > 1:
            continue
        for blocks in (max(1, multiprocessors // groups), max(1, multiprocessors)):
            least = min_units(kind, blocks)
            for units in range(least, least + (24 if rows <= 16 else 8), 8):
                even = -(-kind.padded // -(-kind.padded // units) // 8) * 8
                yield even, rows, subtiles, 1
        if many and groups <= multiprocessors and kind.layers == 1:
            for chunks in _CHUNKS:
                yield min_units(kind, multiprocessors // groups), rows, subtiles, chunks


def find_scatters(kind: Kind, layer: Layer) -> list[KernelConfig]:
    """Return configurations whose blocks exchange partial sums; only backward passes have any."""
    if not kind.backward:
        return []
    return [
        one
        for rows in (8, 16, 32, 64)
        if rows == 8 or rows < 2 * layer.batch
        for one in find_scatter_divisions(kind, layer, rows)
    ]


def find_clusters(kind: Kind, layer: Layer) -> list[KernelConfig]:
    """Return configurations whose groups are clusters of blocks with all of their weights."""
    chip = layer.chip
    found: dict[KernelConfig, None] = {}
    groups = -(-layer.batch // 8) * layer.directions
    for most in _CLUSTER_BLOCKS if chip.cluster_counts else ():
        if most < kind.layers:
            continue
        units = min_units(kind, most // kind.layers)
        blocks = -(-kind.padded // units) * kind.layers
        if blocks > _MAX_CLUSTER_BLOCKS or groups > chip.multiprocessors // blocks:
            continue
        fitting = find_divisions(kind, chip, units, 8, 1, cluster=True)
        found |= dict.fromkeys(
            one for one in fitting if not one.k_streamed and one.runs_at_once(layer)
        )
    return list(found)


def select_whole_rows(kind: Kind, layer: Layer) -> tuple[KernelConfig, ...]:
    """Return configurations without tensor cores, for layers whose weights fit into few blocks.

    A group is one block, with as few rows as keep all rows on the chip; or else a cluster, with one
    row: with more, tensor cores were as fast or faster.
    """
    if kind.layers > 1:
        return ()
    found = _find_whole_rows(1, kind, layer)[:2]
    if not found and layer.chip.cluster_counts:
        for blocks in (_MAX_CLUSTER_BLOCKS, _MAX_CLUSTER_BLOCKS // 2):
            fitting = _find_whole_rows(blocks, kind, layer)
            found += [one for one in fitting if one.runs_at_once(layer)][:1]
    return tuple(found)


def _find_whole_rows(blocks: int, kind: Kind, layer: Layer) -> list[KernelConfig]:
    """Return kernels whose groups have at most ``blocks`` blocks, but more than half as many.

    Those with about `_BEST_ROW_THREADS` threads are first.
    """
    found = []
    chip = layer.chip
    for parts in (1, 2, 4, 8, 16, 32):
        for rows in (1, 2, 4) if blocks == 1 else (1,):
            one = of_whole_rows(kind, rows, parts, blocks)
            all_blocks = one.groups(layer.batch) * layer.directions * one.blocks
            if rows <= parts and all_blocks <= chip.multiprocessors:
                break
        else:
            continue
        max_registers = min(255, 65536 // (-(-one.threads // 128) * 128))
        products = one.units * kind.gates * kind.padded * one.rows
        fits = one.shared_bytes <= chip.shared_bytes and row_registers(one) <= max_registers
        few = one.threads <= _MAX_ROW_THREADS and products <= _MAX_ROW_PRODUCTS
        if fits and few and one.blocks > blocks // 2:
            found.append(one)
    return sorted(found, key=lambda one: abs(log2(one.threads / _BEST_ROW_THREADS)))


def select_layer_clusters(kind: Kind, layer: Layer, layers: int) -> tuple[KernelConfig, ...]:
    """Return kernels that run all layers of a network at once, each group a cluster."""
    found = find_clusters(kind._replace(layers=layers), layer)
    return tuple(_select_likely(found, layer, 2))


def select_layers_at_once(
    kind: Kind, layer: Layer, layers: int, steps: int
) -> tuple[KernelConfig, ...]:
    """Return kernels that run all layers of a network at once, if that can be faster.

    It can if all groups fit on the chip at once with all of their weights, and a step of all layers
    is expected to take less time than one of each. They are the one with the least estimate, and
    one of half as many blocks: together these read half as many words from L2.
    """
    alone = find_gathers(kind, layer)
    least = min((step_us(one, layer) for one in alone), default=0.0)
    fitting = [
        one
        for one in find_gathers(kind._replace(layers=layers), layer)
        if one.waves(layer) == 1
        and one.groups(layer.batch) * one.exchange_bytes(steps) <= _MAX_EXCHANGED_BYTES
        and not one.k_streamed
        and step_us(one, layer) < layers * least
    ]
    found: list[KernelConfig] = []
    blocks = layer.chip.multiprocessors
    for one in sorted(fitting, key=lambda one: step_us(one, layer)):
        if one.groups(layer.batch) * one.group_blocks <= blocks:
            found.append(one)
            blocks = one.groups(layer.batch) * layers * min(-(-one.blocks // 2), one.blocks - 1)
            if len(found) == 2:
                break
    return tuple(found)
