"""What happens when XLA calls? The addresses of its buffers go to an executor, on its stream.

What a call says in words is understood once a device, and remembered for ever, executors with it:
XLA may have captured work that uses their memory. From then on a call finds its executor, puts
addresses in order and makes the library's calls. Nothing is allocated on the device, nothing is
waited for, and no lock is held across a call: a device may be waiting for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dnnffi.device.driver import beside_capture
from dnnffi.device.graphs import uncollected
from dnnffi.device.interface import Launch
from dnnffi.device.spans import Span, check_apart
from dnnffi.jax.engine import Lender
from dnnffi.jax.xla_ffi import Frame, register

_PASSED = 64
"""Calls whose addresses were found apart that a problem remembers."""

Run = Callable[[Launch, list[int]], None]
"""What runs a call, from its addresses: operands, results, and a 0 behind."""


class Handlers:
    """The handlers of one engine for some kinds of calls, under names that begin with ``prefix``.

    ``engine`` makes it at its first use. ``platform`` is XLA's name for where it runs. A family
    says what a call's text means (`read`), and what runs it (`_prepare`).
    """

    def __init__(
        self, prefix: str, platform: str, kinds: Sequence[str], engine: Callable[[], Lender]
    ) -> None:
        self._prefix = prefix
        self._make_engine = engine
        self._engine: Any = None
        self._prepared: dict[tuple[bytes, int], Run] = {}
        self.calls = dict.fromkeys(kinds, 0)
        """How often XLA has called: less often than it computes, where it replays."""
        for kind in kinds:
            # Whether MIOpen's calls can be captured is not known.
            capturable = platform != "ROCM"
            register(
                self.target(kind), self._handler(kind), platform=platform, capturable=capturable
            )

    def target(self, kind: str) -> str:
        """The name of the handler of a kind of call."""
        return f"{self._prefix}_{kind}"

    @property
    def engine(self) -> Any:
        """Who computes. Raises what loading its library raises."""
        if self._engine is None:
            self._engine = self._make_engine()
        return self._engine

    def read(self, text: bytes) -> Any:
        """The call that the text of a program means."""
        raise NotImplementedError

    def _prepare(self, kind: str, call: Any) -> Run:
        """What runs a call on the current device."""
        raise NotImplementedError

    def _handler(self, kind: str) -> Callable[[Frame], None]:
        def handle(frame: Frame) -> None:
            self.calls[kind] += 1
            engine = self.engine
            device = engine.device()
            key = frame.attribute, device
            run = self._prepared.get(key)
            if run is None:
                with beside_capture():
                    run = self._prepared[key] = self._prepare(kind, self.read(frame.attribute))
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


def each(
    once: Run,
    operands: Sequence[str],
    results: Sequence[str],
    sizes: Sequence[int],
    problems: int,
    alignment: int = 1,
) -> Run:
    """``once`` for each of several problems that lie one after the other in their arrays.

    ``sizes`` are the bytes that operands and results of one problem take. All problems share an
    operand whose name ends with "*", and the workspace. Every address is to be a multiple of
    ``alignment``.
    """
    arrays = *operands, *results
    strides = [
        0 if name.endswith("*") or name == "workspace" else size
        for name, size in zip(arrays, sizes, strict=True)
    ]
    spans = [size + stride * (problems - 1) for size, stride in zip(sizes, strides, strict=True)]
    check = _apart([name.rstrip("*") for name in arrays], len(operands), spans, alignment)
    for name, stride in zip(arrays, strides, strict=True):
        if problems > 1 and stride % alignment:
            raise RuntimeError(f"{name}: {stride} bytes a problem, no multiple of {alignment}")
    strides.append(0)

    def all_of_them(launch: Launch, addresses: list[int]) -> None:
        check(addresses)
        if problems == 1:
            once(launch, addresses)
            return
        for number in range(problems):
            moved = zip(addresses, strides, strict=True)
            once(launch, [address + number * stride for address, stride in moved])

    return all_of_them


def _apart(
    names: Sequence[str], operands: int, sizes: Sequence[int], alignment: int
) -> Callable[[list[int]], None]:
    """What raises ``RuntimeError`` for addresses of which a result lies in an operand.

    Or one is not aligned.

    A library may read an operand after it has written a result. XLA keeps the two apart, unless it
    has fused the call with the slice that it reads and the update that it is written by. ``names``
    and ``sizes`` are of ``operands`` operands, then of the results.
    """
    passed: set[tuple[int, ...]] = set()  # of the calls before: most addresses come again

    def check(addresses: list[int]) -> None:
        key = tuple(addresses)
        if key in passed:
            return
        for name, address in zip(names, addresses, strict=False):
            if address % alignment:
                raise RuntimeError(f"{name} lies at {address:#x}, no multiple of {alignment}")
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
