"""Microseconds of the warps of a recurrent kernel in each phase of a step.

    python benchmarks/own_timeline.py [--mode lstm] [--hidden 2048] [--batch 64] [--dtype float16]
                                      [--backward] [--most 2]

Compiles the first kernels that the tuner would measure and that run all groups at once, with reads
of the clock (``timeline.cuh``), and prints, for each, microseconds of a phase: the median over all
warps of all blocks, and the tenth and ninetieth percentile. Reads of the clock keep the compiler
from moving work between phases, so that such a step takes a little longer than usual; both times
are printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from own_compare import Network, Run, milliseconds, problem_of

from dnnffi.backends.own.recurrent import kernels
from dnnffi.backends.own.recurrent.candidates import OwnCandidates
from dnnffi.backends.own.recurrent.config import KernelConfig, Kind, Layer
from dnnffi.backends.own.recurrent.search import select_configs
from dnnffi.device.cupy import cupy_memory, import_cupy

PHASES = "load inputs", "receive and multiply", "reduce", "cells and send", "store"
STEPS = 16
"""Steps that are recorded: TIMELINE_STEPS of ``timeline.cuh``."""

FIRST = 4
"""Steps at the beginning that do not count."""


def durations(clock: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return cycles [..., phase] of the counts [step, ..., phase] at which phases begin."""
    ends = np.concatenate([clock[:-1, ..., 1:], clock[1:, ..., :1]], axis=-1)
    return ends - clock[:-1]


def table(cycles: np.ndarray[Any, Any], us: float) -> Iterator[str]:
    """Yield a line for each phase of steps that take ``us`` microseconds."""
    of_phases = cycles[FIRST:].reshape(-1, len(PHASES))
    us_per_cycle = us / np.median(of_phases.sum(axis=1))
    for name, some in zip(PHASES, of_phases.T, strict=True):
        low, middle, high = us_per_cycle * np.percentile(some, (10, 50, 90))
        yield f"  {name:22}{middle:8.2f} us  ({low:.2f} to {high:.2f})"


def shape_of(config: KernelConfig, network: Network) -> tuple[int, ...]:
    """Return the shape of the counts [step, block, warp, phase] of a launch of all groups."""
    groups = config.groups(network.batch) * network.directions
    warps = config.tile_warps * config.k_warps
    return STEPS, groups * config.group_blocks, warps, len(PHASES)


def measured_step_us(run: Any, steps: int) -> float:
    """Return about how long a step takes, from one length."""
    return 1e3 * milliseconds(run, 0.01) / steps


def measure(network: Network, config: KernelConfig, other: KernelConfig) -> Iterator[str]:
    """Yield the timeline of a kernel; ``other`` is that of the other pass."""
    is_backward = config.kind.backward
    pair = (other, config) if is_backward else (config, other)
    clock = import_cupy().zeros(shape_of(config, network), np.int64)
    found = []
    original = kernels.layer_kernel
    for address in (0, clock.data.ptr):
        kernels.layer_kernel = partial(original, timeline=address)
        try:
            run = Run(problem_of(network), *pair)
        finally:
            kernels.layer_kernel = original
        run.forward()
        found.append(measured_step_us(run.backward if is_backward else run.forward, network.steps))
    yield str(config)
    yield f"  {found[0]:.2f} us a step, {found[1]:.2f} with reads of the clock"
    yield from table(durations(clock.get()), found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mode", default="lstm")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--most", type=int, default=2, help="kernels")
    options = parser.parse_args()
    network = Network(options.mode, options.dtype, options.hidden, options.batch)
    layer = Layer(network.batch, 1, OwnCandidates(cupy_memory()).chip())
    kind = Kind(network.mode, network.hidden, network.dtype, True, options.backward)
    other = select_configs(kind._replace(backward=not options.backward), layer)[0]
    at_once = [one for one in select_configs(kind, layer) if one.waves(layer) == 1]
    for config in at_once[: options.most]:
        print("\n".join(measure(network, config, other)), flush=True)


if __name__ == "__main__":
    main()
