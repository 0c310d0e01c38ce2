"""The few configurations that are worth measuring, the most likely first."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import log2

from dnnffi.backends.own.recurrent.config import Chip, KernelConfig, Kind, of_whole_rows
from dnnffi.backends.own.recurrent.divisions import (
    divisions,
    least_units,
    placed,
    row_registers,
    sharing,
)
from dnnffi.backends.own.recurrent.estimates import (
    far_step,
    gathered_step,
    scattered_step,
    shape_step,
)

_MOST, _MOST_OF_LARGE, _MOST_AT_ONCE = 3, 4, 30

_CLOSE = 0.8, 1.25
"""Of two backwards whose estimates have a ratio between these, both are worth measuring."""

_MOST_BLOCKS = 8
"""Of a cluster, on every device that has them."""

_MANY_WORDS = 3000
"""That a block gathers in a step: with fewer, neither more rows nor chunks were faster."""

_FEW_WORDS = 1000
"""Words of float32 that a block gathers in a step; with more, products of float16 were faster."""

_MOST_PRODUCTS, _FEW_PRODUCTS = 300_000, 150_000
"""Of a cluster's block in a step: with more it is not offered, with fewer the fastest."""

_MOST_SENT = 6144
"""Words that all blocks of a cluster take in a step of a backward."""

_ROW_THREADS, _MOST_ROW_THREADS = 160, 512
"""Of a block without tensor cores: the best, and the most."""

_MOST_ROW_PRODUCTS = 66_000
"""Of a block without tensor cores, in a step."""

_MOST_EXCHANGED = 64_000_000
"""Bytes that layers exchange which run at once, in the longest sequences of a class of sizes: their
words are all kept."""

_CHUNKS = 1, 2, 3, 4, 6, 8, 11
_WIDE_THREADS = 256


def choices(kind: Kind, batch: int, directions: int, chip: Chip, most: int) -> list[KernelConfig]:
    """What is worth measuring, the most promising first; nothing where nothing fits."""
    found: list[KernelConfig] = []
    for units, rows, subtiles in _shapes(kind, batch, directions, chip):
        if len(found) >= most:
            break
        room = [
            one
            for one in divisions(kind, chip, units, rows, subtiles)
            if one.blocks <= chip.multiprocessors
        ]
        room.sort(key=lambda one: (one.streamed_bytes, abs(one.tile_warps * one.k_warps - 8)))
        best: dict[int, KernelConfig] = {}
        for one in room:
            if one.streamed_bytes <= 1.3 * room[0].streamed_bytes:
                best.setdefault(_class(one), one)
        found += sorted(best.values(), key=_class)
    return found[:most]


def _class(config: KernelConfig) -> int:
    """Which of several ways to divide a block's work this is: what is fast more often comes first.

    Of a forward, from small layers to large ones: warps that share tiles, of a GRU two; warps that
    share the sum alone, with words that all gather together; and with words that each gathers for
    itself. Of a backward one of the latter two: the first where all weights are in registers.
    """
    staged, tile_warps = config.staged, config.tile_warps
    if config.kind.backward:
        return 2 if tile_warps > 1 else int(staged != (config.k_registers == config.warp_k))
    sharing_tiles = (2,) if config.kind.mode == "gru" else (3, 4)
    if tile_warps in sharing_tiles and staged:
        return 0
    if tile_warps == 1:
        return 1 if staged else 2
    return 3 if staged else 4


def forward_choices(kind: Kind, batch: int, directions: int, chip: Chip) -> list[KernelConfig]:
    """Those for a forward: in float32 with products of float16, where that is possible.

    Of small layers one of these behind those with products in TF32.
    """
    where = batch, directions, chip
    if not kind.can_be_narrow:
        return _forward_choices(kind, *where)
    narrow = _forward_choices(kind._replace(narrow=True), *where)
    if narrow and kind.exchanged * narrow[0].group_rows >= _FEW_WORDS:
        return narrow
    return [*_forward_choices(kind, *where), *narrow[:1]]


