"""Compare the recurrent kernels of two sources on one GPU: bits of results, and times.

    git worktree add /tmp/old COMMIT
    python benchmarks/own_compare.py /tmp/old/src [--rounds 2] [--seconds 0.01] [--json FILE]

The same configurations run with both sources: for each network of `NETWORKS` what the tuner of the
new one would measure, and the most promising ones of each way to exchange. Each source has a
process of its own, and the processes take turns, so that both meet the same states of the device. A
time is that of one forward pass or, in training, also of one backward pass with regard to data, the
least of all turns. x has eight columns, so that the matrix products take little. Results are
compared by their SHA-256.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:  # the package is that of a process's own source
    from dnnffi.spec.names import DType, Mode

SOURCE = Path(__file__).resolve().parents[1] / "src"
INPUTS = 8
CONFIGS = 6  # of a network and pass, at most
OF_EACH_WAY = 1

FLAGGED = 10
"""Steps from one that has a flag to the next, in a problem with resets."""

SLOW = 0.97
"""Speed of the new source, as a multiple of the old one's, below which a kernel is listed."""


class Network(NamedTuple):
    """A network of one layer, in training or inference; rows of ``ragged`` have unequal lengths."""

    mode: Mode
    dtype: DType
    hidden: int
    batch: int
    directions: int = 1
    ragged: bool = False
    training: bool = True

    def __str__(self) -> str:
        words = [self.mode, self.dtype, f"H{self.hidden}", f"B{self.batch}", f"D{self.directions}"]
        words += ["ragged"] * self.ragged + ["inference"] * (not self.training)
        return " ".join(words)

    @property
    def steps(self) -> int:
        """Number of steps: fewer of a large network, whose steps take longer."""
        return 400 if self.hidden < 1024 else 100 if self.hidden < 2048 else 40


TRAINED = (
    Network("lstm", "float16", 1024, 64),
    Network("lstm", "float32", 512, 64),
    Network("gru", "float32", 512, 64, ragged=True),
    Network("lstm", "float16", 512, 64, 2, ragged=True),
    Network("gru", "float16", 256, 32),
    Network("lstm", "float32", 128, 1),
    Network("lstm", "float16", 2048, 64),
    Network("gru", "bfloat16", 768, 16, 2),
    Network("rnn_tanh", "float32", 256, 16),
    Network("lstm", "bfloat16", 96, 8, ragged=True),
    Network("gru", "float32", 1024, 128),
    Network("gru", "float16", 64, 200, 2, ragged=True),
    Network("lstm", "float32", 2048, 64),
    Network("gru", "float32", 96, 16),
)
NETWORKS = *TRAINED, *(network._replace(training=False) for network in TRAINED)


class Times(NamedTuple):
    """Milliseconds of the least turn of each kernel, and digests of results, by name."""

    ms: dict[str, float]
    digests: dict[str, str]

    def least(self, other: Times) -> Times:
        """Return the lesser times of two turns of one source."""
        ms = {name: min(ms, other.ms.get(name, ms)) for name, ms in self.ms.items()}
        return self._replace(ms=ms)


class Comparison(NamedTuple):
    """Speeds of the new source by kernel, as multiples of the old one's, the least first.

    different : names of the networks whose results differ
    """

    speeds: dict[str, float]
    different: list[str]

    @property
    def mean(self) -> float:
        """The geometric mean of all speeds."""
        logs = [math.log(speed) for speed in self.speeds.values()]
        return math.exp(sum(logs) / len(logs))

    def lines(self) -> Iterator[str]:
        """Yield what the command prints."""
        yield f"{len(self.speeds)} kernels: {self.mean:.3f} times the old speed in the mean"
        for name, speed in self.speeds.items():
            if speed < SLOW:
                yield f"{speed:6.3f}  {name}"
        yield f"results that differ: {', '.join(self.different) or 'none'}"


def compare(old: Times, new: Times) -> Comparison:
    """Compare the kernels that both sources have."""
    names = [name for name in old.ms if name in new.ms]
    speeds = sorted((old.ms[name] / new.ms[name], name) for name in names)
    different = [name for name, one in old.digests.items() if new.digests.get(name, one) != one]
    return Comparison({name: speed for speed, name in speeds}, different)


def configs(kind: Any, network: Network, chip: Any) -> list[Any]:
    """Return what the tuner would measure, and the most promising ones of each way to exchange."""
    from dnnffi.backends.own.recurrent import search
    from dnnffi.backends.own.recurrent.config import Layer
    from dnnffi.backends.own.recurrent.cost_model import step_us

    layer = Layer(network.batch, network.directions, chip)
    found = [*search.select_whole_rows(kind, layer), *search.select_configs(kind, layer)]
    for way in (search.find_gathers, search.find_scatters, search.find_clusters):
        found += sorted(way(kind, layer), key=lambda one: step_us(one, layer))[:OF_EACH_WAY]
    return list(dict.fromkeys(found))[:CONFIGS]


