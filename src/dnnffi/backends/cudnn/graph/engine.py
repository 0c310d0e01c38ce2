"""From a graph of operations to engines that compute it: heuristics, engines, configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dnnffi.backends.cudnn.graph.attributes import (
    BEHAVIOR_NOTE,
    DESCRIPTOR,
    HANDLE,
    HEURISTIC,
    INT64,
    KNOB,
    NUMERICAL_NOTE,
    attribute,
    table,
)
from dnnffi.backends.cudnn.graph.descriptor import BackendDescriptor
from dnnffi.backends.cudnn.graph.operations import GraphOperation
from dnnffi.backends.cudnn.graph.types import HEURISTICS, KNOBS
from dnnffi.backends.cudnn.library import Library
from dnnffi.backends.vendor.handle import Handle
from dnnffi.spec.checks import INT64_MAX, check_choice, check_range

Knob = str | int
"""A knob's name, or its number where it has no name here."""

_KNOB_CAPACITY = 8  # by which the array to read knobs into grows; up to 6 were set (9.19)


class OperationGraph(BackendDescriptor):
    """Operations joined by their virtual tensors.

    ``handle`` says for which GPU; cuDNN 9.19 finalizes a graph without one, so that it can be
    checked without a GPU, and refuses its plan when that is run. Raises `UnsupportedError`
    for operations that cuDNN does not join, `CudnnError`, ``ValueError`` without operations.
    """

    _kind = "OPERATIONGRAPH"
    attributes = table(
        handle=attribute("OPERATIONGRAPH_HANDLE", HANDLE, readable=False),
        operations=attribute("OPERATIONGRAPH_OPS", DESCRIPTOR, many=True, readable=False),
        engine_count=attribute("OPERATIONGRAPH_ENGINE_GLOBAL_COUNT", INT64),
    )

    def __init__(
        self,
        operations: Sequence[GraphOperation],
        handle: Handle | None = None,
        *,
        library: Library | None = None,
    ) -> None:
        if not operations:
            raise ValueError("operations: a graph needs at least one")
        super().__init__(library, {"handle": handle, "operations": tuple(operations)})


class KnobChoice(BackendDescriptor):
    """A knob and the value that it is set to."""

    _kind = "KNOB_CHOICE"
    attributes = table(
        type=attribute("KNOB_CHOICE_KNOB_TYPE", KNOB),
        value=attribute("KNOB_CHOICE_KNOB_VALUE", INT64),
    )

    def __init__(self, knob: Knob, value: int, *, library: Library | None = None) -> None:
        values = {
            "type": check_choice("knob", knob, KNOBS)
            if isinstance(knob, str)
            else check_range("knob", knob, 0),
            "value": check_range("value", value, -INT64_MAX - 1, INT64_MAX),
        }
        super().__init__(library, values)


class Engine(BackendDescriptor):
    """Kernels of a kind for a graph, by their index: from 0, below the graph's ``engine_count``."""

    _kind = "ENGINE"
    attributes = table(
        graph=attribute("ENGINE_OPERATION_GRAPH", DESCRIPTOR, readable=False),
        index=attribute("ENGINE_GLOBAL_INDEX", INT64),
        numerical_notes=attribute("ENGINE_NUMERICAL_NOTE", NUMERICAL_NOTE, many=True),
        behavior_notes=attribute("ENGINE_BEHAVIOR_NOTE", BEHAVIOR_NOTE, many=True),
    )

    def __init__(
        self, graph: OperationGraph, index: int, *, library: Library | None = None
    ) -> None:
        index = check_range("index", index, 0, INT64_MAX)
        super().__init__(library, {"graph": graph, "index": index})

    @property
    def index(self) -> int:
        """The global index."""
        return int(self.read("index"))

    @property
    def numerical_notes(self) -> tuple[str | int, ...]:
        """Notes on its numbers: "tensor_core", "nondeterministic", ..."""
        return tuple(self.read("numerical_notes"))

    @property
    def behavior_notes(self) -> tuple[str | int, ...]:
        """Notes on its behaviour: "runtime_compilation", ..."""
        return tuple(self.read("behavior_notes"))


class EngineConfig(BackendDescriptor):
    """An engine with its knobs set; those that ``knobs`` does not name are left to the engine."""

    _kind = "ENGINECFG"
    attributes = table(
        engine=attribute("ENGINECFG_ENGINE", DESCRIPTOR, readable=False),
        knobs=attribute("ENGINECFG_KNOB_CHOICES", DESCRIPTOR, many=True, readable=False),
    )

    def __init__(
        self,
        engine: Engine,
        knobs: Mapping[Knob, int] | None = None,
        *,
        library: Library | None = None,
    ) -> None:
        choices = [
            KnobChoice(knob, value, library=library) for knob, value in (knobs or {}).items()
        ]
        super().__init__(library, {"engine": engine, "knobs": tuple(choices) or None})

    def engine(self) -> Engine:
        """Return the engine."""
        return self._read_descriptors("engine", Engine, 1)[0]

    def knobs(self) -> dict[Knob, int]:
        """Return the knobs that are set, and to what."""
        # cuDNN 9.19 reports a count of 0, so the capacity grows until it is not used up.
        room, choices = 0, list[KnobChoice]()
        while len(choices) == room:
            room += _KNOB_CAPACITY
            choices = self._read_descriptors("knobs", KnobChoice, room)
        chosen = {}
        for one in choices:
            with one:
                chosen[one.read("type")] = one.read("value")
        return chosen


class EngineHeuristics(BackendDescriptor):
    """The engines that cuDNN guesses to be fast for a graph, best first.

    ``mode`` is "a" (quick), "b" (a slower guess that is better for some convolutions; falls back to
    "a"), "fallback" (what runs at all) or "instant" (the older name of "a"). Needs a GPU, and
    cuBLAS: cuDNN 9.19 ends the process where it does not find that.
    """

    _kind = "ENGINEHEUR"
    attributes = table(
        graph=attribute("ENGINEHEUR_OPERATION_GRAPH", DESCRIPTOR, readable=False),
        mode=attribute("ENGINEHEUR_MODE", HEURISTIC, readable=False),
        results=attribute("ENGINEHEUR_RESULTS", DESCRIPTOR, many=True, readable=False),
    )

    def __init__(
        self, graph: OperationGraph, mode: str = "a", *, library: Library | None = None
    ) -> None:
        super().__init__(library, {"graph": graph, "mode": check_choice("mode", mode, HEURISTICS)})

    def results(self, count: int) -> list[EngineConfig]:
        """Return the ``count`` best configurations, best first. Some may not be able to run.

        cuDNN 9.19 takes its time for each that it gives.
        """
        return self._read_descriptors("results", EngineConfig, count)
