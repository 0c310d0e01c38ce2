"""The backends by name: what arrays and weights each takes, and its plans."""

from __future__ import annotations

import secrets
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakSet

from dnnffi.backends.cudnn import dropout as cudnn_dropout
from dnnffi.backends.cudnn import library as cudnn_library
from dnnffi.backends.cudnn.candidates import CudnnKernels
from dnnffi.backends.miopen import dropout as miopen_dropout
from dnnffi.backends.miopen import library as miopen_library
from dnnffi.backends.miopen.rnn_executor import RNNExecutor as MiopenExecutor
from dnnffi.backends.vendor.candidates import OneCandidate
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.device.arrays import as_array, kind
from dnnffi.device.cupy import import_cupy
from dnnffi.device.external import device_array
from dnnffi.device.interface import Array
from dnnffi.dropout import DropoutState
from dnnffi.errors import PerformanceWarning
from dnnffi.execution.cache import PlanCache
from dnnffi.execution.replay import GraphMemory
from dnnffi.execution.store import Store
from dnnffi.execution.workspaces import Workspaces
from dnnffi.rnn.candidates import Kernels
from dnnffi.rnn.reference import HostGenerator, ReferencePlan
from dnnffi.rnn.tuning import Tuner
from dnnffi.rnn.vendor_plan import VendorPlan
from dnnffi.spec.checks import ITEM_SIZES, check_flag, check_integer
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import weight_layout
from dnnffi.weights import RNNWeights

MOST_PLANS = 128
"""Plans kept by each backend. One holds a few descriptors and no device memory."""


class HeldMemory(NamedTuple):
    """Bytes of device memory that the plans of a backend hold between calls.

    ``workspaces`` of all streams; ``graphs`` as far as it could be seen; ``copies``, the arrays
    through which calls with new addresses use a graph.
    """

    workspaces: int = 0
    graphs: int = 0
    copies: int = 0


class Engine:
    """What the functional API asks of a backend."""

    name: str
    ndarray: Any = None  # the class of arrays that its plans take as they are

    def __init__(self) -> None:
        self.plans: PlanCache[Any] = PlanCache(MOST_PLANS)
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
        return state.generator(self._place_of(device), lambda s: self._seeded(s, device))

    def separate(self, packed: RNNWeights) -> list[Array]:
        """The weights in ``packed``, a result, as separate arrays."""
        return packed.arrays()

    def check_device(self, device: int | None) -> int:
        """``device``, or the current one where it is None."""
        if device not in (None, 0):
            raise ValueError(f"device: backend {self.name!r} has none but 0; got {device!r}")
        return 0

    def clear(self) -> None:
        """Forget plans and what was measured."""
        self.plans.clear()

    def held_memory(self) -> HeldMemory:
        """What all its plans hold."""
        return HeldMemory()

    def _place_of(self, device: int) -> str:
        """Where a `DropoutState` stays."""
        return f"{self.name} device {device}"

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


class _Nothing:
    """The class of arrays of a backend that can take none of this process' arrays."""


class VendorEngine(Engine):
    """A vendor's library, on arrays of CuPy or, without CuPy, of `dnnffi.foreign`."""

    random: Any
    tuner: Tuner | None = None

    def __init__(self, library: VendorLibrary) -> None:
        super().__init__()
        self.library = library
        memory = library.memory
        # One process has CuPy for one of them.
        self.ndarray = memory.ndarray if memory.kind == library.kind else _Nothing
        self.kernels = self._kernels()
        self.graphs = GraphMemory()
        self.workspaces = Workspaces(memory)
        self._alive: WeakSet[VendorPlan] = WeakSet()

    def _kernels(self) -> Kernels:
        raise NotImplementedError

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
        for plan in list(self._alive):
            plan.forgotten = True
        self.workspaces.clear()
        if self.tuner is not None:
            self.tuner.clear()

    def place(self, name: str, array: Array) -> int:
        if not isinstance(array, self.ndarray):
            raise check_kind(self.name, name, array) or TypeError(
                f"{name} must be a CuPy array (or share its memory with one) for backend "
                f"{self.name!r}; got {type(array).__name__}"
            )
        device: int = array.data.device_id
        return device

    def native(self, weights: RNNWeights | Sequence[Array], spec: RNNSpec) -> Array:
        if isinstance(weights, RNNWeights):
            if weights.layout.name != self.name:
                raise ValueError(
                    f"weights are in the layout of {weights.backend!r}; backend {self.name!r} "
                    f"needs its own: weights.to({self.name!r})"
                )
            return weights.buffer
        viewed = RNNWeights.view_of(weights, spec, backend=self.name)
        if viewed is not None:
            return viewed.buffer
        _warn_of_packing()
        memory = self.library.memory
        with memory.use(weights[0].data.device_id):
            flat = memory.empty((weight_layout(spec, self.name).size,), memory.dtype(spec.dtype))
            return RNNWeights.pack(weights, spec, backend=self.name, out=flat).buffer

    def plan(self, problem: RNNProblem, device: int, generator: Any) -> VendorPlan:
        made = VendorPlan(
            problem,
            device,
            self.kernels,
            self.library.memory,
            generator=generator,
            tuner=self.tuner,
            graphs=self.graphs,
            workspaces=self.workspaces,
        )
        self._alive.add(made)
        return made

    def held_memory(self) -> HeldMemory:
        copies = sum(plan.staged_bytes for plan in list(self._alive))
        return HeldMemory(self.workspaces.nbytes, self.graphs.nbytes, copies)

    def _seeded(self, seed: int, device: int) -> Any:
        return self.random(self.library, device, seed)


