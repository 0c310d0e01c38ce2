"""Interfaces of convolutions: executors on addresses, plans on arrays, sources of executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from reprlib import repr as brief
from typing import Any, NamedTuple, Protocol, Self

from dnnffi.device.interface import ALIGNMENT, AnyArray, Array, Launch, MemoryWithGraphs, Stream
from dnnffi.execution.cache import PlanCache
from dnnffi.execution.replay import GraphBudget
from dnnffi.execution.workspaces import Workspaces
from dnnffi.spec.checks import INT64_MAX
from dnnffi.spec.conv_problem import ConvProblem

MISALIGNED = ALIGNMENT - 1
"""The bits that are 0 in an address that is a multiple of `ALIGNMENT`."""


class ConvAddresses(NamedTuple):
    """The arrays of a convolution in device memory; 0 for one that is not there.

    ``first`` to ``residual`` are those of `ConvProblem.argument_shapes`: ``first`` and ``second``
    are x and w of a forward pass, dy and w of backward data, dy and x of backward weights. All are
    without gaps and in the layout of the problem.
    """

    first: int
    second: int
    bias: int
    residual: int
    result: int
    workspace: int = 0


def addresses_of(arrays: Iterable[Array | None]) -> tuple[int, int, int, int]:
    """Addresses of the arguments of an operation: the first four of its `ConvAddresses`."""
    found = [0 if array is None else array.data.ptr for array in arrays]
    first, second, bias, residual = (*found, 0, 0)[:4]
    return first, second, bias, residual


OWN = -1
"""The engine of an `EngineChoice` that is a kernel of dnnffi's."""


class EngineChoice(NamedTuple):
    """The engine and settings by which an executor can be made again.

    ``fused`` says whether bias, residual and activation are in the kernel of the convolution, where
    the problem has any.
    """

    fused: bool
    engine: int
    knobs: tuple[tuple[str | int, int], ...]

    @classmethod
    def read(cls, value: Any) -> Self:
        """Return the choice that was stored as JSON; ``ValueError`` for anything else."""
        try:
            fused, engine, knobs = value
            named = tuple((knob, to) for knob, to in knobs)
        except TypeError:
            raise ValueError(f"{brief(value)} is no choice of an engine") from None
        if not (
            isinstance(fused, bool)
            and all(map(_is_int64, (engine, *(to for _, to in named))))
            and all(isinstance(knob, str) or _is_int32(knob) for knob, _ in named)
        ):
            raise ValueError(f"{brief(value)} is no choice of an engine")
        return cls(fused, engine, named)

    def __str__(self) -> str:
        knobs = "".join(f" {knob}={value}" for knob, value in self.knobs)
        if self.engine == OWN:
            return f"dnnffi's kernel{knobs}"
        return f"engine {self.engine}{knobs}{'' if self.fused else ' and a kernel more'}"


def _is_int64(value: object) -> bool:
    return type(value) is int and abs(value) <= INT64_MAX


def _is_int32(value: object) -> bool:
    return type(value) is int and abs(value) < 2**31


Recipes = PlanCache[Any]
"""The makers of executors of a layer for further sizes, by choice; a source fills and reads it."""


class ConvExecutor(Protocol):
    """One way to run a problem, for the thread that made it.

    Making one may allocate and ask the library. `run` does neither: it enqueues on the stream of a
    launch, on addresses that were checked.
    """

    workspace_bytes: int
    """Bytes of the workspace, whose contents do not outlive a call."""

    def run(self, launch: Launch, at: ConvAddresses) -> None:
        """Fill the result, with everything that the problem adds to it."""

    def close(self) -> None:
        """Release everything native."""


class ChosenExecutor(ConvExecutor, Protocol):
    """An executor that was chosen among those of a source; its text is that of a report."""

    fused: bool
    """Whether bias, residual and activation are in the same kernel, or there are none."""

    choice: Any
    """An `EngineChoice`, or of a `SearchedSource` what names the executor in a report."""


class ConvExecutors(Protocol):
    """The executors of a problem for the calling thread, best first: an iterator that makes each.

    One that cannot be made is left out.
    """

    problem: ConvProblem

    def __iter__(self) -> Iterator[ChosenExecutor]:
        """Return the iterator itself."""

    def __next__(self) -> ChosenExecutor:
        """Make the next executor."""

    def smaller(self, nbytes: int) -> Iterator[ChosenExecutor]:
        """Yield executors for calls that cannot have a workspace of ``nbytes``, best first."""

    def nothing(self) -> Exception:
        """Return the error where no executor is left."""

    def close(self) -> None:
        """Release what the executors share. Called by whichever thread closes the plan."""


