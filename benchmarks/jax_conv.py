"""Compare convolutions of ResNet-50 and MobileNetV2 in JAX with dnnffi's plans, on one GPU.

    python benchmarks/jax_conv.py [--configs "f16 last" ...] [--only 3x3] [--json FILE]

What does `dnnffi.jax.conv` gain? XLA calls cuDNN for `lax.conv_general_dilated`, and searches among
its engines while it compiles. Three sides run twenty convolutions on twenty sets of arrays: "jax"
is `lax.conv_general_dilated` and "djax" `dnnffi.jax.conv`, each in one compiled function, "dnnffi"
is tuned plans in one CUDA graph on the same memory, which "djax", by the same plans, could reach at
best. Times are microseconds of one convolution by the host's clock, over many launches of which the
last is waited for: the medians of turns that they take. "handler calls" are those of "djax" while
it was measured: few where XLA replays what it has captured.
``fused`` is relu(conv(x, w) + residual + bias), of the layers that have a residual in the network.

Weights are [O, H, W, I] where channels are last, as cuDNN wants them. After ``--seconds`` no layer
is begun; the record counts what was left out, and another run with ``--configs`` measures it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
from conv_layers import SETS, Layer
from jax import lax

import dnnffi
from dnnffi import files
from dnnffi import jax as djax
from dnnffi.cli.machine import machine
from dnnffi.jax.convolution.implementations import IMPLEMENTATIONS
from dnnffi.spec.conv_options import ConvOptionsDict
from dnnffi.spec.names import BackendName

CONFIGS = {
    # name: dtype, layout
    "f16 last": ("float16", "channels_last"),
    "tf32 first": ("float32", "channels_first"),
    "f16 first": ("float16", "channels_first"),
    "tf32 last": ("float32", "channels_last"),
}
NUMBERS = {
    "channels_first": ("NCHW", "OIHW", "NCHW"),
    "channels_last": ("NHWC", "OHWI", "NHWC"),
}
PLAIN = ("forward", "backward_data", "backward_weights")
FUSED = "fused"
CALLS = 20
TURNS = 3
TURN_SECONDS = 0.02
WRONG = 2e-2  # by the norm; two kernels in TF32 or float16 are 1e-3 apart


class Problem:
    """A layer, its arrays of JAX, and the calls of both sides.

    ``arrays`` has lists of as many arrays as there are calls, but for ``w`` and ``bias``.
    """

    def __init__(self, layer: Layer, config: str, calls: int = CALLS) -> None:
        self.layer, self.calls = layer, calls
        self.dtype, self.layout = CONFIGS[config]
        self.spec = layer.spec(self.dtype)
        n, _, *sizes = layer.x_shape
        y_shape = self.spec.y_shape(n, sizes)
        self.shapes = {
            "x": layer.x_shape,
            "w": self.spec.weight_shape,
            "dy": y_shape,
            "residual": y_shape,
        }
        self.operations = (*PLAIN, FUSED) if layer.name.endswith("out") else PLAIN

    def draw(self) -> dict[str, Any]:
        """Arrays of JAX, normally distributed."""
        keys = iter(jax.random.split(jax.random.key(0), 5))

        def made(name: str, count: int) -> list[Any]:
            shape = self.in_memory(self.shapes[name])
            array = jax.random.normal(next(keys), shape).astype(self.dtype)
            return [array * (1 + number / count) for number in range(count)]

        arrays = {name: made(name, self.calls) for name in ("x", "dy")}
        arrays["w"] = made("w", 1)[0]
        if FUSED in self.operations:
            arrays["residual"] = made("residual", self.calls)
            channels = (self.spec.out_channels,)
            arrays["bias"] = jax.random.normal(next(keys), channels).astype(self.dtype)
        return jax.block_until_ready(arrays)

    def in_memory(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of an array of JAX that has [N, C, H, W] or [O, I, H, W]."""
        first, second, *sizes = shape
        if self.layout == "channels_first":
            return (first, second, *sizes)
        return (first, *sizes, second)

    def reads(self, operation: str) -> tuple[str, ...]:
        """Return the names of the arrays of an operation, in dnnffi's order."""
        return {
            "forward": ("x", "w"),
            "backward_data": ("dy", "w"),
            "backward_weights": ("dy", "x"),
            FUSED: ("x", "w", "bias", "residual"),
        }[operation]

    def in_jax(self, operation: str, implementation: str | None = None) -> Callable[..., list[Any]]:
        """All calls of an operation, as a function of what it reads.

        By an implementation of `dnnffi.jax.conv`, or by JAX alone.
        """
        spec = self.spec
        conv: Any = partial(
            lax.conv_general_dilated,
            window_strides=spec.stride,
            padding=[(before, before) for before in spec.padding],
            dimension_numbers=NUMBERS[self.layout],
            feature_group_count=spec.groups,
        )
        if implementation is not None:
            conv = partial(
                djax.conv,
                stride=spec.stride,
                padding=spec.padding,
                groups=spec.groups,
                layout=self.layout,
                implementation=implementation,
            )
        like = {
            name: jax.ShapeDtypeStruct(self.in_memory(self.shapes[name]), self.dtype)
            for name in ("x", "w")
        }

        def one(*given: Any) -> Any:
            if operation == "forward":
                return conv(*given)
            if operation == "backward_data":
                dy, w = given
                return jax.linear_transpose(lambda x: conv(x, w), like["x"])(dy)[0]
            if operation == "backward_weights":
                dy, x = given
                return jax.linear_transpose(lambda w: conv(x, w), like["w"])(dy)[0]
            x, w, bias, residual = given
            if implementation is not None:
                return conv(x, w, bias, residual=residual, activation="relu")
            if self.layout == "channels_first":
                bias = bias[:, None, None]
            return jax.nn.relu(conv(x, w) + residual + bias)

        def several(*given: Any) -> list[Any]:
            lists = [item if isinstance(item, list) else [item] * self.calls for item in given]
            return [one(*arrays) for arrays in zip(*lists, strict=True)]

        return several

    def plan(self, operation: str, *, backend: BackendName = "cudnn") -> dnnffi.ConvPlan:
        """Return dnnffi's plan of an operation; on a GPU it is tuned."""
        options: ConvOptionsDict | None = {"tune": "now"} if backend == "cudnn" else None
        fused: dict[str, Any] = {"operation": operation}
        if operation == FUSED:
            fused = {"activation": "relu", "residual": True, "bias": True}
        return dnnffi.ConvPlan(
            *(self.spec, self.layer.x_shape),
            layout=self.layout,
            backend=backend,
            options=options,
            **fused,
        )

    def logical(self, array: Any) -> Any:
        """Return an array of NumPy or CuPy with JAX's memory, as dnnffi has it: [N, C, H, W]."""
        return (
            array
            if array.ndim < 4 or self.layout == "channels_first"
            else array.transpose(0, 3, 1, 2)
        )


