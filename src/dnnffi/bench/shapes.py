"""The recurrent networks that are measured, as data.

Symbols: T time steps, B batch, I input size, H hidden size, L layers, D directions.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod, sqrt
from typing import NamedTuple, TypeVar

from dnnffi.bench.drawing import Drawing, Draws
from dnnffi.bench.model import Problem
from dnnffi.device.interface import NDArray
from dnnffi.spec.names import DType, Mode
from dnnffi.spec.rnn import RNNSpec

NAMING = (
    "mode, dtype, steps (shortest-longest where rows differ), batch, input size, hidden size, "
    "layers, uni- or bidirectional"
)
"""The parts of `Shape.name`, for readers of a table."""

SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}


class Data(NamedTuple):
    """Host arrays of one problem, which all its models share."""

    x: NDArray  # [T, B, I]
    h_0: NDArray  # [L*D, B, H]
    c_0: NDArray | None  # [L*D, B, H]
    weights: list[NDArray]  # in PyTorch's order
    dy: NDArray  # [T, B, H*D]


@dataclass(frozen=True)
class Shape(Problem):
    """One problem: a network and the size of its batch.

    lengths : steps of each row, or None if all rows have T steps
    training : whether training is measured besides inference
    """

    mode: Mode
    dtype: DType
    steps: int
    batch: int
    input_size: int
    hidden_size: int
    layers: int = 1
    directions: int = 1
    lengths: tuple[int, ...] | None = None
    training: bool = field(default=True, compare=False)

    @property
    def name(self) -> str:
        """The parts that `NAMING` lists."""
        steps = f"{min(self.lengths)}-{max(self.lengths)}" if self.lengths else self.steps
        direction = "bi" if self.directions == 2 else "uni"
        return (
            f"{self.mode} {SHORT[self.dtype]} {steps} {self.batch} {self.input_size} "
            f"{self.hidden_size} {self.layers} {direction}"
        )

    @property
    def spec(self) -> RNNSpec:
        """The network."""
        return RNNSpec(
            mode=self.mode,
            input_size=self.input_size,
            hidden_size=self.hidden_size,
            num_layers=self.layers,
            bidirectional=self.directions == 2,
            dtype=self.dtype,
        )

    def draw(self, seed: int = 0) -> Data:
        """Draw normal inputs, and weights that are uniform within 1/sqrt(H)."""
        spec, drawing = self.spec, Drawing(self.dtype, seed)
        bound = 1 / sqrt(spec.hidden_size)
        return Data(
            drawing.normal(spec.x_shape(self.steps, self.batch)),
            drawing.normal(spec.h_shape(self.batch)),
            drawing.normal(spec.c_shape(self.batch)) if spec.has_cell else None,
            [drawing.uniform(parameter.shape, bound) for parameter in spec.parameter_shapes()],
            drawing.normal(spec.y_shape(self.steps, self.batch)),
        )


def _varying(dtype: DType, least: int, end: int, batch: int, size: int, hidden: int) -> Shape:
    """Return an LSTM on rows of random lengths, in random order; T is the longest one."""
    drawn = random.Random(0)
    lengths = tuple(drawn.randrange(least, end) for _ in range(batch))
    return Shape("lstm", dtype, max(lengths), batch, size, hidden, lengths=lengths)


# PyTorch's fastrnns draws the lengths of its 64 rows from 30 to 99.
VARYING = _varying("float32", 30, 100, 64, 512, 512)

# The networks that have aims in docs/benchmarks.md, and one with rows of different length.
PERFORMANCE = (
    Shape("lstm", "float32", 100, 64, 512, 512),
    Shape("lstm", "float16", 100, 64, 512, 512),
    Shape("lstm", "float16", 100, 64, 512, 512, layers=4),
    Shape("lstm", "float16", 100, 64, 512, 512, layers=2, directions=2),
    Shape("gru", "float32", 100, 64, 512, 512),
    Shape("rnn_tanh", "float32", 100, 64, 512, 512),
    Shape("rnn_tanh", "float16", 50, 16, 1760, 1760),
    Shape("rnn_tanh", "float16", 50, 64, 2560, 2560),
    Shape("lstm", "float16", 25, 16, 512, 512),
    Shape("lstm", "float16", 25, 64, 1024, 1024),
    Shape("lstm", "float16", 25, 32, 2048, 2048),
    Shape("lstm", "float16", 25, 16, 4096, 4096),
    Shape("lstm", "float16", 50, 8, 1536, 1536),
    Shape("lstm", "float16", 150, 64, 256, 256),
    Shape("gru", "float16", 187, 32, 2816, 2816),
    Shape("gru", "float16", 375, 32, 1536, 1536),
    Shape("gru", "float16", 1, 32, 512, 512),
    Shape("lstm", "float16", 50, 1, 1536, 1536),
    Shape("lstm", "float32", 20, 1, 128, 128),
    Shape("lstm", "float32", 256, 16, 64, 64),
    Shape("gru", "float32", 100, 32, 256, 256, layers=2, directions=2),
    Shape("lstm", "float16", 500, 8, 256, 256, layers=2, directions=2),
    VARYING,
)

# The default sizes of fastrnns, with one layer and with several.
FASTRNNS = (
    Shape("lstm", "float32", 100, 64, 512, 512),
    Shape("lstm", "float32", 100, 64, 512, 512, layers=4),
    VARYING,
)

# DeepBench's recurrent problems (H, B, T), I = H: code/kernels/rnn_problems.h of
# https://github.com/baidu-research/DeepBench. Its vanilla RNN has ReLU (code/nvidia/
# cudnn_helper.h). GRU 2816 32 1500 is commented out there and included here; on a small device it
# fails with "out of memory".
_VANILLA_TRAINING = [(h, b, 50) for h in (1760, 2048, 2560) for b in (16, 32, 64, 128)]
_LSTM_TRAINING = [
    *((h, b, 25) for h in (512, 1024, 2048, 4096) for b in (16, 32, 64, 128)),
    *((1536, b, 50) for b in (8, 16, 32)),
    *((256, b, 150) for b in (16, 32, 64)),
]
_GRU_SIZES, _GRU_STEPS = (2816, 2048, 1536, 2560), (1500, 750, 375, 187)
_GRU_TRAINING = [
    *((h, 32, t) for h in _GRU_SIZES for t in _GRU_STEPS),
    *((512, 32, 1), (1024, 32, 1500), (1024, 64, 1500)),
]
_VANILLA_INFERENCE = [(32, 1, 672), (64, 1, 96)]  # of the device set; its LSTM is below
_LSTM_INFERENCE = [
    *((h, b, 25) for h in (512, 1024, 2048) for b in (1, 2, 4)),
    *((1536, b, 50) for b in (1, 2, 4)),
    *((256, b, 150) for b in (1, 2, 4)),
]
_GRU_INFERENCE = [
    *((h, b, t) for h in _GRU_SIZES for b in (1, 2, 4) for t in _GRU_STEPS),
    *((512, b, 1) for b in (1, 2, 4)),
    *((1024, b, 1500) for b in (1, 2, 4)),
]


def _deepbench(mode: Mode, problems: Iterable[tuple[int, int, int]], training: bool) -> list[Shape]:
    return [Shape(mode, "float16", t, b, h, h, training=training) for h, b, t in problems]


DEEPBENCH = (
    *_deepbench("rnn_relu", _VANILLA_TRAINING, True),
    *_deepbench("lstm", _LSTM_TRAINING, True),
    *_deepbench("gru", _GRU_TRAINING, True),
    *_deepbench("rnn_relu", _VANILLA_INFERENCE, False),
    *_deepbench("lstm", _LSTM_INFERENCE, False),
    *_deepbench("gru", _GRU_INFERENCE, False),
)

# Further shapes with aims in docs/own_engine.md: one row of many steps, layers in both directions,
# and weights that do not fit on the chip.
OWN = (
    Shape("gru", "float16", 100, 64, 512, 512),
    Shape("lstm", "float16", 1000, 1, 128, 128),
    Shape("lstm", "float16", 1000, 1, 256, 256),
    Shape("lstm", "float32", 1000, 1, 128, 128),
    Shape("lstm", "float32", 1000, 1, 256, 256),
    Shape("lstm", "float16", 200, 32, 512, 512, layers=4, directions=2),
    Shape("lstm", "float16", 50, 8, 1024, 1024),
    Shape("lstm", "float16", 50, 64, 1536, 1536),
    Shape("gru", "float16", 50, 16, 2048, 2048),
    Shape("lstm", "float16", 25, 64, 2816, 2816),
)

SEED = 14
"""Seed of the set ``random`` unless another is named."""

_MAX_STEPS = 600  # upper bound on the steps, summed over layers and directions
_MAX_WORK = 2e11  # upper bound on the operations of a forward pass: some milliseconds on a GPU


def draw_shapes(seed: int = SEED) -> tuple[Shape, ...]:
    """Draw 20 networks of all modes, dtypes, numbers of layers and directions.

    T is from 10 to 300, B from 1 to 128, I from 8 to 1024 and H from 32 to 2048, log-uniform. In
    half of the networks I and H are multiples of 16. Networks that are too large are drawn again. A
    seed gives the same networks on every machine.
    """
    draws = Draws(seed)
    deck, size = draws.deck, draws.size
    decks = zip(
        deck(("lstm", 8), ("gru", 6), ("rnn_tanh", 3), ("rnn_relu", 3)),
        deck(("float16", 8), ("bfloat16", 5), ("float32", 7)),
        deck((1, 12), (2, 5), (3, 3)),
        deck((1, 14), (2, 6)),
        deck((16, 10), (1, 10)),
        strict=True,
    )
    found = []
    for mode, dtype, layers, directions, multiple in decks:
        while True:
            shape = Shape(
                *(mode, dtype, size(10, 300), size(1, 128)),
                *(size(8, 1024, multiple), size(32, 2048, multiple), layers, directions),
            )
            weights = sum(prod(parameter.shape) for parameter in shape.spec.parameter_shapes())
            serial = shape.steps * layers * directions
            if serial <= _MAX_STEPS and 2 * weights * shape.steps * shape.batch <= _MAX_WORK:
                break
        found.append(shape)
    return tuple(found)


# Small networks for a CPU and for the tests.
TINY = (
    Shape("lstm", "float32", 5, 3, 4, 6),
    Shape("lstm", "float32", 5, 3, 4, 6, layers=2),
    Shape("gru", "float32", 5, 3, 4, 6, layers=2, directions=2),
    Shape("rnn_tanh", "float32", 5, 3, 4, 6),
    _varying("float32", 2, 8, 4, 4, 6),
)

# A shape in several sets is measured as in the first of them.
SETS: dict[str, tuple[Shape, ...]] = {
    "performance": PERFORMANCE,
    "fastrnns": FASTRNNS,
    "deepbench": DEEPBENCH,
    "own": OWN,
    "random": draw_shapes(),
    "tiny": TINY,
}


Named = TypeVar("Named")


def shapes_of(
    asked: Iterable[str], sets: Mapping[str, tuple[Named, ...]]
) -> dict[Named, tuple[str, ...]]:
    """Return each shape of the ``asked`` sets, with the names of the asked sets that have it."""
    found: dict[Named, tuple[str, ...]] = {}
    asked = set(asked)
    for name in [name for name in sets if name in asked]:
        for shape in sets[name]:
            found[shape] = (*found.get(shape, ()), name)
    return found
