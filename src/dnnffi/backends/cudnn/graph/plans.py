"""Plans for a graph: what heuristics propose, what is allowed, what the GPU can run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from dnnffi.backends.cudnn.graph.build import ConvolutionGraph
from dnnffi.backends.cudnn.graph.engine import EngineConfig, EngineHeuristics, Knob
from dnnffi.backends.cudnn.graph.execution import ExecutionPlan, RunnablePlan
from dnnffi.backends.cudnn.graph.known_wrong import known_wrong
from dnnffi.backends.vendor.handle import Handle
from dnnffi.errors import CudnnError, UnsupportedError
from dnnffi.spec.checks import check_choice
from dnnffi.spec.options import MATHS

MODES = ("a", "fallback")
"""The modes of the heuristics asked by default, one after the other."""

FEW, ALL = 2, 256
"""Configurations that a mode is asked for at first: where one is needed, and where all are."""


class Allowed(NamedTuple):
    """Conditions on the engines that may compute.

    math : "default" (float32 may use TF32), "strict" (no reduced precision), "fast" (float32 may be
        converted down for the tensor cores)
    deterministic : only engines whose results are the same in every run
    workspace_limit : bytes of workspace at most, None for any
    """

    math: str = "default"
    deterministic: bool = False
    workspace_limit: int | None = None

    def excluded_notes(self, dtype: str) -> frozenset[str]:
        """Return the numerical notes that an engine for tensors of ``dtype`` must not have."""
        notes = {"nondeterministic"} if self.deterministic else set()
        math = check_choice("math", self.math, MATHS)
        if math != "fast":
            notes.add("down_convert_inputs")
        if math == "strict":
            notes.add("reduced_precision_reduction")
            if dtype == "float32":
                # To an engine for float32 the tensor cores mean TF32.
                notes.add("tensor_core")
        return frozenset(notes)


class PlanInfo(NamedTuple):
    """The properties of a plan that a report names."""

    mode: str
    engine: int
    knobs: dict[Knob, int]
    workspace_size: int
    numerical_notes: tuple[str | int, ...]
    behavior_notes: tuple[str | int, ...]

    def __str__(self) -> str:
        knobs = ", ".join(f"{knob} {value}" for knob, value in self.knobs.items())
        notes = ", ".join(map(str, (*self.numerical_notes, *self.behavior_notes)))
        parts = [f"engine {self.engine}", f"knobs {knobs}" if knobs else "no knobs"]
        parts += [f"workspace {self.workspace_size} bytes", notes or "no notes"]
        return "; ".join(parts)


class Candidate(NamedTuple):
    """A plan that can run. ``plan`` is the caller's to close."""

    plan: RunnablePlan
    info: PlanInfo


class Refusal(NamedTuple):
    """An engine that was proposed and not taken; None if ``mode`` names what failed instead."""

    mode: str
    engine: int | None
    reason: str

    def __str__(self) -> str:
        what = f"heuristic {self.mode}" if self.engine is None else f"engine {self.engine}"
        return f"{what}: {self.reason}"


def candidate_of(
    handle: Handle,
    graph: ConvolutionGraph,
    allowed: Allowed,
    config: EngineConfig,
    info: PlanInfo,
) -> Candidate | str:
    """Make the plan of a configuration, or return why it is not admitted.

    This is the only way to the first plan of a class of sizes: what heuristics propose and what was
    stored on disk or in an exported program pass the same checks. A `PlanRecipe` compares what
    these checks look at with the first plan. ``info`` is of the configuration; its
    workspace size is replaced by that of the plan. Raises `CudnnError` and `UnsupportedError` if
    cuDNN has no such plan.
    """
    barred = allowed.excluded_notes(graph.dtype).intersection(info.numerical_notes)
    if barred:
        return f"has the note {', '.join(sorted(map(str, barred)))}"
    if wrong := known_wrong(graph, info.engine):
        return wrong
    plan = ExecutionPlan(handle, config, library=graph.graph.library)
    size, limit = plan.workspace_size, allowed.workspace_limit
    if limit is not None and size > limit:
        plan.close()
        return f"needs a workspace of {size} bytes; {limit} are allowed"
    return Candidate(plan, info._replace(workspace_size=size))


class Candidates:
    """The plans for a graph, best first: an iterator that makes each when it is asked for.

    ``modes`` of the heuristics are asked one after the other, a later one only when those before
    are used up; a configuration comes once. A mode is asked for its ``first`` best, and for more
    once those are used up. ``refused`` says what was left out so far and why; it may be a list of
    the caller's.
    """

    def __init__(
        self,
        handle: Handle,
        graph: ConvolutionGraph,
        allowed: Allowed | None = None,
        *,
        modes: tuple[str, ...] = MODES,
        first: int = FEW,
        refused: list[Refusal] | None = None,
    ) -> None:
        self.refused: list[Refusal] = [] if refused is None else refused
        self._handle = handle
        self._built = graph
        self._graph = graph.graph
        self._library = graph.graph.library
        self._allowed = Allowed() if allowed is None else allowed
        self._modes = deque((mode, first) for mode in modes)
        self._mode = ""
        self._configs: deque[EngineConfig] = deque()
        self._seen: set[tuple[object, ...]] = set()

    def __iter__(self) -> Iterator[Candidate]:
        return self

    def __next__(self) -> Candidate:
        while True:
            while self._configs:
                candidate = self._taken(self._mode, self._configs.popleft())
                if candidate is not None:
                    return candidate
            if not self._modes:
                raise StopIteration
            self._mode, count = self._modes.popleft()
            configs = self._proposed(self._mode, count)
            self._configs.extend(configs)
            if len(configs) == count:
                self._modes.appendleft((self._mode, 8 * count))

    def _proposed(self, mode: str, count: int) -> list[EngineConfig]:
        try:
            return EngineHeuristics(self._graph, mode, library=self._library).results(count)
        except (CudnnError, UnsupportedError) as error:
            self.refused.append(Refusal(mode, None, str(error)))
            return []

    def _taken(self, mode: str, config: EngineConfig) -> Candidate | None:
        index = None
        try:
            with config.engine() as engine:
                index = engine.index
                numerical, behavior = engine.numerical_notes, engine.behavior_notes
            knobs = config.knobs()
            key = (index, *sorted(knobs.items(), key=str))
            if key in self._seen:
                return None
            self._seen.add(key)
            info = PlanInfo(mode, index, knobs, 0, numerical, behavior)
            made = candidate_of(self._handle, self._built, self._allowed, config, info)
        except (CudnnError, UnsupportedError) as error:
            made = str(error)
        if isinstance(made, str):
            self._refuse(mode, index, made)
            return None
        return made

    def _refuse(self, mode: str, engine: int | None, reason: str) -> None:
        self.refused.append(Refusal(mode, engine, reason))