def _forward_choices(kind: Kind, batch: int, directions: int, chip: Chip) -> list[KernelConfig]:
    """Those of `choices`: of small layers in both orders.

    Of large layers also `wide` ones and one in teams.
    """
    found = choices(kind, batch, directions, chip, _MOST)
    if not found or kind.exchanged * found[0].group_rows < _MANY_WORDS:
        return _in_both_orders(found)

    def expected(one: KernelConfig) -> float:
        waves = -(-one.groups(batch) * directions // (chip.multiprocessors // one.blocks))
        return scattered_step(one) if one.scatter else waves * gathered_step(one)

    layer = batch, directions, chip
    found = [placed(one, *layer) for one in found]
    found += [*wide(kind, *layer), *scattered(kind, *layer)[:1]]
    return sorted(found, key=expected)[:_MOST_OF_LARGE]


def _in_both_orders(found: list[KernelConfig]) -> list[KernelConfig]:
    """The same, and the first that stages words also with a step's inputs read before them.

    Which order is faster depends on when words arrive.
    """
    for place, one in enumerate(found):
        if one.staged:
            return [*found[: place + 1], one._replace(poll_first=False), *found[place + 1 :]]
    return found


@cache
def wide(kind: Kind, batch: int, directions: int, chip: Chip) -> tuple[KernelConfig, ...]:
    """Configurations for large layers: the most promising without chunks, and two with.

    Groups of 32 or 64 rows read weights from shared memory, or from L2, for all of them at once.
    Chunks of a step's words are multiplied while others are in flight, by warps that have few tiles
    each, or many: which of them are faster depends on the layer.
    """
    whole: list[KernelConfig] = []
    in_chunks: list[KernelConfig] = []
    for rows in (16, 32, 64):
        most = chip.multiprocessors // (-(-batch // rows) * directions)
        if not most or rows >= 2 * batch:
            continue
        units = least_units(kind, most)
        for chunks in _CHUNKS if rows > 16 else _CHUNKS[1:]:
            found = whole if chunks == 1 else in_chunks
            found += [
                placed(one, batch, directions, chip)
                for one in divisions(kind, chip, units, rows, 1, chunks=chunks)
                if one.threads >= _WIDE_THREADS
            ]
    return (*sorted(whole, key=gathered_step)[:1], *_two(in_chunks, gathered_step))


def _two(
    found: list[KernelConfig], step: Callable[[KernelConfig], float]
) -> tuple[KernelConfig, ...]:
    """The most promising one, and of those whose tiles other warps share the most promising."""
    found = sorted(found, key=step)
    unlike = [one for one in found if one.tile_warps != found[0].tile_warps]
    return (*found[:1], *unlike[:1])


@cache
def clustered(kind: Kind, batch: int, directions: int, chip: Chip) -> tuple[KernelConfig, ...]:
    """Configurations whose groups are clusters of blocks, where these can be the fastest.

    That is where a step has few products and few words are sent to all blocks: up to 300,000
    products of a block, and backward 6144 words in a cluster. Backward, and of cells
    without gates, also clusters of fewer blocks, which send less.
    """
    found: list[KernelConfig] = []
    most = _MOST_BLOCKS // kind.layers
    fewer = most * 5 // 8 if kind.backward else most // 2 if kind.plain else 0
    for blocks in (most, fewer):
        if not blocks or not chip.clusters:
            continue
        units = least_units(kind, blocks)
        blocks = -(-kind.padded // units) * kind.layers
        groups = -(-batch // 8) * directions
        sent = blocks * kind.exchanged * min(batch, 8)
        if (
            groups > chip.multiprocessors // blocks
            or _products(kind, units) > _MOST_PRODUCTS
            or (kind.backward and sent > _MOST_SENT)
        ):
            continue
        room = divisions(kind, chip, units, 8, 1, cluster=True)
        found += _promising([one for one in room if not one.k_streamed])
    return tuple(dict.fromkeys(found))


@cache
def whole_rows(kind: Kind, batch: int, directions: int, chip: Chip) -> tuple[KernelConfig, ...]:
    """Configurations without tensor cores, for layers whose weights fit into few blocks.

    Of one block, with as few rows as keep all rows on the chip; or else of a cluster, with one row:
    with more, tensor cores were as fast or faster.
    """
    if kind.layers > 1:
        return ()
    found = _of_blocks(1, kind, batch, directions, chip)[:2]
    if not found and chip.clusters:
        for blocks in (_MOST_BLOCKS, _MOST_BLOCKS // 2):
            found += _of_blocks(blocks, kind, batch, directions, chip)[:1]
    return tuple(found)


def _of_blocks(
    blocks: int, kind: Kind, batch: int, directions: int, chip: Chip
) -> list[KernelConfig]:
    """Those whose groups have at most so many blocks, the most promising first."""
    found = []
    for parts in (1, 2, 4, 8, 16, 32):
        for rows in (1, 2, 4) if blocks == 1 else (1,):
            one = of_whole_rows(kind, rows, parts, blocks)
            if (
                rows <= parts
                and one.groups(batch) * directions * one.blocks <= chip.multiprocessors
            ):
                break
        else:
            continue
        room = min(255, 65536 // (-(-one.threads // 128) * 128))
        products = one.units * kind.gates * kind.padded * one.rows
        fits = one.shared_bytes <= chip.shared_bytes and row_registers(one) <= room
        few = one.threads <= _MOST_ROW_THREADS and products <= _MOST_ROW_PRODUCTS
        if fits and few and one.blocks > blocks // 2:
            found.append(one)
    return sorted(found, key=lambda one: abs(log2(one.threads / _ROW_THREADS)))


def are_fastest(clusters: tuple[KernelConfig, ...]) -> bool:
    """Whether some of `clustered` are expected to be faster than all else."""
    return any(_products(one.kind, one.units) <= _FEW_PRODUCTS for one in clusters[:1])


def _products(kind: Kind, units: int) -> int:
    """Of a block of eight rows in a step."""
    return units * kind.octet_gates * kind.exchanged * kind.word * 8


def _promising(room: list[KernelConfig]) -> list[KernelConfig]:
    """Of clusters of so many blocks, the ways to divide the work of one.

    About eight warps that have a tile each, or two, and of cells without gates about ten, since
    these have nothing else to do; of a backward warps that share the sum alone.
    """
    if not room:
        return []
    kind = room[0].kind

    def far(one: KernelConfig) -> float:
        return abs(log2(one.tile_warps * one.k_warps / (10 if kind.plain else 8)))

    one_tile = [one for one in room if one.warp_tiles == 1 and one.k_registers == one.warp_k]
    one_tile.sort(key=far)
    if kind.plain:
        return one_tile[:1]
    if kind.backward:
        return [min(room, key=lambda one: (one.tile_warps, far(one)))]
    return [*one_tile, min(room, key=lambda one: (abs(one.warp_tiles - 2), far(one)))][:2]


@cache
def layers_at_once(
    kind: Kind, batch: int, steps: int, layers: int, chip: Chip
) -> tuple[KernelConfig, ...]:
    """Configurations of kernels that run all layers of a network at once, where it can be faster.

    That is where all groups have room on the chip at once with all of their weights, and a step of
    all layers is expected to take less time than one of each. The most promising one, and one of
    half as many blocks: together these read half as many words from L2.
    """

    def step(config: KernelConfig) -> float:
        sizes = config.units, config.group_rows, batch, config.kind.layers
        return shape_step(config.kind, *sizes, chip)

    alone = choices(kind, batch, 1, chip, 1)
    most = layers * step(alone[0]) if alone else 0
    found: list[KernelConfig] = []
    blocks = chip.multiprocessors
    for one in choices(kind._replace(layers=layers), batch, layers, chip, _MOST_AT_ONCE):
        groups = one.groups(batch)
        if (
            groups * one.group_blocks <= blocks
            and groups * one.exchange_bytes(steps) <= _MOST_EXCHANGED
            and not one.k_streamed
            and step(one) < most
        ):
            found.append(one)
            blocks = groups * layers * min(-(-one.blocks // 2), one.blocks - 1)
            if len(found) == 2:
                break
    return tuple(found)


def backward_choices(kind: Kind, batch: int, directions: int, chip: Chip) -> list[KernelConfig]:
    """Backwards that gather and such whose blocks exchange shares: the more promising first.

    Some alone where the others are expected to be far slower, or do not fit: those that gather in
    both orders.
    """
    layer = batch, directions, chip
    gathering = [placed(one, *layer) for one in choices(kind, *layer, 1)]
    shares = list(scattered(kind, *layer))
    if not gathering or not shares:
        return shares or _in_both_orders(gathering)
    (gathers,) = gathering
    where = gathers.units, gathers.group_rows, batch, directions, chip
    ratio = scattered_step(shares[0]) / (shape_step(kind, *where) + far_step(gathers))
    if not _CLOSE[0] < ratio < _CLOSE[1]:
        return shares if ratio < 1 else _in_both_orders(gathering)
    return [*shares, gathers] if ratio < 1 else [gathers, *shares]


@cache
def scattered(kind: Kind, batch: int, directions: int, chip: Chip) -> tuple[KernelConfig, ...]:
    """Return the likely fastest configurations among those whose blocks exchange partial sums.

    Of a large layer also the most promising one of another number of warps, which was the fastest
    for some layers.
    """
    found = [
        one
        for rows in (8, 16, 32, 64)
        if rows == 8 or rows < 2 * batch
        for one in sharing(kind, batch, directions, chip, rows)
    ]
    two = _two(found, scattered_step)
    return two if two and kind.exchanged * two[0].rows >= _MANY_WORDS else two[:1]


def _shapes(kind: Kind, batch: int, directions: int, chip: Chip) -> list[tuple[int, int, int]]:
    """Units of a block, rows and sub-tiles of a group: the cheapest first."""
    found = {}
    for rows, subtiles in ((8, 1), (16, 1), (16, 2)):
        group_rows = rows * subtiles
        if rows > 8 and group_rows >= 2 * batch:
            continue
        groups = -(-batch // group_rows) * directions
        for blocks in {max(1, chip.multiprocessors // groups), chip.multiprocessors}:
            least = least_units(kind, blocks)
            for units in range(least, least + 24, 8):
                even = -(-kind.padded // -(-kind.padded // units) // 8) * 8
                step = shape_step(kind, even, group_rows, batch, directions, chip)
                found[even, rows, subtiles] = step
    return sorted(found, key=lambda shape: found[shape])
