"""Candidates that do as a script says, on host memory with a clock of its own."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from dnnffi.backends.rnn_interface import AddressExecutor
from dnnffi.device.interface import Launch
from simulators.cuda.memory import SimulatedMemory


@dataclass
class Script:
    """The behaviour of a candidate: milliseconds of an operation, its results, where it fails.

    ``first`` are milliseconds that the first operation takes besides, to load kernels, and
    ``making`` those until it can be called.
    """

    direct: float = 1.0
    replayed: float = 1.0
    result: float = 1.0
    fails_at: str = ""  # "make", "run", "later", "capture" or "replay"
    error: Callable[[], Exception] = RuntimeError
    first: float = 0.0
    making: float = 0.0


class ScriptedMemory(SimulatedMemory):
    """Host memory that counts what is alive, and reports late what was said to fail late."""

    def __init__(self):
        super().__init__(self)
        self.milliseconds = self.call_costs = self.replay_costs = 0.0
        self.alive = 0
        self.inside = self.outside = self.given_back = 0
        self.pending = None
        self.name = "some GPU, driver 1"

    # Control functions that `HostMemory` calls

    def standin_register(self, address, size):
        self.alive += 1

    def standin_unregister(self, address):
        self.alive -= 1

    def standin_registered(self):
        return self.alive

    def empty(self, shape, dtype="float32"):
        self.outside += not self.inside
        return super().empty(shape, dtype)

    @contextmanager
    def scratch(self):
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
            self.given_back += 1

    def elapsed(self, calls):
        milliseconds = super().elapsed(calls)
        if self.pending is not None:
            error, self.pending = self.pending, None
            raise error()
        return milliseconds

    def device_name(self, device):
        return f"{self.name}, device {device}"


class ScriptedCandidates:
    """Candidates by name. The first is the oracle."""

    def __init__(self, memory, scripts):
        self.memory = memory
        self.scripts = scripts
        self.given_version = "scripted 1.0"
        self.made = []
        self.open = 0
        self.runs = Counter()
        self.events = []
        self.given_skip_reason = ""
        self.measured_last = ()

    def oracle(self, problem):
        return next(iter(self.scripts))

    def offers(self, problem):
        return tuple(self.scripts)

    def version(self, problem):
        return self.given_version

    def prepare(self, names, problem, device):
        self.events.append(("prepare", *names))
        return lambda: self.events.append(("wait",))

    def left_out(self, offers, times):
        return {name: f"left out after {times[name]}" for name in offers if times[name] > 2}

    def is_of_vendor(self, candidate):
        return not candidate.startswith("own")

    def is_dominated(self, candidate, times):
        return candidate in self.measured_last and bool(times)

    def skip_reason(self, candidate, times):
        return self.given_skip_reason if candidate == "costly" and times else ""

    def make(self, problem, candidate, launch, generator=None):
        script = self.scripts[candidate]
        self.events.append(("make", candidate))
        self.made.append((candidate, problem, launch.device, generator))
        if script.fails_at == "make":
            raise script.error()
        self.memory.milliseconds += script.making
        return ScriptedExecutor(self, problem, candidate, script)


class ScriptedExecutor(AddressExecutor):
    """An executor that writes one number into every result, and fills the workspace."""

    workspace_bytes, reserve_bytes, weight_size = 24, 40, 7
    least_workspace_bytes = workspace_bytes

    def __init__(self, kernels, problem, name, script):
        self.problem, self.algorithm, self.generator = problem, name, None
        self._kernels, self._script = kernels, script
        kernels.open += 1

    def forward(self, launch, at):
        problem = self.problem
        shapes = (problem.y_shape, problem.h_shape, problem.c_shape)
        self._enqueue("forward", zip((at.y, at.h_n, at.c_n), map(prod, shapes), strict=True))

    def backward_data(self, launch, at):
        problem = self.problem
        shapes = (problem.x_shape, problem.h_shape, problem.c_shape)
        self._enqueue(
            "backward data", zip((at.dx, at.dh_0, at.dc_0), map(prod, shapes), strict=True)
        )

    def backward_weights(self, launch, at, accumulate=False):
        self._enqueue("backward weights", [(at.dweights, self.weight_size)])

    def close(self):
        self._kernels.open -= 1

    def _enqueue(self, operation, written):
        memory, script, runs = self._kernels.memory, self._script, self._kernels.runs
        captured = memory.recording is not None
        if script.fails_at == ("capture" if captured else "run"):
            raise script.error()
        written = list(written)

        def work():
            if not any(name == self.algorithm for name, *_ in runs):
                memory.milliseconds += script.first
            runs[self.algorithm, operation, "replayed" if captured else "direct"] += 1
            memory.milliseconds += script.replayed if captured else script.direct
            if script.fails_at == ("replay" if captured else "later"):
                memory.pending = script.error
            for address, size in written:
                if address:
                    (ctypes.c_double * size).from_address(address)[:] = [script.result] * size
            return 0

        memory.enqueue(work, ())


def launch_on(device, stream):
    """A launch of a backend without handles."""
    return Launch(stream, device)
