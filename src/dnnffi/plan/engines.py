"""The backends by name: what arrays and weights each takes, and its plans."""

from __future__ import annotations

import secrets
import sys
import threading
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

from dnnffi.arrays import Array, as_array, kind
from dnnffi.backends.cudnn import dropout as cudnn_dropout
from dnnffi.backends.cudnn import library as cudnn_library
from dnnffi.backends.cudnn.candidates import CudnnKernels
from dnnffi.dropout import DropoutState
from dnnffi.errors import PerformanceWarning, UnsupportedError
from dnnffi.plan.cache import PlanCache
from dnnffi.plan.reference import HostGenerator, ReferencePlan
from dnnffi.plan.replay import GraphMemory
from dnnffi.plan.store import Store
from dnnffi.plan.tuning import Tuner
from dnnffi.plan.vendor import VendorPlan
from dnnffi.plan.workspace import Workspaces
from dnnffi.spec.checks import ITEM_SIZES, check_flag, check_integer
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import weight_layout
from dnnffi.weights import RNNWeights

PLAN_CAPACITY = 128
"""Plans kept by each backend. One holds a few descriptors and no device memory."""


class Engine:
    """What the functional API asks of a backend."""

    name: str
    ndarray: Any = None  # the class of arrays that its plans take as they are

    def __init__(self) -> None:
        self.plans: PlanCache[Any] = PlanCache(PLAN_CAPACITY)
        self._default_states: dict[int, DropoutState] = {}
        self._lock = threading.Lock()

    def place(self, name: str, array: Array) -> int:
        """The device that holds ``array``; ``TypeError`` where this backend cannot use it."""
        return 0

    def native(self, weights: RNNWeights | Sequence[Array], spec: RNNSpec) -> Any:
        """``weights`` in the form that the backend's plans take."""
        raise NotImplementedError

    def plan(self, problem: RNNProblem, device: int, generator: Any) -> Any:
        """A new plan."""
        raise NotImplementedError

    def generator(self, state: DropoutState | None, device: int) -> Any:
        """The random numbers of ``state``, or of this device's own where it is None."""
        if state is None:
            with self._lock:
                state = self._default_states.setdefault(device, DropoutState(secrets.randbits(63)))
        return state.generator(f"{self.name} device {device}", lambda s: self._seeded(s, device))

    def check_device(self, device: int | None) -> int:
        """``device``, or the current one where it is None."""
        if device not in (None, 0):
            raise ValueError(f"device: backend {self.name!r} has none but 0; got {device!r}")
        return 0

    def clear(self) -> None:
        """Forget plans and what was measured."""
        self.plans.clear()

    def _seeded(self, seed: int, device: int) -> Any:
        raise NotImplementedError


class ReferenceEngine(Engine):
    """The NumPy reference, on NumPy and CuPy arrays."""

    name = "reference"

    def native(self, weights: RNNWeights | Sequence[Array], spec: RNNSpec) -> list[Array]:
        return weights.arrays() if isinstance(weights, RNNWeights) else list(weights)

    def plan(self, problem: RNNProblem, device: int, generator: Any) -> ReferencePlan:
        return ReferencePlan(problem, generator)

    def _seeded(self, seed: int, device: int) -> HostGenerator:
        return HostGenerator(seed)


class CudnnEngine(Engine):
    """libcudnn, on CuPy arrays."""

    name = "cudnn"

    def __init__(self, library: cudnn_library.Library) -> None:
        super().__init__()
        self.library = library
        self.ndarray = library.memory.ndarray
        self.kernels = CudnnKernels(library)
        self.tuner = Tuner(self.kernels, library.memory, Store("rnn"))
        self.graphs = GraphMemory()
        self.workspaces = Workspaces(library.memory)

    def place(self, name: str, array: Array) -> int:
        if not isinstance(array, self.ndarray):
            raise TypeError(
                f"{name} must be a CuPy array (or share its memory with one) for backend 'cudnn'; "
                f"got {type(array).__name__}"
            )
        device: int = array.data.device_id
        return device

    def check_device(self, device: int | None) -> int:
        memory = self.library.memory
        if device is None:
            return memory.current_device()
        count = memory.device_count()
        if not 0 <= check_integer("device", device) < count:
            raise ValueError(f"device must be from 0 to {count - 1}; got {device}")
        return device

    def clear(self) -> None:
        super().clear()
        self.tuner.clear()
        self.workspaces.clear()

    def native(self, weights: RNNWeights | Sequence[Array], spec: RNNSpec) -> Array:
        if isinstance(weights, RNNWeights):
            if weights.layout.name != self.name:
                raise ValueError(
                    f"weights are in the layout of {weights.backend!r}; backend 'cudnn' needs its "
                    f"own: weights.to('cudnn')"
                )
            return weights.flat
        viewed = RNNWeights.view_of(weights, spec, backend=self.name)
        if viewed is not None:
            return viewed.flat
        _warn_of_packing()
        memory = self.library.memory
        with memory.use(weights[0].data.device_id):
            flat = memory.empty((weight_layout(spec, self.name).size,), memory.dtype(spec.dtype))
            return RNNWeights.pack(weights, spec, backend=self.name, out=flat).flat

    def plan(self, problem: RNNProblem, device: int, generator: Any) -> VendorPlan:
        return VendorPlan(
            problem,
            device,
            self.kernels,
            self.library.memory,
            generator=generator,
            tuner=self.tuner,
            graphs=self.graphs,
            workspaces=self.workspaces,
        )

    def _seeded(self, seed: int, device: int) -> cudnn_dropout.Generator:
        return cudnn_dropout.Generator(self.library, device, seed)


