"""Estimates of the time of a step, fitted to measurements on an H200 and an H100.

No records of these measurements were kept. Estimates only decide what the tuner measures.
"""

from __future__ import annotations

from dnnffi.backends.own.recurrent.config import WORD_BYTES, Chip, KernelConfig, Kind
from dnnffi.backends.own.recurrent.divisions import free_registers, step_registers
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


def far_step(config: KernelConfig) -> float:
    """Return what to add to `shape_step` if weights come from device memory (fit for an H100)."""
    return 1e-5 * config.subtiles * config.streamed_bytes if config.far else 0


def scattered_step(config: KernelConfig) -> float:
    """About how many microseconds a step takes whose blocks exchange shares, fitted for an H200."""
    gathered = config.k_words * config.rows
    kept = config.k_registers * step_registers(config)
    spilled = max(0, kept - free_registers(config))
    exchanges = 0.77 + 0.63e-3 * config.teams * config.share_words
    if config.team > 1:
        exchanges += 0.31 + 0.76e-3 * gathered
    words = _weight_words(config) + config.tile_warps * gathered
    products = 0.31e-3 * _cycles(config, words)
    streaming = (5e-5 if config.far else 2.55e-5) * config.streamed_bytes
    cells = 0.42 * config.thread_cells
    return exchanges + products + streaming + cells + 3e-4 * spilled * config.threads


def gathered_step(config: KernelConfig) -> float:
    """The same of a step of a large layer whose blocks gather words, fitted for an H100."""
    words = gathered_words(config)
    exchange = 1.08 + 0.22e-3 * words + 0.025 * words / config.threads
    products = 0.36e-3 * _cycles(config, shared_words(config)) + 0.078 * (config.chunks - 1)
    streaming = (3e-5 if config.far else 1.13e-5) * config.streamed_bytes
    cells = 0.15 * config.thread_cells
    spilled = 3e-4 * max(0, -free_registers(config)) * config.threads
    return config.subtiles * (exchange + products + streaming + cells) + spilled


def gathered_words(config: KernelConfig) -> int:
    """Words of h, and of shares, that a block reads from L2 in a step of a sub-tile."""
    of_h = config.k_words * config.rows * (1 if config.staged else config.tile_warps)
    return of_h + config.scatter * config.teams * config.share_words


def shared_words(config: KernelConfig) -> int:
    """Words that it moves in shared memory: weights, words of h, partial sums."""
    partial_sums = 8 * config.k_warps * config.tiles * config.rows
    of_h = config.staged * (config.tile_warps + 1) * config.k_words * config.rows
    return _weight_words(config) + of_h + partial_sums


def _weight_words(config: KernelConfig) -> int:
    return config.k_shared * config.shared_step_bytes // WORD_BYTES


def _cycles(config: KernelConfig, words: int) -> float:
    """What products take: those of the tensor cores, or moving ``words`` in shared memory."""
    fragments = config.tile_warps * config.k_warps * config.warp_tiles * config.warp_k
    products = 3 if config.kind.strict else 1
    return max(3.2 * fragments * config.rows / 8 * products, words / 8)
