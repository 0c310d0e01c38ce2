"""Plans of convolutions without a library: the reference, and zeros for an empty batch.

`check_conv` and `check_bias_gradient` implement ``options={"validate": True}``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import prod
from typing import Any, cast

from dnnffi.backends.conv_interface import ConvProblemPlan
from dnnffi.device.arrays import array_module, in_layout, is_external
from dnnffi.device.interface import AnyArray, Memory, MemoryWithGraphs
from dnnffi.execution.comparison import compare
from dnnffi.reference import conv as reference
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import BACKWARD_DATA, FORWARD, RESULTS, ConvProblem


class EmptyConvPlan(ConvProblemPlan):
    """A problem without a batch: nothing, or gradients of nothing, which are zeros.

    They are made by ``memory`` on ``device``, or by who made the arrays.
    """

    def __init__(self, problem: ConvProblem, memory: Memory | None = None, device: int = 0) -> None:
        super().__init__(problem)
        self._memory, self._device = memory, device

    def report(self) -> str:
        """Return what runs, and why, in plain words."""
        return f"{self.problem}\nnothing runs: there are no images"

    def run(self, *arrays: Any) -> AnyArray:
        with nullcontext() if self._memory is None else self._memory.use(self._device):
            return self._zeros(arrays[0])

    def _zeros(self, first: Any) -> AnyArray:
        if is_external(first.__class__) and self.problem.channels_last:
            return self._strided_zeros(first.dtype)
        zeros = (self._memory or array_module(first)).zeros(self.problem.result_shape, first.dtype)
        return in_layout(zeros, channels_last=True) if self.problem.channels_last else zeros

    def _strided_zeros(self, dtype: Any) -> AnyArray:
        """Zeros with channels last, of an allocator."""
        assert self._memory is not None
        memory = cast("MemoryWithGraphs", self._memory)
        shape = self.problem.result_shape
        nbytes = prod(shape) * dtype.itemsize
        zeros = memory.empty_strided(shape, dtype, self.problem.strides(shape), nbytes)
        memory.clear(zeros.data.ptr, nbytes, memory.current_stream())
        return zeros


class ReferenceConvPlan(ConvProblemPlan):
    """A problem on `dnnffi.reference.conv`."""

    def report(self) -> str:
        """Return what runs, and why, in plain words."""
        return f"{self.problem}\nthe NumPy reference; there is nothing to choose"

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


def check_conv(problem: ConvProblem, arrays: Sequence[AnyArray | None], result: AnyArray) -> None:
    """Raise `ValidationError` where the result of a convolution differs from the reference's."""
    plan, name = ReferenceConvPlan(problem), RESULTS[problem.operation]
    compare(problem, {name: result}, lambda *arrays: {name: plan.run(*arrays)}, arrays)


def check_bias_gradient(options: ConvOptions, dy: AnyArray, dbias: AnyArray) -> None:
    """Raise `ValidationError` where the gradient of a bias differs from the reference's."""
    # It is the same for every convolution whose y has the shape of dy, such as this one.
    w_shape = (dy.shape[1], 1, *(1,) * (dy.ndim - 2))
    spec = ConvSpec.from_weight_shape(w_shape, groups=dy.shape[1], dtype=dy.dtype.name)
    problem = ConvProblem.of(FORWARD, spec, dy.shape, options=options)
    compare(problem, {"dbias": dbias}, lambda dy: {"dbias": reference.backward_bias(dy)}, [dy])
