"""Plans of convolutions: what one is, and those of the reference and of empty batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnnffi.device.arrays import array_module, in_layout
from dnnffi.device.interface import Array
from dnnffi.reference import conv as reference
from dnnffi.spec.conv_problem import BACKWARD_DATA, FORWARD, ConvProblem
from dnnffi.spec.layouts import CHANNELS_LAST


class ConvPlan:
    """One problem, ready to run."""

    def __init__(self, problem: ConvProblem) -> None:
        self.problem = problem
        # Read at every call, so that it is not made anew from the spec.
        self.argument_shapes = problem.argument_shapes

    def run(self, *arrays: Any) -> Array:
        """The result of the operation, a new array in the layout of the problem.

        ``arrays`` are those of `ConvProblem.argument_shapes`, of these shapes and the spec's dtype,
        with any strides; bias and residual are None where the problem has none.
        """
        raise NotImplementedError

    def takes(self, arrays: tuple[Any, ...]) -> bool:
        """Whether `run_at` takes arrays of these shapes and strides."""
        return False

    def run_at(self, arrays: tuple[Any, ...], addresses: Sequence[int]) -> Array:
        """`run` on arrays that are as `takes` wants them, and lie at ``addresses``."""
        raise NotImplementedError

    def report(self) -> str:
        """What runs, and why, in plain words."""
        return f"{self.problem}\n{type(self).__name__}"

    def hold(self) -> Held:
        """The plan for one who keeps it."""
        return Held(self)


class Held:
    """A plan whose results go into given arrays."""

    def __init__(self, plan: ConvPlan) -> None:
        self.plan = plan
        self.closed = False

    def again(self, arrays: tuple[Any, ...], out: Array) -> bool:
        """Run on the arrays of the last call, if these are them."""
        return False

    def run(self, arrays: tuple[Any, ...], out: Array | None) -> Array:
        """Fill and return ``out``, of arrays that were checked; what is missing is None."""
        missing = len(self.plan.argument_shapes) - len(arrays)
        result = self.plan.run(*arrays, *(None,) * missing)
        if out is None:
            return result
        out[...] = result
        return out

    def autotune(self) -> None:
        """Measure now, where there is something to measure."""

    def report(self) -> str:
        """The plan's report."""
        return self.plan.report()

    def close(self) -> None:
        """Let go of everything."""
        self.closed = True


class EmptyPlan(ConvPlan):
    """A problem without a batch: nothing, or gradients of nothing, which are zeros."""

    def run(self, *arrays: Any) -> Array:
        first = arrays[0]
        zeros = array_module(first).zeros(self.problem.result_shape, first.dtype)
        return in_layout(zeros, channels_last=self.problem.layout == CHANNELS_LAST)


class ReferencePlan(ConvPlan):
    """A problem on `dnnffi.reference.conv`."""

    def run(self, *arrays: Any) -> Array:
        problem = self.problem
        spec = problem.spec
        if problem.operation == FORWARD:
            x, w, bias, residual = arrays
            result = reference.forward(
                spec,
                x,
                w,
                bias,
                activation=problem.activation,
                residual=residual,
                alpha=problem.alpha,
            )
        elif problem.operation == BACKWARD_DATA:
            dy, w = arrays
            result = reference.backward_data(spec, dy, w, problem.sizes)
        else:
            dy, x = arrays
            result = reference.backward_weights(spec, dy, x)
        return in_layout(result, channels_last=problem.layout == CHANNELS_LAST)
