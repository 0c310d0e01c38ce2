"""Compare dnnffi's networks in JAX with scans, Flax and JAX's own, on one GPU or several.

    python benchmarks/jax_rnn.py [--only "lstm f16 100" ...] [--json FILE]
    python benchmarks/jax_rnn.py --devices 1 2 4 [--json FILE]
    python benchmarks/jax_rnn.py --handler
    python benchmarks/jax_rnn.py --cpu [--record]

Times are milliseconds of one call of a compiled function, host and all, in a loop whose end waits:
the median of five loops. All programs are compiled before the first is measured. Training is the
forward and the gradients of x and the weights. Beside them is a tuned `dnnffi.RNNPlan` whose step
was captured, on CuPy's arrays. XLA is told to capture programs of a single command too, as it
captures a layer of a larger program. ``--devices`` divides a batch of 256 rows a GPU by
`jax.shard_map` and sums the gradients of the weights. It also times such a sum alone, and each GPU
alone, since all wait for the slowest.
``--handler`` says what a call that computes nothing costs, in microseconds, on the host alone: it
needs no GPU.
``--cpu`` compares LSTMs on the host with Flax's OptimizedLSTMCell: seconds to compile, the minimum
time of a call in turns, and the memory of a call, which is that of arguments, results and buffers.
``--record`` writes that to docs/verification/jax_cpu.txt.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_graph_min_graph_size=1")

import jax
import jax.numpy as jnp
import numpy as np

import dnnffi
from dnnffi import files
from dnnffi import jax as djax
from dnnffi.bench import array_models
from dnnffi.bench.shapes import PERFORMANCE, Data, Shape
from dnnffi.cli.machine import machine
from dnnffi.cli.sources import source_lines
from dnnffi.jax.rnn.engine import ReferenceEngine
from dnnffi.jax.rnn.handlers import Handlers
from dnnffi.jax.rnn.implementations import IMPLEMENTATIONS
from dnnffi.jax.rnn.operation import Implementation

UNROLLED = (1, 5, 10, 20)
CPU_RECORD = Path(__file__).resolve().parents[1] / "docs" / "verification" / "jax_cpu.txt"
CPU_SHAPES = (
    *((128, 32, 64, 128), (50, 1, 128, 128), (50, 8, 128, 128), (20, 64, 512, 512)),
    (1000, 16, 32, 32),
)
"""T, B, I, H of LSTMs of one layer."""
CPU_TURNS = 40
OURS = "dnnffi.jax"


def milliseconds(call: Any) -> float:
    """Return milliseconds of one call in a loop; warm-up calls compile and capture before."""
    for _ in range(8):
        jax.block_until_ready(call())
    start = time.perf_counter()
    jax.block_until_ready(call())
    count = max(3, min(100, int(0.05 / (time.perf_counter() - start))))
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            last = call()
        jax.block_until_ready(last)
        taken.append((time.perf_counter() - start) / count)
    return statistics.median(taken) * 1e3


class Program(NamedTuple):
    """A program to measure, perhaps still being compiled, and its arguments."""

    name: str
    compiled: Future[Any]
    arguments: tuple[Any, ...]

    def time(self) -> Any:
        """Milliseconds of a call, or why it cannot run."""
        try:
            return milliseconds(partial(self.compiled.result(), *self.arguments))
        except Exception as error:  # a peer that cannot is a line in the record
            return failure(error)


def failure(error: Exception) -> str:
    """Return an error as a line in the record."""
    return f"{type(error).__name__}: {error}"[:200]


def program(name: str, make: Any, data: Data, training: bool, pool: ThreadPoolExecutor) -> Program:
    """``run(x, weights)`` -> y as ``make`` gives it with the weights, or with its gradients.

    It is traced now, and compiled by the pool.
    """
    try:
        run, weights = make()
        x, dy = jnp.asarray(data.x), jnp.asarray(data.dy)

        def train(x: Any, weights: Any, dy: Any) -> Any:
            y, pull = jax.vjp(run, x, weights)
            return y, pull(dy.astype(y.dtype))

        arguments = (x, weights, dy) if training else (x, weights)
        lowered = jax.jit(train if training else run).lower(*arguments)
        return Program(name, pool.submit(lowered.compile), arguments)
    except Exception as error:
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return Program(name, failed, ())


def ours(shape: Shape, data: Data, implementation: str, unroll: int | None = None) -> Any:
    """Return dnnffi's function of a network by one implementation, as ``run(x, weights)``."""
    options = None if unroll is None else {"unroll": unroll}
    spec = shape.spec
    weights = djax.pack(data.weights, spec)
    states = tuple(jnp.asarray(s) for s in (data.h_0, data.c_0) if s is not None)
    hx = states if spec.has_cell else states[0]
    function = partial(
        getattr(djax, shape.mode),
        spec=spec,
        lengths=shape.lengths,
        implementation=implementation,
        options=options,
    )
    return (lambda x, weights: function(x, hx, weights)[0]), weights


