"""Plans of convolutions on arrays, run by cuDNN; if one of its plans fails, the next one runs.

Every thread has plans of cuDNN's of its own: cuDNN does not promise that threads may share one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from dnnffi.backends.conv_interface import (
    ALIGNMENT,
    MISALIGNED,
    ConvAddresses,
    ConvProblemPlan,
    ConvResources,
    ConvSource,
    addresses_of,
)
from dnnffi.backends.cudnn.conv_classes import output_positions
from dnnffi.backends.cudnn.conv_executor import OWN, ConvExecutors, EngineChoice, EngineExecutor
from dnnffi.backends.cudnn.conv_tuner import ConvTuner
from dnnffi.backends.cudnn.conv_tuning import ConvTuning
from dnnffi.backends.own.bias import MAX_POSITIONS, bias_gradient, can_sum
from dnnffi.backends.own.relayout import relayout
from dnnffi.device.arrays import aligned, check_aligned, is_external
from dnnffi.device.interface import AnyArray, Array, Launch, Stream
from dnnffi.errors import CudnnError, UnsupportedError
from dnnffi.execution.cache import Living
from dnnffi.execution.fork import guard
from dnnffi.execution.operation import Operation
from dnnffi.execution.remembered import Remembered
from dnnffi.log import logger
from dnnffi.spec.conv_problem import ARGUMENTS, ConvProblem
from dnnffi.spec.layouts import is_packed

_FAILURES = (CudnnError, UnsupportedError, MemoryError)
"""Errors of a running plan after which the next one is tried."""

CAPTURED_AT = 4
"""The call on the same addresses that is captured. A capture takes as long as many replays
save, so what comes two or three times by chance, while a pool grows, is not worth one.
"""

CALLS_PER_ATTEMPT = 8
"""Calls of a size class between two attempts to measure it, where the first was not possible: in a
capture, without memory, or while another thread was measuring.
"""

MOST_SHARED_WORKSPACE = 32 * 2**20
"""Bytes of workspace up to which a call of the functions takes the stream's own buffer."""


@dataclass(eq=False)
class _OfThread:
    """The executors of one thread: the one in use, its graphs, and those to use if it fails."""

    executor: EngineExecutor
    others: Iterator[EngineExecutor]
    operation: Operation


class _Captures:
    """A flag of a plan: captures are tried until one fails."""

    tried = True

    def stop(self) -> None:
        self.tried = False


