"""Measure the first calls of a network, with nothing compiled or measured before.

    python benchmarks/first_call.py [--json FILE]

Each network runs in a process of its own, whose folders for compiled kernels and for results of the
tuner are empty: sixty calls in a loop, each waited for. The first call loads cuDNN; one
of the next compiles our kernels and measures. CuPy and its context are there before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dnnffi
from dnnffi import files
from dnnffi.bench.shapes import OWN, PERFORMANCE, Shape
from dnnffi.cli.machine import machine
from dnnffi.device.cupy import import_cupy

CALLS = 60
NAMES = (
    "lstm f16 100 64 512 512 1 uni",
    "lstm f32 100 64 512 512 1 uni",
    "lstm f16 500 8 256 256 2 bi",
    "rnn_tanh f16 50 16 1760 1760 1 uni",
    "lstm f16 25 32 2048 2048 1 uni",
    "lstm f16 25 16 4096 4096 1 uni",
    "gru f16 187 32 2816 2816 1 uni",
)
SHAPES = {shape.name: shape for shape in (*PERFORMANCE, *OWN) if shape.name in NAMES}


def seconds_of_calls(shape: Shape, training: bool) -> list[float]:
    """Seconds of each call of a loop, until the device has ended it."""
    cupy = import_cupy()
    random = cupy.random.default_rng(0)
    spec = shape.spec
    weights = dnnffi.RNNWeights.random(spec, random)
    x = random.standard_normal(spec.x_shape(shape.steps, shape.batch)).astype(spec.dtype)
    forward = getattr(dnnffi, f"{spec.mode}_forward" if training else spec.mode)
    found = []
    for _ in range(CALLS):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        results = forward(x, None, weights)
        if training:
            results[-1].backward(results[0])
        cupy.cuda.Device().synchronize()
        found.append(time.perf_counter() - start)
    return found


def in_own_process(name: str, training: bool) -> dict[str, Any]:
    """Return the row of a network, measured with empty folders."""
    with tempfile.TemporaryDirectory() as folder:
        folders = {
            "CUPY_CACHE_DIR": f"{folder}/cupy",
            "DNNFFI_CACHE_DIR": f"{folder}/dnnffi",
            "CUDA_CACHE_PATH": f"{folder}/cuda",
        }
        command = [sys.executable, __file__, "--one", name, *["--training"] * training]
        done = subprocess.run(
            command, env=os.environ | folders, stdout=subprocess.PIPE, text=True, check=True
        )
    taken = json.loads(done.stdout)
    return {
        "shape": name,
        "phase": "training" if training else "inference",
        "first_s": taken[0],
        "longest_s": max(taken),
        "longest_call": taken.index(max(taken)) + 1,
        "last_s": taken[-1],
        "sum_s": sum(taken),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the record there")
    parser.add_argument("--one", choices=SHAPES, help="a network to run in this process")
    parser.add_argument("--training", action="store_true", help="with --one: with all gradients")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(seconds_of_calls(SHAPES[options.one], options.training)))
        return
    rows = []
    for name in NAMES:
        for training in (False, True):
            rows.append(in_own_process(name, training))
            print(rows[-1], flush=True)
    if options.json:
        record = {"machine": machine("gpu", ()), "calls": CALLS, "rows": rows}
        files.write_json(options.json, record)


if __name__ == "__main__":
    main()
