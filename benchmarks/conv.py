"""Compare convolutions of known networks with PyTorch: kernels, host cost of a call, first calls.

    python benchmarks/conv.py [--quick] [--sets resnet50 ...] [--configs f16 ...] [--json FILE]
    python benchmarks/conv.py --only "14 5x5, f32 backward_weights" --report
    python benchmarks/conv.py --join PART PART ... --json FILE
    python benchmarks/conv.py --untuned [--json FILE]

With several GPUs the sets may be measured in parts, one on each GPU; `--join` makes one record of
the parts' kernels, and takes the rest from the first.

Kernels: a tuned `dnnffi.ConvPlan` and PyTorch with ``benchmark=True``, each captured in a CUDA
graph of ten calls, medians of alternating runs. All measurements use several sets of arrays, since
a kernel may take a fifth longer on other addresses. In strict float32 the errors of both are
recorded too: the distance of the results from one in float64, relative to its norm. Host: the time
until a call returns, on a drained device. First calls: calls of problems that the process has not
seen, heuristics only, with the libraries warm; the first library may have to load a kernel, so the
two alternate in going first.

``--untuned``: depthwise layers, forward and backward data, by plans that were not tuned, by what
cuDNN's heuristics choose, and by PyTorch without a search: layers that are called a few times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import cupy
from call_overhead import host_times
from conv_layers import DEPTHWISE, QUICK, SETS, Layer

import dnnffi
from dnnffi import files
from dnnffi.backends.conv_interface import OWN, ConvAddresses
from dnnffi.backends.cudnn import library
from dnnffi.backends.cudnn.conv_executor import EngineExecutors
from dnnffi.backends.vendor.handle import current_launch
from dnnffi.cli.machine import machine
from dnnffi.device.arrays import in_layout
from dnnffi.device.dtypes import dtype_object

try:
    import torch
except ImportError:
    torch = None

CONFIGS = {
    # name: dtype, layout, math
    "f16": ("float16", "channels_last", "default"),
    "tf32": ("float32", "channels_first", "default"),
    "f32": ("float32", "channels_first", "strict"),
}
UNTUNED_CONFIGS = {
    "f32 first": ("float32", "channels_first", "default"),
    "f16 last": ("float16", "channels_last", "default"),
    "bf16 last": ("bfloat16", "channels_last", "default"),
    "f16 first": ("float16", "channels_first", "default"),
}
OPERATIONS = ("forward", "backward_data", "backward_weights")
UNTUNED_OPERATIONS = OPERATIONS[:2]
CALLS = 10  # in a graph
PLACES = 3  # sets of arrays
TURNS = 3  # with each
TURN_MS = 2.0


class Problem:
    """The arrays of a layer, and the calls of both libraries on them."""

    def __init__(self, layer: Layer, config: str) -> None:
        self.layer = layer
        dtype, self.layout, self.math = (CONFIGS | UNTUNED_CONFIGS)[config]
        self.tuned = config in CONFIGS
        self.spec = spec = layer.spec(dtype)
        random = cupy.random.default_rng(0)

        def made(shape: tuple[int, ...]) -> Any:
            array = random.standard_normal(shape, dtype="float32").astype(dtype_object(dtype))
            return in_layout(array, channels_last=self.layout == "channels_last")

        n, _, *sizes = layer.x_shape
        self.x, self.w = made(layer.x_shape), made(spec.weight_shape)
        self.dy = made(spec.y_shape(n, sizes))

    def given(self, operation: str) -> tuple[Any, Any]:
        """Return the two arrays that an operation reads."""
        if operation == "forward":
            return self.x, self.w
        return self.dy, self.w if operation == "backward_data" else self.x

    def plan(self, operation: str, *, tune: bool) -> dnnffi.ConvPlan:
        """Return dnnffi's plan of an operation, tuned for these sizes if ``tune``."""
        made = dnnffi.ConvPlan(
            self.spec,
            self.layer.x_shape,
            operation=operation,
            layout=self.layout,
            backend="cudnn",
            options={"math": self.math},
        )
        if tune:
            made.autotune()  # for these sizes, whatever was measured for others of their class
        return made

    def torch_call(self, operation: str, *, float64: bool = False) -> Callable[[], Any]:
        """Return a function that makes PyTorch's call of an operation."""
        x, w, dy = (torch.from_dlpack(array) for array in (self.x, self.w, self.dy))
        if float64:
            x, w, dy = x.double(), w.double(), dy.double()
        spec = self.spec
        keywords = (list(spec.stride), list(spec.padding), list(spec.dilation))
        if operation == "forward":
            return lambda: torch.nn.functional.conv2d(x, w, None, *keywords, spec.groups)
        mask = [operation == "backward_data", operation == "backward_weights", False]
        backward, number = torch.ops.aten.convolution_backward, mask.index(True)
        return lambda: backward(dy, x, w, None, *keywords, False, [0, 0], spec.groups, mask)[number]

    def errors(self, operation: str, results: dict[str, Any]) -> dict[str, float]:
        """Return the distance of each result from PyTorch's in float64, relative to its norm."""
        exact = self.torch_call(operation, float64=True)().flatten()
        return {
            name: float((torch.as_tensor(result).flatten() - exact).norm() / exact.norm())
            for name, result in results.items()
        }


