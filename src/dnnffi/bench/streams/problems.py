"""Streams of sequences, as data: networks, ranges of lengths, and the epochs drawn from them.

Symbols: T steps of a batch (those of its longest row), B rows of a full batch, I input size,
H hidden size, L layers.

Lengths
    Equal rows: T is uniform between the shortest and the longest; the warm-up epoch draws it from
    one half of these numbers, the later epoch from the other half, and a seed picks the halves.
    Ragged rows: each length is log-normal around (shortest + longest) / 2.6 with deviation 0.5,
    clipped to the range. A batch of the later epoch that the warm-up epoch has is drawn again.

Seeds
    `EPOCH_SEEDS` draw the lengths of every stream, seed 0 the numbers in its arrays, and
    `RANDOM_SEED` the set ``random`` unless another seed is named.

The set ``random``: 20 streams
    mode: 9 LSTM, 7 GRU, 2 tanh, 2 ReLU. dtype: 9 float16, 8 float32, 3 bfloat16.
    B from 1 to 128, I from 8 to 1024, H from 32 to 1024, log-uniform; in half of the streams I and
    H are multiples of 16. L: 12 times 1, 6 times 2, 2 times 3.
    Longest row from 30 to 300 steps, log-uniform; shortest row from 1 step to a quarter of it.
    13 ragged, 7 equal; a stream with one row counts as equal.
    13 in training, 7 in inference.
    A stream with more than 600 steps of all layers in its longest row, or with more than 2e11
    multiply-adds in the forward pass of its largest batch, is drawn again with other sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from dnnffi.bench.drawing import Drawing, Draws
from dnnffi.bench.model import Problem
from dnnffi.bench.shapes import SHORT
from dnnffi.device.interface import NDArray
from dnnffi.spec.names import DType, Mode
from dnnffi.spec.rnn import RNNSpec

NAMING = (
    "mode, dtype, shortest-longest row, rows, input size, hidden size, layers, dropout between "
    "layers, rows ragged or equal, training or inference"
)
"""The parts of `Stream.name`, for readers of a table."""

NUM_BATCHES = 80
"""Batches of an epoch."""

EPOCH_SEEDS = (1, 2)
"""Seeds of the lengths of the warm-up epoch and of the later epoch."""

RANDOM_SEED = 38
"""Seed of the set ``random`` unless another is named."""

MAX_LAYER_STEPS = 600
"""Upper bound for drawn streams on the longest row's steps, summed over the layers."""

MAX_MACS = 2e11
"""Upper bound for drawn streams on multiply-adds in the forward pass of the largest batch."""

_MAX_REDRAWS = 1000


class Batch(NamedTuple):
    """One batch: the steps of each row, and the seed of its resets in a stream that has them."""

    lengths: tuple[int, ...]
    seed: tuple[int, ...] = ()

    @property
    def steps(self) -> int:
        """T, the steps of the longest row."""
        return max(self.lengths)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.lengths)

    def resets(self, rate: float) -> NDArray:
        """Return flags [T, B], each true with the probability ``rate``."""
        flags: NDArray = np.random.default_rng(self.seed).random((self.steps, self.rows)) < rate
        return flags


class Epochs(NamedTuple):
    """The batches of the warm-up epoch and of the later epoch, which have no batch in common."""

    warm_up: tuple[Batch, ...]
    later: tuple[Batch, ...]

    @property
    def is_repeated(self) -> bool:
        """Whether a turn runs its epoch once more: no, lengths of rows rarely recur."""
        return False

    def of_turn(self, turn: int) -> tuple[Batch, ...]:
        """Return the later epoch of a turn, which is the same in each."""
        return self.later

    @property
    def mean_steps(self) -> int:
        """Mean T of the later epoch, rounded."""
        return round(sum(batch.steps for batch in self.later) / len(self.later))

    @property
    def filled(self) -> float:
        """Steps of the rows of the later epoch, divided by the steps of the padded batches."""
        padded = sum(batch.steps * batch.rows for batch in self.later)
        return sum(sum(batch.lengths) for batch in self.later) / padded


