"""Microseconds of a step by configuration of the recurrent kernels, and the cost model's fit.

    python benchmarks/own_costs.py --json docs/verification/own_costs.json [--each 3]
        [--add [--again cluster]]
    python benchmarks/own_costs.py --fit docs/verification/own_costs.json

The first command measures on a GPU: for each network of `NETWORKS` and each pass, forward in
training and in inference and backward, what the tuner would measure, and configurations drawn from
all others that are expected to take at most `MAX_RATIO` times as long. The difference of the times
of two lengths over the difference of the lengths is what a step takes, without launches and the
loading of weights. ``--add`` keeps the steps that are in the file and measures others only: after a
fit, what the tuner would measure now. After a change of some kernels ``--again`` names a property
of `KernelConfig` that they have: one of `PROPERTIES`. Their steps are measured again.

The second one fits the costs of ``cost_model.py`` to these steps, by least squares of relative
errors without negative costs, and writes ``cost_fit.json``. It prints how well they predict: the
standard deviation of the logarithm of the ratio, and what it costs to measure the first few alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from own_compare import Network, Run, milliseconds, problem_of

from dnnffi.backends.own.recurrent import cost_model, search
from dnnffi.backends.own.recurrent.candidates import OwnCandidates
from dnnffi.backends.own.recurrent.config import Chip, KernelConfig, Kind, Layer
from dnnffi.backends.own.recurrent.cost_model import FAMILIES, step_us
from dnnffi.backends.own.recurrent.kernels import compile_kernel
from dnnffi.cli.machine import machine
from dnnffi.device.cupy import cupy_memory

FIT = Path(cost_model.__file__).with_name("cost_fit.json")
MAX_RATIO = 2.0
"""The largest estimate of what is drawn, as a multiple of the least one."""

STEPS = {False: (20, 120), True: (10, 50)}
"""Two lengths, by whether a layer is large."""

LARGE = 2048  # units
MAX_TURNS = 4
"""Turns of measuring both lengths, until they agree."""

PROPERTIES = ("cluster", "far", "finds_places", "scatter", "staged")
"""Properties of kernels whose source a change may have in common."""

MAX_KERNELS = 5
"""Kernels of a pass whose loss `report` prints."""

NETWORKS = (
    *(Network("lstm", "float16", hidden, 64) for hidden in (128, 256, 512, 1024, 1536, 2048, 3072)),
    *(Network("lstm", "float16", hidden, 8) for hidden in (256, 1024, 2048)),
    *(Network("lstm", "float32", hidden, 64) for hidden in (256, 512, 1024, 2048)),
    *(Network("gru", "float16", hidden, 64) for hidden in (256, 512, 1024, 2048)),
    *(Network("gru", "float32", hidden, 32) for hidden in (256, 512, 1024)),
    *(Network("rnn_tanh", "float16", hidden, 64) for hidden in (256, 512, 1024)),
    Network("lstm", "float16", 512, 200),
    Network("lstm", "float16", 1024, 16, 2),
    Network("lstm", "bfloat16", 896, 40, 2),
    Network("lstm", "float16", 4096, 64),
    Network("gru", "float16", 304, 8),
    Network("lstm", "float16", 256, 8, 2),
    Network("gru", "float16", 2816, 32),
    *(Network("lstm", dtype, 256, 256) for dtype in ("float16", "float32")),
    *(Network("gru", dtype, 128, 256) for dtype in ("float16", "float32")),
    Network("gru", "float32", 256, 256),
    Network("lstm", "float16", 192, 256),
    Network("lstm", "float16", 512, 256),
    Network("lstm", "float32", 512, 128),
    Network("gru", "float16", 1024, 128),
    Network("lstm", "float16", 128, 512),
)
PASSES = ((True, False), (True, True), (False, False))
"""Whether a pass is one of training, and whether it is the backward pass."""


class Step(NamedTuple):
    """A measured step: the number of a network, a configuration, and microseconds."""

    network: int
    config: KernelConfig
    us: float

    @property
    def of_pass(self) -> tuple[bool, bool]:
        """One of `PASSES`."""
        return self.config.kind.training, self.config.kind.backward


def layer_of(network: Network, chip: Chip) -> Layer:
    """Return what the cost model has to know of a network."""
    return Layer(network.batch, network.directions, chip)


def chip_of(record: dict[str, Any]) -> Chip:
    """Return the GPU of a record."""
    chip = Chip(*(record["chip"][name] for name in Chip._fields))
    return chip._replace(cluster_counts=tuple(chip.cluster_counts))


def drawn(kind: Kind, layer: Layer, each: int, dice: random.Random) -> list[KernelConfig]:
    """Return what the tuner would measure, and ``each`` others of each way to exchange."""
    found = dict.fromkeys(search.select_configs(kind, layer))
    kinds = (kind, kind._replace(narrow=True)) if kind.can_be_narrow else (kind,)
    for one in kinds:
        for way in (search.find_gathers, search.find_scatters, search.find_clusters):
            some = sorted(way(one, layer), key=lambda config: step_us(config, layer))
            near = [
                config
                for config in some
                if step_us(config, layer) <= MAX_RATIO * step_us(some[0], layer)
            ]
            found |= dict.fromkeys(dice.sample(near, min(each, len(near))))
    return list(found)


def configurations(chip: Chip, each: int) -> Iterator[tuple[int, KernelConfig]]:
    """Yield the number of each network with each of its configurations."""
    dice = random.Random(0)
    for number, network in enumerate(NETWORKS):
        for passed in PASSES:
            kind = Kind(network.mode, network.hidden, network.dtype, *passed)
            for config in drawn(kind, layer_of(network, chip), each, dice):
                yield number, config


def measure(
    chip: Chip, each: int, seconds: float, known: list[Step], again: list[Step]
) -> Iterator[Step]:
    """Yield a step of each configuration that is not known, and of those to measure ``again``."""
    memory = cupy_memory()
    done = dict.fromkeys((step.network, step.config) for step in known)
    wanted = dict.fromkeys((step.network, step.config) for step in again)
    wanted |= dict.fromkeys(configurations(chip, each))
    todo = [one for one in wanted if one not in done]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda one: compile_kernel(one[1], memory), todo))
    beside: dict[tuple[int, bool], KernelConfig] = {}
    for number, config in (*done, *todo):
        if config.kind.training:
            beside.setdefault((number, config.kind.backward), config)
    for number, config in todo:
        is_backward, training = config.kind.backward, config.kind.training
        other = beside[number, not is_backward] if training else None
        both = (other, config) if is_backward else (config, other)
        network = NETWORKS[number]._replace(training=training)
        us = step_of(network, both, is_backward, seconds)
        if us is None:
            print(f"no two times that agree: {config}", file=sys.stderr)
        else:
            yield Step(number, config, round(us, 3))


def step_of(
    network: Network,
    both: tuple[KernelConfig | None, KernelConfig | None],
    is_backward: bool,
    seconds: float,
) -> float | None:
    """Return microseconds of a step, or None if after some turns the two lengths disagree.

    A step takes at most what all of them take divided by their number, and more than half of that.
    """
    lengths = STEPS[network.hidden >= LARGE]
    runs = [Run(problem_of(network, steps), *both) for steps in lengths]
    times = [math.inf, math.inf]
    for turn in range(MAX_TURNS):
        for place, run in enumerate(runs):
            run.forward()
            found = milliseconds(run.backward if is_backward else run.forward, seconds)
            times[place] = min(times[place], found)
        us = 1e3 * (times[1] - times[0]) / (lengths[1] - lengths[0])
        mean = 1e3 * times[1] / lengths[1]
        if turn > 0 and mean / 2 < us <= mean:
            return us
    return None


def read(record: dict[str, Any]) -> list[Step]:
    """Return the steps of a record."""
    kind_names, names = record["kind"], record["config"]
    found = []
    for number, of_kind, of_config, us in record["steps"]:
        kind = Kind(**dict(zip(kind_names, of_kind, strict=True)))
        config = KernelConfig(kind, **dict(zip(names, of_config, strict=True)))
        found.append(Step(number, config, us))
    return found


def divided(steps: list[Step], name: str) -> tuple[list[Step], list[Step]]:
    """Return the steps of kernels without a property, and those with it."""
    found: tuple[list[Step], list[Step]] = [], []
    for step in steps:
        found[getattr(step.config, name)].append(step)
    return found


def text_of(content: dict[str, Any], steps: list[Step]) -> str:
    """Return the text of a record: a line for each step."""
    head = {**content, "kind": Kind._fields, "config": KernelConfig._fields[1:]}
    lines = (
        json.dumps([number, list(config.kind), list(config[1:]), us])
        for number, config, us in steps
    )
    return f'{json.dumps(head)[:-1]},\n"steps": [\n' + ",\n".join(lines) + "\n]}\n"


def fit(steps: list[Step], chip: Chip) -> dict[str, dict[str, float]]:
    """Return the costs of each family by name."""
    found = {}
    for family in FAMILIES:
        rows = []
        for number, config, us in steps:
            if cost_model.family_of(config) is family:
                layer = layer_of(NETWORKS[number], chip)
                scale = config.waves(layer) / us
                rows.append([scale * amount for amount in family.work(config, layer)])
        costs = nonnegative_least_squares(np.array(rows), np.ones(len(rows)))
        found[family.name] = {
            name: round(float(cost), 4) for name, cost in zip(family.names, costs, strict=True)
        }
    return found


def nonnegative_least_squares(
    matrix: np.ndarray[Any, Any], target: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return x >= 0 with the least |matrix x - target|, by an active set (Lawson, Hanson 1974)."""
    count = matrix.shape[1]
    x, is_free = np.zeros(count), np.zeros(count, bool)
    while True:
        gradient = matrix.T @ (target - matrix @ x)
        gradient[is_free] = 0
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-9 * len(target):
            return x
        is_free[best] = True
        while True:
            full = np.zeros(count)
            full[is_free] = np.linalg.lstsq(matrix[:, is_free], target, rcond=None)[0]
            if (full[is_free] > 0).all():
                x = full
                break
            blocked = is_free & (full <= 0)
            part = float(np.min(x[blocked] / np.maximum(x[blocked] - full[blocked], 1e-300)))
            x = x + part * (full - x)
            is_free &= x > 1e-12
            x[~is_free] = 0


