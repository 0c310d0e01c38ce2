"""The source of MIOpen's executors of convolutions, its searches, and the gradient of a bias."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

from dnnffi.backends.conv_interface import (
    ChosenExecutor,
    ConvAddresses,
    ConvResources,
    SearchedExecutors,
    SearchedSource,
)
from dnnffi.backends.miopen.canonical import Canonical, channel_matrix
from dnnffi.backends.miopen.conv_executor import (
    ONE,
    ZERO,
    MiopenConvolution,
    SearchResult,
    Solution,
    SolutionExecutor,
)
from dnnffi.backends.miopen.descriptors import TensorDescriptor
from dnnffi.backends.miopen.image_copy import ImageCopyByRows
from dnnffi.backends.miopen.library import Library
from dnnffi.backends.miopen.limits import BIAS_GRADIENT, FUSION
from dnnffi.backends.vendor.limits import check_limits, limit_of
from dnnffi.device.arrays import aligned
from dnnffi.device.interface import AnyArray, Array, Launch
from dnnffi.errors import MiopenError, UnsupportedError
from dnnffi.execution.cache import PlanCache
from dnnffi.log import logger
from dnnffi.spec.conv_padding import PaddedImage
from dnnffi.spec.conv_problem import ConvProblem

_GEMM = "gemm"

_MAX_KEPT = 1024
"""Searches, and gradients of a bias, that are kept."""


class SolutionExecutors(SearchedExecutors):
    """The executors of a problem for the calling thread: the fusion plan, or the solutions."""

    def __init__(
        self,
        problem: ConvProblem,
        launch: Launch,
        resources: ConvResources,
        found: SearchResult | None,
    ) -> None:
        self.problem = problem
        self._launch = launch
        self._is_measured = found is not None
        self._convolution = MiopenConvolution(problem, launch, resources.library, found)
        image = self._convolution.image
        self._image_copy = None if image is None else ImageCopyByRows(image, resources.memory)
        self._refused: dict[Solution, Exception] = {}
        fusion_plan = (None,) if self._convolution.fused else ()
        self._left: Iterator[Solution | None] = iter((*fusion_plan, *self.solutions))

    @property
    def solutions(self) -> tuple[Solution, ...]:
        """The solutions that the options allow, in the order in which they are tried."""
        return self._convolution.solutions

    def __iter__(self) -> Iterator[SolutionExecutor]:
        return self

    def __next__(self) -> SolutionExecutor:
        return next(self._compiled(self._left))

    def _compiled(self, solutions: Iterable[Solution | None]) -> Iterator[SolutionExecutor]:
        for solution in solutions:
            if solution is None or self._compile(solution):
                yield self._executor(solution)

    def _executor(self, solution: Solution | None) -> SolutionExecutor:
        return SolutionExecutor(self._convolution, solution, self._image_copy)

    def _compile(self, solution: Solution) -> bool:
        try:
            self._convolution.compile(self._launch, solution)
        except (MiopenError, UnsupportedError) as error:
            self._refused[solution] = error
            logger.info("a solution of MIOpen cannot be compiled: %s: %s", solution, error)
            return False
        return True

    def smaller(self, nbytes: int) -> Iterator[SolutionExecutor]:
        """Yield the default, a product of matrices, where it needs less; then those without."""
        fits = [one for one in self.solutions if self._executor(one).workspace_bytes < nbytes]
        default = [one for one in fits if one.algorithm == _GEMM][:1]
        without = [one for one in fits if not one.workspace_bytes and one not in default]
        return self._compiled(default + without)

    def nothing(self) -> Exception:
        """Return the first error of a solution that could not be compiled."""
        return next(iter(self._refused.values()))

    def close(self) -> None:
        self._convolution.close()

    def notes(self, executor: ChosenExecutor) -> list[str]:
        lines = []
        if self.problem.epilogue and not executor.fused:
            why = limit_of(FUSION, self.problem) or "MIOpen has no kernel for all of it"
            lines.append(f"not fused: {why}")
        if not self._convolution.fused:
            lines.append("measured" if self._is_measured else "by MIOpen's list, not measured here")
        for one in self.solutions:
            taken = "*" if one is executor.choice else " "
            lines.append(f"{taken} {self._executor(one)}")
        lines += [f"gave up {one}: {error}" for one, error in self._refused.items()]
        return lines


class MiopenConvolutions(SearchedSource):
    """libMIOpen, on the arrays that its networks take: CuPy's, or with an allocator any.

    On arrays of CuPy for ROCm this was written by its documentation and not run.
    """

    failures = (UnsupportedError,)

    def __init__(self, resources: ConvResources) -> None:
        self.resources = resources
        self.searches: PlanCache[SearchResult] = PlanCache(_MAX_KEPT)
        self.bias_gradients: PlanCache[MiopenBiasGradient] = PlanCache(_MAX_KEPT)

    def executors(self, problem: ConvProblem, launch: Launch) -> SolutionExecutors:
        found = None
        if problem.options.tune != "off":
            found = self.searches.find(_search_key(problem, launch))
        return SolutionExecutors(problem, launch, self.resources, found)

    def search(
        self, problem: ConvProblem, launch: Launch, scratch: Callable[[ConvProblem], ConvAddresses]
    ) -> None:
        """Search unless that was done; if several threads do, the first result counts."""
        key = _search_key(problem, launch)
        if self.searches.find(key) is not None:
            return
        with closing(MiopenConvolution(problem, launch, self.resources.library)) as convolution:
            if convolution.fused:
                return
            begun = time.perf_counter()
            image = convolution.image
            at = scratch(problem if image is None else image.problem)
            found = self.searches.add(key, convolution.search(launch, at, self._allocate))
            seconds = time.perf_counter() - begun
            logger.info("MIOpen searched in %.2f s for %s: %s", seconds, problem, found.algorithm)

    def _allocate(self, size: int) -> tuple[int, object]:
        """Return the address of a new workspace, and what keeps it."""
        if not size:
            return 0, None
        memory = self.resources.memory
        buffer = memory.empty((size,), memory.dtype("uint8"))
        return buffer.data.ptr, buffer

    def backward_bias(self, dy: AnyArray, device: int) -> Array:
        memory, shape, dtype = self.resources.memory, dy.shape, dy.dtype
        with memory.use(device):
            if not dy.size:
                return memory.zeros(shape[1:2], dtype)
            gradient = self.bias_gradients.get(
                (shape, dtype, device),
                lambda: MiopenBiasGradient(shape, dtype.name, self.resources.library),
            )
            dy, dbias = aligned("dy", dy), memory.empty(shape[1:2], dtype)
            launch = self.resources.launch(device, memory.current_stream())
            gradient.run(launch, dy.data.ptr, dbias.data.ptr)
        return dbias

    def clear(self) -> None:
        self.searches.clear()
        self.bias_gradients.clear()


def _search_key(problem: ConvProblem, launch: Launch) -> tuple[Canonical, int, int | None]:
    """Return what a search is known by: problems that MIOpen computes in the same way share it."""
    image = PaddedImage.of(problem)
    canonical = Canonical.of(problem if image is None else image.problem)
    return canonical, launch.device, problem.options.workspace_limit


class MiopenBiasGradient:
    """The sum of dy [N, K, ...], contiguous, over all but its channels: [K].

    It stands on ``miopenConvolutionBackwardBias``, which reads channels last wrongly (3.4.0).
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, library: Library) -> None:
        check_limits(BIAS_GRADIENT, dtype, library)
        self._library = library
        self._problem = f"backward of a bias, dy {list(shape)} {dtype}"
        matrix, bias = channel_matrix(shape, channels_last=False)
        self._dy = TensorDescriptor(dtype, matrix, library=library)
        self._dbias = TensorDescriptor(dtype, bias, library=library)

    def run(self, launch: Launch, dy: int, dbias: int) -> None:
        """Enqueue it, on these addresses."""
        self._library.call(
            "miopenConvolutionBackwardBias",
            *(launch.handle, ONE, self._dy.pointer, dy, ZERO, self._dbias.pointer, dbias),
            problem=self._problem,
        )
