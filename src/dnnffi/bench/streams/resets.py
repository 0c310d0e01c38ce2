"""Streams of sequences whose states are reset between steps, as in reinforcement learning.

T is the same in all batches, as in the rollouts of a simulation. What changes with each batch are
its arrays and the steps at which the states of a row are reset. A model that resets nothing runs on
the same batches, so that the ratio of two times is the cost of the resets.

Seeds
    The flags of a batch are drawn from the seed of its epoch (`EPOCH_SEEDS`) and its number in it.
    All models of a rate have the same flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dnnffi.bench.shapes import SHORT
from dnnffi.bench.streams.problems import EPOCH_SEEDS, Batch, Epochs, Stream
from dnnffi.spec.names import DType, Mode

NAMING = "mode, dtype, steps, rows, input size, hidden size, training or inference"
"""The parts of `ResetStream.name`, for readers of a table."""

RESET_RATES = (0.01, 0.1)
"""Shares of the steps at which the state of a row is reset."""


@dataclass(frozen=True)
class ResetStream(Stream):
    """A stream with one layer and the same T in each batch, whose models may reset states."""

    ragged: bool = False

    is_compared = True

    @property
    def name(self) -> str:
        """The parts that `NAMING` lists."""
        return (
            f"{self.mode} {SHORT[self.dtype]} {self.longest} {self.batch} {self.input_size} "
            f"{self.hidden_size} {self.phase}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the fields and the rates of resets, for the record of a run."""
        return {**super().as_json(), "reset_rates": RESET_RATES}

    def epochs(self) -> Epochs:
        """Return both epochs; each batch has another seed."""
        warm_up, later = (
            tuple(
                Batch((self.longest,) * rows, (seed, number))
                for number, rows in enumerate(self._rows())
            )
            for seed in EPOCH_SEEDS
        )
        return Epochs(warm_up, later)


def _both_phases(
    mode: Mode, dtype: DType, steps: int, batch: int, size: int
) -> tuple[ResetStream, ...]:
    """Return a network in inference and in training; ``size`` is I and H."""
    return tuple(
        ResetStream(mode, dtype, steps, steps, batch, size, size, training=training)
        for training in (False, True)
    )


_NETWORKS: tuple[tuple[Mode, int, int, int], ...] = (
    ("gru", 128, 256, 128),
    ("lstm", 128, 256, 256),
    ("lstm", 80, 32, 512),
    ("gru", 64, 16, 1024),
)
"""Mode, T, B, and the size of input and hidden state."""

_DTYPES: tuple[DType, ...] = ("float16", "float32")

EPISODES = tuple(
    stream
    for mode, steps, batch, size in _NETWORKS
    for dtype in _DTYPES
    for stream in _both_phases(mode, dtype, steps, batch, size)
)
"""Networks of recurrent policies, from many small environments to few large ones."""

TINY = (*_both_phases("gru", "float32", 9, 4, 5), *_both_phases("lstm", "float32", 7, 3, 6))
"""Small streams for a CPU and for the tests."""

SETS: dict[str, tuple[ResetStream, ...]] = {"episodes": EPISODES, "tiny": TINY}
