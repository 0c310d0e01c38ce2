"""Launch dnnffi's recurrent kernels a million times, on mixed problems, and count wrong bits.

    python benchmarks/own_stress.py [--launches 1000000] [--seconds 100] [--json FILE]

Small networks of all modes and dtypes, in inference and training, with rows of equal and of
different length, and a few large ones, whose steps are divided in other ways, are drawn from a
seed and dealt to eight threads, each with a stream of its own. A thread replays CUDA graphs of many
calls in a drawn order, with direct calls in between, while another stream multiplies matrices.
Before each call its results are overwritten; after it a kernel compares every bit with those of
the first call of that problem, and counts differences on the device.

A launch is one of a recurrent kernel: one per layer of a forward pass, and of a backward pass,
too. Networks with dropout are left out, since they draw other masks in every call.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from threading import Barrier, Event, Lock
from typing import Any, NamedTuple

import cupy
import numpy as np

import dnnffi
from dnnffi import files
from dnnffi.cli.machine import machine
from dnnffi.device.dtypes import dtype_object

THREADS = 8
GRAPHS = 3  # of a thread
CALLS = 32  # of a graph
IN_FLIGHT = 8  # graphs that a thread enqueues before it waits
MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
DTYPES = ("float16", "bfloat16", "float32")
SIZES = (1, 7, 24, 39, 40, 64, 96, 130)
LARGE = (700, 1040, 1544)
OPTIONS = {"algorithm": "own", "tune": "off"}

COMPARE = r"""
extern "C" __global__ void compare(
    const unsigned *found, const unsigned *expected, long long words, unsigned long long *differing)
{
    const long long all = (long long)gridDim.x * blockDim.x;
    unsigned long long count = 0;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += all)
        count += found[i] != expected[i];
    if (count) atomicAdd(differing, count);
}
"""


class Problem(NamedTuple):
    """One network with the shape of its input."""

    spec: dnnffi.RNNSpec
    steps: int
    batch: int
    lengths: tuple[int, ...] | None
    training: bool

    @property
    def launches(self) -> int:
        """Number of kernel launches of a call."""
        return self.spec.num_layers * (1 + self.training)


def draw(seed: int) -> list[Problem]:
    """48 problems of each mode, dtype and phase, of equal and of different length; 8 large ones."""
    drawn = random.Random(seed)
    found = []
    for mode, dtype, training, equal in product(MODES, DTYPES, (False, True), (True, False)):
        spec = dnnffi.RNNSpec(
            mode=mode,
            input_size=drawn.randint(1, 40),
            hidden_size=drawn.choice(SIZES),
            num_layers=drawn.randint(1, 2),
            bidirectional=drawn.random() < 0.3,
            bias=drawn.random() < 0.8,
            dtype=dtype,
        )
        steps, batch = drawn.randint(1, 12), drawn.randint(1, 20)
        lengths = None if equal else tuple(drawn.randint(1, steps) for _ in range(batch))
        found.append(Problem(spec, steps, batch, lengths, training))
    for mode, dtype in product(MODES, ("float16", "float32")):
        hidden_size = drawn.choice(LARGE)
        spec = dnnffi.RNNSpec(mode=mode, input_size=24, hidden_size=hidden_size, dtype=dtype)
        found.append(Problem(spec, drawn.randint(2, 6), drawn.choice((6, 20, 40)), None, True))
    drawn.shuffle(found)
    return found


class Results:
    """All results of a problem as parts of one buffer, in whole words."""

    def __init__(self, problem: Problem) -> None:
        spec = problem.spec
        states = (spec.h_shape(problem.batch),) * (2 if spec.has_cell else 1)
        shapes = [spec.y_shape(problem.steps, problem.batch), *states]
        if problem.training:
            size = dnnffi.weight_layout(spec, "cudnn").size
            shapes += [spec.x_shape(problem.steps, problem.batch), *states, (size,)]
        dtype = dtype_object(spec.dtype)
        places, at = [], 0
        for shape in shapes:
            places.append((shape, at))
            at += -(-int(np.prod(shape)) * dtype.itemsize // 256) * 256
        self.buffer = cupy.empty(at, "uint8")
        parts = [cupy.ndarray(shape, dtype, self.buffer.data + at) for shape, at in places]

        def pair(values: list[Any]) -> tuple[Any, Any]:
            return values[0], tuple(values[1:]) if len(values) > 2 else values[1]

        self.forward = pair(parts[: 1 + len(states)])
        if problem.training:
            self.data = pair(parts[1 + len(states) : -1])
            self.weights = dnnffi.RNNWeights(parts[-1], spec)


class Network:
    """A problem with its arrays; `call` enqueues it and the comparison with its first results."""

    def __init__(self, problem: Problem, seed: int, compare: Any, differing: Any) -> None:
        self.problem = problem
        spec = problem.spec
        rng = np.random.default_rng(seed)
        on_host = dnnffi.RNNWeights.random(spec, rng, backend="cudnn")
        self.weights = dnnffi.RNNWeights(cupy.asarray(on_host.flat), spec)

        def normal(shape: tuple[int, ...]) -> Any:
            return cupy.asarray(rng.standard_normal(shape).astype(on_host.flat.dtype))

        self.x = normal(spec.x_shape(problem.steps, problem.batch))
        states = [normal(spec.h_shape(problem.batch)) for _ in range(1 + spec.has_cell)]
        self.hx = tuple(states) if spec.has_cell else states[0]
        self.dy = normal(spec.y_shape(problem.steps, problem.batch))
        self.plan = dnnffi.RNNPlan(
            spec,
            batch=problem.batch,
            steps=problem.steps,
            training=problem.training,
            lengths=problem.lengths,
            options=OPTIONS,
        )
        self.results = Results(problem)
        self._compare, self._differing = compare, differing
        self.expected: Any = None
        self._run()
        self.expected = self.results.buffer.copy()
        y = cupy.asnumpy(self.results.forward[0]).astype("float32")
        if not np.isfinite(y).all():
            raise ValueError(f"{problem}: the first results are not finite")

    def _run(self) -> None:
        results, stream = self.results, cupy.cuda.get_current_stream()
        buffer = results.buffer
        cupy.cuda.runtime.memsetAsync(buffer.data.ptr, 0xFF, buffer.nbytes, stream.ptr)
        self.plan.forward(self.x, self.hx, self.weights, out=results.forward)
        if self.problem.training:
            self.plan.backward(self.dy, None, results.data, results.weights)

    def call(self) -> None:
        """Compute into NaN, and compare."""
        self._run()
        buffer = self.results.buffer
        words = buffer.nbytes // 4
        blocks = min(64, -(-words // 1024))
        arguments = (buffer, self.expected, np.int64(words), self._differing)
        self._compare((blocks,), (256,), arguments)


class Worker:
    """A thread's networks, stream and graphs, and a counter of words that differ."""

    def __init__(self, problems: list[Problem], seed: int) -> None:
        self._problems, self._random = problems, random.Random(seed)
        self._seed = seed
        self.launches = self.graph_launches = self.direct_calls = 0

    def prepare(self) -> None:
        """Make the stream and the networks, and compute their first results."""
        self.stream = cupy.cuda.Stream(non_blocking=True)
        with self.stream:
            self.differing = cupy.zeros(1, "uint64")
            compare = cupy.RawKernel(COMPARE, "compare")
            self.networks = [
                Network(problem, self._seed + number, compare, self.differing)
                for number, problem in enumerate(self._problems)
            ]
            for network in self.networks:
                network.call()
            self.stream.synchronize()

    def capture(self) -> None:
        """Capture the graphs, each of calls in a drawn order."""
        self.graphs = []
        with self.stream:
            for _ in range(GRAPHS):
                order = [self._random.choice(self.networks) for _ in range(CALLS)]

                def step(order: list[Network] = order) -> None:
                    for network in order:
                        network.call()

                graph = order[0].plan.capture(step)
                self.graphs.append((graph, sum(n.problem.launches for n in order)))
            self.stream.synchronize()

    def run(self, launches: int, go_on: Callable[[], bool]) -> None:
        """Launch at least ``launches`` kernels, unless ``go_on`` returns False."""
        with self.stream:
            while self.launches < launches and go_on():
                for _ in range(IN_FLIGHT):
                    graph, count = self._random.choice(self.graphs)
                    graph.launch()
                    self.launches += count
                    self.graph_launches += 1
                    network = self._random.choice(self.networks)
                    network.call()
                    self.launches += network.problem.launches
                    self.direct_calls += 1
                self.stream.synchronize()


