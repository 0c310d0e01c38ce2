"""New sizes of a known convolution: what they cost the host, and what the choice of a class loses.

    python benchmarks/conv_sizes.py [--layers NAME ...] [--sizes 24] [--seed 0] [--json FILE]

For each layer a class is tuned at one size. Then sizes of the same class are drawn.

Host: microseconds until the first call of each size returns, on a drained device, the median and
the largest; the part of it in which cuDNN finalizes descriptors; and a second call of the size.
GPU: the time of the plan that the class gives relative to that of a plan measured for these very
sizes, and for dnnffi's own kernels sizes as arguments relative to sizes as constants: medians of
turns, each in a CUDA graph; the geometric mean and the largest of the quotients.

Results on disk are not used: ``DNNFFI_CACHE_DIR`` is off in this process.
"""

from __future__ import annotations

import os

os.environ["DNNFFI_CACHE_DIR"] = "off"

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

import dnnffi
from dnnffi import files
from dnnffi.backends.conv_interface import OWN, ConvAddresses
from dnnffi.backends.cudnn.conv_executor import OwnGather
from dnnffi.cli.machine import machine
from dnnffi.convolution.backend import conv_backends
from dnnffi.convolution.size_class import size_class
from dnnffi.device.arrays import in_layout
from dnnffi.device.cupy import cupy_memory
from dnnffi.device.dtypes import dtype_object
from dnnffi.spec.conv_problem import ConvProblem

CALLS = 10
"""Calls of a plan in one CUDA graph."""

TURNS = 7


class Layer(NamedTuple):
    """A convolution without its images, and the size at which its class is tuned."""

    channels: tuple[int, int]
    kernel: int
    stride: int = 1
    groups: int = 1
    size: tuple[int, int, int] = (8, 56, 56)
    dtype: str = "float16"
    layout: str = "channels_last"

    def problem(self, operation: str, batch: int, sizes: tuple[int, int]) -> ConvProblem:
        """Return the problem of some images."""
        spec = dnnffi.ConvSpec(
            in_channels=self.channels[0],
            out_channels=self.channels[1],
            kernel=(self.kernel,) * 2,
            stride=self.stride,
            padding=self.kernel // 2,
            groups=self.groups,
            dtype=self.dtype,
        )
        shape = (batch, self.channels[0], *sizes)
        return ConvProblem.of(operation, spec, shape, layout=self.layout)


LAYERS = {
    "3x3 256 f16 last": Layer((256, 256), 3),
    "1x1 256 1024 f16 last": Layer((256, 1024), 1),
    "7x7 stem f16 last": Layer((4, 64), 7, 2, size=(8, 224, 224)),
    "3x3 128 f32 first": Layer((128, 128), 3, dtype="float32", layout="channels_first"),
    "depthwise 3x3 192 f16 last": Layer((192, 192), 3, groups=192),
    "depthwise 3x3 192 f32 first": Layer(
        (192, 192), 3, groups=192, dtype="float32", layout="channels_first"
    ),
    "depthwise 7x7 192 f16 last": Layer((192, 192), 7, groups=192),
}


def drawn(layer: Layer, operation: str, count: int, random: np.random.Generator) -> list[Any]:
    """Return problems of the class of the layer's size, each with another size."""
    batch, *sizes = layer.size
    first = layer.problem(operation, batch, tuple(sizes))
    found: dict[tuple[int, ...], ConvProblem] = {}
    while len(found) < count:
        n = int(random.integers(1, 2 * batch + 1))
        high, wide = (int(size * random.uniform(0.6, 1.6)) for size in sizes)
        problem = layer.problem(operation, n, (high, wide))
        if size_class(problem) == size_class(first) and problem.x_shape != first.x_shape:
            found[problem.x_shape] = problem
    return list(found.values())


def arrays_of(problem: ConvProblem) -> list[Any]:
    """Return random arguments, and an array for the result."""
    random = cupy.random.default_rng(0)
    made = []
    shapes = [s for s, there in zip(problem.argument_shapes, problem.present, strict=True) if there]
    for shape in (*shapes, problem.result_shape):
        array = random.standard_normal(shape, dtype="float32")
        array = array.astype(dtype_object(problem.spec.dtype))
        made.append(in_layout(array, channels_last=problem.channels_last))
    return made


