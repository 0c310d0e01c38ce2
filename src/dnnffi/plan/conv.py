"""The backends of convolutions by name, and the reference's and the empty plans."""

from __future__ import annotations

from functools import cache
from typing import Any

from dnnffi.arrays import Array, array_module, in_layout, place
from dnnffi.errors import UnsupportedError
from dnnffi.plan.cache import PlanCache
from dnnffi.plan.engines import PLAN_CAPACITY, backend_name, engine, engine_without_cupy
from dnnffi.reference import conv as reference
from dnnffi.spec.conv_problem import BACKWARD_DATA, CHANNELS_LAST, FORWARD, ConvProblem


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


class ConvEngine:
    """What `dnnffi.conv` asks of a backend."""

    name: str

    def __init__(self) -> None:
        self.plans: PlanCache[ConvPlan] = PlanCache(PLAN_CAPACITY)

    def place(self, name: str, array: Array) -> Any:
        """The device that holds ``array``; ``TypeError`` where this backend cannot use it."""
        raise NotImplementedError

    def plan(self, problem: ConvProblem, device: Any) -> ConvPlan:
        """A new plan for a problem with a batch."""
        raise NotImplementedError

    def prepare(self, problem: ConvProblem, device: Any) -> ConvPlan:
        """A new plan; no library is asked where there is no batch."""
        return self.plan(problem, device) if problem.batch else EmptyPlan(problem)


class ReferenceConvEngine(ConvEngine):
    """The NumPy reference, on NumPy and CuPy arrays."""

    name = "reference"

    def place(self, name: str, array: Array) -> str:
        return place(array)

    def plan(self, problem: ConvProblem, device: Any) -> ReferencePlan:
        return ReferencePlan(problem)


def conv_engine(backend: Any, x: Array) -> ConvEngine:
    """The engine of a call: the one named, or the one that the array asks for."""
    if isinstance(backend, ConvEngine):
        return backend
    name = backend_name(backend, x)
    if name == "reference":
        return _reference()
    if name == "miopen":
        return _miopen(engine(name, x))
    raise _no_cudnn()


def conv_engine_without_cupy(backend: str | None, x: Array) -> Any:
    """The engine of a call with an allocator, whose x is a `dnnffi.foreign.DeviceArray`.

    It has a ``library``.
    """
    networks = engine_without_cupy(backend, x)
    if networks.name == "miopen":
        return _miopen(networks)
    raise _no_cudnn()


def _miopen(networks: Any) -> ConvEngine:
    # Not for those who do without it, and it takes its base from here.
    from dnnffi.plan.conv_miopen import miopen_conv_engine

    return miopen_conv_engine(networks)


def _no_cudnn() -> UnsupportedError:
    return UnsupportedError(
        "cuDNN",
        "",
        "this version of dnnffi has no convolution on it yet; backend='reference' takes NumPy and "
        "CuPy arrays",
    )


@cache
def _reference() -> ReferenceConvEngine:
    return ReferenceConvEngine()
