"""Candidates of dnnffi's own recurrent kernels for a problem: a few, measured by the tuner.

Forward kernels are called "1", "2" and so on, in the order of `_ways`. For training there are
pairs: "2.1" has the second forward kernel and the first backward kernel. A problem of a single step
without resets, of at most `one_step.MAX_ROWS` full rows, has one other candidate, "step".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import permutations, product
from typing import Any, NamedTuple

from dnnffi.backends.cublas import library as cublas
from dnnffi.backends.own.recurrent.config import Chip, KernelConfig, Kind, Layer
from dnnffi.backends.own.recurrent.dropout import Generator
from dnnffi.backends.own.recurrent.kernels import compile_kernel
from dnnffi.backends.own.recurrent.limits import LIMITS
from dnnffi.backends.own.recurrent.network import OwnNetwork, kernels_beside
from dnnffi.backends.own.recurrent.one_step import (
    Division,
    OneStepNetwork,
    divisions,
    is_one_step,
)
from dnnffi.backends.own.recurrent.one_step_training import (
    OneStepTrainingNetwork,
    training_kernels,
)
from dnnffi.backends.own.recurrent.search import (
    select_configs,
    select_layer_clusters,
    select_layers_at_once,
    select_whole_rows,
)
from dnnffi.backends.own.source import KernelSource
from dnnffi.backends.rnn_interface import AddressExecutor
from dnnffi.backends.vendor.limits import limit_of
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.errors import DnnffiError, UnsupportedError
from dnnffi.execution.cache import PlanCache
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.rnn_size_class import RNNSizeClass, size_class

OWN = "own"
"""The name of the source, and of the algorithm that users name."""

MAX_NETWORKS = 128
"""Compiled networks that are kept; kernels themselves are kept for the process."""

_VERSION = 31
"""Version of the kernels, of the configurations that their numbers name, and of how they are
measured: stored times of other versions are not used."""

_MIN_CAPABILITY = (8, 0)


class _Pair(NamedTuple):
    """A way to run a problem: a forward kernel and, for training, a backward kernel."""

    forward: KernelConfig
    backward: KernelConfig | None

    @property
    def layers_at_once(self) -> int:
        """The most layers that a launch of one of the kernels runs."""
        return max(one.kind.layers for one in self if one is not None)

    def kernels(self, problem: RNNProblem) -> Iterator[KernelConfig | KernelSource]:
        """Yield the kernels that the executor launches."""
        yield self.forward
        yield from kernels_beside(problem, self.forward)
        if self.backward is not None:
            yield self.backward

    def network(
        self, problem: RNNProblem, device: int, memory: MemoryWithGraphs, algorithm: str
    ) -> OwnNetwork:
        """Return the compiled network. Raises as `OwnNetwork`."""
        return OwnNetwork(problem, device, memory, cublas.load(), algorithm, *self)


class _OneStep(NamedTuple):
    """A way to run a problem of one step: the divisions of its layers."""

    divisions: tuple[Division, ...]

    def kernels(self, problem: RNNProblem) -> Iterator[KernelSource]:
        """Yield the kernels that the executor launches."""
        for one in self.divisions:
            yield one.kernel()
        if problem.training:
            yield from training_kernels(problem, self.divisions[0].kind)

    def network(
        self, problem: RNNProblem, device: int, memory: MemoryWithGraphs, algorithm: str
    ) -> OneStepNetwork:
        """Return the compiled network."""
        if not problem.training:
            return OneStepNetwork(problem, device, memory, algorithm, *self)
        return OneStepTrainingNetwork(problem, device, memory, cublas.load(), algorithm, *self)


class OwnCandidates:
    """The kernels, on arrays of every library on CUDA; a `CandidateSource`."""

    name = OWN
    costly: frozenset[str] = frozenset()  # all are compiled beforehand

    def __init__(self, memory: Any) -> None:
        self._memory: MemoryWithGraphs = memory
        self._ways: PlanCache[list[tuple[str, _Pair | _OneStep]]] = PlanCache(MAX_NETWORKS)
        self._networks: PlanCache[OwnNetwork | OneStepNetwork] = PlanCache(MAX_NETWORKS)

    @property
    def version(self) -> str:
        """Version of the kernels, with the properties of the device that decide about their names.

        Cards of one name differ in these.
        """
        return f"kernels {_VERSION} for {tuple(self.chip())}"

    def has(self, spec: RNNSpec) -> bool:
        return not self._refusal_reason(RNNProblem.dense(spec, steps=1, batch=1))

    def refusal(self, problem: RNNProblem) -> UnsupportedError | None:
        reason = self._refusal_reason(problem)
        return UnsupportedError("dnnffi", "", reason) if reason else None

    def may_offer(self, problem: RNNProblem) -> bool:
        is_wanted = problem.options.algorithm in ("auto", OWN)
        return is_wanted and not self._refusal_reason(problem)

    def offers(self, problem: RNNProblem) -> tuple[str, ...]:
        if not self.may_offer(problem):
            return ()
        return tuple(name for name, _ in self._named(problem))

    def prepare(self, problem: RNNProblem, device: int) -> Callable[[], object]:
        """Begin to compile the kernels of all candidates at once."""
        kernels: dict[KernelConfig | KernelSource, None] = {}
        for _, way in self._named(problem):
            kernels |= dict.fromkeys(way.kernels(problem))
        if not kernels:
            return lambda: None

        def compiled(kernel: KernelConfig | KernelSource) -> None:
            with self._memory.use(device):
                if isinstance(kernel, KernelConfig):
                    compile_kernel(kernel, self._memory)
                else:
                    self._memory.kernel(*kernel)

        pool = ThreadPoolExecutor(len(kernels))
        for kernel in kernels:
            pool.submit(compiled, kernel)  # making an executor raises the same error
        return pool.shutdown

    def skip_reason(self, algorithm: str, times: Mapping[str, float]) -> str:
        """Return why a pair need not be measured; an empty string if it has to be.

        A kernel that took longer than another one, both in pairs with the same third kernel, is
        not measured in other pairs: the times of both kernels of a pair add up.
        """
        if "." not in algorithm:
            return ""
        for number, phase in enumerate(("forward", "backward")):
            kernel, _ = _parts(algorithm, number)
            for name, other in permutations(times, 2):
                same = _parts(name, number) == (kernel, _parts(other, number)[1])
                if same and times[other] < times[name]:
                    return f"its {phase} kernel took longer than the one of {self.name} {other}"
        return ""

    def network(
        self, problem: RNNProblem, algorithm: str | None, launch: Launch
    ) -> OwnNetwork | OneStepNetwork:
        """Return a candidate that is ready for any sizes of the problem's network.

        It is compiled at the first call. None stands for the first candidate that fits.
        """
        if error := self.refusal(problem):
            raise error
        named, device = self._named(problem), launch.device
        ways = [way for name, way in named if algorithm is None or name == algorithm]
        refused = UnsupportedError(
            "dnnffi", "", f"our own kernels have no configuration for {problem} on this device"
        )
        for way in ways:
            options = problem.options
            of_lengths = problem.has_device_lengths
            key = problem.spec, options.math, options.clip, problem.drops, of_lengths, way, device
            make = partial(way.network, problem, device, self._memory, OWN)
            try:
                made = self._networks.get(key, make)
                made.check(problem)
                return made
            except UnsupportedError as error:  # for example, others use a part of the device
                refused = error
        raise refused

    def make(
        self, problem: RNNProblem, algorithm: str | None, launch: Launch, generator: Any = None
    ) -> AddressExecutor:
        network = self.network(problem, algorithm, launch)
        return network.bind(problem, launch, generator, is_exact=True)

    def generator(self, device: int, seed: int) -> Generator:
        with self._memory.use(device):
            reason = why_not_here(self._memory)
        if reason:
            raise UnsupportedError("dnnffi", "", reason)
        return Generator(self._memory, device, seed)

    def clear(self) -> None:
        self._networks.clear()
        self._ways.clear()

    def _refusal_reason(self, problem: RNNProblem) -> str:
        """Return why dnnffi's own kernels do not run a problem; an empty string if they do."""
        return limit_of(LIMITS, problem) or why_not_here(self._memory)

    def _named(self, problem: RNNProblem) -> list[tuple[str, _Pair | _OneStep]]:
        """Return the named `_pairs` of a problem's class of sizes that the problem can have.

        Names are the same with and without dropout. Nothing can be dropped between layers that
        run at once. A problem of one step has one candidate.
        """
        sizes, chip = size_class(problem), self.chip()
        key = problem.spec, problem.training, problem.drops, kind_of(problem), sizes, chip
        return self._ways.get(key, lambda: self._new_named(problem, sizes, chip))

    def _new_named(
        self, problem: RNNProblem, sizes: RNNSizeClass, chip: Chip
    ) -> list[tuple[str, _Pair | _OneStep]]:
        if is_one_step(sizes) and not problem.has_resets:
            where = sizes.max_rows, chip.multiprocessors
            return [("step", _OneStep(divisions(problem, kind_of(problem), *where)))]
        forwards: dict[KernelConfig, int] = {}
        backwards: dict[KernelConfig, int] = {}
        named: list[tuple[str, _Pair | _OneStep]] = []
        for pair in self._pairs(problem):
            forward, backward = pair
            name = str(forwards.setdefault(forward, len(forwards) + 1))
            if backward is not None:
                name += f".{backwards.setdefault(backward, len(backwards) + 1)}"
            if pair.layers_at_once == 1 or not problem.drops:
                named.append((name, pair))
        return named

    def _pairs(self, problem: RNNProblem) -> list[_Pair]:
        """Return configurations of the forward kernel and, for training, of the backward kernel.

        They are the same for all rates of dropout.
        """
        kind, chip, sizes = kind_of(problem), self.chip(), size_class(problem)
        forwards = _ways(problem.spec, kind, sizes, chip)
        if not problem.training:
            return [_Pair(one, None) for way in forwards for one in way]
        backwards = _ways(problem.spec, kind._replace(backward=True), sizes, chip)
        pairs: list[_Pair] = []
        for number, mine in enumerate(forwards):
            others = backwards[number]
            # Clusters fit less often in a backward pass: also pair with the first other kernel.
            if not others or (others[0].cluster and number + 1 < len(forwards)):
                others += tuple(way[0] for way in backwards[number + 1 :] if way)[:1]
            pairs += [_Pair(forward, backward) for backward, forward in product(others, mine)]
        return pairs

    def chip(self) -> Chip:
        """Return the properties of the current device that divisions depend on."""
        memory = self._memory
        device = memory.current_device()
        return Chip(
            memory.architecture(device).multiprocessors,
            memory.shared_bytes(device),
            memory.cluster_counts(device),
            memory.l2_bytes(device),
        )