class CudnnConvPlan(ConvProblemPlan):
    """One problem on one device.

    The engine is the choice of the problem's size class (`conv_classes`): what was measured for it
    or for a neighbouring class, here or in another process, else what the heuristics said for the
    first problem of the class. An engine that cannot compute the problem gives way to what the
    heuristics say for it. A plan that fails when it runs is followed by the next, for a failed
    allocation by the next that needs less.

    An array with gaps, in another layout, or at an address that is no multiple of 16 is copied.

    Calls on addresses that keep coming are captured and replayed as CUDA graphs.
    """

    def __init__(
        self, problem: ConvProblem, device: int, resources: ConvResources, tuner: ConvTuner
    ) -> None:
        super().__init__(problem)
        self.memory = memory = resources.memory
        self.device = device
        self.fallen: list[str] = []
        self._resources = resources
        self._launch = resources.launch
        self._tuner = tuner
        self._captures = _Captures()
        self._is_tuned = problem.options.tune != "off"
        if not self._is_tuned:
            self._captures.stop()
        self.current_device: Callable[[], int] = memory.current_device
        self._current_stream = memory.current_stream
        self._is_capturing = memory.is_capturing
        self._stream_workspace = resources.workspaces.get
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
        self._threads: Living[_OfThread] = Living()
        self._seen: Remembered[tuple[int, ...]] = Remembered()
        guard(self)
        self._class = tuner.state(problem, device, look_up=self._is_tuned)
        self.tuning: ConvTuning | None = None
        if self._is_tuned:
            self.tuning = self._class.tuning or self._class.neighbour
        self._choice: EngineChoice | None = None if self.tuning is None else self.tuning.choice
        is_asked_for = problem.options.tune == "now"
        if is_asked_for and self._class.tuning is None and not self._class.calls:
            self._measure(self._class.neighbour)
        # The measurement that the options ask for is tried again at a later call of the class.
        self._is_awaiting = is_asked_for and self._class.tuning is None
        with memory.use(device):
            self._of_thread()

    # Executors

    def _of_thread(self) -> _OfThread:
        """Return the calling thread's executors, made when they are first asked for."""
        if self.closed:
            raise ValueError("this plan is closed")
        known: _OfThread | None = getattr(self._local, "executors", None)
        if known is not None:
            return known
        launch = self._launch(self.device, self._current_stream())
        specialized = self._class.specializes(self.problem)
        asked = self._resources.library, self.problem, launch
        recipes = self._class.recipes
        executors = ConvExecutors(*asked, specialized=specialized, recipes=recipes)
        begun = time.perf_counter()
        executor = self._first_executor(executors)
        milliseconds = 1e3 * (time.perf_counter() - begun)
        logger.debug("%s runs %s; made in %.1f ms", executor, self.problem, milliseconds)
        self._choice = executor.choice
        launch_on, stop = partial(self._launch, self.device), self._captures.stop
        operation = Operation(self.memory, launch_on, self._resources.graphs, stop, CAPTURED_AT)
        made = self._local.executors = _OfThread(executor, executors, operation)
        self._threads.add(made)
        return made

    def _first_executor(self, executors: ConvExecutors) -> EngineExecutor:
        """Make the executor of the choice that is known, or else of what the heuristics say."""
        state = self._class
        # With the option tune="off" no other size of the class decides.
        chosen = state.chosen(by_record=executors.run_by_record) if self._is_tuned else None
        known = dict.fromkeys((self._choice, None if chosen is None else chosen.choice))
        for choice in known:
            if choice is None:
                continue
            try:
                return executors.made_again(choice)
            except (CudnnError, UnsupportedError, ValueError) as error:
                self.fallen.append(f"{choice}: {error}")
                logger.info("%s of the size class cannot run %s: %s", choice, self.problem, error)
                state.num_refused += 1
        executor = next(executors, None)
        if executor is None:
            raise executors.nothing()
        if self._is_tuned:
            state.choose(executor.choice, self.problem)
        return executor

    def _fall(self, own: _OfThread, error: Exception) -> bool:
        """Switch to the next executor after one has failed; return False if there is no other."""
        failed = own.executor
        own.operation.clear()
        self.fallen.append(f"{failed.choice}: {type(error).__name__}: {error}")
        limit = failed.workspace_bytes if isinstance(error, MemoryError) else None
        for executor in own.others:
            if executor.choice != failed.choice and (
                limit is None or executor.workspace_bytes < limit
            ):
                own.executor = executor
                self._choice = executor.choice
                logger.info("%s runs instead of %s", executor.choice, self.fallen[-1])
                if failed not in self._resources.graphs.of_users:
                    failed.close()
                return True
            executor.close()
        # Another call begins anew: there may be memory by then.
        vars(self._local).pop("executors", None)
        self._choice = None if self.tuning is None else self.tuning.choice
        return False

    # Arrays

    def takes(self, arrays: tuple[Any, ...]) -> bool:
        return all(
            array is None or self.fits(array, strides)
            for array, strides in zip(arrays, self._array_strides, strict=True)
        )

    def fits(self, array: Array, strides: tuple[int, ...]) -> bool:
        """Whether cuDNN can take an array as it is."""
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
            if array is None or self.fits(array, strides)
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

        With ``shared`` that is the stream's own buffer, always at the same address.
        """
        if self._is_awaiting:
            self._count_call()
        try:
            own: _OfThread = self._local.executors
        except AttributeError:
            own = self._of_thread()
        stream = self._current_stream()
        captured = stream.ptr != 0 and self._is_capturing(stream)
        while True:
            executor = own.executor
            size, workspace = executor.workspace_bytes, None
            try:
                if size and not captured and (shared or size <= MOST_SHARED_WORKSPACE):
                    workspace = self._stream_workspace(self.device, stream.ptr, size)
                elif size:
                    # New: it is large, or the caller captures and their graph has to own it.
                    workspace = self.memory.empty((size,), self._bytes)
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
            except _FAILURES as error:
                if not self._fall(own, error):
                    raise

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
        elif not self.fits(out, self.result_strides):
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
        return self._is_tuned and self._measure(None)

    def _measure(self, known: ConvTuning | None) -> bool:
        """Measure the problem for its class, what is in ``known`` or everything; use the result.

        Return False where nothing was measured: in a capture, while another thread measures the
        class, or without memory.
        """
        with self._class.measuring.take() as mine, self.memory.use(self.device):
            stream = self._current_stream()
            if not mine or (stream.ptr and self._is_capturing(stream)):
                return False
            tuning = self._tuner.measure(self.problem, self.device, known)
        if tuning is None:
            return False
        self._adopt(tuning)
        return True

    def _adopt(self, tuning: ConvTuning) -> None:
        """Use a result of the class from the next call on."""
        self.tuning, self._choice = tuning, tuning.choice
        self._is_awaiting = False
        self._local, self._captures = threading.local(), _Captures()

    def _count_call(self) -> None:
        """Count a call of a class that could not be measured, and try again if it is time."""
        state = self._class
        if state.tuning is None:
            state.calls += 1
            if state.calls % CALLS_PER_ATTEMPT == 0 and self._measure(state.neighbour):
                return
        if state.tuning is not None:  # by another plan of the class
            self._adopt(state.tuning)

    @property
    def graph_count(self) -> int:
        """Number of CUDA graphs that the plan holds, for all threads."""
        return sum(len(one.operation.graphs) for one in self._threads.snapshot())

    def report(self) -> str:
        """Return which plan runs, and why, in plain words."""
        problem = self.problem
        with self.memory.use(self.device):
            executor = self._of_thread().executor
        lines = [str(problem), str(executor)]
        if what := " and ".join(problem.epilogue):
            where = "in the same graph" if executor.fused else "one kernel more"
            lines.append(f"{what}: {where}")
        lines += self._why(executor)
        lines += [f"gave up {reason}" for reason in self.fallen]
        graph_bytes = sum(one.operation.nbytes for one in self._threads.snapshot())
        lines.append(f"{self.graph_count} graphs, {graph_bytes:,} bytes")
        return "\n".join(lines)

    def _why(self, executor: EngineExecutor) -> list[str]:
        """Return the lines of the report on the size class and on why ``executor`` runs."""
        state, tuning = self._class, self.tuning
        here = f"x has {output_positions(self.problem):,}"
        lines = [f"size class of the layer: {state.size} ({here})"]
        if state.num_refused:
            lines.append(f"the choice of the class was refused {state.num_refused} time(s)")
        if tuning is None:
            why = "not measured" if self._is_tuned else "tuning is off"
            own = executor.choice.engine == OWN
            by = "by a record of such layers" if own else "by cuDNN's heuristics"
            chosen = state.chosen(by_record=own) if self._is_tuned else None
            shape = self.problem.x_shape if chosen is None else chosen.x_shape
            return [*lines, f"picked {by} for x {list(shape)}; {why}"]
        if tuning is state.neighbour:
            source = "taken over from a neighbouring class"
        elif tuning.source == "disk":
            source = "read from disk"
        else:
            source = "measured in this process"
        lines.append(f"{source}, for x {list(tuning.x_shape)}, ms:")
        lines += [f"  {name}: {time:.4f}" for name, time in tuning.times.items()]
        return lines + [f"  {name}: {reason}" for name, reason in tuning.refused.items()]

    def close(self) -> None:
        """Release the plans and graphs of all threads. A second call does nothing."""
        super().close()
        self._seen.clear()
        self._local = threading.local()


class CudnnConvolutions(ConvSource):
    """libcudnn, on arrays of CuPy or of an allocator."""

    takes_strided = True

    def __init__(self, resources: ConvResources) -> None:
        self._resources = resources
        self.tuner = ConvTuner(resources)

    def plan(self, problem: ConvProblem, device: int) -> CudnnConvPlan:
        return CudnnConvPlan(problem, device, self._resources, self.tuner)

    def backward_bias(self, dy: Array, device: int) -> Array:
        memory = self._resources.memory
        check_aligned("dy", dy)
        with memory.use(device):
            if not dy.size:
                return memory.zeros((dy.shape[1],), dy.dtype)
            if not can_sum(dy.shape):
                raise UnsupportedError(
                    "dnnffi",
                    "",
                    f"without CuPy the gradient of a bias has at most {MAX_POSITIONS:,} positions "
                    f"for each channel; dy has shape {dy.shape}",
                )
            return bias_gradient(dy, device, memory, self._resources.workspaces)

    def clear(self) -> None:
        self.tuner.clear()
