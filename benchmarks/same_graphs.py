"""By how much do CUDA graphs of the same calls of cuDNN differ?

    python benchmarks/same_graphs.py [--shape "gru f16 1 32 512 512 1 uni"] [--json FILE]

Where cuDNN is the fastest, a captured `RNNPlan`, cuDNN's own calls and a captured module of PyTorch
launch the same kernels. Each of these is made several times, on arrays of its own. The graphs have
their turns one after the other, and a graph's figure is the median of its turns, in microseconds of
a launch.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from dnnffi.bench import array_models, raw_models, torch_models
from dnnffi.bench.clocks import clock_for
from dnnffi.bench.runner import PHASES
from dnnffi.bench.shapes import PERFORMANCE, Shape
from dnnffi.cli.machine import machine

MODELS = {
    "dnnffi plan captured": ("array", array_models.plan_captured),
    "cudnn raw": ("array", raw_models.raw),
    "torch graph": ("torch", torch_models.captured),
}
GRAPHS = 6  # of each model
TURNS = 15
LAUNCHES = 1000  # in a turn


def rows_of(shape: Shape) -> list[dict[str, Any]]:
    """The figures of each model's graphs, inference before training."""
    data, rows = shape.draw(), []
    for phase in PHASES:
        # One of each model, then the next of each: none has the first or the last addresses alone.
        graphs = [
            (name, clock_for(library, "gpu"), make(shape, data, "gpu", phase == "training"))
            for _ in range(GRAPHS)
            for name, (library, make) in MODELS.items()
        ]
        turns = [partial(clock.time, model.step(), LAUNCHES) for _, clock, model in graphs]
        taken = [[turn()[0] * 1e3 for turn in turns] for _ in range(1 + TURNS)][1:]
        medians = [statistics.median(one) for one in zip(*taken, strict=True)]
        for model in MODELS:
            found = [us for (name, *_), us in zip(graphs, medians, strict=True) if name == model]
            rows.append({"phase": phase, "model": model, "us": found})
            print(f"{phase:10}{model:22}", *(f"{us:.2f}" for us in found), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", default="gru f16 1 32 512 512 1 uni", help="of `performance`")
    parser.add_argument("--json", type=Path, help="where the record goes")
    options = parser.parse_args()
    (shape,) = (one for one in PERFORMANCE if one.name == options.shape)
    record = {"machine": machine("gpu", ("torch",)), "shape": shape.name, "rows": rows_of(shape)}
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
