"""Convolutions on cuDNN: a problem as a graph, the plans that can run it, and running one.

A transposed convolution is backward data of the ordinary one with the same weights, so each of its
three operations is one of the ordinary three with ``x`` and ``y`` exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, cast

from dnnffi.backends.cudnn.conv_limits import LIMITS
from dnnffi.backends.cudnn.graph import build
from dnnffi.backends.cudnn.graph.build import UIDS, ConvolutionGraph
from dnnffi.backends.cudnn.graph.engine import Engine, EngineConfig, Knob
from dnnffi.backends.cudnn.graph.execution import ExecutionPlan, VariantPacks, execute
from dnnffi.backends.cudnn.graph.geometry import Geometry, Layout
from dnnffi.backends.cudnn.graph.known_wrong import known_wrong
from dnnffi.backends.cudnn.graph.plans import (
    ALL,
    FEW,
    MODES,
    Allowed,
    Candidate,
    Candidates,
    PlanInfo,
    Refusal,
)
from dnnffi.backends.cudnn.handle import handle_for
from dnnffi.backends.cudnn.library import Library
from dnnffi.backends.own.depthwise import DepthwiseWeights, fits
from dnnffi.backends.vendor.limits import check_limits
from dnnffi.device.interface import MemoryWithGraphs
from dnnffi.errors import CudnnError, UnsupportedError
from dnnffi.spec.conv_problem import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, ConvProblem
from dnnffi.spec.layouts import CHANNELS_LAST

_MEASURED_MODES = ("a", "b", "fallback")
"""The heuristics asked where candidates are measured."""

_MOST_SHOWN = 4

_GRAPHS: dict[tuple[str, bool], tuple[str, tuple[str, ...]]] = {
    # (operation, transposed): function of `build`, operands in the order of the arguments, result
    (FORWARD, False): ("forward", ("x", "w", "y")),
    (BACKWARD_DATA, False): ("backward_data", ("y", "w", "x")),
    (BACKWARD_WEIGHTS, False): ("backward_weights", ("y", "x", "w")),
    (FORWARD, True): ("backward_data", ("y", "w", "x")),
    (BACKWARD_DATA, True): ("forward", ("x", "w", "y")),
    (BACKWARD_WEIGHTS, True): ("backward_weights", ("x", "y", "w")),
}


OWN = -1
"""The engine of a `Choice` that is a kernel of dnnffi's."""


class Choice(NamedTuple):
    """A plan in what it takes to make it again."""

    fused: bool
    """Whether bias, residual and activation are in the graph, where the problem has any."""
    engine: int
    knobs: tuple[tuple[Knob, int], ...]

    @classmethod
    def of(cls, fused: bool, info: PlanInfo) -> Choice:
        """That of a plan."""
        return cls(fused, info.engine, tuple(info.knobs.items()))

    @classmethod
    def read(cls, value: Any) -> Choice:
        """One that was JSON."""
        fused, engine, knobs = value
        return cls(bool(fused), int(engine), tuple((knob, int(set_to)) for knob, set_to in knobs))

    def __str__(self) -> str:
        if self.engine == OWN:
            return "dnnffi's kernel"
        knobs = "".join(f" {knob}={value}" for knob, value in self.knobs)
        return f"engine {self.engine}{knobs}{'' if self.fused else ' and array code'}"


class ConvExecutor(Protocol):
    """What runs one problem, for the thread that made it."""

    fused: bool
    """Whether bias, residual and activation are computed too, or there are none."""
    info: Any
    """What a report says of it, by ``str``."""
    workspace_bytes: int
    """What `run_at` needs."""
    choice: Choice

    def run_at(self, addresses: tuple[int, ...]) -> None:
        """Run on the current stream.

        ``addresses`` are those of what the operation reads in the order of
        `ConvProblem.argument_shapes` (without bias and residual where they are not fused or there
        are none), of the result, and of the workspace or 0. Raises `CudnnError`,
        `UnsupportedError`.
        """

    def close(self) -> None:
        """Let go of it."""


class OwnExecutor(DepthwiseWeights):
    """A kernel of dnnffi's, which is a candidate where candidates are measured."""

    fused = True
    choice = Choice(True, OWN, ())

    def __init__(self, problem: ConvProblem, device: int, memory: MemoryWithGraphs) -> None:
        super().__init__(problem, device, memory)
        self.info: Any = str(self)

    def close(self) -> None:
        """Nothing is held."""


class GraphExecutor:
    """One problem by one plan of cuDNN's (``cudnnBackendExecute``).

    Where it is not ``fused``, bias, residual and activation are the caller's to add.
    """

    def __init__(
        self, device: int, problem: ConvProblem, graph: ConvolutionGraph, found: Candidate
    ) -> None:
        _, operands = _GRAPHS[problem.operation, problem.spec.transposed]
        *given, result = operands
        self.fused = graph.fused or not has_epilogue(problem)
        more = [name for name in ("bias", "residual") if name in graph.operands]
        self.info: Any = found.info
        self.workspace_bytes = found.info.workspace_size
        self.choice = Choice.of(self.fused, found.info)
        self._device = device
        self._library = found.plan.library
        self._plan = found.plan
        uids = tuple(UIDS[name] for name in (*given, *more, result))
        self._packs = VariantPacks(uids, library=self._library)

    def run_at(self, addresses: tuple[int, ...]) -> None:
        execute(handle_for(self._library, self._device), self._plan, self._packs.at(addresses))

    def close(self) -> None:
        """Let go of the plan and the packs."""
        self._packs.clear()
        self._plan.close()