class _WithoutCupy(VendorEngine):
    """A vendor's library on arrays of `dnnffi.foreign`, within `dnnffi.foreign.using`."""

    def place(self, name: str, array: Array) -> int:
        if wrong := check_kind(self.name, name, array):
            raise wrong
        return super().place(name, array)

    def native(self, weights: RNNWeights | Sequence[Array], spec: RNNSpec) -> Array:
        buffer = super().native(weights, spec)
        return device_array("weights", buffer, self.library.kind)

    def separate(self, packed: RNNWeights) -> list[Array]:
        memory, dtype = self.library.memory, packed.buffer.dtype
        arrays = [memory.empty(p.shape, dtype) for p in packed.spec.parameter_shapes()]
        packed.unpack(arrays)
        return [array.owner for array in arrays]

    def _place_of(self, device: int) -> str:
        return f"{super()._place_of(device)} with an allocator"


class _Cudnn(VendorEngine):
    name = "cudnn"
    random = cudnn_dropout.Generator

    def _kernels(self) -> Kernels:
        return CudnnKernels(self.library)


class CudnnEngine(_Cudnn):
    """libcudnn on CuPy arrays: its algorithms are measured, and replayed as CUDA graphs."""

    def __init__(self, library: VendorLibrary) -> None:
        super().__init__(library)
        memory: Any = library.memory  # CuPy's, which has graphs
        self.tuner = Tuner(self.kernels, memory, Store("rnn"))


class MiopenEngine(VendorEngine):
    """libMIOpen."""

    name = "miopen"
    random = miopen_dropout.Generator

    def _kernels(self) -> Kernels:
        return OneCandidate(MiopenExecutor, self.library)


class _CudnnWithoutCupy(_WithoutCupy, _Cudnn):
    pass


class _MiopenWithoutCupy(_WithoutCupy, MiopenEngine):
    pass


_WITHOUT_CUPY: dict[str, tuple[Callable[[], VendorLibrary], type[VendorEngine]]] = {
    "cudnn": (cudnn_library.load, _CudnnWithoutCupy),
    "miopen": (miopen_library.load, _MiopenWithoutCupy),
}
_BY_KIND = {"cuda": "cudnn", "rocm": "miopen", "host": "reference", None: None}
_KINDS = {"cudnn": ("cuda", "CUDA"), "miopen": ("rocm", "ROCm")}
_PLATFORMS = dict(_KINDS.values())
BACKENDS = ("cudnn", "miopen", "reference")


def check_kind(backend: Any, name: str, array: Array) -> TypeError | None:
    """The error for an array of the other platform, or None."""
    found = kind(array)
    own, platform = _KINDS[backend]
    if found not in _PLATFORMS or found == own:
        return None
    return TypeError(
        f"{name} must be an array on {platform} for backend {backend!r}; this "
        f"{type(array).__name__} is on {_PLATFORMS[found]}, which is for backend "
        f"{_BY_KIND[found]!r}"
    )


def backend_name(backend: Any, x: Array = None) -> str:
    """``backend``, or where it is None the one that the array asks for."""
    name = _BY_KIND[kind(x)] if backend is None else backend
    if name is None:  # as_array made no CuPy array of it
        import_cupy()
    if name not in BACKENDS:
        raise _unknown(backend)
    return str(name)


def engine(backend: Any, x: Array) -> Engine:
    """The engine of a call: the one named, or the one that the array asks for.

    CuPy on CUDA goes to cuDNN, CuPy on ROCm to MIOpen, NumPy to the reference.
    """
    if isinstance(backend, Engine):
        return backend
    name = backend_name(backend, x)
    try:
        return engine_named(name)
    except ImportError as error:
        # No library, or no CuPy: an array of the other platform is the better reason.
        raise check_kind(name, "x", x) or error from None


def engine_named(name: str) -> Engine:
    """The engine called "cudnn", "miopen" or "reference"."""
    if name == "cudnn":
        library: VendorLibrary = cudnn_library.load()
        return library.engine or _made(CudnnEngine, library)
    if name == "miopen":
        library = miopen_library.load()
        return library.engine or _made(MiopenEngine, library)
    return _reference()


def all_engines() -> tuple[Engine, ...]:
    """The engines that were used in this process."""
    used: list[Engine] = [_reference()]
    for library in (cudnn_library.loaded(), miopen_library.loaded()):
        if library is not None:
            used += [one.engine for one in library.variants() if one.engine is not None]
    return tuple(used)


def engine_without_cupy(backend: str | None, x: Array) -> VendorEngine:
    """The engine of a call with an allocator, whose x is a `dnnffi.foreign.DeviceArray`."""
    name = _BY_KIND[kind(x)] if backend is None else backend
    if name is None:
        raise TypeError(
            "backend must be named: x does not tell whose memory it is in, as DLPack does"
        )
    if name not in _WITHOUT_CUPY:
        if name in BACKENDS:
            raise ValueError(
                f"options['allocator'] is for results on a device; backend {name!r} has none"
            )
        raise _unknown(backend)
    if wrong := check_kind(name, "x", x):
        raise wrong
    load, kind_of_engine = _WITHOUT_CUPY[name]
    library: VendorLibrary = load().without_cupy()
    return library.engine or _made(kind_of_engine, library)


def _unknown(backend: object) -> ValueError:
    return ValueError(f"backend must be one of {', '.join(BACKENDS)} or None; got {backend!r}")


@cache
def _reference() -> ReferenceEngine:
    return ReferenceEngine()


def _made(kind_of_engine: type[VendorEngine], library: VendorLibrary) -> VendorEngine:
    made = library.engine = kind_of_engine(library)
    return made


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
        if num_layers.__class__ is not int:  # True and 1.0 equal 1
            num_layers = check_integer("num_layers", num_layers)
        if num_layers not in (1, spec.num_layers):
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