class StreamData(NamedTuple):
    """Host arrays that batches are copied from, the weights, and the epochs."""

    x: NDArray  # [longest, B, I]
    dy: NDArray  # [longest, B, H]
    weights: list[NDArray]  # in PyTorch's order
    epochs: Epochs


@dataclass(frozen=True)
class Stream(Problem):
    """A network and the range of its batches.

    shortest, longest : range of the lengths of rows, in steps
    batch : rows of a full batch
    ragged : whether the rows of a batch differ in length
    training : forward pass with all gradients, else inference
    dropout : probability of dropping an output between layers in training
    num_batches : batches of an epoch
    """

    mode: Mode
    dtype: DType
    shortest: int
    longest: int
    batch: int
    input_size: int
    hidden_size: int
    layers: int = 1
    ragged: bool = True
    training: bool = True
    dropout: float = 0.0
    num_batches: int = field(default=NUM_BATCHES, compare=False)

    directions = 1

    @property
    def name(self) -> str:
        """The parts that `NAMING` lists."""
        return (
            f"{self.mode} {SHORT[self.dtype]} {self.shortest}-{self.longest} {self.batch} "
            f"{self.input_size} {self.hidden_size} {self.layers} {self.dropout:g} "
            f"{'ragged' if self.ragged else 'equal'} {self.phase}"
        )

    @property
    def phase(self) -> str:
        """The word for what is measured: training or inference."""
        return "training" if self.training else "inference"

    @property
    def lengths(self) -> bool:
        """Whether rows differ in length, for `dnnffi.bench.creator.Limits`."""
        return self.ragged

    @property
    def spec(self) -> RNNSpec:
        """The network."""
        return RNNSpec(
            mode=self.mode,
            input_size=self.input_size,
            hidden_size=self.hidden_size,
            num_layers=self.layers,
            dtype=self.dtype,
        )

    def measured(self, num_batches: int, num_turns: int) -> Stream:
        """Return the stream with epochs of another length; each turn has the same later one."""
        return replace(self, num_batches=num_batches)

    def as_json(self) -> dict[str, Any]:
        """Return the fields and the mean figures of the epochs, for the record of a run."""
        epochs = self.epochs()
        drawn = {"mean_steps": epochs.mean_steps, "filled": round(epochs.filled, 3)}
        return {"name": self.name, **vars(self), **drawn, "epoch_seeds": EPOCH_SEEDS}

    def epochs(self) -> Epochs:
        """Draw the lengths of both epochs. Raises ValueError if the range is too small for two."""
        halves: list[list[int]] = [[], []]
        if not self.ragged:
            steps = Draws(EPOCH_SEEDS[0]).shuffled(list(range(self.shortest, self.longest + 1)))
            halves = [steps[::2], steps[1::2]]
        found: list[tuple[Batch, ...]] = []
        for seed, half in zip(EPOCH_SEEDS, halves, strict=True):
            seen = frozenset(found[0]) if found else frozenset()
            found.append(tuple(self._batches(Draws(seed), half, seen)))
        return Epochs(*found)

    def _batches(self, draws: Draws, half: list[int], seen: frozenset[Batch]) -> Iterator[Batch]:
        """Yield the batches of an epoch, none of which is in ``seen``.

        ``half`` are the possible numbers of steps if rows are equal.
        """
        for rows in self._rows():
            for _ in range(_MAX_REDRAWS):
                batch = self._batch(draws, half, rows)
                if batch not in seen:
                    break
            else:
                raise ValueError(f"{self.name}: the range of lengths is too small for two epochs")
            yield batch

    def _rows(self) -> list[int]:
        """Return the number of rows of each batch of an epoch."""
        last = min(self.batch, self.batch // 2 + 1)
        return [self.batch] * (self.num_batches - 1) + [last]

    def _batch(self, draws: Draws, half: list[int], rows: int) -> Batch:
        if not self.ragged:
            if not half:
                raise ValueError(f"{self.name}: the range of lengths is too small for two epochs")
            return Batch((half[draws.integer(0, len(half) - 1)],) * rows)
        median = (self.shortest + self.longest) / 2.6
        drawn = (int(draws.log_normal(median, 0.5)) for _ in range(rows))
        return Batch(tuple(min(max(steps, self.shortest), self.longest) for steps in drawn))

    def draw(self, seed: int = 0) -> StreamData:
        """Draw normal inputs and gradients, and weights that are uniform within 1/sqrt(H)."""
        spec, drawing = self.spec, Drawing(self.dtype, seed)
        bound = 1 / sqrt(spec.hidden_size)
        return StreamData(
            drawing.normal(spec.x_shape(self.longest, self.batch)),
            drawing.normal(spec.y_shape(self.longest, self.batch)),
            [drawing.uniform(parameter.shape, bound) for parameter in spec.parameter_shapes()],
            self.epochs(),
        )


EVERYDAY = (
    Stream("lstm", "float16", 10, 150, 32, 512, 512, layers=2),
    Stream("lstm", "float16", 10, 150, 32, 512, 512, layers=2, dropout=0.2),
    Stream("lstm", "float16", 10, 150, 32, 512, 512, layers=2, ragged=False),
    Stream("gru", "float32", 5, 60, 64, 128, 256),
    Stream("lstm", "float16", 20, 200, 16, 512, 1024, training=False),
    Stream("lstm", "float32", 5, 100, 1, 256, 256, ragged=False, training=False),
)
"""Common networks and lengths; the second stream is the first one with dropout."""

TINY = (
    Stream("lstm", "float32", 2, 12, 4, 3, 5, layers=2),
    Stream("lstm", "float32", 2, 12, 4, 3, 5, layers=2, dropout=0.2),
    Stream("gru", "float32", 2, 12, 3, 4, 6, ragged=False),
    Stream("lstm", "float32", 2, 12, 1, 4, 6, ragged=False, training=False),
    Stream("rnn_tanh", "float32", 2, 12, 5, 4, 6, training=False),
)
"""Small streams for a CPU and for the tests."""


def draw_streams(seed: int = RANDOM_SEED) -> tuple[Stream, ...]:
    """Draw the set ``random`` from the ranges in the module's docstring."""
    draws = Draws(seed)
    decks = zip(
        draws.deck(("lstm", 9), ("gru", 7), ("rnn_tanh", 2), ("rnn_relu", 2)),
        draws.deck(("float16", 9), ("float32", 8), ("bfloat16", 3)),
        draws.deck((1, 12), (2, 6), (3, 2)),
        draws.deck((16, 10), (1, 10)),
        draws.deck((True, 13), (False, 7)),
        draws.deck((True, 13), (False, 7)),
        strict=True,
    )
    found = []
    for mode, dtype, layers, multiple, ragged, training in decks:
        while True:
            longest = draws.size(30, 300)
            shortest, batch = draws.integer(1, longest // 4), draws.size(1, 128)
            stream = Stream(
                *(mode, dtype, shortest, longest, batch),
                *(draws.size(8, 1024, multiple), draws.size(32, 1024, multiple), layers),
                ragged=ragged and batch > 1,
                training=training,
            )
            if layers * longest <= MAX_LAYER_STEPS and _macs(stream) <= MAX_MACS:
                break
        found.append(stream)
    return tuple(found)


def _macs(stream: Stream) -> float:
    """Return the multiply-adds in the forward pass of the largest batch."""
    weights = sum(prod(parameter.shape) for parameter in stream.spec.parameter_shapes())
    return float(weights * stream.longest * stream.batch)


SETS: dict[str, tuple[Stream, ...]] = {
    "everyday": EVERYDAY,
    "random": draw_streams(),
    "tiny": TINY,
}
