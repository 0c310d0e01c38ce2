"""Interfaces of convolutions: executors on addresses, plans on arrays, sources of plans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from dnnffi.device.interface import AnyArray, Array, Launch, MemoryWithGraphs, Stream
from dnnffi.execution.replay import GraphMemory
from dnnffi.execution.workspaces import Workspaces
from dnnffi.spec.conv_problem import ConvProblem

ALIGNMENT = 16
"""Bytes: what every kernel of a vendor asks of an address at most, and every allocation has."""

MISALIGNED = ALIGNMENT - 1
"""The bits that are not set in an address that has it."""


class ConvAddresses(NamedTuple):
    """The arrays of a convolution in device memory; 0 for one that is not there.

    ``first`` to ``residual`` are those of `ConvProblem.argument_shapes`: ``first`` and ``second``
    are x and w of a forward pass, dy and w of backward data, dy and x of backward weights. All are
    without gaps and in the layout of the problem.
    """

    first: int
    second: int
    bias: int
    residual: int
    result: int
    workspace: int = 0


def addresses_of(arrays: Iterable[Array | None]) -> tuple[int, int, int, int]:
    """Addresses of the arguments of an operation: the first four of its `ConvAddresses`."""
    found = [0 if array is None else array.data.ptr for array in arrays]
    first, second, bias, residual = (*found, 0, 0)[:4]
    return first, second, bias, residual


class ConvExecutor(Protocol):
    """One way to run a problem.

    Making one may allocate and ask the library. `run` does neither: it enqueues on the stream of a
    launch, on addresses that were checked.
    """

    workspace_bytes: int
    """Bytes of the workspace, whose contents do not outlive a call."""

    def run(self, launch: Launch, at: ConvAddresses) -> None:
        """Fill the result, with everything that the problem adds to it."""

    def close(self) -> None:
        """Release everything native."""


class ConvResources(Protocol):
    """The resources of a backend that plans need."""

    library: Any
    memory: MemoryWithGraphs
    graphs: GraphMemory
    workspaces: Workspaces

    def launch(self, device: int, stream: Stream) -> Launch:
        """Return a launch of this thread on ``stream`` of ``device``, which must be current."""


class ConvProblemPlan:
    """One problem, ready to run on arrays."""

    closed = False

    def __init__(self, problem: ConvProblem) -> None:
        self.problem = problem
        # Read at every call, so that it is not made anew from the spec.
        self.argument_shapes = problem.argument_shapes

    def run(self, *arrays: Any) -> Array:
        """Return the result of the operation, a new array in the layout of the problem.

        ``arrays`` are those of `ConvProblem.argument_shapes`, of these shapes and the spec's dtype,
        with any strides; bias and residual are None where the problem has none.
        """
        raise NotImplementedError

    def takes(self, arrays: tuple[Any, ...]) -> bool:
        """Whether `run_at` takes arrays of these shapes and strides."""
        return False

    def run_at(self, addresses: Sequence[int]) -> Array:
        """`run` on arrays as `takes` wants them, by the first four of their `ConvAddresses`."""
        raise NotImplementedError

    def report(self) -> str:
        """Return which algorithm runs, and why, in plain words."""
        return f"{self.problem}\n{type(self).__name__}"

    def again(self, arrays: tuple[Any, ...], out: Any) -> bool:
        """`run_into` arrays that it has checked before. False, and nothing done, for others."""
        return False

    def run_into(self, arrays: tuple[Any, ...], out: AnyArray | None) -> AnyArray:
        """`run` into ``out``, or a new array. Arrays at the end that are None may be left out."""
        missing = len(self.argument_shapes) - len(arrays)
        result = self.run(*arrays, *(None,) * missing)
        if out is None:
            return result
        out[...] = result
        return out

    def autotune(self) -> bool:
        """Measure and use the fastest. False where nothing can be measured now."""
        return False

    def close(self) -> None:
        """Release everything."""
        self.closed = True


class ConvSource:
    """The maker of the plans of a backend with a library; it keeps what they share."""

    takes_strided = False
    """Whether arrays without CuPy may have strides; without it they must be contiguous."""

    def plan(self, problem: ConvProblem, device: int) -> ConvProblemPlan:
        """Return a new plan for a problem with a batch."""
        raise NotImplementedError

    def backward_bias(self, dy: Array, device: int) -> Array:
        """Return the gradient of the bias [K]. Without CuPy dy is contiguous or `takes_strided`."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget what was measured and made for several plans."""
