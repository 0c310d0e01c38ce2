"""Estimates of the time of a step, fitted to measurements on an H200 and an H100.

No records of these measurements were kept. Estimates only decide what the tuner measures.
"""

from __future__ import annotations

from dnnffi.backends.own.recurrent.divisions import free_registers, step_registers
from dnnffi.backends.own.recurrent.geometry import WORD_BYTES, Chip, Geometry, Kind
from dnnffi.spec.checks import ITEM_SIZES


def shape_step(kind: Kind, units: int, rows: int, batch: int, directions: int, chip: Chip) -> float:
    """About how many microseconds a step takes, with ``units`` a block and ``rows`` a group.

    By the fit for an H200 an exchange takes 0.66, 1000 words that a block gathers 0.28, a million
    products 1.52 (in TF32 twice that, strict six times), and 100 KB of weights that do not fit on
    the chip 1.51.
    """
    blocks = -(-kind.padded // units)
    groups = -(-batch // rows) * directions
    waves = -(-groups * blocks // chip.multiprocessors)
    weights = units * kind.octet_gates * kind.exchanged * kind.word
    size = ITEM_SIZES[kind.factors]
    gathering = 0.28e-3 * kind.exchanged * rows
    products = 1.52e-6 * weights * rows * (size // 2) * (3 if kind.strict else 1)
    streaming = 1.51e-5 * max(0, weights * size - 260_000)
    return waves * (0.66 + gathering + products + streaming)


def far_step(geometry: Geometry) -> float:
    """Return what to add to `shape_step` if weights come from device memory (fit for an H100)."""
    return 1e-5 * geometry.subtiles * geometry.streamed_bytes if geometry.far else 0


def scattered_step(geometry: Geometry) -> float:
    """About how many microseconds a step takes whose blocks exchange shares, fitted for an H200."""
    gathered = geometry.k_words * geometry.rows
    kept = geometry.k_registers * step_registers(geometry)
    spilled = max(0, kept - free_registers(geometry))
    exchanges = 0.77 + 0.63e-3 * geometry.teams * geometry.share_words
    if geometry.team > 1:
        exchanges += 0.31 + 0.76e-3 * gathered
    words = _weight_words(geometry) + geometry.tile_warps * gathered
    products = 0.31e-3 * _cycles(geometry, words)
    streaming = (5e-5 if geometry.far else 2.55e-5) * geometry.streamed_bytes
    cells = 0.42 * geometry.thread_cells
    return exchanges + products + streaming + cells + 3e-4 * spilled * geometry.threads


def gathered_step(geometry: Geometry) -> float:
    """The same of a step of a large layer whose blocks gather words, fitted for an H100."""
    words = gathered_words(geometry)
    exchange = 1.08 + 0.22e-3 * words + 0.025 * words / geometry.threads
    products = 0.36e-3 * _cycles(geometry, shared_words(geometry)) + 0.078 * (geometry.chunks - 1)
    streaming = (3e-5 if geometry.far else 1.13e-5) * geometry.streamed_bytes
    cells = 0.15 * geometry.thread_cells
    spilled = 3e-4 * max(0, -free_registers(geometry)) * geometry.threads
    return geometry.subtiles * (exchange + products + streaming + cells) + spilled


def gathered_words(geometry: Geometry) -> int:
    """Words of h, and of shares, that a block reads from L2 in a step of a sub-tile."""
    of_h = geometry.k_words * geometry.rows * (1 if geometry.staged else geometry.tile_warps)
    return of_h + geometry.scatter * geometry.teams * geometry.share_words


def shared_words(geometry: Geometry) -> int:
    """Words that it moves in shared memory: weights, words of h, partial sums."""
    partial_sums = 8 * geometry.k_warps * geometry.tiles * geometry.rows
    of_h = geometry.staged * (geometry.tile_warps + 1) * geometry.k_words * geometry.rows
    return _weight_words(geometry) + of_h + partial_sums


def _weight_words(geometry: Geometry) -> int:
    return geometry.k_shared * geometry.shared_step_bytes // WORD_BYTES


def _cycles(geometry: Geometry, words: int) -> float:
    """What products take: those of the tensor cores, or moving ``words`` in shared memory."""
    fragments = geometry.tile_warps * geometry.k_warps * geometry.warp_tiles * geometry.warp_k
    products = 3 if geometry.kind.strict else 1
    return max(3.2 * fragments * geometry.rows / 8 * products, words / 8)
