"""Compare recurrent kernels with resets, flagged in a tenth of the steps, with those without.

    python benchmarks/own_resets.py [--steps 128] [--seconds 0.005]

For each network of `NETWORKS` and each configuration that the tuner would measure, and the most
promising ones of each way to exchange (as in own_compare.py): microseconds of a step without resets
and with, and their quotient. Both kernels have the same configuration; one that has no room for the
flags is left out. x has eight columns, so that the matrix products take little.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from own_compare import Network, Run, milliseconds, paired, problem_of

from dnnffi.backends.own.recurrent.candidates import OwnCandidates
from dnnffi.backends.own.recurrent.config import KernelConfig
from dnnffi.device.cupy import cupy_memory

NETWORKS = (
    Network("gru", "float16", 128, 256, training=False),
    Network("gru", "float32", 128, 256, training=False),
    Network("lstm", "float16", 256, 256),
    Network("lstm", "float32", 256, 256, training=False),
    Network("lstm", "float16", 512, 32),
    Network("gru", "float16", 1024, 16, training=False),
    Network("lstm", "float32", 512, 64, ragged=True, training=False),
)


def with_resets(config: KernelConfig) -> KernelConfig:
    """Return the same configuration of a kernel with resets."""
    return config._replace(kind=config.kind._replace(resets=True))


def step_us(network: Network, steps: int, seconds: float, *both: Any) -> dict[str, float]:
    """Return microseconds of a step of a forward pass and, in training, of a backward pass."""
    forward, backward = both
    problem = problem_of(network, steps)._replace(has_resets=forward.kind.resets)
    run = Run(problem, forward, backward)
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


def measure(network: Network, steps: int, seconds: float) -> Iterator[str]:
    """Yield a line for each kernel of a network."""
    chip = OwnCandidates(cupy_memory()).chip()
    for number, both in enumerate(paired(network, chip)):
        others = [None if each is None else with_resets(each) for each in both]
        if all(each is None or each.shared_bytes <= chip.shared_bytes for each in others):
            found = [step_us(network, steps, seconds, *pair) for pair in (both, others)]
            yield line(f"{network} {number}", *found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=0.005, help="length of a measurement")
    options = parser.parse_args()
    for network in NETWORKS:
        for words in measure(network, options.steps, options.seconds):
            print(words, flush=True)


if __name__ == "__main__":
    main()
