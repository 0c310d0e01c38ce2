"""Compare recurrent kernels of a kind with those of rows of the same length without resets.

    python benchmarks/own_kinds.py [--kind resets] [--steps 128] [--seconds 0.005]

Kinds are "resets", flagged in a tenth of the steps; "ragged", where one row has one step less than
the others; and "packed", where the caller has packed such rows. For each network of `NETWORKS` and
each configuration that the tuner would measure, and the most promising ones of each way to exchange
(as in own_compare.py): microseconds of a step without and with that, and their quotient. Both
kernels have the same configuration; one that has no room for the flags of resets is left out. x has
eight columns, so that the matrix products and copies of x take little.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from own_compare import Network, Run, milliseconds, paired, problem_of

from dnnffi.backends.own.recurrent.candidates import OwnCandidates
from dnnffi.backends.own.recurrent.config import KernelConfig, Kind
from dnnffi.device.cupy import cupy_memory
from dnnffi.spec.problem import RNNProblem

KINDS = {
    "resets": {"resets": True},
    "ragged": {"ragged": True},
    "packed": {"ragged": True, "packed": True},
}
"""Fields of a `Kind` that are compared."""

NETWORKS = (
    Network("gru", "float16", 128, 256, training=False),
    Network("gru", "float32", 128, 256, training=False),
    Network("lstm", "float16", 256, 256),
    Network("lstm", "float32", 256, 256, training=False),
    Network("lstm", "float16", 512, 32),
    Network("gru", "float16", 1024, 16, training=False),
    Network("lstm", "float32", 512, 64, ragged=True, training=False),
)


def of_kind(config: KernelConfig, name: str) -> KernelConfig:
    """Return the same configuration of a kernel of one of `KINDS`."""
    return config._replace(kind=config.kind._replace(**KINDS[name]))


def problem_for(network: Network, steps: int, kind: Kind) -> RNNProblem:
    """Return the problem of a network that a kernel of a kind runs."""
    problem: RNNProblem = problem_of(network, steps)._replace(has_resets=kind.resets)
    batch = problem.batch
    if kind.packed:
        sizes = [batch] * (steps - 1) + [batch - 1]
        return RNNProblem.packed(problem.spec, sizes, training=problem.training)
    if kind.ragged and not network.ragged:
        problem = problem._replace(lengths=(steps,) * (batch - 1) + (steps - 1,))
    return problem


def step_us(network: Network, steps: int, seconds: float, *both: Any) -> dict[str, float]:
    """Return microseconds of a step of a forward pass and, in training, of a backward pass."""
    forward, backward = both
    run = Run(problem_for(network, steps, forward.kind), forward, backward)
    run.digest()
    passes = {"forward": run.forward} | ({"backward": run.backward} if network.training else {})
    return {name: 1e3 * milliseconds(one, seconds) / steps for name, one in passes.items()}


def line(name: str, without: Mapping[str, float], found: Mapping[str, float]) -> str:
    """Return the times of a kernel in words."""
    words = (
        f"{one} {without[one]:.3f} -> {found[one]:.3f} ({found[one] / without[one]:.3f})"
        for one in without
    )
    return f"{name}: {', '.join(words)}"


def measure(network: Network, kind: str, steps: int, seconds: float) -> Iterator[str]:
    """Yield a line for each kernel of a network."""
    chip = OwnCandidates(cupy_memory()).chip()
    for number, both in enumerate(paired(network, chip)):
        others = [None if each is None else of_kind(each, kind) for each in both]
        if all(each is None or each.shared_bytes <= chip.shared_bytes for each in others):
            found = [step_us(network, steps, seconds, *pair) for pair in (both, others)]
            yield line(f"{network} {number}", *found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=KINDS, default="resets")
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=0.005, help="length of a measurement")
    options = parser.parse_args()
    for network in NETWORKS:
        if network.ragged and options.kind != "resets":
            continue
        for words in measure(network, options.kind, options.steps, options.seconds):
            print(words, flush=True)


if __name__ == "__main__":
    main()
