"""The backends of convolutions by name.

cuDNN's plans are in `dnnffi.convolution.cudnn`, which is imported when there is a first.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from dnnffi.backends.cudnn import library as cudnn_library
from dnnffi.backends.cudnn.conv_limits import ALLOCATOR
from dnnffi.backends.miopen import library as miopen_library
from dnnffi.backends.vendor.limits import limit_of
from dnnffi.convolution.known_calls import KnownCalls
from dnnffi.convolution.plans import ConvPlan, EmptyPlan, ReferencePlan
from dnnffi.device.arrays import place
from dnnffi.device.interface import Array, MemoryWithGraphs
from dnnffi.errors import UnsupportedError
from dnnffi.execution.cache import PlanCache
from dnnffi.execution.store import Store
from dnnffi.rnn.engines import (
    backend_name,
    engine,
    engine_named,
    engine_without_cupy,
)
from dnnffi.spec.conv_problem import ConvProblem

MOST_CONV_PLANS = 1024
"""Plans kept by each backend. A network has some for each layer, and making one is slow."""


class ConvEngine:
    """What `dnnffi.conv` asks of a backend."""

    name: str

    def __init__(self) -> None:
        self.plans: PlanCache[ConvPlan] = PlanCache(MOST_CONV_PLANS)

    def check_device(self, device: int | None) -> Any:
        """The place that device ``device`` is, or the current one where it is None."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget plans and what was measured."""
        self.plans.clear()

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

    def check_device(self, device: int | None) -> str:
        if device not in (None, 0):
            raise ValueError(f"device: backend 'reference' has none but 0; got {device!r}")
        return "host"

    def plan(self, problem: ConvProblem, device: Any) -> ReferencePlan:
        return ReferencePlan(problem)


class CudnnConvEngine(ConvEngine):
    """libcudnn, on CuPy arrays."""

    name = "cudnn"

    def __init__(self, library: cudnn_library.Library) -> None:
        super().__init__()
        from dnnffi.convolution.tuning import ConvTuner

        # What the networks have is shared: which arrays are taken, the workspaces, and the
        # memory that graphs may hold.
        self._networks: Any = engine_named("cudnn")
        self.library = library
        self.place = self._networks.place  # type: ignore[method-assign]
        # CuPy's, which has graphs.
        self._memory = cast("MemoryWithGraphs", library.memory)
        self.tuner = ConvTuner(library, self._memory, Store("conv"))
        self.calls = KnownCalls(self._networks.ndarray)

    def check_device(self, device: int | None) -> int:
        found: int = self._networks.check_device(device)
        return found

    def plan(self, problem: ConvProblem, device: int) -> ConvPlan:
        from dnnffi.convolution.cudnn import CudnnConvPlan

        networks = self._networks
        return CudnnConvPlan(
            problem,
            device,
            self.library,
            self._memory,
            self.tuner,
            networks.workspaces,
            networks.graphs,
        )

    def clear(self) -> None:
        super().clear()
        self.calls.clear()
        self.tuner.clear()


def conv_engine(backend: Any, x: Array) -> ConvEngine:
    """The engine of a call: the one named, or the one that the array asks for."""
    if isinstance(backend, ConvEngine):
        return backend
    name = backend_name(backend, x)
    if name == "miopen":
        return _miopen(engine(name, x))
    return conv_engine_named(name)


def conv_engine_named(name: str) -> ConvEngine:
    """The engine called "cudnn", "miopen" or "reference"."""
    if name == "cudnn":
        return _cudnn(cudnn_library.load())
    if name == "miopen":
        return _miopen(engine_named(name))
    return _reference()


def conv_engine_without_cupy(backend: str | None, x: Array) -> Any:
    """The engine of a call with an allocator, whose x is a `dnnffi.foreign.DeviceArray`.

    It has a ``library``.
    """
    networks = engine_without_cupy(backend, x)
    if networks.name == "miopen":
        return _miopen(networks)
    raise UnsupportedError("cuDNN", "", limit_of(ALLOCATOR, x))


def _miopen(networks: Any) -> ConvEngine:
    # Not for those who do without it, and it takes its base from here.
    from dnnffi.convolution.miopen import miopen_conv_engine

    return miopen_conv_engine(networks)


def all_conv_engines() -> tuple[ConvEngine, ...]:
    """The engines that were used in this process."""
    libraries = (cudnn_library.loaded(), miopen_library.loaded())
    variants = [one for library in libraries if library is not None for one in library.variants()]
    used = (getattr(one, "conv_engine", None) for one in variants)
    return (_reference(), *(engine for engine in used if engine is not None))


def _cudnn(library: cudnn_library.Library) -> CudnnConvEngine:
    if library.conv_engine is None:
        library.conv_engine = CudnnConvEngine(library)
    return library.conv_engine  # type: ignore[no-any-return]


def known_calls() -> KnownCalls | None:
    """The calls that cuDNN's engine knows again, once there is one."""
    library = cudnn_library.loaded()
    if library is None or library.conv_engine is None:
        return None
    return library.conv_engine.calls  # type: ignore[no-any-return]


@cache
def _reference() -> ReferenceConvEngine:
    return ReferenceConvEngine()
