"""Time of lengths in device memory, and of plans for the largest batch, and of what they replace.

    python benchmarks/device_lengths.py [--rounds 7] [--seconds 0.01] [--json FILE]

Calls: the functions with lengths as a list on the host, and with the same lengths as an array in
device memory. Either all rows are full, or lengths are drawn from 1 to T, so that half is padding.
Plans: `RNNPlan` of T or of T // 2 steps, and one for all batches up to B rows of T steps, in which
each row has that length; both as captured graphs.

Both are measured in turns. Times are milliseconds of a call in a loop on the same CuPy arrays,
medians over the turns.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import dnnffi
from dnnffi import files
from dnnffi.bench.array_models import array_package, inputs_of
from dnnffi.bench.clocks import Clock, CupyClock
from dnnffi.bench.runner import PHASES
from dnnffi.bench.shapes import Shape
from dnnffi.cli.machine import machine

SHAPES = (
    Shape("lstm", "float16", 100, 64, 512, 512),
    Shape("lstm", "float32", 100, 64, 256, 256),
    Shape("gru", "float16", 128, 256, 128, 128),
    Shape("gru", "float32", 64, 16, 1024, 1024),
)

WARM_UP_CALLS = 30
SEED = 41

Step = Callable[[], object]


class Pair(NamedTuple):
    """Two ways to run the same batch.

    entry : "call" or "plan"
    rows : what the lengths are
    known : with lengths on the host, or of exactly these steps
    on_device : with lengths in device memory
    """

    entry: str
    rows: str
    known: Step
    on_device: Step


def with_lengths(shape: Shape, training: bool, lengths: Any) -> Step:
    """Return a call of `dnnffi.lstm` or its like, and of its backward pass in training."""
    data = shape.draw()
    function = getattr(dnnffi, f"{shape.mode}_forward" if training else shape.mode)
    inputs, dy = inputs_of(shape, data, "gpu"), array_package("gpu").asarray(data.dy)

    def step() -> object:
        results = function(*inputs, lengths=lengths, options={"tune": "now"})
        return results[2].backward(dy) if training else results

    return step


def captured(shape: Shape, training: bool, lengths: Any = None) -> Step:
    """Return the launch of a plan of exactly this shape, or for lengths up to its T."""
    data = shape.draw()
    inputs, dy = inputs_of(shape, data, "gpu"), array_package("gpu").asarray(data.dy)
    prefix = "" if lengths is None else "max_"
    sizes: Any = {f"{prefix}batch": shape.batch, f"{prefix}steps": shape.steps}
    plan = dnnffi.RNNPlan(shape.spec, **sizes, training=training, backend="cudnn")
    plan.autotune()

    def step() -> object:
        results = plan.forward(*inputs, lengths=lengths)
        return plan.backward(dy) if training else results

    return plan.capture(step).launch  # type: ignore[no-any-return]


def pairs(shape: Shape, training: bool) -> Iterator[Pair]:
    """Yield what is compared on a shape."""
    drawn = random.Random(SEED)
    full = [shape.steps] * shape.batch
    ragged = [drawn.randint(1, shape.steps) for _ in full]

    def on_device(lengths: list[int]) -> Any:
        return array_package("gpu").asarray(lengths, "int32")

    for words, lengths in (("full", full), ("half padding", ragged)):
        both = (with_lengths(shape, training, one) for one in (lengths, on_device(lengths)))
        yield Pair("call", words, *both)
    for words, steps in (("full", shape.steps), ("half as long", shape.steps // 2)):
        exact = captured(replace(shape, steps=steps), training)
        largest = captured(shape, training, on_device([steps] * shape.batch))
        yield Pair("plan", words, exact, largest)


def times(clock: Clock, steps: tuple[Step, ...], rounds: int, seconds: float) -> list[float]:
    """Return milliseconds of each step; they take turns."""
    counts = []
    for step in steps:
        for _ in range(WARM_UP_CALLS):
            step()
        counts.append(max(1, ceil(seconds * 1e3 / clock.time(step, 3)[0])))
    turns = [
        [clock.time(step, count)[0] for step, count in zip(steps, counts, strict=True)]
        for _ in range(rounds)
    ]
    return [median(one) for one in zip(*turns, strict=True)]


def rows(shape: Shape, clock: Clock, rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield what is measured on a shape, inference before training."""
    for phase in PHASES:
        for pair in pairs(shape, phase == "training"):
            known, on_device = times(clock, (pair.known, pair.on_device), rounds, seconds)
            yield {
                "shape": shape.name,
                "phase": phase,
                "entry": pair.entry,
                "rows": pair.rows,
                "known_ms": known,
                "device_ms": on_device,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each of a pair")
    parser.add_argument("--seconds", type=float, default=0.01, help="length of a turn")
    parser.add_argument("--json", type=Path, help="write the record there")
    options = parser.parse_args()
    found = []
    for shape in SHAPES:
        for row in rows(shape, CupyClock(), options.rounds, options.seconds):
            found.append(row)
            print(row, f"{row['device_ms'] / row['known_ms']:.3f}", flush=True)
    if options.json:
        files.write_json(options.json, {"machine": machine("gpu", ()), "rows": found})


if __name__ == "__main__":
    main()