_BY_KIND = {"cuda": "cudnn", "rocm": "miopen", "host": "reference"}
BACKENDS = ("cudnn", "miopen", "reference")


def backend_name(backend: str | None, x: Array = None) -> str:
    """``backend``, or where it is None the one that the array asks for."""
    if backend is None:
        return _BY_KIND[kind(x)]
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)} or None; got {backend!r}")
    return backend


def engine(backend: str | None, x: Array) -> Engine:
    """The engine of a call: the one named, or the one that the array asks for.

    CuPy on CUDA goes to cuDNN, NumPy to the reference.
    """
    return engine_named(backend_name(backend, x))


def engine_named(name: str) -> Engine:
    """The engine called "cudnn", "miopen" or "reference"."""
    if name == "cudnn":
        return _cudnn(cudnn_library.load())
    if name == "reference":
        return _reference()
    if name == "miopen":
        raise UnsupportedError("MIOpen", "", "this version of dnnffi has no MIOpen backend yet")
    raise AssertionError(name)


def all_engines() -> tuple[Engine, ...]:
    """The engines that were used in this process."""
    cudnn = cudnn_library.loaded()
    used = [] if cudnn is None or cudnn.engine is None else [cudnn.engine]
    return (_reference(), *used)


@cache
def _reference() -> ReferenceEngine:
    return ReferenceEngine()


def _cudnn(library: cudnn_library.Library) -> CudnnEngine:
    if library.engine is None:
        library.engine = CudnnEngine(library)
    return library.engine  # type: ignore[no-any-return]


_warned = False


def _warn_of_packing() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "weights given as separate arrays are packed on every call; "
            "dnnffi.RNNWeights.pack once and pass that to save it (said once)",
            PerformanceWarning,
            stacklevel=_caller_level(),
        )


def _caller_level() -> int:
    """``stacklevel`` of the first frame outside dnnffi, seen from the function that asks."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] == "dnnffi":
        level, frame = level + 1, frame.f_back
    return level


def weights_of(
    mode: str,
    weights: object,
    num_layers: int,
    bidirectional: bool,
) -> tuple[RNNSpec, RNNWeights | list[Array]]:
    """The spec that ``weights`` imply, and the weights with every array made known.

    An `RNNWeights` brings its own spec: ``num_layers`` and ``bidirectional`` may be left at their
    defaults, and are refused where they say something else.
    """
    if isinstance(weights, RNNWeights):
        spec = weights.spec
        if spec.mode != mode:
            raise ValueError(f"weights are those of {spec.mode!r}; this is {mode!r}")
        if num_layers != 1 and check_integer("num_layers", num_layers) != spec.num_layers:
            raise ValueError(f"num_layers is {num_layers}; the weights have {spec.num_layers}")
        if (
            bidirectional is not False
            and check_flag("bidirectional", bidirectional)
            and not spec.bidirectional
        ):
            raise ValueError("bidirectional is True; the weights are for one direction")
        return spec, weights
    if not isinstance(weights, Sequence):
        raise TypeError(
            f"weights must be a sequence of arrays or an RNNWeights; got {type(weights).__name__}"
        )
    arrays = [as_array(f"weights[{index}]", array) for index, array in enumerate(weights)]
    if not arrays:
        raise ValueError("weights: got no arrays")
    if arrays[0].dtype.name not in ITEM_SIZES:
        raise TypeError(
            f"weights[0] must have one of the dtypes {', '.join(ITEM_SIZES)}; got {arrays[0].dtype}"
        )
    spec = RNNSpec.from_weight_shapes(
        mode,
        [tuple(array.shape) for array in arrays],
        num_layers=num_layers,
        bidirectional=bidirectional,
        dtype=arrays[0].dtype.name,
    )
    for index, array in enumerate(arrays):
        if array.dtype != arrays[0].dtype:
            raise TypeError(
                f"weights[{index}] must have the dtype of weights[0], {arrays[0].dtype}; "
                f"got {array.dtype}"
            )
    return spec, arrays
