"""Plans of convolutions on arrays: replayed as a graph, or run by the first executor that can.

Every thread has executors of its own: vendors do not promise that threads may share one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import prod
from typing import Any

from dnnffi.backends.conv_interface import (
    MISALIGNED,
    ChosenExecutor,
    ConvAddresses,
    ConvExecutors,
    ConvProblemPlan,
    addresses_of,
)
from dnnffi.backends.own.relayout import relayout
from dnnffi.convolution.finder import ExecutorFinder
from dnnffi.device.arrays import aligned, check_aligned, is_external
from dnnffi.device.interface import ALIGNMENT, AnyArray, Array, Launch, Stream
from dnnffi.execution.cache import WeakRegistry
from dnnffi.execution.fork import guard
from dnnffi.execution.remembered import Remembered
from dnnffi.execution.replay import CapturedOperation
from dnnffi.log import logger
from dnnffi.spec.conv_problem import ARGUMENTS
from dnnffi.spec.layouts import is_packed

CAPTURED_AT = 4
"""The call on the same addresses that is captured. A capture takes as long as many replays
save, so what comes two or three times by chance, while a pool grows, is not worth one.
"""

MAX_SHARED_WORKSPACE = 32 * 2**20
"""Bytes of workspace up to which a call of the functions takes the stream's own buffer."""


class _Captures:
    """A flag of a plan: captures are tried until one fails."""

    def __init__(self, tried: bool) -> None:
        self.tried = tried

    def stop(self) -> None:
        self.tried = False


class _OfThread:
    """The executors of one thread: the one in use, its graphs, and those to use if it fails."""

    def __init__(
        self, executor: ChosenExecutor, executors: ConvExecutors, operation: CapturedOperation
    ) -> None:
        self.executor = executor
        self.executors = executors
        self.operation = operation
        self._made_smaller: list[ChosenExecutor] = []
        self._smaller = executors.smaller(executor.workspace_bytes)

    def smaller(self) -> Iterator[ChosenExecutor]:
        """Yield executors with a smaller workspace than the one in use; they are kept."""
        yield from self._made_smaller
        for executor in self._smaller:
            self._made_smaller.append(executor)
            yield executor

    def use(self, executor: ChosenExecutor) -> None:
        """Use another executor from now on."""
        self.executor = executor
        self._made_smaller = []
        self._smaller = self.executors.smaller(executor.workspace_bytes)