@contextmanager
def torch_math(math: str, benchmark: bool) -> Iterator[None]:
    """Set PyTorch's switches for a ``math``, and its inference mode; restore the switches."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit
    cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit = math != "strict", benchmark, 0
    try:
        with torch.inference_mode():
            yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit = before


class Captured(NamedTuple):
    """Ten captured calls: a function that launches them, and the array of their result."""

    launch: Callable[[], object]
    result: Any


def dnnffi_graph(problem: Problem, operation: str) -> tuple[Captured, list[str]]:
    """Capture calls of dnnffi's plan; return them and the lines of the plan's report."""
    plan = problem.plan(operation, tune=problem.tuned)
    given = problem.given(operation)
    out = plan.run(*given)
    graph = captured(lambda: plan.run(*given, out=out), out)
    return graph, plan.report().splitlines()


def captured(call: Callable[[], Any], result: Any) -> Captured:
    """Capture ten calls on CuPy's arrays in a graph, which keeps alive what they need."""
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        call()
        pool = cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(pool.malloc):
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
            for _ in range(CALLS):
                call()
            graph = stream.end_capture()
    kept = (call, result, pool, stream)
    return Captured(lambda kept=kept: graph.launch(), result)


def heuristics_graph(problem: Problem, operation: str) -> Captured:
    """Capture calls of the engine that cuDNN's heuristics choose."""
    first, second = problem.given(operation)
    with problem.plan(operation, tune=False) as plan:
        asked, out = plan.problem, plan.run(first, second)
    executors = EngineExecutors(library.load(), asked, current_launch(library.load()))
    runner = next(one for one in executors if one.choice.engine != OWN)
    workspace = cupy.empty(max(runner.workspace_bytes, 1), "uint8")
    at = ConvAddresses(
        *(first.data.ptr, second.data.ptr, 0, 0, out.data.ptr),
        workspace.data.ptr if runner.workspace_bytes else 0,
    )
    arrays = problem, workspace
    return captured(lambda arrays=arrays: runner.run(current_launch(library.load()), at), out)


def torch_graph(problem: Problem, operation: str) -> Captured:
    """Capture PyTorch's calls in a graph of its own, and check that it writes a result."""
    with torch_math(problem.math, benchmark=problem.tuned):
        call = problem.torch_call(operation)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CALLS):
                result = call()
        result.zero_()
        # On PyTorch's current stream, which is the null stream as CuPy's is.
        graph.replay()
        if not bool(result.any()):
            raise RuntimeError("the graph of PyTorch has computed nothing")
    return Captured(graph.replay, result)


def kernel_times(graphs: dict[str, Captured]) -> dict[str, list[float]]:
    """Measure microseconds of a call in each graph; the graphs alternate."""
    first, last = cupy.cuda.Event(), cupy.cuda.Event()

    def elapsed(launch: Callable[[], object], count: int) -> float:
        first.record()
        for _ in range(count):
            launch()
        last.record()
        last.synchronize()
        return cupy.cuda.get_elapsed_time(first, last) / count

    times: dict[str, list[float]] = {name: [] for name in graphs}
    counts = {}
    for name, (launch, _) in graphs.items():
        elapsed(launch, 1)
        counts[name] = max(1, min(200, int(TURN_MS / max(elapsed(launch, 1), 1e-3))))
    for _ in range(TURNS):
        for name, (launch, _) in graphs.items():
            times[name].append(elapsed(launch, counts[name]) / CALLS * 1e3)
    return times


