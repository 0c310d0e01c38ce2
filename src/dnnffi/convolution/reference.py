"""Plans of convolutions without a library: the reference, and zeros for an empty batch."""

from __future__ import annotations

from typing import Any

from dnnffi.backends.conv_interface import ConvProblemPlan
from dnnffi.device.arrays import array_module, in_layout
from dnnffi.device.interface import AnyArray, Memory
from dnnffi.reference import conv as reference
from dnnffi.spec.conv_problem import BACKWARD_DATA, FORWARD, ConvProblem


class EmptyConvPlan(ConvProblemPlan):
    """A problem without a batch: nothing, or gradients of nothing, which are zeros.

    They are made by ``memory``, or by who made the arrays.
    """

    def __init__(self, problem: ConvProblem, memory: Memory | None = None) -> None:
        super().__init__(problem)
        self._memory = memory

    def run(self, *arrays: Any) -> AnyArray:
        first = arrays[0]
        zeros = (self._memory or array_module(first)).zeros(self.problem.result_shape, first.dtype)
        return in_layout(zeros, channels_last=True) if self.problem.channels_last else zeros


class ReferenceConvPlan(ConvProblemPlan):
    """A problem on `dnnffi.reference.conv`."""

    def run(self, *arrays: Any) -> AnyArray:
        problem = self.problem
        spec = problem.spec
        if problem.operation == FORWARD:
            x, w, bias, residual = arrays
            result = reference.forward(
                *(spec, x, w, bias),
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
        return in_layout(result, channels_last=problem.channels_last)
