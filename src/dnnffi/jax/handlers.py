"""What happens when XLA calls? The addresses of its buffers go to an executor, on its stream.

What a call says in words is understood once a device, and remembered for ever, executors with it:
XLA may have captured work that uses their memory. From then on a call finds its executor, puts
addresses in order and makes the library's calls. Nothing is allocated on the device, nothing is
waited for, and no lock is held across a call: a device may be waiting for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from dnnffi.backends.rnn_interface import (
    AddressExecutor,
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.graphs import uncollected
from dnnffi.device.interface import Launch
from dnnffi.device.spans import Span, check_apart
from dnnffi.errors import UnsupportedError
from dnnffi.jax.call import BACKWARD, KINDS, Call
from dnnffi.jax.engine import Engine
from dnnffi.jax.xla_ffi import Frame, register
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import RNNProblem

ALIGNMENT = 256
"""Bytes of a row of the reserve space are a multiple of it, as of memory that CUDA allocates."""

_PASSED = 64
"""Calls whose addresses were found apart that a problem remembers."""

_FORWARD = ("x", "y", "h_0", "h_n", "c_0", "c_n", "weights", "workspace", "reserve")
_DATA = (
    *("y", "h_0", "c_0", "weights", "dy", "dh_n", "dc_n"),
    *("dx", "dh_0", "dc_0", "workspace", "spent"),
)
_WEIGHTS = ("x", "h_0", "y", "dweights", "workspace", "spent")


class Sizes(NamedTuple):
    """Bytes of the buffers of a call: of the workspace, and of a row of the reserve space."""

    workspace: int
    reserve_row: int


class Handlers:
    """The handlers of one engine, under names that begin with ``prefix``.

    ``engine`` makes it at its first use. ``platform`` is XLA's name for where it runs.
    """

    def __init__(self, prefix: str, platform: str, engine: Callable[[], Engine]) -> None:
        self._prefix = prefix
        self._make_engine = engine
        self._engine: Engine | None = None
        self._executors: dict[tuple[RNNProblem, str, int], AddressExecutor] = {}
        self._prepared: dict[tuple[bytes, int], Callable[[Launch, list[int]], None]] = {}
        self.calls = dict.fromkeys(KINDS, 0)
        """How often XLA has called: less often than it computes, where it replays."""
        for kind in KINDS:
            # Whether MIOpen's calls can be captured is not known.
            capturable = platform != "ROCM"
            register(
                self.target(kind), self._handler(kind), platform=platform, capturable=capturable
            )

    def target(self, kind: str) -> str:
        """The name of the handler of a kind of call."""
        return f"{self._prefix}_{kind}"

    @property
    def engine(self) -> Engine:
        """Who computes. Raises what loading its library raises."""
        if self._engine is None:
            self._engine = self._make_engine()
        return self._engine

    # While tracing

    def decide(self, problem: RNNProblem) -> str:
        """Who is to run a problem, by name. Raises `DnnffiError` where nobody can."""
        candidate = self.engine.decide(problem)
        self._executor(problem, candidate)
        return candidate

    def sizes(self, problem: RNNProblem, candidate: str, parts: int) -> Sizes:
        """The sizes of the buffers; the reserve space also fits where the batch is divided.

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

    def _handler(self, kind: str) -> Callable[[Frame], None]:
        def handle(frame: Frame) -> None:
            self.calls[kind] += 1
            engine = self.engine
            device = engine.device()
            key = frame.attribute, device
            run = self._prepared.get(key)
            if run is None:
                run = self._prepared[key] = self._prepare(kind, Call.of_text(frame.attribute))
            addresses = [*frame.operands, *frame.results, 0]
            launch = engine.borrow(device, frame.stream())
            try:
                with uncollected():  # XLA may be capturing
                    run(launch, addresses)
            except BaseException:
                engine.give_back(launch, failed=True)
                raise
            engine.give_back(launch, failed=False)

        return handle

    def _executor(self, problem: RNNProblem, candidate: str) -> AddressExecutor:
        key = problem, candidate, self.engine.device()
        found = self._executors.get(key)
        if found is None:
            found = self._executors.setdefault(key, self.engine.make(problem, candidate))
        return found

    def _prepare(self, kind: str, call: Call) -> Callable[[Launch, list[int]], None]:
        """What runs a call, from its addresses: operands, results, and a 0 behind."""
        executor = self._executor(call.problem, call.candidate)
        if executor.reserve_bytes > call.reserve_row * call.problem.batch:
            raise RuntimeError(
                f"the program has {call.reserve_row} bytes of reserve space a row; "
                f"{executor.reserve_bytes} are needed for {call.problem}"
            )
        names = [name.rstrip("*") for name in (*call.operands, *call.results)]
        places = {name: place for place, name in enumerate(names)}

        def order(wanted: tuple[str, ...]) -> tuple[int, ...]:
            return tuple(places.get(name, -1) for name in wanted)

        if kind == BACKWARD:
            reserve = places["reserve"], places["spent"]
            once = _backward(self.engine, executor, order(_DATA), order(_WEIGHTS), reserve)
        else:
            once = _forward(executor, order(_FORWARD))
        sizes = [_bytes(name, call, executor) for name in names]
        strides = [
            0 if name.endswith("*") or name == "workspace" else size
            for name, size in zip((*call.operands, *call.results), sizes, strict=True)
        ]
        spans = [
            size + stride * (call.problems - 1) for size, stride in zip(sizes, strides, strict=True)
        ]
        check = _apart(names, len(call.operands), spans)
        strides.append(0)

        def all_of_them(launch: Launch, addresses: list[int]) -> None:
            check(addresses)
            if call.problems == 1:
                once(launch, addresses)
                return
            for number in range(call.problems):
                moved = zip(addresses, strides, strict=True)
                once(launch, [address + number * stride for address, stride in moved])

        return all_of_them