def on_gpu(array: Any) -> Any:
    """Return an array of JAX as one of CuPy, of the same memory."""
    import cupy

    memory = cupy.cuda.UnownedMemory(array.unsafe_buffer_pointer(), array.nbytes, array)
    return cupy.ndarray(array.shape, array.dtype, cupy.cuda.MemoryPointer(memory, 0))


def graph_of(problem: Problem, operation: str, arrays: dict[str, Any]) -> tuple[Any, Any]:
    """Return a launch function of a graph of dnnffi's calls, and the result of the first call."""
    import cupy

    plan = problem.plan(operation)

    def given(number: int) -> list[Any]:
        found = [arrays[name] for name in problem.reads(operation)]
        picked = [one[number] if isinstance(one, list) else one for one in found]
        return [problem.logical(on_gpu(array)) for array in picked]

    read = [given(number) for number in range(problem.calls)]
    outs = [plan.run(*one) for one in read]
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        plan.run(*read[0], out=outs[0])
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
        for one, out in zip(read, outs, strict=True):
            plan.run(*one, out=out)
        graph = stream.end_capture()
    kept = plan, read, outs

    def launch(waits: bool, kept: Any = kept) -> None:
        graph.launch(stream)
        if waits:
            stream.synchronize()

    return launch, outs[0]


def program_of(compiled: Any, given: Sequence[Any]) -> Any:
    """Return a launch function of a compiled program of JAX, like that of `graph_of`."""

    def launch(waits: bool) -> None:
        results = compiled(*given)
        if waits:
            jax.block_until_ready(results)

    return launch


