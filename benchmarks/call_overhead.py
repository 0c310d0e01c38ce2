"""Host cost of a call: the raw C function, the executor, the functional API and PyTorch.

Of the functional API, which replays a graph here, also what the allocation of its results and the
launch of a graph take. And what a call of sizes that no graph has consists of: the launch of one
kernel, one matrix product, and the allocation of an array and of a tensor. And a step of an
`RNNStream`: its host cost, and the time of a step among many that follow each other.

Times are of the host until the call returns, medians over many calls, with the device drained
between batches so that its queue never fills. The same problem, the same arrays, one process.

    python benchmarks/call_overhead.py [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import cupy

import dnnffi
from dnnffi import files
from dnnffi.backends.cublas import library as cublas
from dnnffi.backends.cublas.product import Matrix, MatrixProduct
from dnnffi.backends.cudnn import library
from dnnffi.backends.vendor.handle import current_launch
from dnnffi.cli.machine import machine
from dnnffi.device.cupy import cupy_memory
from dnnffi.rnn.executor import RNNExecutor

BATCHES = 60
CALLS = 20


def host_times(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Microseconds of each call, medians; the calls take turns, so that drift hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(30):
            call()
    for _ in range(BATCHES):
        for name, call in calls.items():
            cupy.cuda.Device().synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def problem(mode: str, steps: int, batch: int, size: int, dtype: str) -> dict[str, float]:
    """Host times of one problem of equal input and hidden size."""
    spec = dnnffi.RNNSpec(mode=mode, input_size=size, hidden_size=size, dtype=dtype)
    random = cupy.random.default_rng(0)

    def normal(shape: tuple[int, ...], scale: float = 1.0) -> cupy.ndarray:
        return (random.standard_normal(shape) * scale).astype(dtype)

    flat = normal((dnnffi.weight_layout(spec, "cudnn").size,), size**-0.5)
    weights = dnnffi.RNNWeights(flat, spec)
    x, h_0 = normal(spec.x_shape(steps, batch)), normal(spec.h_shape(batch))
    c_0 = normal(spec.c_shape(batch)) if spec.has_cell else None
    hx = (h_0, c_0) if spec.has_cell else h_0
    executor = RNNExecutor(dnnffi.RNNProblem.dense(spec, steps=steps, batch=batch))
    y = cupy.empty(spec.y_shape(steps, batch), dtype)
    h_n, c_n = cupy.empty_like(h_0), None if c_0 is None else cupy.empty_like(c_0)
    workspace = cupy.empty(executor.workspace_bytes, "uint8")
    forward = library.load().lib.cudnnRNNForward
    handle = current_launch(library.load()).handle
    rnn, x_desc, y_desc, h_desc, c_desc = executor.on_addresses._descriptors
    c_0_at, c_n_at = (0, 0) if c_0 is None else (c_0.data.ptr, c_n.data.ptr)
    arguments = (
        *(handle, rnn, 0, 0, x_desc, x.data.ptr, y_desc, y.data.ptr),
        *(h_desc, h_0.data.ptr, h_n.data.ptr, c_desc, c_0_at, c_n_at),
        *(flat.nbytes, flat.data.ptr, workspace.nbytes, workspace.data.ptr, 0, 0),
    )
    function = getattr(dnnffi, mode)
    out = (y, h_n, c_n)
    memory, stream = cupy_memory(), cupy.cuda.get_current_stream()

    def run() -> None:
        executor.forward(x, h_0, c_0, flat, out=out, workspace=workspace)

    pair = memory.pairs(h_0.shape, h_0.shape, y.dtype)

    def allocate() -> object:
        states = pair() if spec.has_cell else memory.empty(h_0.shape, y.dtype)
        return memory.empty(y.shape, y.dtype), states

    graph = memory.capture(lambda stream: run())
    calls: dict[str, Callable[[], object]] = {
        "raw": lambda: forward(*arguments),
        "executor": run,
        "functional": lambda: function(x, hx, weights),
        "allocations": allocate,
        "launch": lambda: graph.launch(stream),
    }
    torch_call = torch_peer(mode, size, dtype, x, hx)
    if torch_call is not None:
        calls["torch"] = torch_call
    return host_times(calls)


def parts() -> dict[str, float]:
    """Host times of what calls of new sizes consist of; of a tensor if PyTorch is installed."""
    memory, launch = cupy_memory(), current_launch(library.load())
    kernel = memory.kernel('extern "C" __global__ void nothing(long long) {}', "nothing")
    rows, inputs, columns = 1024, 128, 768
    product = MatrixProduct(
        *(cublas.load(), launch.device),
        *(Matrix(rows, inputs), Matrix(inputs, columns), Matrix(rows, columns), "float32"),
    )
    a, b, c = (
        cupy.zeros(shape, "float32")
        for shape in ((rows, inputs), (inputs, columns), (rows, columns))
    )
    workspace = cupy.empty(max(1, product.workspace_bytes), "uint8")
    addresses = (*(array.data.ptr for array in (a, b, c)), workspace.data.ptr)
    calls: dict[str, Callable[[], object]] = {
        "kernel": lambda: kernel((1,), (32,), (0,), stream=launch.stream),
        "product": lambda: product.run(launch, *addresses),
        "array": lambda: memory.empty((rows, inputs), a.dtype),
    }
    if find_spec("torch"):
        import torch

        calls["tensor"] = lambda: torch.empty((rows, inputs), device="cuda")
    return host_times(calls)


def stream_steps() -> dict[str, float]:
    """Microseconds of a tuned step of a GRU (float16, H = 512, one row): of the host, and in all.

    With new arrays for y, and with the same array in each call.
    """
    spec = dnnffi.RNNSpec(mode="gru", input_size=512, hidden_size=512, dtype="float16")
    random = cupy.random.default_rng(0)
    size = dnnffi.weight_layout(spec, "cudnn").size
    flat = (random.standard_normal(size) * spec.hidden_size**-0.5).astype(spec.dtype)
    x = random.standard_normal((1, spec.input_size)).astype(spec.dtype)
    out = cupy.empty((1, spec.output_size), spec.dtype)
    weights = dnnffi.RNNWeights(flat, spec)
    found = {}
    with dnnffi.RNNStream(weights, batch=1, options={"tune": "now"}) as stream:
        calls = {"host": lambda: stream.run(x), "host, out": lambda: stream.run(x, out=out)}
        found |= host_times(calls)
        for name, call in (("step", calls["host"]), ("step, out", calls["host, out"])):
            cupy.cuda.Device().synchronize()
            start = time.perf_counter()
            for _ in range(BATCHES * CALLS):
                call()
            cupy.cuda.Device().synchronize()
            found[name] = (time.perf_counter() - start) / (BATCHES * CALLS) * 1e6
    return found


def torch_peer(
    mode: str, size: int, dtype: str, x: cupy.ndarray, hx: object
) -> Callable[[], object] | None:
    """Return the same call of ``torch.nn``, in inference mode, or None without PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(mode, torch.nn.RNN)
    module = kind(size, size, device="cuda", dtype=getattr(torch, dtype)).eval()
    module.flatten_parameters()
    given = torch.from_dlpack(x)
    state = tuple(map(torch.from_dlpack, hx)) if isinstance(hx, tuple) else torch.from_dlpack(hx)

    def call() -> object:
        with torch.inference_mode():
            return module(given, state)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    rows, reports = [], []
    for mode, steps, batch, size, dtype in (
        ("lstm", 20, 8, 128, "float16"),
        ("lstm", 25, 16, 512, "float16"),
        ("gru", 1, 32, 512, "float16"),
        ("rnn_tanh", 1, 8, 64, "float32"),
    ):
        name = f"{mode} {dtype} T{steps} B{batch} H{size}"
        rows.append({"problem": name, **problem(mode, steps, batch, size, dtype)})
        reports.append(dnnffi.cached_plans()[-1].report())  # docs/tuning.md shows the first
    found = machine("gpu", ("torch",) if find_spec("torch") else ())
    print(", ".join(f"{key} {value}" for key, value in found.items()))
    print(
        f"{'host µs a call':28} {'raw':>8} {'executor':>9} {'above':>7} "
        f"{'functional':>11} {'allocations':>12} {'launch':>7} {'torch':>8}"
    )
    for row in rows:
        raw, executor, torch_time = row["raw"], row["executor"], row.get("torch", float("nan"))
        print(
            f"{row['problem']:28} {raw:8.2f} {executor:9.2f} {executor - raw:7.2f} "
            f"{row['functional']:11.2f} {row['allocations']:12.2f} {row['launch']:7.2f} "
            f"{torch_time:8.2f}"
        )
    of_parts = parts()
    print("host µs of a part: ", ", ".join(f"{name} {us:.2f}" for name, us in of_parts.items()))
    of_stream = stream_steps()
    print("µs of an RNNStream: ", ", ".join(f"{name} {us:.2f}" for name, us in of_stream.items()))
    if arguments.json:
        record = {"machine": found, "rows": rows, "parts": of_parts, "reports": reports}
        record["stream"] = of_stream
        files.write_json(arguments.json, record, indent=2)


if __name__ == "__main__":
    main()
