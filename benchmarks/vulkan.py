"""Compare RNN inference through Vulkan with the NumPy reference, and with cuDNN if CuPy exists.

    python benchmarks/vulkan.py [--device N] [--rounds N] [--json FILE]

All calls of a problem take turns in one process, so that what else the machine does hits all of
them alike. A call through Vulkan is whole: arrays on the host go up, results come back. The
reference computes on the threads that NumPy's BLAS takes, and on one where threadpoolctl is
installed. cuDNN's arrays are on the device all the time, with its algorithm "standard"; the device
is waited for. "step" is a call of a stream, whose state stays on the device. The submissions of a
call are counted, and results compared with those of the reference. Beside each call through Vulkan
stands what it takes at least: its multiplications and additions at the rate of a kernel that does
nothing else, its dispatches as kernels that do nothing, and one submission. A submission is waited
for as a call does, and for comparison by wgpu-py's thread and by polls that do not block; 13 MB are
copied out of mapped memory by as many threads as a call uses, and by one. The parts of a call are
timed in calls of their own. The record has the adapter, the processor, versions and the load of the
machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import dnnffi
from dnnffi import files, testing
from dnnffi.backends.vulkan import copies
from dnnffi.backends.vulkan.device import Device, open_device
from dnnffi.backends.vulkan.native import READ, Functions
from dnnffi.backends.vulkan.sequence import Sequence
from dnnffi.cli.command import one_thread
from dnnffi.cli.machine import machine

REFERENCE, ONE_THREAD, CUDNN = "reference", "reference, one thread", "cuDNN standard"
ALGORITHMS = "stepwise", "persistent", "auto"
SECONDS = 0.02
"""About how many seconds each call is measured in a turn."""
WARM = 0.1
"""Seconds that each call runs before a turn, unmeasured."""


class Problem(NamedTuple):
    """A network and its sequences; I is H."""

    mode: str
    steps: int
    batch: int
    hidden: int
    step: bool = False

    @property
    def words(self) -> str:
        """The name of the problem in the record."""
        sizes = f"{self.mode} T{self.steps} B{self.batch} H{self.hidden}"
        return f"{sizes} step" if self.step else sizes

    @property
    def gflop(self) -> float:
        """Multiplications and additions of its products, in 1e9."""
        gates = {"lstm": 4, "gru": 3}.get(self.mode, 1)
        return 4e-9 * self.steps * self.batch * gates * self.hidden**2


PROBLEMS = (
    Problem("gru", 50, 8, 256),
    Problem("lstm", 50, 8, 256),
    Problem("rnn_tanh", 50, 8, 256),
    Problem("gru", 50, 64, 128),
    Problem("gru", 100, 64, 512),
    Problem("gru", 1, 1, 256, step=True),
)


def calls_of(problem: Problem, device: int | None) -> dict[str, Callable[[], Any]]:
    """Return the calls to measure, by name."""
    spec = dnnffi.RNNSpec(mode=problem.mode, input_size=problem.hidden, hidden_size=problem.hidden)
    given = testing.inputs(
        dnnffi.RNNProblem.dense(spec, steps=problem.steps, batch=problem.batch), 0
    )
    weights = dnnffi.RNNWeights.pack(given.weights, spec, backend="torch")
    context = dnnffi.pack_rnn(weights, device=device)
    function = getattr(dnnffi, problem.mode)
    calls: dict[str, Callable[[], Any]] = {}

    def vulkan(algorithm: str) -> Callable[[], Any]:
        options = {"algorithm": algorithm}
        return lambda: context.run(given.x, keep_state=problem.step, options=options)

    def reference() -> Any:
        return function(given.x, None, weights, backend="reference")

    def on_one_thread() -> Any:
        with one_thread():
            return reference()

    right, _ = reference()
    for algorithm in ALGORITHMS[:2]:
        try:
            y, _ = vulkan(algorithm)()
        except dnnffi.UnsupportedError:
            continue
        np.testing.assert_allclose(y, right, atol=1e-3, err_msg=f"{problem.words}, {algorithm}")
        context.reset()
        calls[algorithm] = vulkan(algorithm)
    # The usual call, without options.
    calls["auto"] = lambda: context.run(given.x, keep_state=problem.step)
    calls[REFERENCE] = reference
    if find_spec("threadpoolctl"):
        calls[ONE_THREAD] = on_one_thread
    if find_spec("cupy"):
        calls |= cudnn_call(function, given.x, weights)
    return calls


def cudnn_call(function: Any, x: np.ndarray, weights: dnnffi.RNNWeights) -> dict[str, Any]:
    """cuDNN's standard algorithm, where there is a GPU for it."""
    import cupy

    if not cupy.cuda.is_available():
        return {}
    on_device = cupy.asarray(x)
    packed = dnnffi.RNNWeights(
        cupy.asarray(weights.to("cudnn").flat), weights.spec, backend="cudnn"
    )
    options = {"algorithm": "standard"}
    stream = cupy.cuda.get_current_stream()

    def call() -> None:
        function(on_device, None, packed, options=options)
        stream.synchronize()

    return {CUDNN: call}


