"""Plans of convolutions on arrays, run by MIOpen; if one solution fails, the next one runs.

On arrays of CuPy for ROCm this was written by its documentation and not run.
"""

from __future__ import annotations

import time
from typing import Any

from dnnffi.backends.conv_interface import (
    ConvAddresses,
    ConvProblemPlan,
    ConvResources,
    ConvSource,
    addresses_of,
)
from dnnffi.backends.miopen.bias import MiopenBiasGradient
from dnnffi.backends.miopen.canonical import Canonical
from dnnffi.backends.miopen.conv_executor import MiopenConvExecutor, SearchResult, Solution
from dnnffi.backends.miopen.conv_limits import FUSION
from dnnffi.backends.miopen.image_copy import ImageCopy
from dnnffi.backends.vendor.limits import limit_of
from dnnffi.device.arrays import aligned, in_layout
from dnnffi.device.interface import AnyArray, Array, Launch
from dnnffi.errors import MiopenError, UnsupportedError
from dnnffi.execution.cache import PlanCache
from dnnffi.execution.locks import new_lock
from dnnffi.log import logger
from dnnffi.spec.conv_problem import ARGUMENTS, ConvProblem

_MOST_KEPT = 1024
"""Searches, and gradients of a bias, that are kept."""

_Searches = PlanCache[SearchResult]


