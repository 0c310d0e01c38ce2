"""Divisions of a layer among blocks that fit on a device."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from dnnffi.backends.own.recurrent.config import (
    MAX_WARPS,
    Chip,
    KernelConfig,
    Kind,
    Layer,
    tiles,
)

_OTHER_REGISTERS = 127
"""Registers of a thread for all but weights: with these almost no kernel spills registers."""

_TEAM_REGISTERS = 85
"""Registers of a thread for all but weights, sums and cells, if teams exchange shares."""

MAX_LOADS = 8
"""Words that a thread has in flight (``gather.cuh``), and the most that it gathers of a chunk."""

_PLACE_REGISTERS = 40
"""Registers of `_TEAM_REGISTERS` that are free with `KernelConfig.finds_places`."""

_MIN_FREE_REGISTERS = -28
"""Least `free_registers` with which a kernel still spills almost no registers."""

_STREAMED_AHEAD_BYTES = 48 << 10
"""Weights that a block has on their way from L2: as many as L2 sends it until the first arrive."""

_SHARING_WARPS = 8, 12, 16
_MAX_TEAM_BLOCKS = 16
"""The largest number of blocks of a team, which exchange the gradients of all gates."""

_MAX_ADDED_WORDS = 4
"""Limit of the words of a share that a thread adds up."""

_KEPT_DIVISOR = 4
"""Divisor of the bytes of L2: the quotient is what L2 is asked to keep of weights that do not fit
in it. On an H100 steps of LSTMs with H 3072 and H 4096 took longer with twice as many."""

_KEPT_IN_L2 = 0.68
"""The share of L2 that keeps what a step reads until the next step, fitted to steps on an H100."""


def find_divisions(
    kind: Kind,
    chip: Chip,
    units: int,
    rows: int,
    subtiles: int,
    *,
    cluster: bool = False,
    chunks: int = 1,
) -> Iterator[KernelConfig]:
    """Yield all divisions of a block's work among warps that fit on the chip.

    With several ``chunks``, each has words, and a thread has registers for its part of one.
    """
    ring = 4 if rows * subtiles <= 16 else 3
    if chunks > 1 and rows > 16:
        ring = 2  # a step takes so long that its inputs need not be requested two steps ahead
    for tile_warps, k_warps, staged in product((1, 2, 3, 4, 6, 8), (1, 2, 4, 8, 16), (True, False)):
        warps = tile_warps * k_warps
        if not 4 <= warps <= MAX_WARPS or tile_warps > tiles(kind, units):
            continue
        if tiles(kind, units) % tile_warps or k_warps > max(4, kind.exchanged // 4):
            continue
        if (cluster or chunks > 1) and not staged:
            continue
        shape = units, rows, subtiles, tile_warps, k_warps
        ways = staged, ring, cluster
        empty = KernelConfig(kind, *shape, 0, 0, *ways, chunks=chunks)
        if chunks > 1 and (
            empty.chunk_loads > MAX_LOADS
            or (chunks - 1) * empty.chunk_words >= empty.k_words
            or free_registers(empty) < _MIN_FREE_REGISTERS
        ):
            continue
        if empty.base_shared_bytes <= chip.shared_bytes:
            yield _with_weights(empty, chip)


def find_scatter_divisions(kind: Kind, layer: Layer, rows: int) -> Iterator[KernelConfig]:
    """Yield divisions of a backward pass whose blocks exchange shares; all groups run at once."""
    chip = layer.chip
    most = chip.multiprocessors // (-(-layer.batch // rows) * layer.directions)
    if not most:
        return
    least = min_units(kind, most)
    ring = 4 if rows <= 16 else 3
    for units, warps in product(range(least, least + 24, 8), _SHARING_WARPS):
        if rows % 16 and units % 16:
            continue
        for team in range(1, _MAX_TEAM_BLOCKS + 1):
            shape = units, rows, 1, warps, 1
            empty = KernelConfig(kind, *shape, 0, 0, True, ring, False, True, team)
            fits = empty.base_shared_bytes <= chip.shared_bytes
            few = empty.share_words <= _MAX_ADDED_WORDS * empty.threads
            if fits and few and empty.blocks <= most:
                yield set_streaming(_with_weights(empty, chip), layer)


def set_streaming(config: KernelConfig, layer: Layer) -> KernelConfig:
    """Return the configuration with what depends on the weights that all blocks read in a step.

    These are ``far``, ``stream_ring``, ``k_shared`` and ``kept_sixteenths``.

    A configuration is far if L2 does not keep what blocks read until the next step. Then some of
    the shared memory for weights is used to ask for streamed ones ahead. So it is with several
    chunks, whose products are faster than L2. Elsewhere weights that stay in it gained more.
    """
    config = config._replace(k_shared=config.k_shared + config.stream_ring, stream_ring=0)
    far = _is_far(config, layer)
    in_order = not config.cluster and (not config.scatter or config.team > 1)
    if config.k_streamed and in_order and (far or config.chunks > 1):
        ahead = -(-_STREAMED_AHEAD_BYTES // config.shared_step_bytes)
        ring = min(config.k_shared, config.k_streamed, ahead)
        config = config._replace(k_shared=config.k_shared - ring, stream_ring=ring)
        far = _is_far(config, layer)
    return config._replace(far=far, kept_sixteenths=find_kept_part(config, layer) if far else 0)


def find_kept_part(config: KernelConfig, layer: Layer) -> int:
    """Return how many sixteenths of the streamed weights L2 is asked to keep.

    L2 divides lines into sixteen parts by their addresses (PTX ISA, ``createpolicy``).
    """
    streamed = config.groups_at_once(layer) * config.group_blocks * config.streamed_bytes
    kept = layer.chip.l2_bytes // _KEPT_DIVISOR
    return min(16, 16 * kept // streamed) if streamed else 0


def _is_far(config: KernelConfig, layer: Layer) -> bool:
    """Whether L2 does not keep what all blocks of a launch read in a step until the next one."""
    exchanged = config.exchange_bytes(1) / 2  # one of two slots
    of_group = config.blocks * config.streamed_bytes + exchanged
    return config.groups_at_once(layer) * of_group > _KEPT_IN_L2 * layer.chip.l2_bytes


def min_units(kind: Kind, blocks: int) -> int:
    """Return the units of a block, if ``blocks`` of them have all units of a layer."""
    return max(8, -(-kind.padded // blocks // 8) * 8)


def _with_weights(empty: KernelConfig, chip: Chip) -> KernelConfig:
    """Return the configuration with as many weights as fit in registers, then in shared memory."""
    k_registers = steps_in_registers(empty)
    left = chip.shared_bytes - empty.base_shared_bytes
    k_shared = min(empty.warp_k - k_registers, left // empty.shared_step_bytes)
    return empty._replace(k_registers=k_registers, k_shared=k_shared)


def steps_in_registers(empty: KernelConfig) -> int:
    """Return how many of a warp's steps of k have their weights in registers.

    They have the registers that the rest of a step leaves. One step of k too many costs more than
    it gains: the compiler then moves registers to memory and back in every step.
    """
    return min(empty.warp_k, max(0, free_registers(empty)) // step_registers(empty))


def step_registers(empty: KernelConfig) -> int:
    """Return a thread's registers for the weights of a step of k; strict weights take two each."""
    return 8 * empty.warp_tiles * (2 if empty.kind.strict else 1)


