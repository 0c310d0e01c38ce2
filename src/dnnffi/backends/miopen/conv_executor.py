"""Executors of convolutions on MIOpen: solutions by number, then bias, residual and ReLU.

MIOpen names what it computes with in two ways. Find mode measures and answers with an algorithm and
a size of workspace, but only the handle that has searched can run the algorithm (3.4.0: another one
is refused with "No invoker was registered"), and each thread has a handle. Immediate mode lists
solutions by a number that every handle takes, fastest first by what was measured before or else by
an estimate. So all runs in immediate mode, and a search says which solution is to come first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeVar

from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.canonical import FORWARD_CALLS, WEIGHTS_CALLS, Canonical, channel_matrix
from dnnffi.backends.miopen.descriptors import (
    ActivationDescriptor,
    ActivationInfo,
    ConvolutionDescriptor,
    ConvolutionInfo,
    TensorDescriptor,
)
from dnnffi.backends.miopen.fusion import FusionPlan
from dnnffi.backends.miopen.image_copy import ImageCopyByRows
from dnnffi.backends.miopen.library import CONVOLUTION_ALGORITHMS, Library
from dnnffi.backends.miopen.limits import CONV_LIMITS, FUSION
from dnnffi.backends.vendor.library import name_of
from dnnffi.backends.vendor.limits import check_limits, limit_of
from dnnffi.backends.vendor.resource import Resource
from dnnffi.device.interface import ALIGNMENT, Launch
from dnnffi.errors import UnsupportedError
from dnnffi.spec.conv_padding import PaddedImage
from dnnffi.spec.conv_problem import ConvProblem
from dnnffi.spec.layouts import packed_strides

_ADD: int = ffi.integer_const("miopenTensorOpAdd")
ZERO, ONE = ffi.new("float *", 0.0), ffi.new("float *", 1.0)
_MAX_ALGORITHMS = 16  # results of a search; MIOpen has five algorithms


Owned = TypeVar("Owned", bound=Resource)


class Solution(NamedTuple):
    """One way to compute a problem: its number, algorithm, workspace and time.

    ``milliseconds`` was measured, or is an estimate.
    """

    number: int
    algorithm: str
    workspace_bytes: int
    milliseconds: float


class SearchResult(NamedTuple):
    """The first answer of a search."""

    algorithm: str
    workspace_bytes: int


class MiopenConvolution:
    """The descriptors and solutions of one convolution problem, for callers who hold all buffers.

    Making it makes the descriptors and asks for the solutions; a call then makes the C calls
    without allocating, of a solution that its thread has compiled. It stands on
    ``miopenConvolutionForwardImmediate``, ``miopenConvolutionBackwardDataImmediate`` and
    ``miopenConvolutionBackwardWeightsImmediate``, on ``miopenFindConvolution...Algorithm`` for a
    search, on a fusion plan for bias and ReLU where the library has a kernel for them, and on
    ``miopenOpTensor`` and ``miopenActivationForward`` elsewhere.

    Parameters
    ----------
    problem : what to compute, with a batch. With asymmetric padding, `convolve` takes and gives the
        padded image, ``image``; `add` takes the result without it
    launch : on the GPU that it is for
    library : the libMIOpen
    found : what a search has found, whose solution is to be the first

    Attributes
    ----------
    problem, library : as above
    image : the padded image of asymmetric padding, or None
    fused : whether bias and ReLU are in the convolution's kernel
    solutions : those that the options allow, in the order in which they are to be tried; empty
        where fused

    Raises
    ------
    UnsupportedError
        MIOpen has no such thing, or no solution within ``workspace_limit``.
    MiopenError
        Any other status of a MIOpen function.
    """

    def __init__(
        self,
        problem: ConvProblem,
        launch: Launch,
        library: Library,
        found: SearchResult | None = None,
    ) -> None:
        check_limits(CONV_LIMITS, problem, library)
        self.problem = problem
        self.library = library
        self.image = image = PaddedImage.of(problem)
        convolved = problem if image is None else image.problem
        check_limits(CONV_LIMITS, convolved, library)
        self.canonical = Canonical.of(convolved)
        self._limit = _left_of_limit(problem, image, library)
        self.solutions: tuple[Solution, ...] = ()
        self._fusion: FusionPlan | None = None
        self._epilogue: _Epilogue | None = None
        self._owned = ExitStack()
        try:
            self._make_descriptors()
            self._fusion = self._fused(launch)
            if self._fusion is None:
                if problem.epilogue:
                    self._epilogue = _Epilogue(library, problem, self._own)
                self.solutions = self._listed(launch, found)
        except BaseException:
            self.close()
            raise

    def _own(self, resource: Owned) -> Owned:
        self._owned.callback(resource.close)
        return resource

    def _make_descriptors(self) -> None:
        canonical, library = self.canonical, self.library

        def tensor(shape: tuple[int, ...]) -> TensorDescriptor:
            strides = packed_strides(shape, canonical.channels_last)
            return self._own(TensorDescriptor(canonical.dtype, shape, strides, library=library))

        self._tensors = dict(zip("xwy", map(tensor, canonical.shapes), strict=True))
        geometry = canonical.padding, canonical.stride, canonical.dilation, canonical.groups
        info = ConvolutionInfo(*geometry, deterministic=canonical.deterministic)
        self._convolution = self._own(ConvolutionDescriptor(info, library=library))
        first, second, result = (self._tensors[name] for name in canonical.direction.operands)
        self._described = first.pointer, second.pointer, self._convolution.pointer, result.pointer
        # The functions of a problem take x, w or dy, w or dy, x; transposed, x and y are exchanged.
        exchanged = self.problem.spec.transposed and canonical.direction == WEIGHTS_CALLS
        self._swaps = exchanged or canonical.direction == FORWARD_CALLS

    def _fused(self, launch: Launch) -> FusionPlan | None:
        """Return a compiled fusion plan, if MIOpen has a kernel that fuses the problem."""
        problem, canonical = self.problem, self.canonical
        if not (problem.bias or problem.activation) or limit_of(FUSION, problem):
            return None
        bias = None
        if problem.bias:
            shape = (1, problem.spec.out_channels, 1, 1)
            bias = self._own(TensorDescriptor(canonical.dtype, shape, library=self.library))
        try:
            plan = FusionPlan(
                *(self._tensors["x"], self._tensors["w"], self._convolution, bias),
                relu=problem.activation is not None,
                library=self.library,
                problem=problem,
            )
        except UnsupportedError:
            return None
        if plan.compile(launch):
            return self._own(plan)
        plan.close()
        return None

    # Solutions

    def _call(self, name: str, launch: Launch, *arguments: Any) -> None:
        """Call a function of the direction: ``miopenConvolution...`` with ``name``."""
        function = f"miopenConvolution{self.canonical.direction.name}{name}"
        self.library.call(function, launch.handle, *arguments, problem=self.problem)

    def _listed(self, launch: Launch, first: SearchResult | None) -> tuple[Solution, ...]:
        """Return the solutions that the options allow, what a search has named in front."""
        count = ffi.new("size_t *")
        self._call("GetSolutionCount", launch, *self._described, count)
        most = int(count[0])
        listed = ffi.new("miopenConvSolution_t[]", max(most, 1))
        self._call("GetSolution", launch, *self._described, most, count, listed)
        solutions = [
            Solution(
                int(one.solution_id),
                name_of(CONVOLUTION_ALGORITHMS, one.algorithm),
                int(one.workspace_size),
                one.time,
            )
            for one in listed[0 : min(int(count[0]), most)]
        ]
        if first is not None:
            solutions.sort(key=lambda one: (one.algorithm, one.workspace_bytes) != first)
        limit = self._limit
        allowed = tuple(one for one in solutions if limit is None or one.workspace_bytes <= limit)
        if allowed:
            return allowed
        if not solutions:
            reason = f"has no solution for {self.problem}; cudnn and reference may have it"
        else:
            least = min(one.workspace_bytes for one in solutions)
            reason = (
                f"options['workspace_limit'] is {limit} bytes, and the solution that asks for "
                f"least needs {least}: {self.problem}"
            )
        raise self.library.unsupported(reason)

    def compile(self, launch: Launch, solution: Solution) -> None:
        """Make the kernels of a solution, if the handle has not got them."""
        self._call("CompileSolution", launch, *self._described, solution.number)

    def search(
        self, launch: Launch, at: ConvAddresses, allocate: Callable[[int], tuple[int, object]]
    ) -> SearchResult:
        """Measure on arrays of the canonical problem, whose result is written over.

        ``allocate(size)`` gives the address of a workspace and what keeps it. If there is no
        memory for the largest, solutions without a workspace are measured. Raises
        `UnsupportedError` if nothing runs.
        """
        direction = self.canonical.direction
        address = dict(zip(direction.operands, self._operands(at), strict=True))
        size = ffi.new("size_t *")
        self._call("GetWorkSpaceSize", launch, *self._described, size)
        limit = self._limit
        most = int(size[0]) if limit is None else min(int(size[0]), limit)
        try:
            workspace, _kept = allocate(most)
        except Exception:  # of the caller's allocator, whatever it raises
            if not most:
                raise
            most, workspace = 0, 0
        one, other, written = direction.searched
        count = ffi.new("int *")
        measured = ffi.new("miopenConvAlgoPerf_t[]", _MAX_ALGORITHMS)
        self.library.call(
            f"miopenFindConvolution{direction.name}Algorithm",
            launch.handle,
            *(self._tensors[one].pointer, address[one]),
            *(self._tensors[other].pointer, address[other]),
            *(self._convolution.pointer, self._tensors[written].pointer, address[written]),
            *(_MAX_ALGORITHMS, count, measured, workspace, most, False),
            problem=self.problem,
        )
        if not count[0]:
            raise self.library.unsupported(f"a search found nothing for {self.problem}")
        best = measured[0]
        return SearchResult(name_of(CONVOLUTION_ALGORITHMS, best.fwd_algo), int(best.memory))

    # Running

    @property
    def fused(self) -> bool:
        """Whether bias and ReLU are in the convolution's kernel."""
        return self._fusion is not None

    def run(self, launch: Launch, at: ConvAddresses, solution: Solution | None) -> None:
        """Enqueue `convolve` and `add`."""
        self.convolve(launch, at, solution)
        self.add(launch, at)

    def convolve(self, launch: Launch, at: ConvAddresses, solution: Solution | None) -> None:
        """Enqueue the convolution by ``solution``, with its workspace.

        Where `fused`, ``solution`` is None, and the fusion plan adds all that follows.
        """
        if solution is None:
            assert self._fusion is not None
            x, y = (self._tensors["x"], at.first), (self._tensors["y"], at.result)
            self._fusion.run(launch, x, at.second, at.bias, y)
            return
        first, second, result = self._operands(at)
        first_described, second_described, convolution, result_described = self._described
        self._call(
            *("Immediate", launch, first_described, first, second_described, second),
            *(convolution, result_described, result),
            *(at.workspace, solution.workspace_bytes, solution.number),
        )

    def add(self, launch: Launch, at: ConvAddresses) -> None:
        """Enqueue the additions to y of a forward pass, and the activation, where there are any."""
        if self._epilogue is not None:
            self._epilogue.run(launch, at.bias, at.residual, at.result)

    def _operands(self, at: ConvAddresses) -> tuple[int, int, int]:
        first, second = (at.second, at.first) if self._swaps else (at.first, at.second)
        return first, second, at.result

    def close(self) -> None:
        """Destroy plans and descriptors. A second call does nothing."""
        self._owned.close()


