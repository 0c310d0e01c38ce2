"""The part of a backend that makes plans of convolutions, chosen by name or by an array."""

from __future__ import annotations

from typing import Any, cast

from dnnffi.backends.conv_interface import ConvProblemPlan, SearchedSource, TunableSource
from dnnffi.backends.entry import Backend
from dnnffi.backends.resources import Backends, Resources
from dnnffi.backends.vendor.limits import check_limits, limit_of
from dnnffi.convolution.executor_plan import ExecutorConvPlan
from dnnffi.convolution.finder import SearchFinder, TunedFinder
from dnnffi.convolution.reference_plan import EmptyConvPlan, ReferenceConvPlan
from dnnffi.convolution.tuner import ConvTuner
from dnnffi.device.arrays import device_of
from dnnffi.device.interface import Array, Memory
from dnnffi.errors import UnsupportedError
from dnnffi.execution.cache import PlanCache
from dnnffi.reference import conv as reference
from dnnffi.spec.conv_problem import ConvProblem

MAX_PLANS = 1024
"""Plans kept by each backend, if each is also known by the signature of a call.

A network has some for each layer, and making one is slow.
"""


class ConvBackend:
    """The part of a backend that `dnnffi.conv` calls."""

    takes_strided = True
    """Whether arrays of a call with an allocator may have strides; else they are contiguous."""

    def __init__(self, memory: Memory | None = None) -> None:
        # By problem, and by the signature of a call that has run: two entries each.
        self.plans: PlanCache[ConvProblemPlan] = PlanCache(2 * MAX_PLANS)
        self._memory = memory

    def check_device(self, device: int | None) -> Any:
        """Return ``device``, or the current one if it is None; "host" if arrays are on the host."""
        raise NotImplementedError

    def device_of(self, name: str, array: Array) -> Any:
        """Return the device that holds ``array``; ``TypeError`` if this backend cannot use it."""
        raise NotImplementedError

    def plan(self, problem: ConvProblem, device: Any) -> ConvProblemPlan:
        """Return a new plan for a problem with a batch."""
        raise NotImplementedError

    def prepare(self, problem: ConvProblem, device: Any) -> ConvProblemPlan:
        """Return a new plan; for an empty batch no library is called."""
        if problem.batch:
            return self.plan(problem, device)
        return EmptyConvPlan(problem, self._memory, device)

    def backward_bias(self, dy: Any) -> Any:
        """Return the gradient of the bias [K]. dy is contiguous unless `takes_strided`."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget plans and what was measured."""
        self.plans.clear()


class ReferenceConvBackend(ConvBackend):
    """The NumPy reference, on arrays on the host."""

    def check_device(self, device: int | None) -> str:
        if device not in (None, 0):
            raise ValueError(f"device: backend 'reference' has none but 0; got {device!r}")
        return "host"

    def device_of(self, name: str, array: Array) -> Any:
        return device_of(array)

    def plan(self, problem: ConvProblem, device: Any) -> ReferenceConvPlan:
        return ReferenceConvPlan(problem)

    def backward_bias(self, dy: Any) -> Any:
        return reference.backward_bias(dy)


class NoConvBackend(ConvBackend):
    """A backend without convolutions: it says who has them."""

    def __init__(self, entry: Backend) -> None:
        super().__init__()
        self._entry = entry

    def prepare(self, problem: ConvProblem, device: Any) -> ConvProblemPlan:
        limit = limit_of(self._entry.conv_limits, problem)
        raise UnsupportedError(self._entry.title, "", limit)

    def check_device(self, device: int | None) -> str:
        return "host"

    def device_of(self, name: str, array: Array) -> Any:
        return device_of(array)


class DeviceConvBackend(ConvBackend):
    """A backend with a library, on one kind of arrays."""

    def __init__(self, entry: Backend, resources: Resources) -> None:
        super().__init__(resources.memory)
        assert entry.convolutions is not None
        self._entry = entry
        self.resources = resources
        self.library: Any = resources.library
        self.ndarray = resources.ndarray
        self.device_of = resources.device_of  # type: ignore[method-assign]
        self.check_device = resources.check_device  # type: ignore[method-assign]
        self.source = source = entry.convolutions(resources)
        self.takes_strided = source.takes_strided
        self.tuner = ConvTuner(source) if isinstance(source, TunableSource) else None
        """Measures the executors; None where the library does."""

    def plan(self, problem: ConvProblem, device: int) -> ConvProblemPlan:
        check_limits(self._entry.conv_limits, problem, self.library)
        if self.tuner is not None:
            return ExecutorConvPlan(TunedFinder(problem, device, self.tuner), captures=True)
        searched = cast("SearchedSource", self.source)
        return ExecutorConvPlan(SearchFinder(problem, device, searched), captures=False)

    def backward_bias(self, dy: Array) -> Array:
        return self.source.backward_bias(dy, self.device_of("dy", dy))

    def clear(self) -> None:
        super().clear()
        self.source.clear()
        if self.tuner is not None:
            self.tuner.clear()
        self.resources.clear()


on_host = ReferenceConvBackend()
"""The reference, whose arrays are NumPy's."""

conv_backends: Backends[ConvBackend, DeviceConvBackend] = Backends(
    on_host,
    DeviceConvBackend,
    NoConvBackend,
)
"""The convolutions of each backend."""

on_cupy: DeviceConvBackend | None = None
"""The last used backend on CuPy's arrays; its plans are also found by `signature.sign`."""


def backend_for(name: object, x: Array) -> ConvBackend:
    """Return the backend of a call, which is `on_cupy` from now on if it takes CuPy's arrays."""
    global on_cupy
    found = conv_backends.for_call(name, x)
    # Set here and not when it is made: of two made at the same time, only one is kept.
    if isinstance(found, DeviceConvBackend) and found.ndarray is found.resources.memory.ndarray:
        on_cupy = found
    return found
