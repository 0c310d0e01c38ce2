"""The reference on a CPU: its networks compared with PyTorch, and the threads of its products.

    python benchmarks/reference_cpu.py [networks|calls|threads] [--record]

``--record`` writes what is printed to docs/verification, too.

"networks", the default, needs PyTorch and writes reference_cpu.txt. One thread computes. The
networks have one layer and one direction, and inputs of the hidden size. "inference" is
`dnnffi.lstm` and its like and ``torch.nn`` in inference mode, "training" is a training forward pass
with all gradients and ``torch.nn`` with autograd. Times are of the processor, in milliseconds per
call, medians of turns that the calls take. "products" are those of the reference alone, as it asks
NumPy's BLAS for them: it cannot take less.

"calls" writes reference_calls.txt: microseconds of wall time per call of small problems, on one
BLAS thread, and of the same equations in NumPy without dnnffi. A network has one step, one row and
initial states, and its calls have checked the `RNNWeights`. Both take turns; the minimum of all
turns is shown. "target" is 1.3 times NumPy plus five microseconds.

"threads" writes reference_threads.txt, the basis of `dnnffi.reference.threads`: wall times in
milliseconds of one matrix product on one BLAS thread and on all, in turns, while nothing else runs
and while another process keeps one core busy.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

import dnnffi
from dnnffi import files
from dnnffi.cli.machine import machine
from dnnffi.cli.sources import source_lines
from dnnffi.reference.direction import MAX_ROWS

RECORDS = Path(__file__).resolve().parents[1] / "docs" / "verification"
MODES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN"}
SHAPES = ((5, 1, 8), (20, 4, 32), (50, 1, 128), (50, 16, 128), (20, 64, 512))
VERSIONS = ("dnnffi", "numpy", "torch", "python")
TURNS = 15
TURN_SECONDS = 0.05
CALL_TURNS = 300
CALLS_PER_TURN = 100
PRODUCTS = (
    *((1, 128, 512), (1, 512, 2048), (16, 128, 512), (959, 24, 96), (256, 64, 256)),
    *((64, 256, 1024), (64, 512, 2048), (256, 512, 2048), (256, 1024, 4096), (512, 1024, 4096)),
    (1024, 1024, 4096),
)
"""M, K, N of products [M, K] times [K, N]."""
PRODUCT_SECONDS = 6.0
PRODUCTS_PER_TURN = 5
Call = Callable[[], object]


def times(calls: dict[str, Call]) -> dict[str, float]:
    """Milliseconds of each call, medians; they take turns, so that drift hits all alike."""
    counts = {}
    for name, call in calls.items():
        call()
        start = time.process_time()
        call()
        counts[name] = max(1, int(TURN_SECONDS / max(time.process_time() - start, 1e-6)))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            start = time.process_time()
            for _ in range(counts[name]):
                call()
            found[name].append((time.process_time() - start) / counts[name] * 1e3)
    return {name: statistics.median(values) for name, values in found.items()}


class Problem:
    """One network on one batch, in dnnffi and in PyTorch."""

    def __init__(self, mode: str, steps: int, batch: int, size: int, dtype: str) -> None:
        import torch

        torch.manual_seed(0)
        self.mode = mode
        self.module = getattr(torch.nn, MODES[mode])(size, size, dtype=getattr(torch, dtype))
        self.weights = [parameter.detach().numpy() for parameter in self.module.parameters()]
        random = np.random.default_rng(0)
        self.x, self.dy = random.standard_normal((2, steps, batch, size)).astype(dtype)

    def inference(self) -> dict[str, Call]:
        """Return the calls without gradients."""
        import torch

        x = torch.from_numpy(self.x)
        function = getattr(dnnffi, self.mode)

        def peer() -> Any:
            with torch.inference_mode():
                return self.module(x)

        return {
            "torch": peer,
            "dnnffi": lambda: function(self.x, None, self.weights),
            "products": self.forward_products,
        }

    def training(self) -> dict[str, Call]:
        """Return the calls with all gradients."""
        import torch

        x, dy = torch.from_numpy(self.x).requires_grad_(), torch.from_numpy(self.dy)
        function = getattr(dnnffi, f"{self.mode}_forward")

        def peer() -> None:
            x.grad = None
            self.module.zero_grad()
            self.module(x)[0].backward(dy)

        def products() -> None:
            self.forward_products()
            self.backward_products()

        return {
            "torch": peer,
            "dnnffi": lambda: function(self.x, None, self.weights)[-1].backward(self.dy),
            "products": products,
        }

    def forward_products(self) -> None:
        """Compute a forward pass: products of inputs of many steps at once, states step by step."""
        w_ih, w_hh = (weight.T for weight in self.weights[:2])
        steps, batch, size = self.x.shape
        length = max(1, MAX_ROWS // batch) * batch
        rows = self.x.reshape(-1, size)
        for start in range(0, len(rows), length):
            rows[start : start + length] @ w_ih
        for step in range(steps):
            self.x[step] @ w_hh

    def backward_products(self) -> None:
        """Compute the products of the gradients: states step by step, then x and both weights."""
        w_ih, w_hh = self.weights[:2]
        steps, batch, size = self.x.shape
        d = np.ones((steps, batch, len(w_hh)), self.x.dtype)
        for step in range(steps):
            d[step] @ w_hh
        rows, x = d.reshape(steps * batch, -1), self.x.reshape(-1, size)
        rows @ w_ih
        rows.T @ x
        rows.T @ x


def network_lines() -> list[str]:
    """Return the figures of networks as a table."""
    import torch

    torch.set_num_threads(1)
    found = machine("cpu", ("torch",))
    blas = blas_of_numpy()
    kernels = torch.backends.cpu.get_cpu_capability()
    head = ("torch", "dnnffi", "ratio", "products")
    table = [
        f"{found['date']}: {', '.join(f'{name} {found[name]}' for name in VERSIONS)}",
        f"{processor()}, one thread; kernels of OpenBLAS {blas['version']} for "
        f"{blas['architecture']}, of PyTorch for {kernels}",
        "",
        f"{'ms':32}{'inference':^36}{'training':^36}",
        f"{'':32}{''.join(f'{word:>9}' for word in head * 2)}",
    ]
    for dtype in ("float32", "float64"):
        for mode in MODES:
            for steps, batch, size in SHAPES:
                problem = Problem(mode, steps, batch, size, dtype)
                cells = ""
                for calls in (problem.inference(), problem.training()):
                    row = times(calls)
                    ratio = row["dnnffi"] / row["torch"]
                    numbers = f"{row['torch']:9.3f}{row['dnnffi']:9.3f}{ratio:9.2f}"
                    cells += f"{numbers}{row['products']:9.3f}"
                name = f"{mode} {dtype} T{steps} B{batch} H{size}"
                table.append(f"{name:32}{cells}")
                print(table[-1], flush=True)
    return table


def call_lines() -> list[str]:
    """Return the figures of calls of small problems as a table."""
    found = machine("cpu", ())
    blas = blas_of_numpy()
    table = [
        f"{found['date']}: {', '.join(f'{name} {found[name]}' for name in ('dnnffi', 'numpy'))}",
        f"{processor()}, one thread, OpenBLAS {blas['version']} for {blas['architecture']}",
        "",
        f"{'us':32}{'dnnffi':>9}{'NumPy':>9}{'target':>9}{'ratio':>9}",
    ]
    for name, (call, equations) in small_calls().items():
        np.testing.assert_allclose(call(), equations(), rtol=1e-4, atol=1e-5)
        best = [float("inf")] * 2
        for _ in range(CALL_TURNS):
            for number, function in enumerate((call, equations)):
                start = time.perf_counter()
                for _ in range(CALLS_PER_TURN):
                    function()
                seconds = (time.perf_counter() - start) / CALLS_PER_TURN
                best[number] = min(best[number], seconds)
        ours, numpy = (seconds * 1e6 for seconds in best)
        table.append(f"{name:32}{ours:9.1f}{numpy:9.1f}{1.3 * numpy + 5:9.1f}{ours / numpy:9.2f}")
    return table


def small_calls() -> dict[str, tuple[Call, Call]]:
    """Return calls of dnnffi, and the same equations in NumPy; both return the first result."""
    calls: dict[str, tuple[Call, Call]] = {}
    random = np.random.default_rng(0)

    def arrays(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32)

    for size in (32, 128):
        for mode, equations in STEPS.items():
            spec = dnnffi.RNNSpec(mode=mode, input_size=size, hidden_size=size)
            weights = dnnffi.RNNWeights.random(spec, random)
            x, h_0, c_0 = (arrays(1, 1, size) for _ in range(3))
            hx = (h_0, c_0) if spec.has_cell else h_0
            function = getattr(dnnffi, mode)
            calls[f"{mode} H {size}"] = (
                partial(lambda f, *given: f(*given)[0][0], function, x, hx, weights),
                partial(equations, x[0], h_0[0], c_0[0], *weights.arrays()),
            )
    x, w, bias = arrays(1, 3, 16), arrays(4, 3, 3), arrays(4)
    calls["conv (1, 3, 16) * (4, 3, 3)"] = (
        lambda: dnnffi.conv(x, w, bias),
        lambda: convolve(x, w, bias),
    )
    return calls


def lstm_step(x: Any, h: Any, c: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
    """h of one step of an LSTM."""
    i, f, g, o = np.split(x @ w_ih.T + b_ih + h @ w_hh.T + b_hh, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c)


def gru_step(x: Any, h: Any, _: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
    """h of one step of a GRU."""
    r_x, z_x, n_x = np.split(x @ w_ih.T + b_ih, 3, axis=-1)
    r_h, z_h, n_h = np.split(h @ w_hh.T + b_hh, 3, axis=-1)
    z = sigmoid(z_x + z_h)
    return (1 - z) * np.tanh(n_x + sigmoid(r_x + r_h) * n_h) + z * h


def tanh_step(x: Any, h: Any, _: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
    """h of one step of an RNN with tanh."""
    return np.tanh(x @ w_ih.T + b_ih + h @ w_hh.T + b_hh)


def sigmoid(a: Any) -> Any:
    """1 / (1 + exp(-a))."""
    return 1 / (1 + np.exp(-a))


def convolve(x: Any, w: Any, bias: Any) -> Any:
    """Return a one-dimensional convolution of stride 1 without padding."""
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2], axis=2)  # [N, C, O, T]
    return np.einsum("ncot,kct->nko", windows, w) + bias[:, None]


STEPS = {"lstm": lstm_step, "gru": gru_step, "rnn_tanh": tanh_step}


def thread_lines() -> list[str]:
    """Return the figures of products on one thread and on all as a table."""
    found = machine("cpu", ())
    blas = blas_of_numpy()
    one, all_ = "one", "all"
    heads = "idle: minimum", "median", "busy: minimum", "median", "mean"
    table = [
        f"{found['date']}: {', '.join(f'{name} {found[name]}' for name in VERSIONS[:2])}",
        f"{processor()}, {blas['num_threads']} threads, OpenBLAS {blas['version']} for "
        f"{blas['architecture']}; 'busy': another process keeps one core busy",
        "",
        f"{'ms':42}{''.join(f'{head:^18}' for head in heads)}",
        f"{'':42}{f'{one:>9}{all_:>9}' * len(heads)}",
    ]
    for dtype in ("float32", "float64"):
        for rows, inner, columns in PRODUCTS:
            a, b = np.ones((rows, inner), dtype), np.ones((columns, inner), dtype).T
            out = np.empty((rows, columns), dtype)
            idle = product_times(a, b, out)
            other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            try:
                busy = product_times(a, b, out)
            finally:
                other.kill()
                other.wait()
            cells = [
                summary(times) * 1e3
                for of_machine, summaries in (
                    (idle, (min, statistics.median)),
                    (busy, (min, statistics.median, statistics.fmean)),
                )
                for summary in summaries
                for times in of_machine
            ]
            name = f"{dtype} ({rows}, {inner}) ({inner}, {columns})"
            macs = f"{rows * inner * columns / 1e6:8.1f} M"
            table.append(f"{name:32}{macs}{''.join(f'{cell:9.3f}' for cell in cells)}")
            print(table[-1], flush=True)
    return table


def product_times(a: Any, b: Any, out: Any) -> tuple[list[float], list[float]]:
    """Seconds of products on one thread and on all; they take turns."""
    found: tuple[list[float], list[float]] = [], []
    end = time.perf_counter() + PRODUCT_SECONDS
    while time.perf_counter() < end or len(found[1]) < 2 * PRODUCTS_PER_TURN:
        for times, limit in zip(found, (1, None), strict=True):
            with threadpool_limits(limit):
                np.matmul(a, b, out=out)
                for _ in range(PRODUCTS_PER_TURN):
                    start = time.perf_counter()
                    np.matmul(a, b, out=out)
                    times.append(time.perf_counter() - start)
    return found


def blas_of_numpy() -> dict[str, Any]:
    """Return the properties that threadpoolctl reads of NumPy's BLAS."""
    (blas,) = (pool for pool in threadpool_info() if pool["user_api"] == "blas")
    return blas


def processor() -> str:
    """Return the system's name of the processor."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(
                line.split(":")[1].strip() for line in file if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


WRITERS = {
    "networks": ("reference_cpu.txt", network_lines, 1),
    "calls": ("reference_calls.txt", call_lines, 1),
    "threads": ("reference_threads.txt", thread_lines, None),
}
"""The record, its lines, and the number of threads, None for all."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=tuple(WRITERS), default="networks")
    parser.add_argument("--record", action="store_true", help="write it to docs/verification")
    options = parser.parse_args()
    name, lines, limit = WRITERS[options.what]
    with threadpool_limits(limit):
        text = "\n".join(lines())
    print(text)
    if options.record:
        files.write(RECORDS / name, f"{text}\n{source_lines(name)}".encode())


if __name__ == "__main__":
    main()