class MiopenConvPlan(ConvProblemPlan):
    """One problem on one device.

    With ``options={"tune": "now"}`` the first call measures, unless a call of the same problem
    has. Without memory for a solution's workspace, the default one and one without
    workspace are tried, for this call alone; a solution that cannot be compiled or is refused when
    it runs is followed by the next for good.

    An array with gaps or in another layout is copied. With asymmetric padding, the image is copied
    into one with zeros around it (`PaddedImage`), of which each call has a new one.
    """

    def __init__(
        self, problem: ConvProblem, device: int, resources: ConvResources, searches: _Searches
    ) -> None:
        super().__init__(problem)
        self.device = device
        self.fallen: list[str] = []
        self.memory = memory = resources.memory
        self._launch_on, self._searches = resources.launch, searches
        self._names = ARGUMENTS[problem.operation]
        self._last = problem.channels_last
        self._dtype, self._bytes = memory.dtype(problem.spec.dtype), memory.dtype("uint8")
        self._array_strides = tuple(map(problem.strides, self.argument_shapes))
        self._lock = new_lock()
        with memory.use(device):
            launch = self._launch()
            self.executor = MiopenConvExecutor(problem, launch, resources.library)
            image = self.executor.image
            self._image_copy = None if image is None else ImageCopy(image, memory)
            tune = problem.options.tune
            self._searched = self.executor.fused or tune != "now"
            self._is_measured = False
            if tune != "off" and not self.executor.fused:
                found = searches.find(self._search_key())
                if found is not None:
                    self.executor.ask(launch, found)
                    self._searched = self._is_measured = True
            if self._searched and not self.executor.fused:
                self._choose(launch)

    def _launch(self) -> Launch:
        return self._launch_on(self.device, self.memory.current_stream())

    def _search_key(self) -> tuple[Canonical, int, int | None]:
        return self.executor.canonical, self.device, self.problem.options.workspace_limit

    # Solutions

    def _choose(self, launch: Launch) -> None:
        """Take the first solution that can be compiled; raise the first error where none can."""
        first: Exception | None = None
        for solution in self.executor.solutions:
            try:
                self.executor.compile(launch, solution)
            except (MiopenError, UnsupportedError) as error:
                self.fallen.append(f"{solution}: {error}")
                logger.info("a solution of MIOpen cannot be compiled: %s", self.fallen[-1])
                first = first or error
            else:
                self._solution = solution
                return
        assert first is not None
        raise first

    def _next(self, failed: Solution, error: Exception) -> bool:
        """Go on to the solution after one that was refused; return False if there is no other."""
        with self._lock:
            if self._solution is not failed:
                return True  # another thread has
            self.fallen.append(f"{failed}: {error}")
            logger.info("a solution of MIOpen failed: %s", self.fallen[-1])
            solutions = self.executor.solutions
            after = solutions[solutions.index(failed) + 1 :]
            if after:
                self._solution = after[0]
            return bool(after)

    def _search(self, launch: Launch, at: ConvAddresses) -> None:
        """Measure unless that was done; if several threads do, the first result counts."""
        begun = time.perf_counter()
        found = self._searches.get(
            self._search_key(), lambda: self.executor.search(launch, at, self._allocate)
        )
        seconds = time.perf_counter() - begun
        logger.info("MIOpen searched in %.2f s for %s: %s", seconds, self.problem, found.algorithm)
        self.executor.ask(launch, found)
        self._choose(launch)
        self._searched = self._is_measured = True

    def _allocate(self, size: int) -> tuple[int, object]:
        """Return the address of a new workspace, and what keeps it."""
        if not size:
            return 0, None
        buffer = self.memory.empty((size,), self._bytes)
        return buffer.data.ptr, buffer

    # Running

    def run(self, *arrays: Any) -> Array:
        if self.memory.current_device() != self.device:
            with self.memory.use(self.device):
                return self.run(*arrays)
        launch = self._launch()
        ready = [
            None if array is None else self._ready(name, array, strides)
            for name, array, strides in zip(self._names, arrays, self._array_strides, strict=True)
        ]
        result: Array = self._new_result()
        at = ConvAddresses(*addresses_of(ready), result.data.ptr)
        copy = self._image_copy
        if copy is None:
            self._convolve(launch, at)
        else:
            padded, _kept = self._allocate(copy.nbytes)
            self._convolve(launch, copy.before(launch.stream, at, padded))
            copy.after(launch.stream, at, padded)
        if not self.executor.fused:
            self.executor.add(launch, at)
        return result

    def _convolve(self, launch: Launch, at: ConvAddresses) -> None:
        """Enqueue the convolution, with what is fused to it."""
        if self.executor.fused:
            self.executor.convolve(launch, at)
            return
        if not self._searched:
            self._search(launch, at)
        while True:
            solution = self._solution
            try:
                self._run_solution(launch, at, solution)
                return
            except UnsupportedError as error:
                if not self._next(solution, error):
                    raise

    def _ready(self, name: str, array: AnyArray, strides: tuple[int, ...]) -> AnyArray:
        array = aligned(name, array)
        if array.strides == strides:
            return array
        return in_layout(array, channels_last=self._last and array.ndim > 1)

    def _new_result(self) -> AnyArray:
        """Return a new array for the result, without gaps."""
        n, c, *sizes = self.problem.result_shape
        shape = (n, *sizes, c) if self._last else (n, c, *sizes)
        made: AnyArray = self.memory.empty(shape, self._dtype)
        return made.transpose(0, made.ndim - 1, *range(1, made.ndim - 1)) if self._last else made

    def _run_solution(self, launch: Launch, at: ConvAddresses, solution: Solution) -> None:
        try:
            workspace, _kept = self._allocate(solution.workspace_bytes)
        except Exception as error:  # of the caller's allocator, whatever it raises
            if not self._run_smaller(launch, at, solution):
                raise error from None
            return
        self.executor.convolve(launch, at._replace(workspace=workspace), solution)

    def _run_smaller(self, launch: Launch, at: ConvAddresses, solution: Solution) -> bool:
        """Run a solution with less workspace; return False if that does not fit either."""
        for smaller in self.executor.smaller(solution):
            try:
                self.executor.compile(launch, smaller)
                workspace, _kept = self._allocate(smaller.workspace_bytes)
            except Exception:  # as above
                continue
            logger.info("%s runs without memory for the workspace of %s", smaller, solution)
            self.executor.convolve(launch, at._replace(workspace=workspace), smaller)
            return True
        return False

    # What it is

    def report(self) -> str:
        """Return which solution runs, and why, in plain words."""
        problem = self.problem
        lines = [str(problem)]
        if self.executor.fused:
            return "\n".join([*lines, "a fusion plan: bias and activation in the same kernel"])
        if what := " and ".join(problem.epilogue):
            why = limit_of(FUSION, problem) or "MIOpen has no kernel for all of it"
            lines.append(f"{what}: kernels of their own ({why})")
        if not self._searched:
            return "\n".join([*lines, "the first call will measure"])
        lines.append("measured" if self._is_measured else "by MIOpen's list, not measured here")
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


class MiopenConvolutions(ConvSource):
    """libMIOpen, on the arrays that its networks take: CuPy's, or with an allocator any."""

    def __init__(self, resources: ConvResources) -> None:
        self._resources = resources
        self.searches: _Searches = PlanCache(_MOST_KEPT)
        self.bias_gradients: PlanCache[MiopenBiasGradient] = PlanCache(_MOST_KEPT)

    def plan(self, problem: ConvProblem, device: int) -> MiopenConvPlan:
        return MiopenConvPlan(problem, device, self._resources, self.searches)

    def backward_bias(self, dy: AnyArray, device: int) -> Array:
        memory, shape, dtype = self._resources.memory, dy.shape, dy.dtype
        with memory.use(device):
            if not dy.size:
                return memory.zeros(shape[1:2], dtype)
            gradient = self.bias_gradients.get(
                (shape, dtype, device),
                lambda: MiopenBiasGradient(shape, dtype.name, self._resources.library),
            )
            dy, dbias = aligned("dy", dy), memory.empty(shape[1:2], dtype)
            launch = self._resources.launch(device, memory.current_stream())
            gradient.run(launch, dy.data.ptr, dbias.data.ptr)
        return dbias

    def clear(self) -> None:
        self.searches.clear()
        self.bias_gradients.clear()