def kind_of(problem: RNNProblem) -> Kind:
    """Return the kind of a forward pass with products of the problem's dtype, a layer at a time."""
    spec, options, row_kind = problem.spec, problem.options, size_class(problem).row_kind
    return Kind(
        *(spec.mode, spec.hidden_size, spec.dtype, problem.training),
        ragged=row_kind != "full",
        packed=row_kind == "packed",
        clip=0 if options.clip is None else 1 + (options.clip_nan == "clip"),
        strict=spec.dtype == "float32" and options.math == "strict",
        resets=problem.has_resets,
    )


def _parts(pair: str, number: int) -> tuple[str, str]:
    """Return the kernel with this number of a named pair, and the other one."""
    both = pair.split(".")
    return both[number], both[1 - number]


def _ways(
    spec: RNNSpec, kind: Kind, sizes: RNNSizeClass, chip: Chip
) -> list[tuple[KernelConfig, ...]]:
    """Return configurations with whole rows, all layers in a cluster, all layers, and one layer.

    If all layers run at once, or if few blocks have whole rows, a few of the others suffice.
    With resets each layer has a launch: what its rows send then is not what the next layer reads.
    """
    layer = Layer(sizes.max_rows, spec.num_directions, chip)
    rows, found = _whole_rows_and_others(kind, layer)
    if rows:
        found = found[:3]
    if spec.num_layers == 1 or spec.bidirectional or kind.resets:
        return [(*rows, *found)]
    together = select_layer_clusters(kind, layer, spec.num_layers)
    at_once = select_layers_at_once(kind, layer, spec.num_layers, sizes.max_steps)
    if together or at_once:
        found = found[:3]
    return [rows, together, at_once, found]