def other_work(stop: Event) -> int:
    """Multiply matrices on a separate stream; return the number of products."""
    count = 0
    with cupy.cuda.Stream(non_blocking=True) as stream:
        a = cupy.ones((1024, 1024), "float32")
        while not stop.is_set():
            a @ a
            stream.synchronize()
            count += 1
    return count


def stress(launches: int, seconds: float, seed: int = 0) -> dict[str, Any]:
    """Run the stress and return its figures for the record. Raise the error of a thread, if any."""
    problems = draw(seed)
    workers = [Worker(problems[n::THREADS], seed + 1000 * n) for n in range(THREADS)]
    share, barrier, lock, stop = -(-launches // THREADS), Barrier(THREADS), Lock(), Event()
    began = time.perf_counter()
    measured = []

    def go_on() -> bool:
        return time.perf_counter() - began < seconds and not stop.is_set()

    def work(worker: Worker) -> None:
        try:
            worker.prepare()
            barrier.wait()
            with lock:
                worker.capture()
            barrier.wait()
            measured.append(time.perf_counter())
            worker.run(share, go_on)
        except BaseException:
            barrier.abort()
            stop.set()
            raise

    with ThreadPoolExecutor(THREADS + 1) as pool:
        beside = pool.submit(other_work, stop)
        running = [pool.submit(work, worker) for worker in workers]
        try:
            errors = [future.exception() for future in running]
        finally:
            stop.set()
        products = beside.result()
    for error in sorted((e for e in errors if e is not None), key=_is_consequence):
        raise error
    cupy.cuda.Device().synchronize()
    ended = time.perf_counter()
    return {
        "launches": sum(worker.launches for worker in workers),
        "asked": launches,
        "graph_launches": sum(worker.graph_launches for worker in workers),
        "direct_calls": sum(worker.direct_calls for worker in workers),
        "products_beside": products,
        "threads": THREADS,
        "problems": len(problems),
        "seed": seed,
        "seconds": round(ended - min(measured), 1),
        "seconds_to_prepare": round(min(measured) - began, 1),
        "differing_words": sum(int(worker.differing.get()[0]) for worker in workers),
    }


def _is_consequence(error: BaseException) -> bool:
    """Return whether a thread ended only because another did."""
    return type(error).__name__ == "BrokenBarrierError"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--launches", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=100.0, help="at most, with preparing")
    parser.add_argument("--seed", type=int, default=0, help="of the problems and the order")
    parser.add_argument("--json", type=Path, help="write the record there")
    options = parser.parse_args(arguments)
    found = stress(options.launches, options.seconds, options.seed)
    for name, value in found.items():
        print(f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}")
    if options.json:
        record = {"machine": machine("gpu", ()), **found}
        files.write_json(options.json, record)
    return int(bool(found["differing_words"]) or found["launches"] < options.launches)


if __name__ == "__main__":
    sys.exit(main())