class ExecutorConvPlan(ConvProblemPlan):
    """One problem on one device.

    Which executor runs is the decision of ``finder``. One that fails when it runs, by one of the
    ``failures`` of its source, gives way to the next for good. Where a workspace cannot be
    allocated, one that needs less runs this call.

    An array with gaps, in another layout, or at an address that is no multiple of 16 is copied.

    With ``captures``, unless the option tune is "off", calls on addresses that keep coming are
    captured and replayed as graphs.
    """

    def __init__(self, finder: ExecutorFinder[Any], *, captures: bool) -> None:
        problem = finder.problem
        super().__init__(problem)
        resources = finder.source.resources
        self.memory = memory = resources.memory
        self.device = device = finder.device
        self.fallen: dict[str, str] = {}
        """Reasons why executors were given up, by their choices."""
        self.finder = finder
        self._failures = finder.source.failures
        self._resources = resources
        self._launch = resources.launch
        self._may_capture = captures and problem.options.tune != "off"
        self._captures = _Captures(self._may_capture)
        self.current_device: Callable[[], int] = memory.current_device
        self._current_stream = memory.current_stream
        self._is_capturing = memory.is_capturing
        self._workspaces = resources.workspaces
        self._empty_strided = memory.empty_strided
        self._dtype = memory.dtype(problem.spec.dtype)
        self._bytes = memory.dtype("uint8")
        self._last = problem.channels_last
        self.result_shape = problem.result_shape
        self.result_strides = problem.strides(self.result_shape)
        self._result_bytes = prod(self.result_shape) * self._dtype.itemsize
        self._names = ARGUMENTS[problem.operation]
        self._array_strides = tuple(map(problem.strides, self.argument_shapes))
        self._local = threading.local()
        self._threads: WeakRegistry[_OfThread] = WeakRegistry()
        self._seen: Remembered[tuple[int, ...]] = Remembered()
        guard(self)
        with memory.use(device):
            self._of_thread()

    # Executors

    def _ask_again(self) -> None:
        """Let every thread ask the finder again in its next call."""
        self._local, self._captures = threading.local(), _Captures(self._may_capture)

    def _of_thread(self) -> _OfThread:
        """Return the calling thread's executors, made when they are first asked for."""
        if self.closed:
            raise ValueError("this plan is closed")
        local = self._local  # another thread may replace it while executors are made
        known: _OfThread | None = getattr(local, "executors", None)
        if known is not None:
            return known
        executors = self.finder.executors(self._launch(self.device, self._current_stream()))
        begun = time.perf_counter()
        executor = self.finder.first(executors)
        milliseconds = 1e3 * (time.perf_counter() - begun)
        logger.debug("%s runs %s; made in %.1f ms", executor, self.problem, milliseconds)
        launch_on, stop = partial(self._launch, self.device), self._captures.stop
        operation = CapturedOperation(
            self.memory, launch_on, self._resources.graphs, stop, CAPTURED_AT
        )
        made = local.executors = _OfThread(executor, executors, operation)
        self._threads.add(made)
        return made

    def _fall(self, own: _OfThread, error: Exception) -> bool:
        """Switch to the next executor after one has failed; return False if there is no other."""
        failed = own.executor
        own.operation.clear()
        self._captures.tried = self._may_capture  # what could not be captured may be what failed
        reason = f"{type(error).__name__}: {error}"
        self.fallen[str(failed.choice)] = reason
        for executor in own.executors:
            if executor.choice != failed.choice:
                own.use(executor)
                logger.info("%s runs instead of %s: %s", executor.choice, failed.choice, reason)
                if failed not in self._resources.graphs.user_captures:
                    failed.close()
                return True
            executor.close()
        vars(self._local).pop("executors", None)  # another call begins anew
        return False

    # Arrays

    def accepts(self, arrays: tuple[Any, ...]) -> bool:
        return all(
            array is None or self.is_compatible(array, strides)
            for array, strides in zip(arrays, self._array_strides, strict=True)
        )

    def is_compatible(self, array: Array, strides: tuple[int, ...]) -> bool:
        """Whether an executor can take an array as it is."""
        return not array.data.ptr & MISALIGNED and self._is_packed(array, strides)

    def _is_packed(self, array: Array, strides: tuple[int, ...]) -> bool:
        """Whether an array has no gaps, in the layout."""
        if array.strides == strides:
            return True
        if array.ndim < 3:
            return bool(array.shape[0] == 1)
        return is_packed(array.shape, array.strides, self._last, self._dtype.itemsize)

    def ready(self, arrays: tuple[Any, ...], stream: Stream) -> tuple[Any, ...]:
        """``arrays`` without gaps, in the layout and aligned; copies of those that are not."""
        return tuple(
            array
            if array is None or self.is_compatible(array, strides)
            else self._copied(name, array, strides, stream)
            for name, array, strides in zip(self._names, arrays, self._array_strides, strict=True)
        )

    def _copied(
        self, name: str, array: AnyArray, strides: tuple[int, ...], stream: Stream
    ) -> AnyArray:
        copy: AnyArray = self._empty_strided(array.shape, self._dtype, strides, array.nbytes)
        if self._is_packed(array, strides):
            self.memory.copy(copy.data.ptr, array.data.ptr, array.nbytes, stream)
        elif is_external(array.__class__):
            check_aligned(name, array)
            relayout(array, copy, Launch(stream, self.device), self.memory)
        else:
            copy[...] = aligned(name, array)
        return copy

    def new_result(self) -> Array:
        """Return a new array for the result."""
        return self._empty_strided(
            self.result_shape, self._dtype, self.result_strides, self._result_bytes
        )

    # Running

    def run(self, *arrays: Any) -> Array:
        if self.current_device() != self.device:
            with self.memory.use(self.device):
                return self.run(*arrays)
        ready = self.ready(arrays, self._current_stream())
        return self.run_at(addresses_of(ready))

    def run_at(self, addresses: Iterable[int]) -> Array:
        if self.current_device() != self.device:
            with self.memory.use(self.device):
                return self.run_at(addresses)
        out = self.new_result()
        self.fill((*addresses, out.data.ptr), shared=False)
        return out

    def fill(self, addresses: tuple[int, ...], *, shared: bool) -> None:
        """Run on the current device, on `ConvAddresses` without the workspace.

        The workspace is the stream's buffer if it is ``shared`` or at most `MAX_SHARED_WORKSPACE`,
        else a new array; in a capture of the caller's always a new array.
        """
        if self.finder.is_pending and self.finder.advance():
            self._ask_again()
        try:
            own: _OfThread = self._local.executors
        except AttributeError:
            own = self._of_thread()
        stream = self._current_stream()
        captured = stream.ptr != 0 and self._is_capturing(stream)
        while True:
            executor = own.executor
            size, workspace = executor.workspace_bytes, None
            is_streams = not captured and (shared or size <= MAX_SHARED_WORKSPACE)
            if size:
                try:
                    if is_streams:
                        workspace = self._workspaces.take(self.device, stream.ptr, size)
                    else:  # it is large, or the caller captures and their graph has to own it
                        workspace = self.memory.empty((size,), self._bytes)
                except Exception as error:  # of the caller's allocator, whatever it raises
                    if not self._run_smaller(own, addresses, stream, captured=captured):
                        raise error from None
                    return
            try:
                key = (*addresses, 0 if workspace is None else workspace.data.ptr)
                graph = None if captured else own.operation.graphs.get(key)
                if graph is not None:
                    graph.launch(stream)
                    return
                at = ConvAddresses(*key)
                if not captured and self._captures.tried:
                    graph = own.operation.graph(at, executor, partial(executor.run, at=at))
                    if graph is not None:
                        graph.launch(stream)
                        return
                launch = self._launch(self.device, stream)
                if captured:
                    own.operation.keep_for_user(executor, launch)
                executor.run(launch, at)
                return
            except self._failures as error:
                if not self._fall(own, error):
                    raise
            finally:
                if is_streams and workspace is not None:
                    self._workspaces.give_back(self.device, stream.ptr, workspace)

    def _run_smaller(
        self, own: _OfThread, addresses: tuple[int, ...], stream: Stream, *, captured: bool
    ) -> bool:
        """Run one call with less workspace than could be allocated; False if nothing needs less."""
        for executor in own.smaller():
            size, workspace = executor.workspace_bytes, None
            try:
                if size:
                    workspace = self.memory.empty((size,), self._bytes)
            except Exception:  # as in `fill`
                continue
            names = executor.choice, own.executor.choice
            logger.info("%s runs without memory for the workspace of %s", *names)
            launch = self._launch(self.device, stream)
            if captured:
                own.operation.keep_for_user(executor, launch)
            key = (*addresses, 0 if workspace is None else workspace.data.ptr)
            try:
                executor.run(launch, ConvAddresses(*key))
            except self._failures as error:
                logger.info("%s failed: %s", executor.choice, error)
                continue
            return True
        return False

    # Into arrays of the caller's

    def again(self, arrays: tuple[Any, ...], out: Any) -> bool:
        addresses = self._seen.find((id(out), *map(id, arrays)))
        if addresses is None or self.current_device() != self.device:
            return False
        self.fill(addresses, shared=True)
        return True

    def run_into(self, arrays: tuple[Any, ...], out: Array | None) -> Array:
        if self.current_device() != self.device:
            with self.memory.use(self.device):
                return self.run_into(arrays, out)
        if out is None:
            out = self.new_result()
        elif not self.is_compatible(out, self.result_strides):
            raise ValueError(
                f"out must be without gaps, {self.problem.layout.replace('_', ' ')}, at an address "
                f"that is a multiple of {ALIGNMENT}; it has strides {out.strides}"
            )
        asked = (*arrays, *(None,) * (len(self.argument_shapes) - len(arrays)))
        ready = self.ready(asked, self._current_stream())
        addresses = (*addresses_of(ready), out.data.ptr)
        self.fill(addresses, shared=True)
        if all(one is other for one, other in zip(ready, asked, strict=True)):
            all_arrays = (out, *arrays)
            self._seen.add(tuple(map(id, all_arrays)), all_arrays, addresses)
        return out

    # What it is

    def autotune(self) -> bool:
        is_measured = self.finder.autotune()
        if is_measured:
            self._ask_again()
        return is_measured

    @property
    def graph_count(self) -> int:
        """Number of CUDA graphs that the plan holds, for all threads."""
        return sum(len(one.operation.graphs) for one in self._threads.snapshot())

    def report(self) -> str:
        """Return which executor runs, and why, in plain words."""
        problem = self.problem
        with self.memory.use(self.device):
            own = self._of_thread()
        lines = [str(problem), str(own.executor)]
        if what := " and ".join(problem.epilogue):
            where = "in the same kernel" if own.executor.fused else "after the convolution"
            lines.append(f"{what}: {where}")
        lines += self.finder.notes(own.executor, own.executors)
        given_up = self.finder.refused | self.fallen
        lines += [f"gave up {choice}: {reason}" for choice, reason in given_up.items()]
        graph_bytes = sum(one.operation.nbytes for one in self._threads.snapshot())
        lines.append(f"{self.graph_count} graphs, {graph_bytes:,} bytes")
        return "\n".join(lines)

    def close(self) -> None:
        """Release the executors and graphs of all threads. A second call does nothing."""
        super().close()
        self._seen.clear()
        for one in self._threads.snapshot():
            one.executors.close()
        self._local = threading.local()