def host_microseconds(call: Callable[[], object]) -> float:
    """Return how long a call keeps the host, on a drained device."""
    cupy.cuda.Device().synchronize()
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def in_turns(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return milliseconds of a call, medians; the calls take turns."""
    memory = cupy_memory()
    launches = {}
    for name, call in calls.items():
        call()
        launches[name] = memory.capture_step(lambda call=call: [call() for _ in range(CALLS)])
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, graph in launches.items():
            times[name].append(memory.elapsed(graph.launch) / CALLS)
    return {name: statistics.median(values) for name, values in times.items()}


def plan_of(problem: ConvProblem) -> dnnffi.ConvPlan:
    """Return a plan that is not tuned: of the choice of its class."""
    return dnnffi.ConvPlan(
        *(problem.spec, problem.x_shape),
        operation=problem.operation,
        layout=problem.layout,
        backend="cudnn",
    )


def general(problem: ConvProblem, choice: Any) -> float:
    """Return the time of a general kernel relative to that of a specialized one."""
    *given, result = arrays_of(problem)
    memory = cupy_memory()
    at = ConvAddresses(*(a.data.ptr for a in given), 0, 0, result.data.ptr)
    kernels = {
        name: OwnGather(problem, memory, choice, specialized=name == "specialized")
        for name in ("general", "specialized")
    }

    def call(kernel: Any) -> Callable[[], object]:
        launch_on = conv_backends.of("cudnn").resources.launch
        return lambda: kernel.run(launch_on(0, memory.current_stream()), at)

    times = in_turns({name: call(kernel) for name, kernel in kernels.items()})
    return times["general"] / times["specialized"]


def summary(quotients: list[float]) -> list[float]:
    """Return the geometric mean and the largest."""
    return [statistics.geometric_mean(quotients), max(quotients)] if quotients else []


class TimedLibrary:
    """The functions of libcudnn; the time of ``cudnnBackendFinalize`` is added up."""

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        self.finalize_us = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lib, name)

    def cudnnBackendFinalize(self, descriptor: Any) -> int:  # noqa: N802 - a function of cuDNN
        start = time.perf_counter()
        status: int = self.lib.cudnnBackendFinalize(descriptor)
        self.finalize_us += (time.perf_counter() - start) * 1e6
        return status


class Size(NamedTuple):
    """The figures of one size: microseconds of the host, and quotients of times on the GPU."""

    new_us: float
    finalize_us: float
    again_us: float
    class_over_exact: float
    is_refused: bool


def one_size(problem: ConvProblem) -> Size:
    """Measure a problem that the process has not seen, of a class that it knows."""
    *given, out = arrays_of(problem)
    made: list[dnnffi.ConvPlan] = []

    def new() -> None:
        made.append(plan_of(problem))
        made[0].run(*given, out=out)

    library = conv_backends.of("cudnn").resources.library
    library.lib = timed = TimedLibrary(library.lib)
    try:
        new_us = host_microseconds(new)
    finally:
        library.lib = timed.lib
    (plan,) = made
    again_us = host_microseconds(lambda: plan.run(*given, out=out))
    refused = "was refused" in plan.report()
    exact = plan_of(problem)
    exact.autotune()
    times = in_turns(
        {
            "class": lambda: plan.run(*given, out=out),
            "exact": lambda: exact.run(*given, out=out),
        }
    )
    quotient = times["class"] / times["exact"]
    return Size(new_us, timed.finalize_us, again_us, quotient, refused)


def row(name: str, operation: str, count: int, seed: int) -> dict[str, Any]:
    """Measure one operation of a layer."""
    dnnffi.clear_plans()
    layer, random = LAYERS[name], np.random.default_rng(seed)
    batch, *sizes = layer.size
    first = plan_of(layer.problem(operation, batch, tuple(sizes)))
    first.autotune()
    tuning, state = first._plan.finder.tuning, first._plan.finder._class
    found, generals = [], []
    for problem in drawn(layer, operation, count, random):
        found.append(one_size(problem))
        if tuning.choice.engine == OWN and tuning.choice.knobs:
            generals.append(general(problem, tuning.choice))
        state.adopt(tuning)  # and not what was measured for this size
    news = [one.new_us for one in found]
    finalized = [one.finalize_us for one in found if one.finalize_us]
    return {
        "layer": name,
        "operation": operation,
        "choice": str(tuning.choice),
        "new_us": [statistics.median(news), max(news)],
        "finalize_us": [statistics.median(finalized), max(finalized)] if finalized else [],
        "again_us": statistics.median(one.again_us for one in found),
        "class_over_exact": summary([one.class_over_exact for one in found]),
        "general_over_specialized": summary(generals),
        "refused": sum(one.is_refused for one in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="*", default=list(LAYERS), choices=list(LAYERS))
    parser.add_argument("--operations", nargs="*", default=["forward", "backward_data"])
    parser.add_argument("--sizes", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json")
    asked = parser.parse_args()
    rows = []
    for name in asked.layers:
        for operation in asked.operations:
            rows.append(row(name, operation, asked.sizes, asked.seed))
            print(rows[-1], flush=True)
    if asked.json:
        files.write_json(
            Path(asked.json), {"machine": machine("gpu", ()), "seed": asked.seed, "rows": rows}
        )


if __name__ == "__main__":
    main()
