"""Convolutions on MIOpen: arrays made ready, workspaces, and solutions that fall to the next.

On arrays of CuPy for ROCm this was written by its documentation and not run.
"""

from __future__ import annotations

import threading
from typing import Any

from dnnffi.backends.miopen.bias import BiasGradient
from dnnffi.backends.miopen.canonical import Ordinary
from dnnffi.backends.miopen.conv_executor import ConvExecutor, Found, Solution
from dnnffi.backends.miopen.conv_limits import FUSION
from dnnffi.backends.miopen.library import Library
from dnnffi.backends.vendor.limits import limit_of
from dnnffi.convolution.engines import MOST_CONV_PLANS, ConvEngine
from dnnffi.convolution.plans import ConvPlan, EmptyPlan
from dnnffi.device.arrays import in_layout
from dnnffi.device.interface import Array
from dnnffi.errors import MiopenError, UnsupportedError
from dnnffi.execution.cache import PlanCache
from dnnffi.rnn.engines import VendorEngine
from dnnffi.spec.conv_problem import ConvProblem
from dnnffi.spec.layouts import CHANNELS_LAST, packed_strides

_Searches = PlanCache[Found]


class MiopenConvPlan(ConvPlan):
    """One problem on one device.

    With ``options={"find": "search"}`` the first call measures, unless a call of the same problem
    has. Where there is no memory for a solution's workspace, the default one and one without
    workspace are tried, for this call alone; a solution that cannot be compiled or is refused when
    it runs is followed by the next for good.

    An array with gaps or in another layout is copied.
    """

    def __init__(
        self, problem: ConvProblem, device: int, library: Library, searches: _Searches
    ) -> None:
        super().__init__(problem)
        self.device = device
        self.fallen: list[str] = []
        self.memory = memory = library.memory
        self._library, self._searches = library, searches
        self._last = problem.layout == CHANNELS_LAST
        self._dtype, self._bytes = memory.dtype(problem.spec.dtype), memory.dtype("uint8")
        self._array_strides = tuple(self._strides(shape) for shape in self.argument_shapes)
        self._lock = threading.Lock()
        with memory.use(device):
            self.executor = ConvExecutor(problem, device=device, library=library)
            self._searched = self.executor.fused or problem.options.find != "search"
            if not self._searched:
                found = searches.find(self._search_key())
                if found is not None:
                    self.executor.prefer(found)
                    self._searched = True
            if self._searched and not self.executor.fused:
                self._choose()

    def _strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Those of an array without gaps, in bytes."""
        strides = packed_strides(shape, self._last)
        return tuple(stride * self._dtype.itemsize for stride in strides)

    def _search_key(self) -> tuple[Ordinary, int, int | None]:
        return self.executor.ordinary, self.device, self.problem.options.workspace_limit

    # Solutions

    def _choose(self) -> None:
        """Take the first solution that can be compiled; raise the first error where none can."""
        first: Exception | None = None
        for solution in self.executor.solutions:
            try:
                self.executor.compile(solution)
            except (MiopenError, UnsupportedError) as error:
                self.fallen.append(f"{solution}: {error}")
                first = first or error
            else:
                self._solution = solution
                return
        assert first is not None
        raise first

    def _next(self, failed: Solution, error: Exception) -> bool:
        """Go on to the solution after one that was refused; False where there is none."""
        with self._lock:
            if self._solution is not failed:
                return True  # another thread has
            self.fallen.append(f"{failed}: {error}")
            solutions = self.executor.solutions
            after = solutions[solutions.index(failed) + 1 :]
            if after:
                self._solution = after[0]
            return bool(after)

    def _search(self, addresses: tuple[int, ...]) -> None:
        with self._lock:
            if self._searched:
                return
            found = self._searches.get(
                self._search_key(), lambda: self.executor.search(addresses, self._allocate)
            )
            self.executor.prefer(found)
            self._choose()
            self._searched = True

    def _allocate(self, size: int) -> tuple[int, object]:
        """The address of a new workspace, and what keeps it."""
        if not size:
            return 0, None
        buffer = self.memory.empty((size,), self._bytes)
        return buffer.data.ptr, buffer

    # Running

    def run(self, *arrays: Any) -> Array:
        if self.memory.current_device() != self.device:
            with self.memory.use(self.device):
                return self.run(*arrays)
        ready = [
            array if array is None or array.strides == strides else self._packed(array)
            for array, strides in zip(arrays, self._array_strides, strict=True)
        ]
        result, given = self._new_result()
        addresses = (*(0 if a is None else a.data.ptr for a in ready), result.data.ptr)
        if self.executor.fused:
            self.executor.run_at(addresses)
            return given
        if not self._searched:
            self._search(addresses)
        while True:
            solution = self._solution
            try:
                self._run_solution(addresses, solution)
                break
            except UnsupportedError as error:
                if not self._next(solution, error):
                    raise
        self.executor.add_at(addresses)
        return given

    def _packed(self, array: Array) -> Array:
        return in_layout(array, channels_last=self._last and array.ndim > 1)

    def _new_result(self) -> tuple[Array, Array]:
        """A new array without gaps, and the same in the shape of the result."""
        shape = self.problem.result_shape
        if not self._last:
            result = self.memory.empty(shape, self._dtype)
            return result, result
        batch, channels, *sizes = shape
        result = self.memory.empty((batch, *sizes, channels), self._dtype)
        return result, result.transpose(0, result.ndim - 1, *range(1, result.ndim - 1))

    def _run_solution(self, addresses: tuple[int, ...], solution: Solution) -> None:
        executor = self.executor
        try:
            workspace, _kept = self._allocate(solution.workspace_bytes)
        except Exception as error:  # of the caller's allocator, whatever it raises
            if not self._run_smaller(addresses, solution):
                raise error from None
            return
        executor.run_at(addresses, solution, workspace)

    def _run_smaller(self, addresses: tuple[int, ...], solution: Solution) -> bool:
        """Run what needs less workspace; False where there is no memory for that either."""
        for smaller in self.executor.smaller(solution):
            try:
                self.executor.compile(smaller)
                workspace, _kept = self._allocate(smaller.workspace_bytes)
            except Exception:  # as above
                continue
            self.executor.run_at(addresses, smaller, workspace)
            return True
        return False

    # What it is

    def report(self) -> str:
        """Which solution runs, and why, in plain words."""
        lines = [str(self.problem)]
        if self.executor.fused:
            return "\n".join([*lines, "a fusion plan: bias and activation in the same kernel"])
        problem = self.problem
        parts = ["residual"] * problem.residual + ["bias"] * problem.bias
        what = " and ".join(filter(None, [*parts, problem.activation]))
        if what:
            why = limit_of(FUSION, problem) or "MIOpen has no kernel for all of it"
            lines.append(f"{what}: kernels of their own ({why})")
        if not self._searched:
            return "\n".join([*lines, "the first call will measure"])
        lines.append(
            "measured"
            if problem.options.find == "search"
            else "by MIOpen's list, not measured here"
        )
        for one in self.executor.solutions:
            taken = "*" if one is self._solution else " "
            lines.append(
                f"{taken} {one.number} {one.algorithm}: workspace {one.workspace_bytes:,} bytes, "
                f"{one.milliseconds:.4g} ms"
            )
        return "\n".join([*lines, *(f"gave up {reason}" for reason in self.fallen)])

    def close(self) -> None:
        """Destroy the descriptors. A second call does nothing."""
        self.executor.close()


class _EmptyPlan(EmptyPlan):
    """A problem without a batch, on memory that array code does not know."""

    def __init__(self, problem: ConvProblem, library: Library) -> None:
        super().__init__(problem)
        self._memory = library.memory

    def run(self, *arrays: Any) -> Array:
        memory, problem = self._memory, self.problem
        zeros = memory.zeros(problem.result_shape, memory.dtype(problem.spec.dtype))
        last = problem.layout == CHANNELS_LAST
        return in_layout(zeros, channels_last=True) if last else zeros


class MiopenConvEngine(ConvEngine):
    """libMIOpen, on the arrays that its networks take: CuPy's, or with an allocator any."""

    name = "miopen"

    def __init__(self, networks: VendorEngine) -> None:
        super().__init__()
        self.library: Any = networks.library
        self.place = networks.place  # type: ignore[method-assign]
        self.searches: _Searches = PlanCache(MOST_CONV_PLANS)
        self.bias_gradients: PlanCache[BiasGradient] = PlanCache(MOST_CONV_PLANS)

    def clear(self) -> None:
        """Forget plans and what was measured."""
        for cache in (self.plans, self.searches, self.bias_gradients):
            cache.clear()

    def plan(self, problem: ConvProblem, device: int) -> MiopenConvPlan:
        return MiopenConvPlan(problem, device, self.library, self.searches)

    def prepare(self, problem: ConvProblem, device: int) -> ConvPlan:
        if problem.batch:
            return self.plan(problem, device)
        return _EmptyPlan(problem, self.library)

    def backward_bias(self, dy: Array) -> Array:
        """The gradient by the bias [K], from a contiguous dy."""
        library, device, shape, dtype = self.library, self.place("dy", dy), dy.shape, dy.dtype
        memory = library.memory
        with memory.use(device):
            if not dy.size:
                return memory.zeros(shape[1:2], dtype)
            key = (shape, dtype, device)
            gradient = self.bias_gradients.get(
                key, lambda: BiasGradient(shape, dtype.name, device, library)
            )
            dbias = memory.empty(shape[1:2], dtype)
            gradient.run_at(dy.data.ptr, dbias.data.ptr)
        return dbias


def miopen_conv_engine(networks: VendorEngine) -> MiopenConvEngine:
    """The engine of convolutions beside that of the networks, on the same arrays."""
    library = networks.library
    if library.conv_engine is None:
        library.conv_engine = MiopenConvEngine(networks)
    engine: MiopenConvEngine = library.conv_engine
    return engine