def flax_cell(shape: Shape, data: Data) -> Any:
    """Flax's OptimizedLSTMCell in its RNN."""
    from flax import linen

    cell = linen.OptimizedLSTMCell(shape.hidden_size, dtype=shape.dtype)
    rnn = linen.RNN(cell, time_major=True)
    # Flax draws weights in float32 only.
    params = rnn.init(jax.random.key(0), jnp.asarray(data.x))
    params = jax.tree.map(lambda array: array.astype(shape.dtype), params)
    return (lambda x, params: rnn.apply(params, x)), params


def experimental(shape: Shape, data: Data) -> Any:
    """``jax.experimental.rnn``, on [B, T, I]."""
    from jax.experimental import rnn

    weights = djax.pack(data.weights, shape.spec).flat  # in cuDNN's layout, as JAX keeps them
    h_0, c_0 = jnp.asarray(data.h_0), jnp.asarray(data.c_0)
    lengths = jnp.asarray(shape.lengths or (shape.steps,) * shape.batch, jnp.int32)
    sizes = shape.input_size, shape.hidden_size, shape.layers, 0.0, shape.directions == 2

    def run(x: Any, weights: Any) -> Any:
        x = jnp.swapaxes(x, 0, 1)
        return jnp.swapaxes(rnn.lstm(x, h_0, c_0, weights, lengths, *sizes)[0], 0, 1)

    return run, weights


def captured_plan(shape: Shape, data: Data, training: bool) -> float:
    """Milliseconds of a plan's step as one CUDA graph, on CuPy's arrays."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        step = array_models.plan_captured(shape, data, "gpu", training).forward

        def loop(count: int) -> float:
            start = time.perf_counter()
            for _ in range(count):
                step()
            stream.synchronize()
            return (time.perf_counter() - start) / count

        loop(5)
        return statistics.median(loop(30) for _ in range(5)) * 1e3


def programs_of(
    shape: Shape, data: Data, training: bool, pool: ThreadPoolExecutor
) -> list[Program]:
    """Return the programs of a network: dnnffi's, its scans, and Flax's and JAX's if they apply."""
    traced = partial(program, data=data, training=training, pool=pool)
    found = [traced(OURS, lambda: ours(shape, data, "cudnn"))]
    for unrolled in UNROLLED:
        one = partial(ours, shape, data, "scan", unroll=unrolled)
        found.append(traced(f"scan {unrolled}", one))
    if shape.mode == "lstm" and shape.layers == shape.directions == 1:
        found.append(traced("flax", lambda: flax_cell(shape, data)))
    if shape.mode == "lstm" and shape.dtype == "float32":
        found.append(traced("jax.experimental.rnn", lambda: experimental(shape, data)))
    return found