def _whole_rows_and_others(
    kind: Kind, layer: Layer
) -> tuple[tuple[KernelConfig, ...], tuple[KernelConfig, ...]]:
    """Return configurations with whole rows, and those with tensor cores, of a layer.

    With resets they are those without, as long as these fit: a step reads one flag more, and its
    estimate must not let another kernel run that is slower in all else.
    """
    if kind.resets:
        without = _whole_rows_and_others(kind._replace(resets=False), layer)
        rows, found = (
            tuple(one for one in map(_with_resets, way) if _has_room(one, layer)) for way in without
        )
        if rows or found:
            return rows, found
    return select_whole_rows(kind, layer), select_configs(kind, layer)


def _has_room(config: KernelConfig, layer: Layer) -> bool:
    """Whether a block has the shared memory, and all clusters run at once."""
    fits = config.shared_bytes <= layer.chip.shared_bytes
    return fits and (not config.cluster or config.runs_at_once(layer))


def _with_resets(config: KernelConfig) -> KernelConfig:
    return config._replace(kind=config.kind._replace(resets=True))


def why_not_here(memory: Any) -> str:
    """Return why dnnffi's own kernels cannot run on the current device, else an empty string."""
    if problem := memory.kernel_problem():
        return f"our own kernels {problem}"
    major, minor, _ = memory.architecture(memory.current_device())
    if (major, minor) < _MIN_CAPABILITY:
        oldest = ".".join(map(str, _MIN_CAPABILITY))
        return f"our own kernels need compute capability {oldest}; this device has {major}.{minor}"
    try:
        cublas.load()
    except DnnffiError as error:
        return f"our own kernels need cuBLASLt: {error}"
    return ""