class Pair(NamedTuple):
    """A forward and, in training, a backward kernel of a network, by the names of their fields."""

    network: int
    forward: dict[str, Any]
    backward: dict[str, Any] | None


def paired(network: Network, chip: Any) -> list[tuple[Any, Any]]:
    """Return forward kernels of a network, each with a backward kernel, None in inference.

    In training, each kernel of either pass is in a pair; the last of the fewer is in several.
    """
    from dnnffi.backends.own.recurrent.config import Kind

    sizes = network.mode, network.hidden, network.dtype
    kind = Kind(*sizes, network.training, ragged=network.ragged)
    forward = configs(kind, network, chip)
    if not network.training:
        return [(one, None) for one in forward]
    backward = configs(kind._replace(backward=True), network, chip)
    return [
        (forward[min(place, len(forward) - 1)], backward[min(place, len(backward) - 1)])
        for place in range(max(len(forward), len(backward)))
    ]


def pairs(chip: Any) -> list[Pair]:
    """Return the kernels of all networks that are compared."""
    return [
        Pair(number, *(None if one is None else fields_of(one) for one in both))
        for number, network in enumerate(NETWORKS)
        for both in paired(network, chip)
    ]


def fields_of(config: Any) -> dict[str, Any]:
    """Return the fields of a configuration by name, those of its kind too."""
    return {**config._asdict(), "kind": config.kind._asdict()}


def config_of(fields: dict[str, Any]) -> Any:
    """Return the configuration with these fields, or None if the source lacks one that is set."""
    from dnnffi.backends.own.recurrent.config import KernelConfig, Kind

    def known(made: Any, given: dict[str, Any]) -> dict[str, Any] | None:
        unknown = given.keys() - set(made._fields)
        if any(given[name] for name in unknown):
            return None
        return {name: value for name, value in given.items() if name not in unknown}

    config, kind = known(KernelConfig, fields), known(Kind, fields["kind"])
    if config is None or kind is None:
        return None
    return KernelConfig(**{**config, "kind": Kind(**kind)})