def report(steps: list[Step], chip: Chip) -> Iterator[str]:
    """Yield how well the costs in ``cost_fit.json`` predict."""
    errors, passes = defaultdict(list), defaultdict(list)
    for step in steps:
        expected = step_us(step.config, layer_of(NETWORKS[step.network], chip))
        errors[cost_model.family_of(step.config).name].append(math.log(expected / step.us))
        passes[step.network, step.of_pass].append((expected, step.us))
    for name, some in errors.items():
        yield f"{name}: {len(some)} steps, standard deviation {np.std(some):.3f}"
    for most in range(1, MAX_KERNELS + 1):
        losses = [
            min(us for _, us in sorted(some)[:most]) / min(us for _, us in some)
            for some in passes.values()
        ]
        yield f"the first {most}: {np.exp(np.mean(np.log(losses))):.3f} times the best"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.004, help="length of a measurement")
    parser.add_argument("--each", type=int, default=3, help="others of each way to exchange")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the steps there")
    parser.add_argument("--add", action="store_true", help="keep the steps in the file")
    parser.add_argument("--again", metavar="PROPERTY", help="with --add: measure these again")
    parser.add_argument("--fit", type=Path, metavar="FILE", help="fit to the steps in a file")
    options = parser.parse_args()
    if options.fit is not None:
        record = json.loads(options.fit.read_text(encoding="utf-8"))
        chip, steps = chip_of(record), read(record)
        costs = json.dumps(fit(steps, chip), indent=1)
        FIT.write_text(f"{costs}\n", encoding="utf-8")
        cost_model.costs_of.cache_clear()
        print("\n".join(report(steps, chip)))
        return
    if options.again is not None and not options.add:
        parser.error("--again: needs --add")
    if options.again not in (None, *PROPERTIES):
        parser.error(f"--again: one of {', '.join(PROPERTIES)}; got {options.again!r}")
    chip, steps, again = OwnCandidates(cupy_memory()).chip(), [], []
    if options.add:
        record = json.loads(options.json.read_text(encoding="utf-8"))
        if chip_of(record) != chip:
            parser.error(f"{options.json} is of another GPU: {chip_of(record)}, this is {chip}")
        steps = read(record)
        if options.again is not None:
            steps, again = divided(steps, options.again)
    steps += measure(chip, options.each, options.seconds, steps, again)
    measured = {(step.network, step.config) for step in steps}
    steps += [step for step in again if (step.network, step.config) not in measured]
    print(f"{len(steps)} configurations", file=sys.stderr)
    if options.json is not None:
        content = {"machine": machine("gpu", ()), "chip": chip._asdict()}
        options.json.write_text(text_of(content, steps), encoding="utf-8")


if __name__ == "__main__":
    main()
