"""The handlers of networks: executors on addresses, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dnnffi.backends.rnn_interface import (
    AddressExecutor,
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.interface import Launch
from dnnffi.errors import UnsupportedError
from dnnffi.jax import handlers as base
from dnnffi.jax.handlers import Run, each
from dnnffi.jax.rnn.call import BACKWARD, KINDS, Call
from dnnffi.jax.rnn.engine import Engine
from dnnffi.jax.xla_ffi import Buffers
from dnnffi.spec.problem import RNNProblem

ALIGNMENT = 256
"""Bytes of a row of the reserve space are a multiple of it, as of memory that CUDA allocates."""

_FORWARD = (
    *("x", "y", "h_0", "h_n", "c_0", "c_n", "weights", "workspace", "reserve"),
    *("resets", "reset_h", "reset_c", "lengths"),
)
_DATA = (
    *("y", "h_0", "c_0", "weights", "dy", "dh_n", "dc_n"),
    *("dx", "dh_0", "dc_0", "workspace", "spent", "resets", "dreset_h", "dreset_c"),
)
_WEIGHTS = ("x", "h_0", "y", "dweights", "workspace", "spent")


class Sizes(NamedTuple):
    """Bytes of the buffers of a call: of the workspace, and of a row of the reserve space."""

    workspace: int
    reserve_row: int


class Handlers(base.Handlers):
    """Handlers of networks; ``engine`` makes their `Engine`."""

    read = staticmethod(Call.of_text)

    def __init__(self, prefix: str, platform: str, engine: Callable[[], Engine]) -> None:
        super().__init__(prefix, platform, KINDS, engine)
        self._executors: dict[tuple[RNNProblem, str, int], AddressExecutor] = {}

    # While tracing

    def decide(self, problem: RNNProblem) -> str:
        """Return the name of the candidate for a problem. Raises `DnnffiError` if there is none."""
        candidate = self.engine.decide(problem)
        self._executor(problem, candidate)
        return candidate

    def sizes(self, problem: RNNProblem, candidate: str, parts: int) -> Sizes:
        """Return the sizes of the buffers; the reserve space also fits where the batch is divided.

        Among up to ``parts`` devices, each with as many rows.
        """
        executor = self._executor(problem, candidate)
        row = 0
        for part in range(1, parts + 1) if problem.training else ():
            if problem.batch % part == 0 and (part == 1 or problem.lengths is None):
                share = problem._replace(batch=problem.batch // part)
                try:
                    needed = self._executor(share, candidate).reserve_bytes
                except UnsupportedError:
                    if part == 1:
                        raise
                    continue  # said where the batch is divided, if it ever is
                row = max(row, -(-needed // share.batch))
        # Memory of no bytes has no address.
        return Sizes(max(executor.workspace_bytes, 1), -(-row // ALIGNMENT) * ALIGNMENT)

    # When XLA calls

    def _executor(self, problem: RNNProblem, candidate: str) -> AddressExecutor:
        key = problem, candidate, self.engine.device()
        found = self._executors.get(key)
        if found is None:
            found = self._executors.setdefault(key, self.engine.make(problem, candidate))
        return found

    def _prepare(self, kind: str, call: Call, buffers: Buffers) -> Run:
        executor = self._executor(call.problem, call.candidate)
        if executor.reserve_bytes > call.reserve_row * call.problem.batch:
            raise RuntimeError(
                f"the program has {call.reserve_row} bytes of reserve space a row; "
                f"{executor.reserve_bytes} are needed for {call.problem}"
            )
        if executor.workspace_bytes > call.workspace:
            raise RuntimeError(
                f"the program has {call.workspace} bytes of workspace; {executor.workspace_bytes} "
                f"are needed for {call.problem}"
            )
        names = [one.name for one in (*buffers.operands, *buffers.results)]
        places = {name: place for place, name in enumerate(names)}

        def order(wanted: tuple[str, ...]) -> tuple[int, ...]:
            return tuple(places.get(name, -1) for name in wanted)

        if kind == BACKWARD:
            reserve = places["reserve"], places["spent"]
            once = _backward(self.engine, executor, order(_DATA), order(_WEIGHTS), reserve)
        else:
            reset_rows = 1 if call.has_one_reset_row else call.problem.batch
            once = _forward(executor, order(_FORWARD), reset_rows)
        return each(once, buffers, call.problems)


def _forward(executor: AddressExecutor, order: tuple[int, ...], reset_rows: int) -> Run:
    def run(launch: Launch, addresses: list[int]) -> None:
        *arrays, lengths = (addresses[n] for n in order)
        at = ForwardAddresses._make([*arrays, reset_rows, lengths])
        executor.forward(launch, at)

    return run


def _backward(
    engine: Engine,
    executor: AddressExecutor,
    data: tuple[int, ...],
    weights: tuple[int, ...],
    places: tuple[int, int],
) -> Run:
    dweights = weights[_WEIGHTS.index("dweights")]
    reserve, spent = places

    def run(launch: Launch, addresses: list[int]) -> None:
        if addresses[reserve] != addresses[spent]:
            # The alias was asked for, but XLA loses it where it fuses a slice into the call
            # (JAX 0.11.2, in a loop).
            engine.copy(launch, addresses[spent], addresses[reserve], executor.reserve_bytes)
        of_data = BackwardDataAddresses(*(addresses[n] for n in data))
        if dweights < 0:
            executor.backward_data(launch, of_data)
            return
        of_weights = BackwardWeightsAddresses(*(addresses[n] for n in weights))
        executor.backward(launch, of_data, of_weights)

    return run