def microseconds(launches: dict[str, Any], calls: int) -> dict[str, float]:
    """Measure microseconds of one call of each launch function, medians; they alternate."""
    taken: dict[str, list[float]] = {name: [] for name in launches}
    counts = {}
    for name, launch in launches.items():
        for _ in range(4):
            launch(True)
        start = time.perf_counter()
        launch(True)
        counts[name] = max(2, min(100, int(TURN_SECONDS / (time.perf_counter() - start))))
    for _ in range(TURNS):
        for name, launch in launches.items():
            start = time.perf_counter()
            for number in range(counts[name]):
                launch(number == counts[name] - 1)
            taken[name].append((time.perf_counter() - start) / counts[name] / calls)
    return {name: statistics.median(times) * 1e6 for name, times in taken.items()}


def apart(found: Any, expected: Any) -> float:
    """Return the norm of the difference of two results, relative to that of ``expected``."""
    import cupy

    one, two = (array.astype("float64") for array in (found, expected))
    return float(cupy.linalg.norm((one - two).ravel()) / cupy.linalg.norm(two.ravel()))


def rows_of(problem: Problem, pool: ThreadPoolExecutor) -> list[dict[str, Any]]:
    """Return a row for each operation of a layer."""
    arrays = problem.draw()

    def compiled(operation: str, implementation: str | None = None) -> Any:
        given = [arrays[name] for name in problem.reads(operation)]
        program = problem.in_jax(operation, implementation)
        return jax.jit(program).lower(*given).compile(), given

    rows = []
    programs = [pool.submit(compiled, operation) for operation in problem.operations]
    wait(programs)  # nothing else is to run while something is measured
    for operation, program in zip(problem.operations, programs, strict=True):
        row: dict[str, Any] = {"operation": operation}
        try:
            run, given = program.result()
            graph, result = graph_of(problem, operation, arrays)
            graph(True)
            ours, _ = compiled(operation, "cudnn")  # by what the plans have measured
            for name, program in (("apart", run), ("djax apart", ours)):
                found = problem.logical(on_gpu(jax.block_until_ready(program(*given))[0]))
                row[name] = apart(found, result)
                if not row[name] < WRONG:
                    raise RuntimeError(f"{name}: the results are {row[name]:.1e} apart")
            launches = {
                "jax": program_of(run, given),
                "djax": program_of(ours, given),
                "dnnffi": graph,
            }
            calls = IMPLEMENTATIONS["cudnn"].handlers.calls
            before = sum(calls.values())
            row |= microseconds(launches, problem.calls)
            row["handler calls"] = sum(calls.values()) - before
        except Exception as error:  # one that cannot is a line in the record
            row["error"] = f"{type(error).__name__}: {error}"[:300]
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["resnet50", "mobilenet_v2"])
    parser.add_argument("--only", default="", help="layers whose name has this")
    parser.add_argument("--seconds", type=float, default=150.0, help="then it ends")
    parser.add_argument("--json", type=Path, help="the record; other configs of this machine stay")
    options = parser.parse_args()
    import cupy

    ends = time.perf_counter() + options.seconds
    record = begun(options.json, options.configs)
    asked = [
        (config, name, layer)
        for config in options.configs
        for name in options.sets
        for layer in SETS[name]
        if options.only in layer.name
    ]
    record["left_out"] |= Counter(config for config, _, _ in asked)
    with ThreadPoolExecutor(4) as pool:
        for config, name, layer in asked:
            if time.perf_counter() > ends:
                print("no time for the rest:", record["left_out"])
                break
            for row in rows_of(Problem(layer, config), pool):
                record["rows"].append({"set": name, "layer": layer.name, "config": config} | row)
                figures = row.get("error") or "{dnnffi:9.1f} {djax:9.1f} {jax:9.1f}".format(**row)
                print(
                    f"{config:11} {name} {layer.name:24} {row['operation']:17} {figures}",
                    flush=True,
                )
            record["left_out"][config] -= 1
            if options.json:
                files.write_json(options.json, record)
            jax.clear_caches()
            dnnffi.clear_plans()
            cupy.get_default_memory_pool().free_all_blocks()


def begun(path: Path | None, configs: Sequence[str]) -> dict[str, Any]:
    """Read the record at ``path`` without ``configs``; a new one if its machine or source differs.

    ``left_out`` counts the layers of each configuration that were not measured.
    """
    found = {"machine": machine("gpu", ("jax", "jaxlib")), "calls": CALLS}
    if path is not None and path.exists():
        before = files.read_json(path)
        if all(before[name] == value for name, value in found.items()):
            rows = [row for row in before["rows"] if row["config"] not in configs]
            return found | {"left_out": before["left_out"], "rows": rows}
    return found | {"left_out": {}, "rows": []}


if __name__ == "__main__":
    main()
