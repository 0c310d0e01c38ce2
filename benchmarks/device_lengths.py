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

from dnnffi import files
from dnnffi.bench.array_models import array_package, functional, plan_captured
from dnnffi.bench.clocks import Clock, CupyClock
from dnnffi.bench.model import ModelDef
from dnnffi.bench.runner import DEFAULT, PHASES
from dnnffi.bench.shapes import Shape
from dnnffi.cli.machine import machine

SHAPES = (
    Shape("lstm", "float16", 100, 64, 512, 512),
    Shape("lstm", "float32", 100, 64, 256, 256),
    Shape("gru", "float16", 128, 256, 128, 128),
    Shape("gru", "float32", 64, 16, 1024, 1024),
)

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


def pairs(shape: Shape, training: bool) -> Iterator[Pair]:
    """Yield what is compared on a shape."""
    drawn, xp = random.Random(SEED), array_package("gpu")
    full = [shape.steps] * shape.batch
    ragged = [drawn.randint(1, shape.steps) for _ in full]

    def step(make: Callable[..., ModelDef], shape: Shape, lengths: Any = None) -> Step:
        return make(shape, shape.draw(), "gpu", training, lengths=lengths).step()

    for words, lengths in (("full", full), ("half padding", ragged)):
        both = (step(functional, shape, one) for one in (lengths, xp.asarray(lengths, "int32")))
        yield Pair("call", words, *both)
    for words, steps in (("full", shape.steps), ("half as long", shape.steps // 2)):
        exact = step(plan_captured, replace(shape, steps=steps))
        largest = step(plan_captured, shape, xp.full(shape.batch, steps, "int32"))
        yield Pair("plan", words, exact, largest)


def times(clock: Clock, steps: tuple[Step, ...], rounds: int, seconds: float) -> list[float]:
    """Return milliseconds of each step; they take turns."""
    counts = []
    for step in steps:
        for _ in range(DEFAULT.warm_up):
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