def has_epilogue(problem: ConvProblem) -> bool:
    """Whether anything follows the convolution."""
    return problem.bias or problem.residual or problem.activation is not None


class ConvExecutors:
    """The executors of a problem for the calling thread, best first: an iterator that makes each.

    First those that compute everything in one graph, then, where something follows the convolution,
    those of the convolution alone. ``to_measure`` asks for all that cuDNN knows, and for our own.
    ``refused`` says what was left out so far and why.
    """

    def __init__(
        self,
        library: Library,
        problem: ConvProblem,
        device: int,
        *,
        to_measure: bool = False,
    ) -> None:
        self._library = library
        self._problem = problem
        self._device = device
        self._to_measure = to_measure
        self._modes = _MEASURED_MODES if to_measure else MODES
        self._first = ALL if to_measure else FEW
        options = problem.options
        self._allowed = Allowed(options.math, options.deterministic, options.workspace_limit)
        check_limits(LIMITS, problem, "cuDNN", library)
        self._geometry = geometry_of(problem)
        self.refused: list[Refusal] = []
        self._executors = self._all()

    def __iter__(self) -> Iterator[ConvExecutor]:
        return self

    def __next__(self) -> ConvExecutor:
        return next(self._executors)

    def _all(self) -> Iterator[ConvExecutor]:
        for fused in (True, False) if has_epilogue(self._problem) else (False,):
            try:
                graph = self._graph(fused)
            except (CudnnError, UnsupportedError) as error:
                self.refused.append(Refusal("the graph", None, str(error)))
                continue
            found = Candidates(
                *(handle_for(self._library, self._device), graph, self._allowed),
                modes=self._modes,
                first=self._first,
                refused=self.refused,
            )
            for candidate in found:
                yield GraphExecutor(self._device, self._problem, graph, candidate)
        if self._to_measure and fits(self._problem):
            yield self._own()

    def _own(self) -> OwnExecutor:
        # CuPy's memory: without CuPy there are no convolutions here.
        memory = cast("MemoryWithGraphs", self._library.memory)
        return OwnExecutor(self._problem, self._device, memory)

    def made_again(self, choice: Choice) -> ConvExecutor:
        """The executor of a choice made before.

        Raises `CudnnError`, `UnsupportedError`; ``ValueError`` for a knob that is not known.
        """
        if choice.engine == OWN:
            if not fits(self._problem):
                raise ValueError(f"{choice} is not for {self._problem}")
            return self._own()
        graph = self._graph(choice.fused and has_epilogue(self._problem))
        if wrong := known_wrong(graph, choice.engine):
            raise UnsupportedError("cuDNN", self._library.version_text, wrong)
        # Left open: the plan needs its engine, and keeps it alive.
        engine = Engine(graph.graph, choice.engine, library=self._library)
        notes = engine.numerical_notes, engine.behavior_notes
        config = EngineConfig(engine, dict(choice.knobs), library=self._library)
        handle = handle_for(self._library, self._device)
        plan = ExecutionPlan(handle, config, library=self._library)
        info = PlanInfo(*("choice", choice.engine, dict(choice.knobs), plan.workspace_size), *notes)
        return GraphExecutor(self._device, self._problem, graph, Candidate(plan, config, info))

    def nothing(self) -> UnsupportedError:
        """The error where no executor is left."""
        options = self._problem.options
        limit = f"has no engine for {self._problem}, with {options}"
        shown = "; ".join(map(str, self.refused[:_MOST_SHOWN]))
        more = len(self.refused) - _MOST_SHOWN
        if shown:
            limit += f". Not taken: {shown}" + (f"; and {more} more" if more > 0 else "")
        return UnsupportedError(
            "cuDNN", self._library.version_text, f"{limit}. {_what_to_change(self._problem)}"
        )

    def _graph(self, fused: bool) -> ConvolutionGraph:
        problem = self._problem
        name, operands = _GRAPHS[problem.operation, problem.spec.transposed]
        handle = handle_for(self._library, self._device)
        builder: Callable[..., ConvolutionGraph] = getattr(build, name)
        if not fused:
            return builder(self._geometry, handle, library=self._library)
        out: Layout = getattr(self._geometry, operands[-1])
        return builder(
            self._geometry,
            handle,
            bias=problem.bias,
            residual=out if problem.residual else None,
            alpha=problem.alpha,
            relu=problem.activation == "relu",
            library=self._library,
        )


def geometry_of(problem: ConvProblem) -> Geometry:
    """The ordinary convolution of a problem, its arrays without gaps."""
    spec = problem.spec
    last = problem.layout == CHANNELS_LAST
    large, small = problem.x_shape, problem.y_shape
    if spec.transposed:
        large, small = small, large
    x, w, y = (Layout.packed(s, channels_last=last) for s in (large, spec.weight_shape, small))
    return Geometry(x, w, y, spec.dtype, spec.stride, spec.padding, spec.dilation)


def _what_to_change(problem: ConvProblem) -> str:
    options = problem.options
    ways = [
        "options['math'] other than 'strict'" if options.math == "strict" else "",
        "options['deterministic'] False" if options.deterministic else "",
        "a larger options['workspace_limit']" if options.workspace_limit is not None else "",
        "another layout, sizes or dtype",
        "backend='reference'",
    ]
    return f"What may help: {_list([way for way in ways if way])}"


def _list(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
