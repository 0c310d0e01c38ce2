"""The reference on a CPU beside PyTorch, on one thread each, and what its matrix products take.

    python benchmarks/reference_cpu.py [--record]

Needs PyTorch and threadpoolctl. The networks have one layer and one direction, and inputs of the
hidden size. "inference" is `dnnffi.lstm` and its like beside ``torch.nn`` in inference mode,
"training" is a training forward with all gradients beside ``torch.nn`` and autograd. Times are of
the processor, in milliseconds of a call, medians of turns that the calls take. "products" are those
of the reference alone, as it asks NumPy's BLAS for them: it cannot take less. ``--record`` writes
what is printed to docs/verification/reference_cpu.txt too.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import dnnffi
from dnnffi import files
from dnnffi.cli.machine import machine
from dnnffi.cli.sources import source_lines
from dnnffi.reference.direction import MOST_ROWS

RECORD = Path(__file__).resolve().parents[1] / "docs" / "verification" / "reference_cpu.txt"
MODES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN"}
SHAPES = ((5, 1, 8), (20, 4, 32), (50, 1, 128), (50, 16, 128), (20, 64, 512))
VERSIONS = ("dnnffi", "numpy", "torch", "python")
TURNS = 15
TURN_SECONDS = 0.05
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
        torch.manual_seed(0)
        self.mode = mode
        self.module = getattr(torch.nn, MODES[mode])(size, size, dtype=getattr(torch, dtype))
        self.weights = [parameter.detach().numpy() for parameter in self.module.parameters()]
        random = np.random.default_rng(0)
        self.x, self.dy = random.standard_normal((2, steps, batch, size)).astype(dtype)

    def inference(self) -> dict[str, Call]:
        """The calls without gradients."""
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
        """The calls with all gradients."""
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
        """Those of some steps' inputs at once, and of the states step by step."""
        w_ih, w_hh = (weight.T for weight in self.weights[:2])
        steps, batch, size = self.x.shape
        length = max(1, MOST_ROWS // batch) * batch
        rows = self.x.reshape(-1, size)
        for start in range(0, len(rows), length):
            rows[start : start + length] @ w_ih
        for step in range(steps):
            self.x[step] @ w_hh

    def backward_products(self) -> None:
        """Those of the gradients: of the states step by step, of x, and of both weights."""
        w_ih, w_hh = self.weights[:2]
        steps, batch, size = self.x.shape
        d = np.ones((steps, batch, len(w_hh)), self.x.dtype)
        for step in range(steps):
            d[step] @ w_hh
        rows, x = d.reshape(steps * batch, -1), self.x.reshape(-1, size)
        rows @ w_ih
        rows.T @ x
        rows.T @ x


def lines() -> list[str]:
    """The figures as a table."""
    found = machine("cpu", ("torch",))
    (blas,) = (pool for pool in threadpool_info() if pool["user_api"] == "blas")
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


def processor() -> str:
    """What the system calls it."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(
                line.split(":")[1].strip() for line in file if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        text = "\n".join(lines())
    print(text)
    if options.record:
        files.write(RECORD, f"{text}\n{source_lines(RECORD.name)}".encode())


if __name__ == "__main__":
    main()