def measure(problem: Problem, device: int | None, rounds: int) -> dict[str, Any]:
    """Median and least milliseconds of each call, and what those through Vulkan submit."""
    calls = calls_of(problem, device)
    opened = open_device(device)
    submissions = count(calls["auto"], opened.queue, "submit")
    dispatches = {
        name: count(calls[name], opened.functions, "dispatch") for name in ALGORITHMS & calls.keys()
    }
    repeats = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, min(100, int(SECONDS / (time.perf_counter() - start))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    parts: dict[str, list[float]] = {name: [] for name in PARTS}
    for _ in range(rounds):
        for name, call in calls.items():
            # Threads of a BLAS go on spinning after the previous call, and clocks of a GPU fall.
            warm = time.perf_counter() + WARM
            while time.perf_counter() < warm:
                call()
            for _ in range(repeats[name]):
                start = time.perf_counter()
                call()
                times[name].append((time.perf_counter() - start) * 1e3)
            if name == "auto":
                time_parts(call, repeats[name], parts)
    return {
        "problem": problem.words,
        "gflop": problem.gflop,
        "submissions": submissions,
        "dispatches": dispatches,
        "parts_us": {name: statistics.median(found) for name, found in parts.items()},
        "median_ms": {name: statistics.median(found) for name, found in times.items()},
        "least_ms": {name: min(found) for name, found in times.items()},
    }


PARTS = "prepare", "submit", "wait", "results"
"""Checks, the copy of x and recording; until the results are mapped; their copy out of there."""


def time_parts(call: Callable[[], Any], repeats: int, found: dict[str, list[float]]) -> None:
    """Add the microseconds of the `PARTS` of ``repeats`` calls."""
    spent = dict.fromkeys(("submit", "map", "read"), 0.0)

    def timed(owner: Any, name: str) -> Any:
        method = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                spent[name] = (time.perf_counter() - start) * 1e6

        return patch.object(owner, name, call)

    with timed(Sequence, "submit"), timed(Sequence, "read"), timed(Functions, "map"):
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            total = (time.perf_counter() - start) * 1e6
            found["prepare"].append(total - spent["submit"] - spent["read"])
            found["submit"].append(spent["submit"])
            found["wait"].append(spent["map"])
            found["results"].append(spent["read"] - spent["map"])


SUMS, TURNS = 16, 2000
"""Sums of an invocation, which hide each other's latency, and what is added to each."""


def bounds(number: int | None) -> dict[str, float]:
    """Measure the adapter's limits: GFLOP/s, and microseconds of one dispatch after another."""
    device = open_device(number)
    groups = 32 if device.cpu else 8192
    usage = device.usage.STORAGE | device.usage.COPY_SRC
    out = device.buffer("the bounds", 4 * 64 * groups, usage), 0, 4 * 64 * groups
    result = device.buffer("a result", 4, device.usage.COPY_DST | device.usage.MAP_READ)
    waits = waits_of(device)

    def seconds(body: str, groups: int, count: int, wait: str = "") -> float:
        pipeline = device.pipeline(BOUND.replace("BODY", body), ("out",))
        bound, found = pipeline.bind({"out": out}), []
        for _ in range(20):
            encoder = device.native.create_command_encoder()
            run = encoder.begin_compute_pass()
            run.set_pipeline(pipeline.native)
            run.set_bind_group(0, bound)
            for _ in range(count):
                run.dispatch_workgroups(groups)
            run.end()
            encoder.copy_buffer_to_buffer(out[0], 0, result, 0, 4)
            start = time.perf_counter()
            device.queue.submit([encoder.finish()])
            waits[wait](result)
            found.append(time.perf_counter() - start)
        return min(found)

    names = [f"s{n}" for n in range(SUMS)]
    body = "".join(f"var {name} = a + {n}.0;\n" for n, name in enumerate(names))
    turn = " ".join(f"{name} = fma({name}, a, b);" for name in names)
    body += f"for (var k = 0u; k < {TURNS}u; k++) {{ {turn} }}\nout[at] = {' + '.join(names)};"
    empty = "out[at] = a;"
    of_submission = seconds(empty, 1, 1)
    multiplied = seconds(body, groups, 1) - of_submission
    return {
        "gflops": 2 * 64 * groups * SUMS * TURNS / multiplied / 1e9,
        "dispatch_us": (seconds(empty, 1, 501) - of_submission) / 500 * 1e6,
        "submission_us": of_submission * 1e6,
        "submission_wgpu_py_us": seconds(empty, 1, 1, "wgpu-py") * 1e6,
        "submission_asleep_us": seconds(empty, 1, 1, "asleep") * 1e6,
        **copied(device),
    }


def waits_of(device: Device) -> dict[str, Callable[[Any], None]]:
    """Ways to wait until a buffer is mapped; that of a call has no name."""
    functions = device.functions

    def by_polls(buffer: Any, polls: int) -> None:
        functions.map(device.native, [(buffer, READ)], polls)
        functions.unmap(buffer)

    def by_wgpu_py(buffer: Any) -> None:
        buffer.map_async("READ_NOSYNC").sync_wait()
        buffer.unmap()

    return {
        "": partial(by_polls, polls=device.polls),
        "asleep": partial(by_polls, polls=0),
        "wgpu-py": by_wgpu_py,
    }


def copied(device: Device) -> dict[str, float]:
    """Return milliseconds of 13 MB out of mapped memory, by the threads of a call and one."""
    functions, target = device.functions, np.empty((100, 64, 512), np.float32)
    usage = device.usage.COPY_DST | device.usage.MAP_READ
    buffer = device.buffer("what is copied", target.nbytes, usage)
    encoder = device.native.create_command_encoder()
    encoder.clear_buffer(buffer)  # so that all of it is there
    device.queue.submit([encoder.finish()])
    functions.map(device.native, [(buffer, READ)], device.polls)
    source = functions.view(buffer, READ, target.nbytes).reshape(target.shape)
    found: dict[int, list[float]] = {copies.helpers(): [], 0: []}
    for _ in range(20):
        for helpers, times in found.items():
            with patch.object(copies, "helpers", lambda helpers=helpers: helpers):
                start = time.perf_counter()
                copies.Copy(target, source, buffer).finish()
                times.append((time.perf_counter() - start) * 1e3)
    functions.unmap(buffer)
    best = {helpers: min(times) for helpers, times in found.items()}
    return {
        "copy_ms": best[copies.helpers()],
        "copy_threads": copies.helpers() + 1,
        "copy_one_thread_ms": best[0],
    }


def bound(row: dict[str, Any], most: dict[str, float], name: str) -> float:
    """Return the milliseconds that a call takes at least."""
    dispatched = row["dispatches"][name] * most["dispatch_us"] + most["submission_us"]
    return row["gflop"] / most["gflops"] * 1e3 + dispatched / 1e3


BOUND = """
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
let at = id.x;
let a = out[at];
let b = a + 0.5;
BODY
}
"""


def count(call: Callable[[], Any], owner: Any, name: str) -> int:
    """Return how many times a call calls the method ``name`` of ``owner``."""
    method, found = getattr(owner, name), 0

    def counted(*arguments: Any) -> Any:
        nonlocal found
        found += 1
        return method(*arguments)

    with patch.object(owner, name, counted):
        call()
    return found


def processor() -> str:
    """Return the name of the processor, and how many there are for this process."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name} x {count}"


def environment(device: int | None) -> dict[str, Any]:
    """Return the machine, adapter, versions and load under which the figures are measured."""
    found = machine("gpu" if gpu_for_cudnn() else "cpu", ())
    found["adapter"] = str(open_device(device))
    found["wgpu"] = version("wgpu")
    found["processor"] = processor()
    if hasattr(os, "getloadavg"):
        found["load"] = f"{os.getloadavg()[0]:.1f}"
    return found


def gpu_for_cudnn() -> bool:
    """Return whether CuPy finds a GPU."""
    if not find_spec("cupy"):
        return False
    import cupy

    return bool(cupy.cuda.is_available())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", type=int, help="number of the adapter")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each call (default: 15)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    found = environment(arguments.device)
    print(", ".join(f"{key} {value}" for key, value in found.items()))
    rows, before = [], bounds(arguments.device)
    for problem in PROBLEMS:
        row = measure(problem, arguments.device, arguments.rounds)
        rows.append(row)
        print(f"{row['problem']}: {row['submissions']} submission(s) a call; median (least) ms")
        for name, median in row["median_ms"].items():
            print(f"    {name:24} {median:10.3f} ({row['least_ms'][name]:.3f})", flush=True)
        spent = ", ".join(f"{name} {figure:.0f}" for name, figure in row["parts_us"].items())
        print(f"    of auto, us: {spent}")
    after = bounds(arguments.device)  # the better of both, since others may use the machine
    most = {name: min(figure, after[name]) for name, figure in before.items()}
    most["gflops"] = max(before["gflops"], after["gflops"])
    print(
        f"at most {most['gflops']:.0f} GFLOP/s; a dispatch {most['dispatch_us']:.1f} us, "
        f"a submission with a result {most['submission_us']:.0f} us "
        f"({most['submission_wgpu_py_us']:.0f} by wgpu-py's thread, "
        f"{most['submission_asleep_us']:.0f} asleep); 13 MB copied in {most['copy_ms']:.2f} ms by "
        f"{most['copy_threads']} threads, {most['copy_one_thread_ms']:.2f} ms by one; at least"
    )
    for row in rows:
        row["bound_ms"] = {name: bound(row, most, name) for name in row["dispatches"]}
        print(f"    {row['problem']:24} {row['bound_ms']['auto']:10.3f} ms")
    if arguments.json:
        record = {"machine": found, "bounds": most, "rows": rows}
        files.write_json(arguments.json, record, indent=2)


if __name__ == "__main__":
    main()