def problem_of(network: Network, steps: int | None = None) -> Any:
    """Return a problem of a network, of its own number of steps or another one."""
    from dnnffi.spec.problem import RNNProblem
    from dnnffi.spec.rnn import RNNSpec

    spec = RNNSpec(
        mode=network.mode,
        input_size=INPUTS,
        hidden_size=network.hidden,
        bidirectional=network.directions == 2,
        dtype=network.dtype,
    )
    steps = steps or network.steps
    sizes: dict[str, Any] = {"steps": steps, "batch": network.batch, "training": network.training}
    if network.ragged:
        drawn = np.random.default_rng(0).integers(steps // 2, steps, network.batch)
        sizes["lengths"] = (steps, *map(int, drawn[1:]))
    return RNNProblem.dense(spec, **sizes)


class Run:
    """One network with its configurations, None backward in inference, and arrays on the device."""

    def __init__(self, problem: Any, forward: Any, backward: Any) -> None:
        import cupy

        from dnnffi.backends.cublas import library
        from dnnffi.backends.own.recurrent.network import OwnNetwork
        from dnnffi.backends.rnn_interface import BackwardDataAddresses, ForwardAddresses
        from dnnffi.device.cupy import cupy_memory
        from dnnffi.device.interface import Launch

        memory, spec, rng = cupy_memory(), problem.spec, cupy.random.RandomState(0)
        dtype = memory.dtype(spec.dtype)

        def drawn(shape: tuple[int, ...], scale: float = 1.0) -> Any:
            return (scale * rng.standard_normal(shape, "f4")).astype(dtype)

        self._network = OwnNetwork(problem, 0, memory, library.load(), "own", forward, backward)
        self._launch = Launch(memory.current_stream(), 0)
        self._executor = self._network.bind(problem, self._launch, None, is_exact=True)
        self._is_training = problem.training
        has_cell = spec.has_cell
        x, dy, h_0, dh_n = map(
            drawn, (problem.x_shape, problem.y_shape, problem.h_shape, problem.h_shape)
        )
        c_0, dc_n = (drawn(problem.c_shape) if has_cell else None for _ in range(2))
        weights = drawn((self._executor.weight_size,), spec.hidden_size**-0.5)
        y, h_n, dx, dh_0 = map(cupy.zeros_like, (dy, h_0, x, h_0))
        c_n, dc_0 = (cupy.zeros_like(c_0) if has_cell else None for _ in range(2))
        buffers = [
            cupy.zeros(max(1, nbytes), np.uint8)
            for nbytes in (self._executor.workspace_bytes, self._executor.reserve_bytes)
        ]
        self._results = [one for one in (y, h_n, c_n, dx, dh_0, dc_0) if one is not None]
        of_forward = (x, y, h_0, h_n, c_0, c_n, weights, *buffers)
        of_backward = (y, h_0, c_0, weights, dy, dh_n, dc_n, dx, dh_0, dc_0, *buffers)
        self._kept: tuple[Any, ...] = of_forward, of_backward
        self._forward = ForwardAddresses(*map(_address, of_forward))
        self._backward = BackwardDataAddresses(*map(_address, of_backward))
        if getattr(problem, "has_resets", False):  # which older sources do not have
            flags = cupy.zeros(problem.leading_shape, np.uint8)
            flags[::FLAGGED] = 1
            self._kept = *self._kept, flags
            self._forward = self._forward._replace(resets=_address(flags))
            self._backward = self._backward._replace(resets=_address(flags))

    def forward(self) -> None:
        """Enqueue the forward pass."""
        self._executor.forward(self._launch, self._forward)

    def backward(self) -> None:
        """Enqueue the backward pass with regard to data."""
        self._executor.backward_data(self._launch, self._backward)

    def digest(self) -> str:
        """Return the SHA-256 of all results of a step of training, or of inference."""
        self.forward()
        if self._is_training:
            self.backward()
        found = hashlib.sha256()
        for one in self._results:
            found.update(one.get().tobytes())
        return found.hexdigest()


def _address(array: Any) -> int:
    return 0 if array is None else int(array.data.ptr)


def milliseconds(run: Any, seconds: float) -> float:
    """Return the least of four turns of ``seconds`` each, in milliseconds of a call."""
    from dnnffi.bench.clocks import CupyClock

    clock = CupyClock()
    once = clock.time(run, 2)[0]
    calls = max(2, min(20, round(seconds * 1e3 / once)))
    return min(float(clock.time(run, calls)[0]) for _ in range(4))


def measure(seconds: float, kernels: Path) -> Times:
    """Measure the kernels of a file with the source of this process, which else writes it."""
    from dnnffi.backends.own.recurrent.candidates import OwnCandidates
    from dnnffi.backends.own.recurrent.kernels import compile_kernel
    from dnnffi.device.cupy import cupy_memory

    memory = cupy_memory()
    if not kernels.exists():
        kernels.write_text(json.dumps(pairs(OwnCandidates(memory).chip())), encoding="utf-8")
    known = []
    for place, one in enumerate(json.loads(kernels.read_text(encoding="utf-8"))):
        number, *fields = Pair(*one)
        both = [None if each is None else config_of(each) for each in fields]
        network = NETWORKS[number]
        if both[0] is not None and (both[1] is not None or not network.training):
            known.append((f"{network} {place}", network, both))
    every = dict.fromkeys(filter(None, (config for *_, both in known for config in both)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda config: compile_kernel(config, memory), every))
    times = Times({}, {})
    for name, network, both in known:
        run = Run(problem_of(network), *both)
        times.digests[name] = run.digest()
        times.ms[f"{name} forward"] = milliseconds(run.forward, seconds)
        if network.training:
            times.ms[f"{name} backward"] = milliseconds(run.backward, seconds)
    return times


def measured_by(source: Path, seconds: float, folder: Path) -> Times:
    """Measure with a source in a process of its own; ``folder`` has what all have in common."""
    file = folder / "times.json"
    path = os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, __file__, "--measure", str(folder), "--seconds", str(seconds)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True)
    return Times(*json.loads(file.read_text(encoding="utf-8")))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", nargs="?", type=Path, help="folder src of the older source")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each source")
    parser.add_argument("--seconds", type=float, default=0.01, help="length of a measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the times there too")
    parser.add_argument("--measure", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure is not None:
        times = measure(options.seconds, options.measure / "kernels.json")
        (options.measure / "times.json").write_text(json.dumps(times), encoding="utf-8")
        return
    if options.old is None or not (options.old / "dnnffi").is_dir():
        parser.error(f"{options.old} is not a folder with the package dnnffi: name the older src")
    found: dict[Path, Times] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for source in (SOURCE, options.old):  # the first one chooses the kernels
                times = measured_by(source, options.seconds, Path(folder))
                found[source] = times.least(found[source]) if source in found else times
    if options.json is not None:
        sides = {"old": found[options.old], "new": found[SOURCE]}
        content = {side: times._asdict() for side, times in sides.items()}
        options.json.write_text(json.dumps(content, indent=1), encoding="utf-8")
    print("\n".join(compare(found[options.old], found[SOURCE]).lines()))


if __name__ == "__main__":
    main()
