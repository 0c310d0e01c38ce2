"""The part of a backend that makes plans of recurrent networks, and the weights they accept."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dnnffi.backends.entry import Backend
from dnnffi.backends.registry import REFERENCE, kind_error
from dnnffi.backends.resources import Backends, Resources
from dnnffi.backends.rnn_interface import PackedNetwork
from dnnffi.device.arrays import as_array, conversion, to_host
from dnnffi.device.external import device_array
from dnnffi.device.interface import AnyArray, NDArray
from dnnffi.dropout import DropoutState
from dnnffi.errors import PerformanceWarning, UnsupportedError, caller_level
from dnnffi.execution.cache import OnceCell, PlanCache, WeakRegistry
from dnnffi.rnn.buffer_plan import BufferPlan
from dnnffi.rnn.call_settings import CallSettings
from dnnffi.rnn.candidates import CandidateSet
from dnnffi.rnn.empty import EmptyRNNPlan
from dnnffi.rnn.executor_plan import ExecutorPlan
from dnnffi.rnn.network import Network, PlanParts
from dnnffi.rnn.operations import Operations
from dnnffi.rnn.packed_plan import PackedPlan
from dnnffi.rnn.reference_plan import HostGenerator, ReferenceBufferPlan, ReferenceRNNPlan
from dnnffi.rnn.tuner import RNNTuner
from dnnffi.spec.checks import ITEM_SIZES, check_flag, check_integer
from dnnffi.spec.names import LayoutName, Mode
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import weight_layout
from dnnffi.weights import RNNWeights

MAX_PLANS = 512
"""Plans, and networks, kept by each backend. A plan may hold graphs and arrays for copies."""


class HeldMemory(NamedTuple):
    """Bytes of device memory that the plans of a backend hold between calls.

    ``workspaces`` of all streams; ``graphs`` as far as it could be seen; ``copies``, the arrays
    through which calls with new addresses use a graph.
    """

    workspaces: int = 0
    graphs: int = 0
    copies: int = 0


class RNNBackend:
    """The part of a backend that the functions call, on arrays on the host unless a class differs.

    ``ndarray`` is the class of arrays that its plans take as they are.
    """

    ndarray: Any = None

    def __init__(self, entry: Backend) -> None:
        self.name = entry.name
        self.layout: LayoutName = entry.layout
        self.plans: PlanCache[Any] = PlanCache(MAX_PLANS)
        self.generation = 0
        """Number of times that plans were forgotten: older networks are checked again."""
        self._asked: PlanCache[CallSettings] = PlanCache(MAX_PLANS)
        self._default_states: OnceCell[str, DropoutState] = OnceCell()

    def asked(self, *values: Any) -> CallSettings:
        """Return the one `CallSettings` of these values."""
        return self._asked.get(values, lambda: CallSettings(*values))

    def device_of(self, name: str, array: AnyArray) -> int:
        """Return the device of ``array``; ``TypeError`` if this backend cannot use it."""
        raise NotImplementedError

    def native(self, weights: RNNWeights | Sequence[AnyArray], spec: RNNSpec) -> Any:
        """Return ``weights`` in the form that the backend's plans take."""
        raise NotImplementedError

    def plan(self, problem: RNNProblem, device: int, generator: Any) -> Any:
        """Return a new plan for a problem with a step."""
        raise NotImplementedError

    def prepare(self, problem: RNNProblem, device: int, generator: Any) -> Any:
        """Return a new plan; where no row has a step no library is called."""
        if problem.has_steps:
            return self.plan(problem, device, generator)
        return self._empty_plan(problem, device)

    def buffer_plan(self, problem: RNNProblem, device: int, generator: Any) -> Any:
        """Return a new plan for a caller that keeps it with its buffers."""
        return ReferenceBufferPlan(self.prepare(problem, device, generator))

    def generator(
        self, state: DropoutState | None, device: int, spec: RNNSpec, algorithm: str
    ) -> Any:
        """Return the random numbers of ``state``, or of this device's own where it is None."""
        place = self._where(device, spec, algorithm)
        if state is None:
            state = self._default_states.get(place, lambda: DropoutState(secrets.randbits(63)))
        return state.generator(place, lambda seed: self._seeded(seed, device, spec, algorithm))

    def separate(self, packed: RNNWeights) -> list[AnyArray]:
        """Return the weights in ``packed``, a result, as separate arrays."""
        return packed.arrays()

    def placed(self, flags: AnyArray, device: int) -> AnyArray:
        """Return flags of one byte where the backend's plans read them."""
        return flags

    def device_lengths_refusal(self, problem: RNNProblem, device: int) -> UnsupportedError | None:
        """Return why a problem with lengths in device memory does not run; None if it does.

        Raises the error in a capture, in which lengths cannot be copied to the host.
        """
        return UnsupportedError(self.name, "", "takes no lengths in device memory")

    def check_device(self, device: int | None) -> int:
        """Return ``device``, or the current one if it is None."""
        if device not in (None, 0):
            raise ValueError(f"device: backend {self.name!r} has none but 0; got {device!r}")
        return 0

    def clear(self) -> None:
        """Forget plans and what was measured."""
        self.generation += 1
        self._asked.clear()
        self.plans.clear()

    def copied_bytes(self) -> int:
        """Device memory of the copies of all its plans."""
        return 0

    def _empty_plan(self, problem: RNNProblem, device: int) -> EmptyRNNPlan:
        return EmptyRNNPlan(problem)

    def _where(self, device: int, spec: RNNSpec, algorithm: str) -> str:
        """Return the place of a `DropoutState`, in words."""
        return f"{self.name} device {device}"

    def _seeded(self, seed: int, device: int, spec: RNNSpec, algorithm: str) -> Any:
        return HostGenerator(seed)