class SolutionExecutor:
    """One problem by one solution of MIOpen's, which this thread has compiled.

    ``solution`` is None for a fusion plan. With asymmetric padding the padded image follows
    the workspace of the solution.
    """

    def __init__(
        self,
        convolution: MiopenConvolution,
        solution: Solution | None,
        image_copy: ImageCopyByRows | None,
    ) -> None:
        self.fused = convolution.fused or not convolution.problem.epilogue
        self.choice: Any = solution or "a fusion plan"
        self._convolution = convolution
        self._solution = solution
        self._image_copy = image_copy
        size = 0 if solution is None else solution.workspace_bytes
        self.workspace_bytes = size
        if image_copy is not None:
            self._padded_at = -(-size // ALIGNMENT) * ALIGNMENT
            self.workspace_bytes = self._padded_at + image_copy.nbytes

    def run(self, launch: Launch, at: ConvAddresses) -> None:
        copy = self._image_copy
        if copy is None:
            self._convolution.run(launch, at, self._solution)
            return
        padded = at.workspace + self._padded_at
        convolved = copy.before(launch.stream, at, padded)
        self._convolution.convolve(launch, convolved, self._solution)
        copy.after(launch.stream, at, padded)
        self._convolution.add(launch, at)

    def close(self) -> None:
        """Do nothing: the solutions of a thread share their descriptors."""

    def __str__(self) -> str:
        solution = self._solution
        if solution is None:
            return "a fusion plan"
        return (
            f"{solution.number} {solution.algorithm}: workspace {solution.workspace_bytes:,} "
            f"bytes, {solution.milliseconds:.4g} ms"
        )


def _left_of_limit(problem: ConvProblem, image: PaddedImage | None, library: Library) -> int | None:
    """Return the bytes of ``workspace_limit`` that a padded image leaves to a solution.

    They are a multiple of `ALIGNMENT`, which the padded image begins at.
    """
    limit = problem.options.workspace_limit
    if limit is None or image is None:
        return limit
    nbytes = image.padded_bytes
    if nbytes > limit:
        raise library.unsupported(
            f"convolves a padded copy of the image for asymmetric padding, of {nbytes} bytes; "
            f"options['workspace_limit'] is {limit}"
        )
    return (limit - nbytes) // ALIGNMENT * ALIGNMENT


class _Epilogue:
    """``y = relu(y + alpha*residual + bias)`` over an existing y, each part if it is asked for.

    ``miopenOpTensor`` gives wrong numbers, with success, for a bias beside a y that is channels
    last, and for two such tensors in three dimensions (3.4.0). As a matrix the same memory is
    contiguous: [N, K, positions] channels first, [N*positions, K] channels last.
    """

    def __init__(self, library: Library, problem: ConvProblem, own: Callable[[Any], Any]) -> None:
        self._library, self._problem = library, problem
        dtype = problem.spec.dtype
        shape, bias_shape = channel_matrix(problem.y_shape, problem.channels_last)
        self._y = own(TensorDescriptor(dtype, shape, library=library)).pointer
        if problem.bias:
            self._bias = own(TensorDescriptor(dtype, bias_shape, library=library)).pointer
        if problem.activation:
            info = ActivationInfo(problem.activation)
            self._relu = own(ActivationDescriptor(info, library=library)).pointer
        self._alpha = ffi.new("float *", problem.alpha)

    def run(self, launch: Launch, bias: int, residual: int, y: int) -> None:
        """Enqueue it."""
        if residual and bias:
            # Two kinds of operand and y itself in one call.
            self._add(launch, self._alpha, self._y, residual, self._bias, bias, ONE, y)
        elif residual:
            self._add(launch, self._alpha, self._y, residual, self._y, y, ZERO, y)
        elif bias:
            self._add(launch, ONE, self._y, y, self._bias, bias, ZERO, y)
        if self._problem.activation:
            # Not the maximum of miopenOpTensor, which turns NaN into 0.
            arguments = launch.handle, self._relu, ONE, self._y, y, ZERO, self._y, y
            self._library.call("miopenActivationForward", *arguments, problem=self._problem)

    def _add(
        self, launch: Launch, alpha: Any, a: Any, a_at: int, b: Any, b_at: int, beta: Any, y: int
    ) -> None:
        """``y = alpha*a + b + beta*y``."""
        arguments = launch.handle, _ADD, alpha, a, a_at, ONE, b, b_at, beta, self._y, y
        self._library.call("miopenOpTensor", *arguments, problem=self._problem)