def _forward(
    executor: AddressExecutor, order: tuple[int, ...]
) -> Callable[[Launch, list[int]], None]:
    def run(launch: Launch, addresses: list[int]) -> None:
        executor.forward(launch, ForwardAddresses._make([addresses[n] for n in order]))

    return run


def _backward(
    engine: Engine,
    executor: AddressExecutor,
    data: tuple[int, ...],
    weights: tuple[int, ...],
    places: tuple[int, int],
) -> Callable[[Launch, list[int]], None]:
    dweights = weights[_WEIGHTS.index("dweights")]
    reserve, spent = places

    def run(launch: Launch, addresses: list[int]) -> None:
        if addresses[reserve] != addresses[spent]:
            # The alias was asked for, but XLA loses it where it fuses a slice into the call
            # (JAX 0.11.2, in a loop).
            engine.copy(launch, addresses[spent], addresses[reserve], executor.reserve_bytes)
        executor.backward_data(launch, BackwardDataAddresses._make([addresses[n] for n in data]))
        if dweights >= 0:
            at = BackwardWeightsAddresses._make([addresses[n] for n in weights])
            executor.backward_weights(launch, at)

    return run


def _apart(
    names: Sequence[str], operands: int, sizes: Sequence[int]
) -> Callable[[list[int]], None]:
    """What raises ``RuntimeError`` for addresses of which a result lies in an operand.

    A library may read an operand after it has written a result. XLA keeps the two apart, unless it
    has fused the call with the slice that it reads and the update that it is written by. ``names``
    and ``sizes`` are of ``operands`` operands, then of the results.
    """
    passed: set[tuple[int, ...]] = set()  # of the calls before: most addresses come again

    def check(addresses: list[int]) -> None:
        key = tuple(addresses)
        if key in passed:
            return
        spans = [Span(*one) for one in zip(names, addresses, sizes, strict=False)]
        written = [span for span in spans[operands:] if span.name != "spent"]
        try:
            check_apart(written, spans[:operands])
        except ValueError as error:
            raise RuntimeError(
                f"{error}; XLA's flag --xla_gpu_enable_dynamic_slice_fusion=false keeps them apart"
            ) from None
        if len(passed) >= _PASSED:
            passed.clear()
        passed.add(key)

    return check


def _bytes(name: str, call: Call, executor: Any) -> int:
    """What an array of one problem takes."""
    problem = call.problem
    item = ITEM_SIZES[problem.spec.dtype]
    if name in ("weights", "dweights"):
        return int(executor.weight_size) * item
    if name in ("reserve", "spent"):
        return call.reserve_row * problem.batch
    if name == "workspace":
        return int(executor.workspace_bytes)
    shapes = {"x": problem.x_shape, "y": problem.y_shape, "h": problem.h_shape}
    shapes["c"] = problem.c_shape
    return prod(shapes[name.removeprefix("d")[0]]) * item
