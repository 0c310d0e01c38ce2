"""The gain of each fast path of a call: the host's time with it, and without it.

    python benchmarks/fast_paths.py [--record]

A fast path finds what an earlier call has found out, instead of checking arguments again. A path
that gains less than one microsecond is not worth its code. The calls run on the simulator of cuDNN,
whose time is in both columns, or on NumPy arrays; no GPU is needed. PyTorch is, for the paths of
its tensors. Both ways take turns, and the minimum of all turns is shown, in microseconds of wall
time. ``--record`` writes the table to docs/verification.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = str(ROOT), str(ROOT / "tests")  # simulators/, and the GPU that tests play

from reference_cpu import processor  # noqa: E402
from simulated.gpu_tensors import all_tensors_on_gpu, played_gpu  # noqa: E402

import dnnffi  # noqa: E402
import dnnffi.torch  # noqa: E402
from dnnffi import files  # noqa: E402
from dnnffi.backends.cudnn.rnn_executor import CudnnRNNExecutor  # noqa: E402
from dnnffi.cli.machine import machine  # noqa: E402
from dnnffi.cli.sources import source_lines  # noqa: E402
from dnnffi.convolution.backend import on_host  # noqa: E402
from dnnffi.torch import network  # noqa: E402
from dnnffi.torch.tensors import Allocation, TensorAllocator  # noqa: E402
from simulators.cudnn import build  # noqa: E402
from simulators.cudnn.library import open_simulator  # noqa: E402

RECORD = "fast_paths.txt"
SPEC = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
CONV = dnnffi.ConvSpec(in_channels=1, out_channels=1, kernel=(3, 3), padding=1)
OPTIONS: Any = {"tune": "off"}
STEPS, BATCH, X_SHAPE = 5, 2, (1, 1, 2, 2)
TURNS, CALLS_PER_TURN, WARM_UP = 40, 100, 20

MakeArray = Callable[[Any], Any]


class FastPath(NamedTuple):
    """A call that takes a fast path, and a context in which it does not."""

    name: str
    call: Callable[[], object]
    without: Callable[[], AbstractContextManager[Any]]


def network_paths(backend: str, array: MakeArray) -> Iterator[FastPath]:
    """Yield the fast paths of a network."""
    layout = "torch" if backend == "reference" else backend
    flat = np.zeros(dnnffi.weight_layout(SPEC, layout).size, np.float32)
    weights = dnnffi.RNNWeights(array(flat), SPEC, backend=layout)
    x = array(np.zeros((STEPS, BATCH, SPEC.input_size), np.float32))
    dy = array(np.zeros((STEPS, BATCH, SPEC.hidden_size), np.float32))
    hx = tuple(array(np.zeros((1, BATCH, SPEC.hidden_size), np.float32)) for _ in range(2))

    def infer() -> None:
        dnnffi.lstm(x, hx, weights, backend=backend, options=OPTIONS)

    def train() -> None:
        _, _, context = dnnffi.lstm_forward(x, hx, weights, backend=backend, options=OPTIONS)
        context.backward(dy)

    def unknown() -> AbstractContextManager[Any]:
        return replaced(weights, _networks=_Empty(weights._networks))

    for what, call in (("inference", infer), ("training", train)):
        call()
        yield FastPath(f"{backend}: weights know the network, {what}", call, unknown)


def tensor_paths(simulator: Any) -> Iterator[FastPath]:
    """Yield the fast paths of a network on tensors, which say that they are on a GPU.

    The library is not called: the simulator would have to know each tensor's memory.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        played_gpu(simulator, patch),
        all_tensors_on_gpu(patch),
    ):
        allocation = Allocation(TensorAllocator(torch.device("cpu", 0)), lambda: 0)
        patch.setattr(network, "allocation_on", lambda device: allocation)
        for name in ("forward", "backward"):
            patch.setattr(CudnnRNNExecutor, name, lambda self, *arguments: None)
        weights = torch.zeros(dnnffi.weight_layout(SPEC, "cudnn").size, requires_grad=True)
        x = torch.zeros(STEPS, BATCH, SPEC.input_size)
        dy = torch.zeros(STEPS, BATCH, SPEC.hidden_size)
        hx = torch.zeros(1, BATCH, SPEC.hidden_size), torch.zeros(1, BATCH, SPEC.hidden_size)

        def forward() -> Any:
            return dnnffi.torch.lstm(x, hx, weights, spec=SPEC, options=OPTIONS)[0]

        def train() -> None:
            torch.autograd.grad(forward(), weights, dy)

        def unknown() -> AbstractContextManager[Any]:
            return replaced(network, run_known=lambda *given, **keywords: None)

        for what, call in (("inference", torch.no_grad()(forward)), ("training", train)):
            call()
            yield FastPath(f"cudnn: tensors of a known network, {what}", call, unknown)


