"""The executor of convolutions on MIOpen: solutions by their number, what is added to y.

MIOpen names what it computes with in two ways. Find mode measures and answers with an algorithm and
a size of workspace, but only the handle that has searched can run the algorithm (3.4.0: another one
is refused with "No invoker was registered"), and each thread has a handle. Immediate mode lists
solutions by a number that every handle takes, fastest first by what was measured before or else by
an estimate. So all runs in immediate mode, and a search says which solution is to come first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.canonical import Ordinary, channel_matrix
from dnnffi.backends.miopen.conv_limits import FUSION, LIMITS
from dnnffi.backends.miopen.descriptors import (
    ActivationDescriptor,
    ActivationInfo,
    ConvolutionDescriptor,
    ConvolutionInfo,
    TensorDescriptor,
)
from dnnffi.backends.miopen.fusion import FusionPlan
from dnnffi.backends.miopen.handle import handle_for
from dnnffi.backends.miopen.library import Library, load
from dnnffi.backends.miopen.types import CONVOLUTION_ALGORITHMS
from dnnffi.backends.vendor.enumerators import name_of
from dnnffi.backends.vendor.handle import Handle
from dnnffi.backends.vendor.limits import check_limits, limit_of
from dnnffi.errors import UnsupportedError
from dnnffi.spec.conv_problem import ConvProblem
from dnnffi.spec.layouts import CHANNELS_LAST, packed_strides

_ADD: int = ffi.integer_const("miopenTensorOpAdd")
_GEMM = "gemm"
_ZERO, _ONE = ffi.new("float *", 0.0), ffi.new("float *", 1.0)
_MOST_ALGORITHMS = 16  # that a search may answer with; there are five


class Solution(NamedTuple):
    """One way to compute a problem: its number, algorithm, workspace and time.

    ``milliseconds`` was measured, or is an estimate.
    """

    number: int
    algorithm: str
    workspace_bytes: int
    milliseconds: float


class Found(NamedTuple):
    """What a search answers with first."""

    algorithm: str
    workspace_bytes: int


class ConvExecutor:
    """One convolution problem on MIOpen, for callers who hold their own buffers.

    Making it makes the descriptors and asks for the solutions; a call then makes the C calls, on
    the current stream, without allocating. Several threads may share it. It stands on
    ``miopenConvolutionForwardImmediate``, ``miopenConvolutionBackwardDataImmediate`` and
    ``miopenConvolutionBackwardWeightsImmediate``, on ``miopenFindConvolution...Algorithm`` for a
    search, on a fusion plan for bias and ReLU where the library has a kernel for them, and on
    ``miopenOpTensor`` and ``miopenActivationForward`` elsewhere.

    Parameters
    ----------
    problem : what to compute, with a batch
    device : the GPU, by default the current one
    library : the libMIOpen, by default `dnnffi.backends.miopen.library.load`

    Attributes
    ----------
    problem, device, library : as above
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
        self, problem: ConvProblem, *, device: int | None = None, library: Library | None = None
    ) -> None:
        library = load() if library is None else library
        check_limits(LIMITS, problem, "MIOpen", library)
        self.problem = problem
        self.library = library
        self.device = library.memory.current_device() if device is None else device
        self.ordinary = Ordinary.of(problem)
        self.solutions: tuple[Solution, ...] = ()
        self._fusion: FusionPlan | None = None
        self._epilogue: _Epilogue | None = None
        self._owned = ExitStack()
        try:
            handle = self._handle()
            self._make_descriptors()
            self._fusion = self._fused(handle)
            if self._fusion is None:
                if problem.bias or problem.residual or problem.activation:
                    self._epilogue = _Epilogue(library, problem, self._own)
                self._ask(handle)
        except BaseException:
            self.close()
            raise

    def _own(self, resource: Any) -> Any:
        self._owned.callback(resource.close)
        return resource

    def _handle(self) -> Handle:
        return handle_for(self.library, self.device)

    def _make_descriptors(self) -> None:
        ordinary, library = self.ordinary, self.library

        def tensor(shape: tuple[int, ...]) -> TensorDescriptor:
            strides = packed_strides(shape, ordinary.channels_last)
            made: TensorDescriptor = self._own(
                TensorDescriptor(ordinary.dtype, shape, strides, library=library)
            )
            return made

        self._tensors = dict(zip("xwy", map(tensor, ordinary.shapes), strict=True))
        info = ConvolutionInfo(
            ordinary.padding,
            ordinary.stride,
            ordinary.dilation,
            ordinary.groups,
            deterministic=ordinary.deterministic,
        )
        self._convolution = self._own(ConvolutionDescriptor(info, library=library))
        first, second, result = (self._tensors[name] for name in ordinary.direction.operands)
        self._described = (
            first.pointer,
            second.pointer,
            self._convolution.pointer,
            result.pointer,
        )
        # The functions of a problem take x, w or dy, w or dy, x; transposed, x and y are exchanged.
        arguments = {
            "Forward": ("x", "w"),
            "BackwardData": ("y", "w"),
            "BackwardWeights": ("x", "y") if self.problem.spec.transposed else ("y", "x"),
        }[ordinary.direction.name]
        self._swaps = arguments != ordinary.direction.operands[:2]
        self._run_name = f"miopenConvolution{ordinary.direction.name}Immediate"
        self._run = getattr(library.lib, self._run_name)

    def _fused(self, handle: Handle) -> FusionPlan | None:
        """A compiled fusion plan, if the problem is one that MIOpen fuses and it has a kernel."""
        problem, ordinary = self.problem, self.ordinary
        if not (problem.bias or problem.activation) or limit_of(FUSION, problem):
            return None
        bias = None
        if problem.bias:
            shape = (1, problem.spec.out_channels, 1, 1)
            bias = self._own(TensorDescriptor(ordinary.dtype, shape, library=self.library))
        try:
            plan = FusionPlan(
                self._tensors["x"],
                self._tensors["w"],
                self._convolution,
                bias,
                relu=problem.activation is not None,
                library=self.library,
                problem=problem,
            )
        except UnsupportedError:
            return None
        if plan.compile(handle):
            self._own(plan)
            return plan
        plan.close()
        return None

    # Solutions

    def _call(self, name: str, handle: Handle, *arguments: Any) -> None:
        """A function of the direction, whose name is ``miopenConvolution...`` with ``name``."""
        function = f"miopenConvolution{self.ordinary.direction.name}{name}"
        status = getattr(self.library.lib, function)(handle.pointer, *arguments)
        self.library.check(status, function, self.problem)

    def _ask(self, handle: Handle, first: Found | None = None) -> None:
        """Set ``solutions``: those that ``first`` names in front."""
        count = ffi.new("size_t *")
        self._call("GetSolutionCount", handle, *self._described, count)
        most = int(count[0])
        listed = ffi.new("miopenConvSolution_t[]", max(most, 1))
        self._call("GetSolution", handle, *self._described, most, count, listed)
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
        self.solutions = tuple(self._within_limit(solutions))

    def _within_limit(self, solutions: list[Solution]) -> list[Solution]:
        limit = self.problem.options.workspace_limit
        allowed = [one for one in solutions if limit is None or one.workspace_bytes <= limit]
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
        raise UnsupportedError("MIOpen", self.library.version_text, reason)

    def compile(self, solution: Solution) -> None:
        """Make the kernels of a solution, if this handle has not got them."""
        self._call("CompileSolution", self._handle(), *self._described, solution.number)

    def smaller(self, solution: Solution) -> list[Solution]:
        """What to take where the workspace of ``solution`` is not to be had.

        The default, which is a product of matrices, where it needs less; then those without.
        """
        others = [one for one in self.solutions if one.workspace_bytes < solution.workspace_bytes]
        default = [one for one in others if one.algorithm == _GEMM][:1]
        return default + [one for one in others if not one.workspace_bytes and one not in default]

    def search(
        self, addresses: tuple[int, ...], allocate: Callable[[int], tuple[int, object]]
    ) -> Found:
        """Measure on arrays, whose result is written over; the solutions have a new order then.

        ``allocate(size)`` gives the address of a workspace and what keeps it. Where there is no
        memory for the largest, what needs none is measured. Raises `UnsupportedError` where nothing
        runs.
        """
        handle = self._handle()
        first, second, result = self._operands(addresses)
        at = dict(zip(self.ordinary.direction.operands, (first, second, result), strict=True))
        size = ffi.new("size_t *")
        self._call("GetWorkSpaceSize", handle, *self._described, size)
        limit = self.problem.options.workspace_limit
        most = int(size[0]) if limit is None else min(int(size[0]), limit)
        try:
            workspace, _kept = allocate(most)
        except Exception:  # of the caller's allocator, whatever it raises
            if not most:
                raise
            most, workspace = 0, 0
        one, other, written = self.ordinary.direction.searched
        count = ffi.new("int *")
        measured = ffi.new("miopenConvAlgoPerf_t[]", _MOST_ALGORITHMS)
        function = f"miopenFindConvolution{self.ordinary.direction.name}Algorithm"
        status = getattr(self.library.lib, function)(
            handle.pointer,
            *(self._tensors[one].pointer, at[one], self._tensors[other].pointer, at[other]),
            *(self._convolution.pointer, self._tensors[written].pointer, at[written]),
            *(_MOST_ALGORITHMS, count, measured, workspace, most, False),
        )
        self.library.check(status, function, self.problem)
        if not count[0]:
            raise UnsupportedError(
                "MIOpen", self.library.version_text, f"a search found nothing for {self.problem}"
            )
        best = measured[0]
        return Found(name_of(CONVOLUTION_ALGORITHMS, best.fwd_algo), int(best.memory))

    def prefer(self, found: Found) -> None:
        """Put the solutions that a search named in front; what was measured is in the list now."""
        self._ask(self._handle(), found)

    # Running

    @property
    def fused(self) -> bool:
        """Whether bias and ReLU are in the convolution's kernel."""
        return self._fusion is not None

    def run_at(
        self, addresses: tuple[int, ...], solution: Solution | None = None, workspace: int = 0
    ) -> None:
        """Queue the convolution on arrays by address, 0 for one that the problem does not have.

        ``addresses`` are those of the operation's arguments (`ConvProblem.argument_shapes`), then
        of the result, all without gaps and in the problem's layout. ``workspace`` is that of a
        buffer of the solution's bytes. Where `fused` there is no solution, and the kernel does all;
        elsewhere `add_at` follows.
        """
        handle = self._handle()
        if self._fusion is not None:
            x, w, bias, _, y = addresses
            self._fusion.run(handle, (self._tensors["x"], x), w, bias, (self._tensors["y"], y))
            return
        assert solution is not None
        first, second, result = self._operands(addresses)
        first_described, second_described, convolution, result_described = self._described
        status = self._run(
            handle.pointer,
            first_described,
            first,
            second_described,
            second,
            convolution,
            result_described,
            result,
            workspace,
            solution.workspace_bytes,
            solution.number,
        )
        if status:
            raise self.library.error(status, self._run_name, self.problem)

    def add_at(self, addresses: tuple[int, ...]) -> None:
        """Queue what is added to a forward's y, and the activation; nothing where `fused`."""
        if self._epilogue is not None:
            self._epilogue.run(self._handle(), *addresses[2:])

    def _operands(self, addresses: tuple[int, ...]) -> tuple[int, int, int]:
        first, second, result = addresses[0], addresses[1], addresses[-1]
        return (second, first, result) if self._swaps else (first, second, result)

    def close(self) -> None:
        """Destroy plans and descriptors. A second call does nothing."""
        self._owned.close()