class ReferenceRNNBackend(RNNBackend):
    """The NumPy reference."""

    def device_of(self, name: str, array: AnyArray) -> int:
        return 0

    def native(self, weights: RNNWeights | Sequence[AnyArray], spec: RNNSpec) -> list[AnyArray]:
        return weights.arrays() if isinstance(weights, RNNWeights) else list(weights)

    def plan(self, problem: RNNProblem, device: int, generator: Any) -> ReferenceRNNPlan:
        return ReferenceRNNPlan(problem, generator)


class DeviceRNNBackend(RNNBackend):
    """A backend with a library, on one kind of arrays.

    Those of CuPy, or those of `dnnffi.device.external` within its `using`. The candidates are
    measured, and replayed as CUDA graphs, if the backend does so.
    """

    def __init__(self, entry: Backend, resources: Resources) -> None:
        super().__init__(entry)
        self.resources = resources
        self.library: Any = resources.library
        self.memory = memory = resources.memory
        self.ndarray = resources.ndarray
        self.device_of = resources.device_of  # type: ignore[method-assign]
        self.check_device = resources.check_device  # type: ignore[method-assign]
        assert entry.candidates is not None
        self.candidates = CandidateSet(*entry.candidates(resources.library))
        self.tuner: RNNTuner | None = None
        if entry.tunes:
            self.tuner = RNNTuner(self.candidates, memory, resources.launch)
        self.networks: PlanCache[Network] = PlanCache(MAX_PLANS)
        self._operations: WeakRegistry[Operations] = WeakRegistry()

    def clear(self) -> None:
        super().clear()
        for network in self.networks.values():
            network.forget()
        self.networks.clear()
        self.candidates.clear()
        self.resources.clear()
        if self.tuner is not None:
            self.tuner.clear()

    def native(self, weights: RNNWeights | Sequence[AnyArray], spec: RNNSpec) -> AnyArray:
        buffer = self._native(weights, spec)
        if self.resources.external:
            return device_array("weights", buffer, self.library.kind)
        return buffer

    def _native(self, weights: RNNWeights | Sequence[AnyArray], spec: RNNSpec) -> AnyArray:
        if isinstance(weights, RNNWeights):
            if weights.layout.name != self.layout:
                raise ValueError(
                    f"weights are in the layout of {weights.backend!r}; backend {self.name!r} "
                    f"needs its own: weights.to({self.name!r})"
                )
            return weights._buffer
        viewed = RNNWeights.view_of(weights, spec, backend=self.layout)
        if viewed is not None:
            return viewed._buffer
        _warn_of_packing()
        memory = self.memory
        with memory.use(weights[0].data.device_id):
            flat = memory.empty((weight_layout(spec, self.layout).size,), memory.dtype(spec.dtype))
            return RNNWeights.pack(weights, spec, backend=self.layout, out=flat)._buffer

    def plan(self, problem: RNNProblem, device: int, generator: Any) -> ExecutorPlan:
        return ExecutorPlan(problem, self._network(problem, device), generator)

    def _network(self, problem: RNNProblem, device: int) -> Network:
        """Return the network of a problem, which the plans of all of its sizes share."""
        options = problem.options._replace(tune="auto", validate=False)
        of_rows = problem.has_resets, problem.has_device_lengths
        key = problem.spec, problem.training, problem.drops, options, *of_rows, device
        found = self.networks.find(key)
        if found is None:
            parts = PlanParts(problem.spec, device, self.resources, self._operations)
            found = self.networks.get(key, lambda: Network(self.candidates, parts, self.tuner))
        return found

    def device_lengths_refusal(self, problem: RNNProblem, device: int) -> UnsupportedError | None:
        with self.memory.use(device):
            try:
                self.candidates.check(problem)
            except UnsupportedError as error:
                stream = self.memory.current_stream()
                if stream.ptr and self.memory.is_capturing(stream):
                    raise
                return error
        return None

    def placed(self, flags: AnyArray, device: int) -> AnyArray:
        if not isinstance(flags, np.ndarray):
            return flags
        with self.memory.use(device):
            return self.memory.constant(flags.view(np.uint8))

    def buffer_plan(self, problem: RNNProblem, device: int, generator: Any) -> Any:
        if not problem.has_steps:
            return super().buffer_plan(problem, device, generator)
        return BufferPlan(self.plan(problem, device, generator))

    def separate(self, packed: RNNWeights) -> list[AnyArray]:
        if not self.resources.external:
            return super().separate(packed)
        empty: Any = self.memory.empty
        arrays = [empty(p.shape, packed._buffer.dtype) for p in packed.spec.parameter_shapes()]
        packed.unpack(arrays)
        return [array.owner for array in arrays]

    def copied_bytes(self) -> int:
        return sum(operations.staged_bytes for operations in self._operations.snapshot())

    def _empty_plan(self, problem: RNNProblem, device: int) -> EmptyRNNPlan:
        return EmptyRNNPlan(problem, self.memory, device, self.layout)

    def _where(self, device: int, spec: RNNSpec, algorithm: str) -> str:
        with self.memory.use(device):
            source = self.candidates.drawer(spec, algorithm).name
        of_source = "" if source == self.name else f", algorithm {source!r}"
        with_allocator = " with an allocator" if self.resources.external else ""
        return f"{super()._where(device, spec, algorithm)}{of_source}{with_allocator}"

    def _seeded(self, seed: int, device: int, spec: RNNSpec, algorithm: str) -> Any:
        with self.memory.use(device):
            source = self.candidates.drawer(spec, algorithm)
        return source.generator(device, seed)


