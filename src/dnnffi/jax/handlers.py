"""Handlers of all families: the addresses of XLA's buffers go to an executor, on XLA's stream.

The text of a call is read once a device, and what runs it is remembered for ever, executors
included: XLA may have captured work that uses their memory. From then on a call finds its executor,
compares the buffers with the text, puts addresses in order and makes the library's calls. Nothing
is allocated on the device, nothing is waited for, and no lock is held across a call: a device may
be waiting for another one.

The text may come from a program that somebody else exported. It is read as any untrusted input,
and no executor is made before the buffers of the call are those that the text says. A refused call
is not remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dnnffi.device.graphs import uncollected
from dnnffi.device.interface import Launch
from dnnffi.device.spans import Span, check_apart
from dnnffi.jax.calls import ERRORS, WORKSPACE
from dnnffi.jax.engine import Lender
from dnnffi.jax.xla_ffi import Buffers, Frame, register

_SHOWN_BYTES = 200
"""Bytes of a text that an error message shows."""

_PASSED = 64
"""Maximum number of address tuples that a prepared call remembers as checked."""

Run = Callable[[Launch, list[int]], None]
"""Runs a call on its addresses: operands, results, and a final 0."""


class Prepared(NamedTuple):
    """A call that was read: the buffers that it must have, and what runs it."""

    buffers: Buffers
    run: Run


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
        self._prepared: dict[str, dict[tuple[bytes, int], Prepared]] = {}
        self.calls = dict.fromkeys(kinds, 0)
        """Number of XLA's calls; fewer than its computations if it replays them."""
        for kind in kinds:
            # Whether MIOpen's calls can be captured is not known.
            capturable = platform != "ROCM"
            register(
                self.target(kind), self._handler(kind), platform=platform, capturable=capturable
            )

    def target(self, kind: str) -> str:
        """Return the name of the handler of a kind of call."""
        return f"{self._prefix}_{kind}"

    @property
    def engine(self) -> Any:
        """The engine that computes. Raises what loading its library raises."""
        if self._engine is None:
            self._engine = self._make_engine()
        return self._engine

    def read(self, text: bytes) -> Any:
        """Return the `Call` that the text of a program means. Raises what is wrong with it."""
        raise NotImplementedError

    def _prepare(self, kind: str, call: Any, buffers: Buffers) -> Run:
        """Return the function that runs a call on the current device."""
        raise NotImplementedError

    def _understood(self, kind: str, text: bytes) -> tuple[Any, Buffers]:
        """Return the call that a text means, and the buffers that it must have."""
        try:
            call = self.read(text)
            return call, call.buffers(kind)
        except ERRORS as error:
            raise ValueError(
                f"the text of the call is not what this version of dnnffi writes: {error}; the "
                f"text is {text[:_SHOWN_BYTES]!r}; export the program again"
            ) from error

    def _handler(self, kind: str) -> Callable[[Frame], None]:
        known = self._prepared[kind] = {}

        def handle(frame: Frame) -> None:
            self.calls[kind] += 1
            engine = self.engine
            device = engine.device()
            key = frame.attribute, device
            prepared = known.get(key)
            if prepared is None:
                call, buffers = self._understood(kind, frame.attribute)
                addresses = buffers.addresses(frame)
                with engine.beside_capture():
                    run = self._prepare(kind, call, buffers)
                known[key] = Prepared(buffers, run)
            else:
                buffers, run = prepared
                addresses = buffers.addresses(frame)
            addresses.append(0)
            launch = engine.borrow(device, frame.stream())
            try:
                with uncollected():  # XLA may be capturing
                    run(launch, addresses)
            except BaseException:
                engine.give_back(launch, failed=True)
                raise
            engine.give_back(launch, failed=False)

        return handle


def each(once: Run, buffers: Buffers, problems: int, alignment: int = 1) -> Run:
    """``once`` for each of several problems that lie one after the other in their arrays.

    The first dimension of a buffer is the problems; all share one where it is 1, and the workspace.
    Every address is to be a multiple of ``alignment``.
    """
    arrays = *buffers.operands, *buffers.results
    strides = [
        0 if one.shape[0] == 1 or one.name == WORKSPACE else one.nbytes // problems
        for one in arrays
    ]
    check = _apart(buffers, alignment)
    for one, stride in zip(arrays, strides, strict=True):
        if problems > 1 and stride % alignment:
            raise RuntimeError(f"{one.name}: {stride} bytes a problem, no multiple of {alignment}")
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


def _apart(buffers: Buffers, alignment: int) -> Callable[[list[int]], None]:
    """Return a check of addresses; ``RuntimeError`` if a result shares memory or one is unaligned.

    A library may read an operand after it has written a result. XLA keeps the two apart, unless it
    has fused the call with the slice that it reads and the update that it is written by.
    """
    arrays = *buffers.operands, *buffers.results
    sizes = [one.nbytes for one in arrays]
    names, operands = [one.name for one in arrays], len(buffers.operands)
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