def row_registers(config: KernelConfig) -> int:
    """Estimate the registers of a thread for whole rows: of weights, and of the rest of a step."""
    kind = config.kind
    staged, sums = kind.unit_values * kind.padded // 4, 1 if kind.backward else kind.gates
    return sums * -(-staged // config.parts) * 4 + 28 + 16 * kind.gates


def free_registers(empty: KernelConfig) -> int:
    """Return the registers of a thread left for weights; negative if sums take too many.

    Blocks that exchange shares of eight rows without teams need fewer for the rest. Many rows have
    more sums, words in flight and words of the ring than `_OTHER_REGISTERS` are for: by what the
    compiler says of 40 kernels, it takes 12 for each word of the ring but the first; the places of
    more than three are computed again in each step (`KernelConfig.finds_places`).
    """
    available = min(255, 65536 // empty.threads)
    sums = empty.warp_tiles * empty.rows // 2
    if empty.team > 1:
        others = _TEAM_REGISTERS - (_PLACE_REGISTERS if empty.finds_places else 0)
        return available - others - sums - empty.thread_cells * (2 * empty.kind.saved + 4)
    free = available - _OTHER_REGISTERS
    if empty.scatter:
        return free + (32 if empty.rows == 8 else 0)
    if empty.rows <= 16 and empty.chunks == 1:
        return free
    in_flight = MAX_LOADS if empty.staged else 2 * MAX_LOADS
    if empty.chunks > 1:
        in_flight = min(empty.chunks, max(1, MAX_LOADS // empty.chunk_loads)) * empty.chunk_loads
    more_words = 4 * (in_flight - MAX_LOADS)
    places = min(2, empty.thread_ring_words - 1)
    return free - max(0, sums - 16) - more_words - 12 * places