class PackedRNNBackend(RNNBackend):
    """A backend that keeps weights on a device of its own, and takes arrays on the host.

    The network of an `RNNWeights` stays with it, and is packed anew once its buffer was written to.
    """

    def __init__(self, entry: Backend) -> None:
        super().__init__(entry)
        self.entry = entry

    def device_of(self, name: str, array: AnyArray) -> int:
        if wrong := kind_error(self.entry, name, array):
            raise wrong
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"{name} must be an array on the host for backend {self.name!r}; "
                f"got {type(array).__name__}"
            )
        return 0

    def pack(
        self, weights: RNNWeights | Sequence[AnyArray], spec: RNNSpec, device: int | None = None
    ) -> PackedNetwork:
        """Return the network on a device, of arrays that were checked, wherever they are."""
        assert self.entry.pack is not None
        arrays = weights.arrays() if isinstance(weights, RNNWeights) else weights
        return self.entry.pack(spec, [to_host(array) for array in arrays], device)

    def native(self, weights: RNNWeights | Sequence[AnyArray], spec: RNNSpec) -> PackedNetwork:
        if not isinstance(weights, RNNWeights):
            _warn_of_packing()
            return self.pack(weights, spec)
        self.device_of("weights", weights._buffer)
        bits = weights._buffer.view(f"u{weights._buffer.itemsize}")
        kept = weights._packed.get(self.name)
        if kept is None or not np.array_equal(kept.bits, bits) or kept.network.device.lost:
            kept = _Packed(self.pack(weights, spec), bits.copy())
            weights._packed[self.name] = kept
        return kept.network

    def plan(self, problem: RNNProblem, device: int, generator: Any) -> PackedPlan:
        return PackedPlan(problem, self.entry)

    def buffer_plan(self, problem: RNNProblem, device: int, generator: Any) -> Any:
        raise UnsupportedError(
            self.entry.title,
            "",
            "it has no plans; dnnffi.pack_rnn keeps weights, buffers and state on the device",
        )