def plan_path(array: MakeArray) -> FastPath:
    """Return the fast path of an `RNNPlan` that gets the same arrays again."""
    plan = dnnffi.RNNPlan(SPEC, batch=BATCH, steps=STEPS, backend="cudnn", options=OPTIONS)
    flat = np.zeros(dnnffi.weight_layout(SPEC, "cudnn").size, np.float32)
    weights = dnnffi.RNNWeights(array(flat), SPEC, backend="cudnn")
    x = array(np.zeros((STEPS, BATCH, SPEC.input_size), np.float32))
    out = plan.forward(x, None, weights)

    def call() -> None:
        plan.forward(x, None, weights, out)

    call()
    seen = plan._buffers._forward
    return FastPath(
        "cudnn: RNNPlan has seen the arrays",
        call,
        lambda: forgetful(seen),
    )


def convolution_paths(backend: str, array: MakeArray, plans: Any) -> Iterator[FastPath]:
    """Yield the fast paths of a convolution; ``plans`` are those of the backend."""
    x = array(np.zeros(X_SHAPE, np.float32))
    w = array(np.zeros(CONV.weight_shape, np.float32))

    def call() -> None:
        dnnffi.conv(x, w, padding=1, backend=backend, options=OPTIONS)

    call()
    kept = plans()
    find = kept.find
    yield FastPath(
        f"{backend}: the signature of a convolution is known",
        call,
        lambda: forgetful(kept, lambda key: None if isinstance(key[0], tuple) else find(key)),
    )
    if backend == "reference":
        return
    plan = dnnffi.ConvPlan(CONV, X_SHAPE, backend=backend, options=OPTIONS)
    y = plan.run(x, w)

    def again() -> None:
        plan.run(x, w, out=y)

    again()
    seen: Any = vars(plan._plan)["_seen"]
    yield FastPath(
        f"{backend}: ConvPlan has seen the arrays",
        again,
        lambda: forgetful(seen),
    )


@contextmanager
def replaced(one: Any, **attributes: Any) -> Iterator[None]:
    """Give an object other attributes, by plain assignment: a mock would cost more than a path."""
    before = {name: getattr(one, name) for name in attributes}
    for name, value in attributes.items():
        setattr(one, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(one, name, value)


def forgetful(
    cache: Any, find: Callable[[Any], Any] = lambda key: None
) -> AbstractContextManager[None]:
    """Return a context in which a cache finds only what ``find`` does, and takes in nothing."""
    return replaced(cache, find=find, add=lambda *given: given[-1])


class _Empty(dict[Any, Any]):
    """A dictionary in which nothing is found."""

    def get(self, key: Any, default: Any = None) -> Any:
        return default


def gain(path: FastPath) -> tuple[float, float]:
    """Return the microseconds of a call with a fast path and without it."""
    best = [float("inf"), float("inf")]
    for turn in range(2 * TURNS):
        with path.without() if turn % 2 else ExitStack():
            for _ in range(WARM_UP):
                path.call()
            begun = time.perf_counter()
            for _ in range(CALLS_PER_TURN):
                path.call()
            taken = (time.perf_counter() - begun) / CALLS_PER_TURN
        best[turn % 2] = min(best[turn % 2], 1e6 * taken)
    return best[0], best[1]


def all_paths() -> Iterator[FastPath]:
    """Yield the fast paths of networks and convolutions."""
    with open_simulator(build.build()) as simulator:
        yield from network_paths("cudnn", simulator.asarray)
        yield plan_path(simulator.asarray)
        yield from convolution_paths("cudnn", simulator.asarray, lambda: simulator.conv.plans)
        yield from network_paths("reference", np.asarray)
        yield from convolution_paths("reference", np.asarray, lambda: on_host.plans)
    with open_simulator(build.build()) as simulator:
        yield from tensor_paths(simulator)


def table_lines() -> Iterator[str]:
    """Yield the lines of the table."""
    found = machine("cpu", ())
    yield f"{found['date']}: {', '.join(f'{n} {found[n]}' for n in ('dnnffi', 'python', 'numpy'))}"
    yield f"{processor()}, one thread"
    yield ""
    yield f"{'microseconds':52}{'with':>8}{'without':>9}{'gain':>8}"
    with threadpool_limits(1):
        for path in all_paths():
            fast, slow = gain(path)
            yield f"{path.name:52}{fast:8.1f}{slow:9.1f}{slow - fast:8.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write it to docs/verification")
    options = parser.parse_args()
    lines = []
    for line in table_lines():
        print(line, flush=True)
        lines.append(line)
    if options.record:
        text = "\n".join(lines)
        path = ROOT / "docs" / "verification" / RECORD
        files.write(path, f"{text}\n{source_lines(RECORD)}".encode())


if __name__ == "__main__":
    main()
