"""Measure by how much CUDA graphs of the same calls of cuDNN differ.

    python benchmarks/same_graphs.py [--shape "gru f16 1 32 512 512 1 uni"] [--json FILE]

Where cuDNN is the fastest, a captured `RNNPlan` and the graph of cuDNN alone contain the same
calls: as in the forward and backward of the shape that is measured unless another one is named.
Each is made several times, on arrays of its own, and so is a captured module of PyTorch where that
is installed. The graphs have their turns one after the other, and a graph's figure is
the median of its turns, in microseconds of a launch.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from dnnffi import files
from dnnffi.bench.clocks import clock_for
from dnnffi.bench.creator import Creator
from dnnffi.bench.shapes import PERFORMANCE, Shape
from dnnffi.bench.summary import CAPTURED, GRAPH, RAW
from dnnffi.cli import probe
from dnnffi.cli.machine import machine

SHAPES = {shape.name: shape for shape in PERFORMANCE}
GRAPHS = 6  # of each model
TURNS = 15
LAUNCHES = 1000  # in a turn


def creator(module: str, name: str) -> Creator:
    """What makes a model of the benchmark."""
    (found,) = (one for one in import_module(f"dnnffi.bench.{module}").CREATORS if one.name == name)
    return found


def rows_of(shape: Shape, creators: Sequence[Creator]) -> list[dict[str, Any]]:
    """The figures of each model's graphs, in training."""
    data, rows = shape.draw(), []
    # One of each model, then the next of each: none has the first or the last addresses alone.
    models = [*creators] * GRAPHS
    turns = [
        partial(
            clock_for(one.library, "gpu").time,
            one.create(shape, data, "gpu", training=True).step(),
            LAUNCHES,
        )
        for one in models
    ]
    taken = [[turn()[0] * 1e3 for turn in turns] for _ in range(1 + TURNS)][1:]
    medians = [statistics.median(one) for one in zip(*taken, strict=True)]
    for one in creators:
        found = [us for model, us in zip(models, medians, strict=True) if model is one]
        rows.append({"model": one.name, "us": found})
        print(f"{one.name:22}", *(f"{us:.2f}" for us in found), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="gru f16 1 32 512 512 1 uni")
    parser.add_argument("--json", type=Path, help="where the record goes")
    options = parser.parse_args()
    creators = [creator("array_models", CAPTURED), creator("raw_models", RAW)]
    peers = () if probe.absent("torch") else ("torch",)
    creators += [creator("torch_models", GRAPH) for _ in peers]
    rows = rows_of(SHAPES[options.shape], creators)
    if options.json:
        record = {"machine": machine("gpu", peers), "shape": options.shape, "rows": rows}
        files.write_json(options.json, record)


if __name__ == "__main__":
    main()