def rows_of(shapes: list[Shape]) -> Iterator[dict[str, Any]]:
    """Every time of each shape, once all programs were compiled."""
    networks = [
        (shape, shape.draw(), phase) for shape in shapes for phase in ("inference", "training")
    ]
    for shape, _, phase in networks:
        if not shape.lengths:
            chosen = djax.tune(shape.spec, shape.batch, shape.steps, phase == "training")
            print(f"{shape.name:44} {phase}: {chosen}", flush=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = [
            programs_of(shape, data, phase == "training", pool) for shape, data, phase in networks
        ]
        wait([one.compiled for several in programs for one in several])
    pairs = zip(networks, programs, strict=True)
    for shape in shapes:
        both = {
            phase: times_of(shape, data, phase, several)
            for (_, data, phase), several in islice(pairs, 2)
        }
        yield {"shape": shape.name} | both


def times_of(shape: Shape, data: Data, phase: str, programs: list[Program]) -> dict[str, Any]:
    """Return the time of each program and of a captured plan, and XLA's calls of the handlers."""
    times: dict[str, Any] = {}
    for one in programs:
        before = dict(IMPLEMENTATIONS["cudnn"].handlers.calls)
        times[one.name] = one.time()
        if one.name == OURS:
            after = IMPLEMENTATIONS["cudnn"].handlers.calls
            times["handler calls"] = {kind: after[kind] - before[kind] for kind in before}
    try:
        times["plan"] = captured_plan(shape, data, phase == "training")
    except Exception as error:
        times["plan"] = failure(error)
    for name, taken in times.items():
        print(f"{shape.name:44} {phase:9} {name:22} {taken}", flush=True)
    return times


def nothing() -> float:
    """Milliseconds of a call of a compiled function that adds one to a number."""
    number = jnp.zeros((), "float32")
    return milliseconds(partial(jax.jit(lambda a: a + 1).lower(number).compile(), number))


def mean(x: Any, w: Any) -> Any:
    """Average, over the devices, an array as large as the gradients of the weights."""
    return jax.lax.pmean(w, "d")


def divided(counts: list[int]) -> list[dict[str, Any]]:
    """LSTM f16, T 100, 256 rows a GPU, H 1024, two layers: forward, gradients, their sum."""
    P = jax.P
    steps, batch, size = 100, 256, 1024
    spec = dnnffi.RNNSpec(
        mode="lstm", input_size=size, hidden_size=size, num_layers=2, dtype="float16"
    )
    weights = djax.init(jax.random.key(0), spec)
    rows: list[dict[str, Any]] = []
    for count in counts:
        mesh = jax.make_mesh(
            (count,),
            ("d",),
            devices=jax.devices()[:count],
            axis_types=(jax.sharding.AxisType.Auto,),
        )
        x = jax.random.normal(jax.random.key(1), (steps, batch * count, size)).astype("float16")
        x = jax.device_put(x, jax.NamedSharding(mesh, P(None, "d")))
        w = jax.device_put(weights, jax.NamedSharding(mesh, P()))

        def loss(x: Any, w: Any) -> Any:
            return (djax.lstm(x, None, w, spec=spec)[0].astype("float32") ** 2).mean()

        def summed(x: Any, w: Any) -> Any:
            return jax.lax.pmean(jax.grad(loss, 1)(x, w), "d")

        step = jax.jit(jax.grad(loss, 1))
        shared = {"in_specs": (P(None, "d"), P()), "out_specs": P(), "check_vma": False}
        mapped = partial(jax.shard_map, mesh=mesh, **shared)
        row: dict[str, Any] = {
            "devices": count,
            "shard_map": milliseconds(partial(jax.jit(mapped(summed)), x, w)),
            "jit": milliseconds(partial(step, x, w)),
        }
        if count > 1:
            row["sum"] = milliseconds(partial(jax.jit(mapped(mean)), x, w))
            inputs = (jax.device_put((x[:, :batch], w), one) for one in jax.devices()[:count])
            row["alone"] = [milliseconds(partial(step, *one)) for one in inputs]
        first = rows[0] if rows else row
        for name in ("shard_map", "jit"):
            row[f"{name} throughput"] = count * first[name] / row[name] / first["devices"]
        print(row, flush=True)
        rows.append(row)
    return rows


class _Nothing(ReferenceEngine):
    """An engine whose calls compute nothing."""

    def make(self, problem: Any, candidate: str) -> Any:
        made: Any = super().make(problem, candidate)
        made.forward = lambda launch, at: None
        return made


def handler() -> float:
    """Microseconds of a call of nine buffers that computes nothing, with what XLA does for it."""
    jax.config.update("jax_default_device", jax.devices("cpu")[0])
    IMPLEMENTATIONS["nothing"] = Implementation(
        "nothing", "cpu", Handlers("dnnffi_nothing", "cpu", _Nothing)
    )
    sys.modules["dnnffi.jax.rnn.implementations"].NAMES = tuple(IMPLEMENTATIONS)
    spec = dnnffi.RNNSpec(mode="lstm", input_size=1, hidden_size=1)
    weights = djax.init(jax.random.key(0), spec)
    x, states = jnp.ones((1, 1, 1)), (jnp.ones((1, 1, 1)), jnp.ones((1, 1, 1)))

    def many(calls: int) -> Any:
        def run(x: Any) -> Any:
            hx = states
            for _ in range(calls):
                x, hx = djax.lstm(x, hx, weights, spec=spec, implementation="nothing")
            return x

        return jax.jit(run)

    taken = [milliseconds(partial(many(calls), x)) for calls in (10, 210)]
    return (taken[1] - taken[0]) / 200 * 1e3


def cpu_lines() -> list[str]:
    """LSTMs of the scan and of Flax on the host, as a table."""
    import flax
    from flax import linen

    jax.config.update("jax_default_device", jax.devices("cpu")[0])
    found = machine("cpu", ("jax",))
    heads = f"{'':34}{'compile, s':^18}{'call, ms':^27}{'memory, MiB':^27}"
    names = f"{'dnnffi':>9}{'Flax':>9}"
    compared = f"{names}{'ratio':>9}"
    table = [
        f"{found['date']}: dnnffi {found['dnnffi']}, jax {jax.__version__}, "
        f"flax {flax.__version__}, {os.cpu_count()} cores",
        "",
        heads,
        f"{'':34}{names}{compared}{compared}",
    ]
    for steps, batch, inputs, size in CPU_SHAPES:
        spec = dnnffi.RNNSpec(mode="lstm", input_size=inputs, hidden_size=size)
        weights = djax.init(jax.random.key(0), spec)
        x = jax.random.normal(jax.random.key(1), (steps, batch, inputs))
        dy = jax.random.normal(jax.random.key(2), (steps, batch, size))
        rnn = linen.RNN(linen.OptimizedLSTMCell(size), time_major=True)
        params = rnn.init(jax.random.key(0), x)
        runs = (lambda x, w: djax.lstm(x, None, w)[0], weights), (rnn.apply, params)
        for phase in ("inference", "training"):
            compiled, seconds, memory = [], [], []
            for number, (run, held) in enumerate(runs):

                def infer(x: Any, held: Any, run: Any = run, number: int = number) -> Any:
                    return run(held, x) if number else run(x, held)

                def train(x: Any, held: Any, dy: Any, infer: Any = infer) -> Any:
                    y, pull = jax.vjp(infer, x, held)
                    return y, pull(dy)

                arguments = (x, held) if phase == "inference" else (x, held, dy)
                function = infer if phase == "inference" else train
                start = time.perf_counter()
                made = jax.jit(function).lower(*arguments).compile()
                seconds.append(time.perf_counter() - start)
                used = made.memory_analysis()
                memory.append(
                    used.argument_size_in_bytes
                    + used.output_size_in_bytes
                    + used.temp_size_in_bytes
                )
                compiled.append(partial(made, *arguments))
            best = [float("inf")] * 2
            for _ in range(CPU_TURNS):
                for number, call in enumerate(compiled):
                    for _ in range(2):
                        start = time.perf_counter()
                        jax.block_until_ready(call())
                        best[number] = min(best[number], time.perf_counter() - start)
            name = f"T {steps} B {batch} I {inputs} H {size} {phase}"
            cells = "".join(f"{value:9.2f}" for value in seconds)
            for ours, theirs, unit in ((*best, 1e3), (*memory, 2**-20)):
                cells += f"{ours * unit:9.2f}{theirs * unit:9.2f}{ours / theirs:9.2f}"
            table.append(f"{name:34}{cells}")
            print(table[-1], flush=True)
    return table


def put(path: Path | None, part: str, found: Any, place: str = "gpu") -> None:
    """Put a part of the record in its place, and where it was measured; rows replace their own."""
    if path is None:
        return
    record = files.read_json(path) if path.exists() else {}
    if part == "rows":
        found = list({row["shape"]: row for row in [*record.get(part, []), *found]}.values())
    record |= {part: found, f"machine_{part}": machine(place, ("jax",))}
    files.write_json(path, record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=[""], help="shapes whose name has one of these"
    )
    parser.add_argument("--devices", type=int, nargs="+", help="how many GPUs share a batch")
    parser.add_argument("--handler", action="store_true", help="the host cost of a call")
    parser.add_argument("--cpu", action="store_true", help="LSTMs on the host, and Flax's")
    parser.add_argument("--record", action="store_true", help="with --cpu: write the record")
    parser.add_argument("--json", type=Path, help="file of the record; its other parts are kept")
    options = parser.parse_args()
    write = partial(put, options.json)
    if options.cpu:
        text = "\n".join(cpu_lines())
        print(text)
        if options.record:
            files.write(CPU_RECORD, f"{text}\n{source_lines(CPU_RECORD.name)}".encode())
    elif options.handler:
        taken = handler()
        print(f"a call of a handler: {taken:.1f} us", flush=True)
        write("handler_us", taken, "cpu")
    elif options.devices:
        write("devices", divided(options.devices))
    else:
        halves = [shape for shape in PERFORMANCE if shape.dtype == "float16"]
        shapes = [*PERFORMANCE, *(replace(shape, dtype="bfloat16") for shape in halves)]
        # bfloat16 is measured at the sizes of float16.
        least = nothing()
        for row in rows_of([one for one in shapes if any(n in one.name for n in options.only)]):
            write("rows", [row | {"nothing": least}])


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