class _Packed(NamedTuple):
    """A network on a device, and the bits of the buffer of which it was packed."""

    network: PackedNetwork
    bits: NDArray


rnn_backends: Backends[RNNBackend, DeviceRNNBackend] = Backends(
    ReferenceRNNBackend(REFERENCE),
    DeviceRNNBackend,
    PackedRNNBackend,
)
"""The `RNNBackend` of each backend."""

_warned = False


def _warn_of_packing() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "weights given as separate arrays are packed in every call; pack them once with "
            "dnnffi.RNNWeights.pack, and pass the result",
            PerformanceWarning,
            stacklevel=caller_level(),
        )


@cache
def warn_of_dropout() -> None:
    """Warn in the first call that dropout does nothing in a network of one layer, as PyTorch."""
    warnings.warn(
        "dropout is between layers: with num_layers=1 nothing is dropped",
        UserWarning,
        stacklevel=caller_level(),
    )


def _taken_by(weights: object) -> str:
    """Return advice for weights that a call does not take, to end an error message."""
    if isinstance(weights, Mapping):
        return "; RNNWeights.from_torch takes one"
    if isinstance(weights, str | os.PathLike):
        return "; RNNWeights.load reads a file"
    if isinstance(weights, Iterator):
        return "; list makes a sequence of one"
    if hasattr(weights, "get_weights"):
        return "; RNNWeights.from_keras takes a layer of Keras"
    if hasattr(weights, "state_dict"):
        return "; RNNWeights.from_torch takes its state_dict()"
    if getattr(weights, "ndim", None) == 1:
        return "; to use a flat buffer, pass RNNWeights(flat, spec, backend='cudnn')"
    return ""


def listed_weights(weights: object) -> Sequence[Any]:
    """Return weights that are no `RNNWeights`; ``TypeError`` unless they are one sequence."""
    if not isinstance(weights, Sequence) or isinstance(weights, str):
        raise TypeError(
            f"weights must be a sequence of arrays or an RNNWeights; got "
            f"{type(weights).__name__}{_taken_by(weights)}"
        )
    if weights and isinstance(weights[0], list | tuple):
        raise TypeError(
            f"weights must be one list of arrays; got a {type(weights).__name__} of lists, as of "
            f"layers: join them as [*weights[0], *weights[1]]"
        )
    return weights


def weights_of(
    mode: Mode,
    weights: object,
    num_layers: int,
    bidirectional: bool,
) -> tuple[RNNSpec, RNNWeights | list[AnyArray]]:
    """Return the spec that ``weights`` imply, and the weights with every array made known.

    An `RNNWeights` brings its own spec: ``num_layers`` and ``bidirectional`` may be left at their
    defaults, and are refused where they say something else.
    """
    if isinstance(weights, RNNWeights):
        spec = weights.spec
        if spec.mode != mode:
            raise ValueError(
                f"weights are of mode {spec.mode!r}, but {mode} was called; call dnnffi.{spec.mode}"
            )
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
        return spec, weights._computable()
    arrays = [as_array(f"weights[{i}]", w) for i, w in enumerate(listed_weights(weights))]
    if not arrays:
        raise ValueError("weights: got no arrays")
    if arrays[0].dtype.name not in ITEM_SIZES:
        raise TypeError(
            f"weights[0] must have one of the dtypes {', '.join(ITEM_SIZES)}; got {arrays[0].dtype}"
            f"{conversion('weights[0]', arrays[0], 'float32')}"
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
                f"got {array.dtype}{conversion(f'weights[{index}]', array, arrays[0].dtype.name)}"
            )
    return spec, arrays