class SearchedExecutors(ConvExecutors, Protocol):
    """Executors in the order of a library that measures by itself."""

    def notes(self, executor: ChosenExecutor) -> list[str]:
        """Return what a report says of the candidates, of which ``executor`` runs."""


class TunableExecutors(ConvExecutors, Protocol):
    """Executors that are measured by dnnffi, each known by an `EngineChoice`."""

    @property
    def run_by_record(self) -> bool:
        """Whether the first executor is known to be the fastest, without a measurement."""

    def made_again(self, choice: EngineChoice) -> ChosenExecutor:
        """Return the executor of a choice made before, which may come from a file.

        Raises `StatusError`, `UnsupportedError`; ``ValueError`` for what the problem has not got.
        """

    def reasons(self) -> dict[str, str]:
        """Return why candidates were left out so far, by their names."""


class ConvResources(Protocol):
    """The resources of a backend that plans need."""

    library: Any
    memory: MemoryWithGraphs
    graphs: GraphBudget
    workspaces: Workspaces

    def launch(self, device: int, stream: Stream) -> Launch:
        """Return a launch of this thread on ``stream`` of ``device``, which must be current."""


class ConvProblemPlan:
    """One problem, ready to run on arrays."""

    closed = False

    def __init__(self, problem: ConvProblem) -> None:
        self.problem = problem
        # Read at every call, so that it is not made anew from the spec.
        self.argument_shapes = problem.argument_shapes

    def run(self, *arrays: Any) -> Array:
        """Return the result of the operation, a new array in the layout of the problem.

        ``arrays`` are those of `ConvProblem.argument_shapes`, of these shapes and the spec's dtype,
        with any strides; bias and residual are None where the problem has none.
        """
        raise NotImplementedError

    def accepts(self, arrays: tuple[Any, ...]) -> bool:
        """Whether `run_at` takes arrays of these shapes and strides."""
        return False

    def run_at(self, addresses: Sequence[int]) -> Array:
        """`run` on arrays as `accepts` wants them, by the first four of their `ConvAddresses`."""
        raise NotImplementedError

    def report(self) -> str:
        """Return which algorithm runs, and why, in plain words."""
        return f"{self.problem}\n{type(self).__name__}"

    def again(self, arrays: tuple[Any, ...], out: Any) -> bool:
        """`run_into` arrays that it has checked before. False, and nothing done, for others."""
        return False

    def run_into(self, arrays: tuple[Any, ...], out: AnyArray | None) -> AnyArray:
        """`run` into ``out``, or a new array. Arrays at the end that are None may be left out."""
        missing = len(self.argument_shapes) - len(arrays)
        result = self.run(*arrays, *(None,) * missing)
        if out is None:
            return result
        out[...] = result
        return out

    def autotune(self) -> bool:
        """Measure and use the fastest. False where nothing can be measured now."""
        return False

    def close(self) -> None:
        """Release everything."""
        self.closed = True


class ConvSource(ABC):
    """The maker of the executors of a backend with a library; it keeps what they share."""

    resources: ConvResources

    takes_strided = False
    """Whether arrays without CuPy may have strides; without it they must be contiguous."""

    failures: tuple[type[Exception], ...]
    """Errors of a running executor after which the next one runs."""

    @abstractmethod
    def backward_bias(self, dy: Array, device: int) -> Array:
        """Return the gradient of the bias [K]. Without CuPy dy is contiguous or `takes_strided`."""

    @abstractmethod
    def clear(self) -> None:
        """Forget what was measured, and what was made for several plans."""


class SearchedSource(ConvSource):
    """A source whose library measures by itself."""

    @abstractmethod
    def executors(self, problem: ConvProblem, launch: Launch) -> SearchedExecutors:
        """Return the executors of a problem for the thread and device of ``launch``."""

    @abstractmethod
    def search(
        self, problem: ConvProblem, launch: Launch, scratch: Callable[[ConvProblem], ConvAddresses]
    ) -> None:
        """Let the library measure a problem for all later `executors`, unless that was done.

        ``scratch`` makes arrays of a problem, to be written over. Raises `UnsupportedError` where
        nothing runs, `StatusError` for a failure, ``MemoryError`` without memory.
        """


class TunableSource(ConvSource):
    """A source whose executors dnnffi measures, and replays as graphs."""

    version: str
    """The library's name and version, for which measured times are valid."""

    @abstractmethod
    def executors(
        self,
        problem: ConvProblem,
        launch: Launch,
        *,
        to_measure: bool = False,
        specialized: bool = True,
        recipes: Recipes | None = None,
    ) -> TunableExecutors:
        """Return the executors of a problem for the thread and device of ``launch``.

        With ``to_measure`` they are all that there are. Without ``specialized``, kernels of
        dnnffi's are those that serve all sizes of a layer, if there are any. With ``recipes``,
        those of the layer, an executor is made by one, and others are added.
        """