def measured(problems: list[Problem], operation: str, report: bool) -> tuple[dict, list[str]]:
    """Return a row's figures, of one problem on several sets of arrays, and lines of its report."""
    row: dict[str, Any] = {}
    times: dict[str, list[float]] = {}
    about: list[str] = []
    for problem in problems:
        graph, about = dnnffi_graph(problem, operation)
        row["engine"] = about[1]
        graphs = {"dnnffi": graph}
        if not problem.tuned:
            graphs["cudnn"] = heuristics_graph(problem, operation)
        if torch is not None:
            graphs["torch"] = torch_graph(problem, operation)
        for name, found in kernel_times(graphs).items():
            times.setdefault(name, []).extend(found)
    if torch is not None and problem.math == "strict":
        row["errors"] = problem.errors(operation, {n: one.result for n, one in graphs.items()})
    if torch is not None and report:
        about += kernel_names(graphs)
    return row | {name: statistics.median(values) for name, values in times.items()}, about


def compiled(sets: dict[str, list[Layer]], only: str) -> None:
    """Make the kernels that `--untuned` will find in CuPy's cache, several at once."""
    cases = {
        (layer._replace(name=""), config, operation)
        for set_name, layers in sets.items()
        for layer in layers
        for config in UNTUNED_CONFIGS
        for operation in UNTUNED_OPERATIONS
        if only in name_of(named(set_name, layer, config) | {"operation": operation})
    }

    def plan(case: tuple[Layer, str, str]) -> None:
        layer, config, operation = case
        dtype, layout, math = UNTUNED_CONFIGS[config]
        options = {"math": math, "tune": "auto"}
        dnnffi.ConvPlan(
            *(layer.spec(dtype), layer.x_shape),
            operation=operation,
            layout=layout,
            backend="cudnn",
            options=options,
        ).close()

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(plan, cases))


def named(set_name: str, layer: Layer, config: str) -> dict[str, Any]:
    """Return the fields that identify a row: set, layer and configuration."""
    return {"set": set_name, "layer": layer.name, "config": config}


def kernels(
    sets: dict[str, list[Layer]],
    configs: list[str],
    operations: tuple[str, ...],
    only: str,
    write: Callable[[], None],
    rows: list,
    report: bool,
):
    """Add one row for each layer, configuration and operation whose name contains ``only``."""
    for set_name, layers in sets.items():
        for layer in layers:
            for config in configs:
                of_row = named(set_name, layer, config)
                wanted = [one for one in operations if only in name_of(of_row | {"operation": one})]
                if not wanted:
                    continue
                problems = [Problem(layer, config) for _ in range(PLACES)]
                for operation in wanted:
                    row = of_row | {"operation": operation}
                    about: list[str] = []
                    try:
                        figures, about = measured(problems, operation, report)
                        row |= figures
                    except Exception as error:
                        row["error"] = f"{type(error).__name__}: {error}"[:300]
                    rows.append(row)
                    show(row)
                    if report:
                        print(*about, sep="\n", flush=True)
                write()
                del problems
                dnnffi.clear_plans()
                cupy.get_default_memory_pool().free_all_blocks()
                if torch is not None:
                    torch.cuda.empty_cache()


def kernel_names(graphs: dict[str, Captured]) -> list[str]:
    """Return the kernels of each graph, by PyTorch's profiler."""
    lines = []
    for name, (launch, _) in graphs.items():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            launch()
            torch.cuda.synchronize()
        for kernel in profile.key_averages():
            lines.append(f"{name}: {kernel.count} x {kernel.key}")
    return lines


def name_of(row: dict[str, Any]) -> str:
    """Return the name of a row: its set, layer, configuration and operation."""
    return f"{row['set']} {row['layer']}, {row['config']} {row['operation']}"


def show(row: dict[str, Any]) -> None:
    """Print a line of the table."""
    name = name_of(row)
    if "error" in row:
        print(f"{name:62} {row['error']}", flush=True)
        return
    ratio = row.get("torch", float("nan")) / row["dnnffi"]
    torch_us = row.get("torch", float("nan"))
    errors = "".join(f" {value:.0e}" for value in row.get("errors", {}).values())
    figures = f"{row['dnnffi']:9.1f} {torch_us:9.1f} {ratio:6.2f}"
    print(f"{name:62} {figures}{errors}  {row['engine']}", flush=True)


