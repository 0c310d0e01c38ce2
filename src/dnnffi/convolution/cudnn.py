"""A convolution on cuDNN: arrays made ready, graphs replayed, plans that fall to the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any
from weakref import WeakSet, ref

from dnnffi.backends.cudnn.conv_executor import Choice, ConvExecutor, ConvExecutors, has_epilogue
from dnnffi.backends.cudnn.graph.tensor import ALIGNMENT, MISALIGNED
from dnnffi.backends.cudnn.library import Library
from dnnffi.convolution.plans import ConvPlan, Held
from dnnffi.convolution.tuning import ConvTuner, ConvTuning
from dnnffi.device.interface import Array, Graph, MemoryWithGraphs
from dnnffi.errors import CudnnError, UnsupportedError
from dnnffi.execution.fork import guard
from dnnffi.execution.measure import FAILURES
from dnnffi.execution.replay import Addresses, GraphMemory, Replays
from dnnffi.execution.workspaces import Workspaces
from dnnffi.spec.conv_problem import ConvProblem
from dnnffi.spec.layouts import CHANNELS_LAST, is_packed, packed_strides

_FAILURES = (CudnnError, UnsupportedError, MemoryError)
"""What a plan may fail with when it runs, so that the next is tried."""

CAPTURED_AT = 4
"""The call on the same addresses that is captured. A capture takes as long as many replays
save, so what comes two or three times by chance, while a pool grows, is not worth one.
"""

MOST_SHARED_WORKSPACE = 32 * 2**20
"""Bytes of workspace up to which a call that is no held plan's takes the stream's own buffer."""


class _Runner:
    """The executors of one thread: the one in use, its graphs, and those to fall to.

    Graphs go with the thread: they may need what its handle owns.
    """

    def __init__(
        self, executor: ConvExecutor, others: Iterator[ConvExecutor], memory: GraphMemory
    ) -> None:
        self.executor = executor
        self.others = others
        self.replays = Replays(memory, captured_at=CAPTURED_AT)
        self.graphs = self.replays.graphs


class CudnnConvPlan(ConvPlan):
    """One problem on one device.

    Every thread has a plan of cuDNN's of its own. The first is what was measured, here or in
    another process, else what the heuristics say; one that fails when it runs is followed by the
    next, for a failed allocation by the next that needs less.

    An array with gaps, in another layout, or at an address that is no multiple of 16 is copied.

    Calls on addresses that keep coming are captured and replayed as CUDA graphs.
    """

    def __init__(
        self,
        problem: ConvProblem,
        device: int,
        library: Library,
        memory: MemoryWithGraphs,
        tuner: ConvTuner,
        workspaces: Workspaces,
        graphs: GraphMemory,
    ) -> None:
        super().__init__(problem)
        self.device = device
        self.closed = False
        self.tuning: ConvTuning | None = None
        self.fallen: list[str] = []
        self._library = library
        self.memory = memory
        self._tuner = tuner
        self._workspaces = workspaces
        self._graph_memory = graphs
        self._captures = True
        self.current_device: Callable[[], int] = memory.current_device
        self._current_stream = memory.current_stream
        self._is_capturing = memory.is_capturing
        self._empty = memory.empty
        self._empty_strided = memory.empty_strided
        self._dtype = memory.dtype(problem.spec.dtype)
        self._bytes = memory.dtype("uint8")
        self._last = problem.layout == CHANNELS_LAST
        item = self._dtype.itemsize
        self.result_shape = problem.result_shape
        self._result_strides = self._strides(self.result_shape)
        self._result_bytes = prod(self.result_shape) * item
        self._array_strides = tuple(self._strides(shape) for shape in self.argument_shapes)
        self._local = threading.local()
        self._runners: WeakSet[_Runner] = WeakSet()
        self._choice: Choice | None = None
        guard(self)
        self.tuning = tuner.find(problem, device)
        if self.tuning is None and problem.options.tune:
            self.autotune()
        if self.tuning is not None:
            self._choice = self.tuning.choice
        with memory.use(device):
            self._runner()

    def _strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Those of an array without gaps, in bytes."""
        item = self._dtype.itemsize
        return tuple(stride * item for stride in packed_strides(shape, self._last))

    # Executors

    def _runner(self) -> _Runner:
        """The calling thread's, made when it is first asked for."""
        if self.closed:
            raise ValueError("this plan is closed")
        try:
            runner: _Runner = self._local.runner
            return runner
        except AttributeError:
            pass
        executors = ConvExecutors(self._library, self.problem, self.device)
        executor = None
        if self._choice is not None:
            try:
                executor = executors.made_again(self._choice)
            except (CudnnError, UnsupportedError, ValueError) as error:
                self.fallen.append(f"{self._choice}: {error}")
        if executor is None:
            executor = next(executors, None)
        if executor is None:
            raise executors.nothing()
        self._choice = executor.choice
        self._local.runner = runner = _Runner(executor, executors, self._graph_memory)
        self._runners.add(runner)
        return runner

    def _fall(self, runner: _Runner, error: Exception) -> bool:
        """Go on to the next executor after one has failed; False where there is none."""
        failed = runner.executor
        runner.replays.clear()
        self.fallen.append(f"{failed.choice}: {type(error).__name__}: {error}")
        limit = failed.workspace_bytes if isinstance(error, MemoryError) else None
        for executor in runner.others:
            if executor.choice != failed.choice and (
                limit is None or executor.workspace_bytes < limit
            ):
                runner.executor = executor
                self._choice = executor.choice
                if failed not in self._graph_memory.of_users:
                    failed.close()
                return True
            executor.close()
        # Another call begins anew: there may be memory by then.
        del self._local.runner
        self._choice = None if self.tuning is None else self.tuning.choice
        return False

    # Running

    def run(self, *arrays: Any) -> Array:
        if self.current_device() != self.device:
            with self.memory.use(self.device):
                return self.run(*arrays)
        ready = self._ready(arrays)
        return self.run_at(ready, [array.data.ptr for array in ready if array is not None])

    def run_at(self, arrays: tuple[Any, ...], addresses: Sequence[int]) -> Array:
        if self.current_device() != self.device:
            with self.memory.use(self.device):
                return self.run_at(arrays, addresses)
        out = self._new_result()
        self._run(arrays, (*addresses, out.data.ptr), out, kept=False)
        return out

    def takes(self, arrays: tuple[Any, ...]) -> bool:
        return all(
            array is None or self.fits(array, strides)
            for array, strides in zip(arrays, self._array_strides, strict=True)
        )

    def _new_result(self) -> Array:
        return self._empty_strided(
            self.result_shape, self._dtype, self._result_strides, self._result_bytes
        )

    def _ready(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """``arrays`` without gaps, in the layout and aligned; copies of those that are not."""
        return tuple(
            None if array is None else self._packed(array, strides)
            for array, strides in zip(arrays, self._array_strides, strict=True)
        )

    def _packed(self, array: Array, strides: tuple[int, ...]) -> Array:
        if self.fits(array, strides):
            return array
        copy = self._empty_strided(array.shape, self._dtype, strides, array.nbytes)
        copy[...] = array
        return copy

    def fits(self, array: Array, strides: tuple[int, ...]) -> bool:
        """Whether cuDNN can take an array as it is."""
        if array.data.ptr & MISALIGNED:
            return False
        if array.strides == strides:
            return True
        if array.ndim < 3:
            return bool(array.shape[0] == 1)
        item = self._dtype.itemsize
        strides = tuple(stride // item for stride in array.strides)
        return is_packed(array.shape, strides, self._last)

    def _run(
        self, arrays: tuple[Any, ...], addresses: Addresses, out: Array, *, kept: bool
    ) -> None:
        """Fill ``out`` on the current device; ``addresses`` are those of ``arrays`` and its."""
        try:
            runner: _Runner = self._local.runner
        except AttributeError:
            runner = self._runner()
        stream = self._current_stream()
        capturing = bool(stream.ptr) and self._is_capturing(stream)
        while True:
            executor = runner.executor
            try:
                size = executor.workspace_bytes
                workspace = self._workspace(size, stream, capturing, kept) if size else None
                at = (*addresses, 0 if workspace is None else workspace.data.ptr)
                if capturing:
                    self._graph_memory.of_users.add(executor)
                    graph = None
                else:
                    graph = runner.graphs.get(at)
                    if graph is None:
                        graph = self._captured(runner, arrays, at, out)
                if graph is None:
                    self._execute(executor, arrays, at, out)
                else:
                    graph.launch(stream)
                return
            except _FAILURES as error:
                if not self._fall(runner, error):
                    raise

    def _workspace(self, size: int, stream: Any, capturing: bool, kept: bool) -> Array:
        """A buffer: the stream's own, always at the same address, where it is small or kept.

        In the caller's capture it is new: what his graph uses must be his.
        """
        if not capturing and (kept or size <= MOST_SHARED_WORKSPACE):
            return self._workspaces.get(self.device, stream.ptr, size)
        return self._empty((size,), self._bytes)

    def _captured(
        self, runner: _Runner, arrays: tuple[Any, ...], at: Addresses, out: Array
    ) -> Graph | None:
        """A new graph of a call that keeps coming; else None."""
        if not self._captures or not runner.replays.due(at):
            return None
        executor = runner.executor
        try:
            graph = self.memory.capture(lambda: self._execute(executor, arrays, at, out))
        except FAILURES:
            self._captures = False
            return None
        # Kernels may go with the plan that they were compiled for.
        graph.executor = executor
        runner.replays.add(at, graph)
        return graph

    def _execute(
        self, executor: ConvExecutor, arrays: tuple[Any, ...], at: Addresses, out: Array
    ) -> None:
        if executor.fused:
            executor.run_at(at)
            return
        executor.run_at((*at[:2], *at[-2:]))
        problem = self.problem
        bias, residual = (*arrays, None, None)[2:4]  # whose missing end a held plan leaves out
        relu = problem.activation is not None
        self.memory.add_epilogue(out, residual, problem.alpha, bias, relu)

    # What it is

    def autotune(self) -> bool:
        """Measure the candidates and use the fastest. False where that cannot be done now."""
        stream = self._current_stream()
        if stream.ptr and self.memory.is_capturing(stream):
            return False
        tuning = self._tuner.measure(self.problem, self.device)
        if tuning is None:
            return False
        self.tuning, self._choice = tuning, tuning.choice
        self._local, self._captures = threading.local(), True
        return True

    @property
    def graph_count(self) -> int:
        """How many CUDA graphs the plan holds, for all threads."""
        return sum(len(runner.graphs) for runner in list(self._runners))

    @property
    def graph_bytes(self) -> int:
        """Their device memory, as far as it could be seen."""
        return sum(runner.replays.nbytes for runner in list(self._runners))

    def report(self) -> str:
        """Which plan runs, and why, in plain words."""
        problem = self.problem
        with self.memory.use(self.device):
            executor = self._runner().executor
        lines = [str(problem), str(executor.info)]
        if has_epilogue(problem):
            parts = ["residual"] * problem.residual + ["bias"] * problem.bias
            what = " and ".join([*parts, *([problem.activation] if problem.activation else [])])
            lines.append(
                f"{what}: in the same graph" if executor.fused else f"{what}: one kernel more"
            )
        if self.tuning is None:
            lines.append("picked by cuDNN's heuristics; not measured")
        else:
            here = self.tuning.source == "measured"
            lines.append(f"{'measured in this process' if here else 'read from disk'}, ms:")
            times = sorted(self.tuning.times.items(), key=lambda pair: pair[1])
            lines += [f"  {name}: {time:.4f}" for name, time in times]
            lines += [f"  {name}: {reason}" for name, reason in self.tuning.refused.items()]
        lines += [f"gave up {reason}" for reason in self.fallen]
        lines.append(f"{self.graph_count} graphs, {self.graph_bytes:,} bytes")
        return "\n".join(lines)

    def hold(self) -> HeldConv:
        """The plan for one who keeps it."""
        return HeldConv(self)

    def close(self) -> None:
        """Let go of the plans and graphs of all threads. A second call does nothing."""
        self.closed = True
        self._local = threading.local()


class HeldConv(Held):
    """A plan into given arrays; arrays that it has seen in the last call are known again."""

    def __init__(self, plan: CudnnConvPlan) -> None:
        super().__init__(plan)
        self.plan: CudnnConvPlan = plan
        self._known: tuple[Callable[[], Any], ...] = ()
        self._addresses: Addresses = ()

    def again(self, arrays: tuple[Any, ...], out: Array) -> bool:
        known, plan = self._known, self.plan
        if len(known) != len(arrays) + 1 or known[-1]() is not out:
            return False
        for one, array in zip(known, arrays, strict=False):
            if one() is not array:
                return False
        if plan.current_device() != plan.device:
            return False
        plan._run(arrays, self._addresses, out, kept=True)
        return True

    def run(self, arrays: tuple[Any, ...], out: Array | None) -> Array:
        """Fill and return ``out``, of arrays that were checked."""
        plan = self.plan
        if plan.current_device() != plan.device:
            with plan.memory.use(plan.device):
                return self.run(arrays, out)
        if out is None:
            out = plan._new_result()
        elif not plan.fits(out, plan._result_strides):
            raise ValueError(
                f"out must be without gaps, {plan.problem.layout.replace('_', ' ')}, at an address "
                f"that is a multiple of {ALIGNMENT}; it has strides {out.strides}"
            )
        self._known = ()
        given = (*arrays, *(None,) * (len(plan.argument_shapes) - len(arrays)))
        ready = plan._ready(given)
        addresses = tuple(a.data.ptr for a in (*ready, out) if a is not None)
        plan._run(ready, addresses, out, kept=True)
        if arrays and all(a is b for a, b in zip(ready, given, strict=True)):
            self._addresses = addresses
            # Weak, so that a plan keeps no array of its caller's alive.
            self._known = tuple(_nothing if a is None else ref(a) for a in (*arrays, out))
        return out

    def autotune(self) -> None:
        """Measure now."""
        with self.plan.memory.use(self.plan.device):
            self.plan.autotune()

    def close(self) -> None:
        """Let go of everything."""
        super().close()
        self._known = ()
        self.plan.close()


def _nothing() -> None:
    """Stand in for the weak reference to an array that is None."""