class _Epilogue:
    """``y = relu(y + alpha*residual + bias)`` over a y that is there, each part if it is asked for.

    ``miopenOpTensor`` gives wrong numbers, with success, for a bias beside a y that is channels
    last, and for two such tensors in three dimensions (3.4.0). As a matrix the same memory is
    contiguous: [N, K, positions] channels first, [N*positions, K] channels last.
    """

    def __init__(self, library: Library, problem: ConvProblem, own: Callable[[Any], Any]) -> None:
        self._library, self._problem = library, problem
        dtype = problem.spec.dtype
        last = problem.layout == CHANNELS_LAST
        shape, bias_shape = channel_matrix(problem.y_shape, last)
        self._y = own(TensorDescriptor(dtype, shape, library=library)).pointer
        if problem.bias:
            self._bias = own(TensorDescriptor(dtype, bias_shape, library=library)).pointer
        if problem.activation:
            info = ActivationInfo(problem.activation)
            self._relu = own(ActivationDescriptor(info, library=library)).pointer
        self._alpha = ffi.new("float *", problem.alpha)

    def run(self, handle: Handle, bias: int, residual: int, y: int) -> None:
        """Queue it."""
        if residual and bias:
            # Two kinds of operand and y itself in one call.
            self._add(handle, self._alpha, self._y, residual, self._bias, bias, _ONE, y)
        elif residual:
            self._add(handle, self._alpha, self._y, residual, self._y, y, _ZERO, y)
        elif bias:
            self._add(handle, _ONE, self._y, y, self._bias, bias, _ZERO, y)
        if self._problem.activation:
            # Not the maximum of miopenOpTensor, which turns NaN into 0.
            status = self._library.lib.miopenActivationForward(
                handle.pointer, self._relu, _ONE, self._y, y, _ZERO, self._y, y
            )
            self._library.check(status, "miopenActivationForward", self._problem)

    def _add(
        self, handle: Handle, alpha: Any, a: Any, a_at: int, b: Any, b_at: int, beta: Any, y: int
    ) -> None:
        """``y = alpha*a + b + beta*y``."""
        status = self._library.lib.miopenOpTensor(
            handle.pointer, _ADD, alpha, a, a_at, _ONE, b, b_at, beta, self._y, y
        )
        self._library.check(status, "miopenOpTensor", self._problem)