def host() -> list[dict[str, Any]]:
    """Microseconds of a call of small layers: the executor, a held plan, `dnnffi.conv`, PyTorch."""
    rows = []
    for config in ("f16", "tf32"):
        problem = Problem(Layer("3x3 8x64x14x14", 8, 64, 14, 14, 64, 3, 1, 1), config)
        plan = problem.plan("forward", tune=False)
        x, w = problem.given("forward")
        y = plan.run(x, w)
        launch = current_launch(library.load())
        runner = next(EngineExecutors(library.load(), plan.problem, launch))
        workspace = cupy.empty(max(runner.workspace_bytes, 1), "uint8")
        at = ConvAddresses(
            *(x.data.ptr, w.data.ptr, 0, 0, y.data.ptr),
            workspace.data.ptr if runner.workspace_bytes else 0,
        )
        calls: dict[str, Callable[[], object]] = {
            "executor": lambda runner=runner, launch=launch, at=at: runner.run(launch, at),
            "held": lambda plan=plan, x=x, w=w, y=y: plan.run(x, w, out=y),
            "functional": lambda x=x, w=w: dnnffi.conv(x, w, padding=1),
        }
        if torch is None:
            rows.append({"problem": f"{problem.layer.name} {config}"} | host_times(calls))
            continue
        with torch_math("default", benchmark=False):
            calls["torch"] = problem.torch_call("forward")
            rows.append({"problem": f"{problem.layer.name} {config}"} | host_times(calls))
    for row in rows:
        figures = ", ".join(f"{key} {value:.1f}" for key, value in row.items() if key != "problem")
        print(f"host µs of {row['problem']}: {figures}", flush=True)
    return rows


def first_calls() -> list[dict[str, Any]]:
    """Milliseconds of the first call of new problems, by turns first by one and by the other."""
    rows = []
    for config in ("f16", "tf32"):
        for turn, size in enumerate(range(17, 33)):
            problem = Problem(Layer(f"3x3 {size}", 8, 64, size, size, 64, 3, 1, 1), config)
            x, w = problem.given("forward")
            calls: dict[str, Callable[[], object]] = {
                "dnnffi": lambda x=x, w=w: dnnffi.conv(x, w, padding=1)
            }
            if torch is not None:
                calls["torch"] = problem.torch_call("forward")
            order = list(calls) if turn % 2 else list(calls)[::-1]
            row: dict[str, Any] = {"problem": problem.layer.name, "config": config}
            for name in order:
                cupy.cuda.Device().synchronize()
                start = time.perf_counter()
                calls[name]()
                cupy.cuda.Device().synchronize()
                row[name] = (time.perf_counter() - start) * 1e3
            rows.append(row)
            figures = ", ".join(f"{name} {row[name]:.2f}" for name in sorted(calls))
            print(f"first call ms of {row['problem']} {config}: {figures}", flush=True)
    return rows[1:]  # the first of all loads libraries


def joined(parts: list[str]) -> dict[str, Any]:
    """Join records that were measured on one machine; all but the kernels is from the first."""
    first, *others = (files.read_json(part) for part in parts)
    for other in others:
        if other["machine"] != first["machine"]:
            raise SystemExit(f"not of one machine: {first['machine']}, {other['machine']}")
        first["kernels"] += other["kernels"]
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three layers in f16")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--configs", nargs="*", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument(
        "--only", metavar="TEXT", help="the kernels alone, where this occurs in the line's name"
    )
    parser.add_argument(
        "--report", action="store_true", help="each plan's candidates, and the kernels of both"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--join", nargs="+", metavar="PART", help="records of one machine")
    parser.add_argument(
        "--untuned", action="store_true", help="depthwise layers, by plans that were not tuned"
    )
    arguments = parser.parse_args()
    if arguments.join and not arguments.json:
        parser.error("--join needs --json")
    if arguments.join:
        files.write_json(arguments.json, joined(arguments.join))
        return
    record: dict[str, Any] = {"machine": machine("gpu", ("torch",) if torch is not None else ())}
    print(", ".join(f"{key} {value}" for key, value in record["machine"].items()), flush=True)

    def write() -> None:
        if arguments.json:
            files.write_json(arguments.json, record)

    only, operations = arguments.only or "", OPERATIONS
    kernels_alone = arguments.only or arguments.untuned
    record["host"], record["first"] = ([], []) if kernels_alone else (host(), first_calls())
    record["kernels"] = rows = []
    sets = {name: SETS[name] for name in arguments.sets}
    configs = arguments.configs
    if arguments.quick:
        sets, configs = {"quick": QUICK}, ["f16"]
    if arguments.untuned:
        sets, configs, operations = DEPTHWISE, list(UNTUNED_CONFIGS), UNTUNED_OPERATIONS
        compiled(sets, only)
    kernels(sets, configs, operations, only, write, rows, arguments.report)
    write()
    for config in configs:
        ratios = [
            row["torch"] / row["dnnffi"]
            for row in rows
            if row["config"] == config and "torch" in row
        ]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            print(
                f"{config}: geometric mean {mean:.3f}, lowest {min(ratios):.3f}, of {len(ratios)}"
            )


if __name__ == "__main__":
    main()
