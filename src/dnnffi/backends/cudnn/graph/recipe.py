"""Plans of further image sizes of a layer, made by the calls that make the first one.

From one size to the next, the dimensions and strides of the tensors of images change, and with
them the descriptors that refer to these tensors: operations, graph, engine, configuration and plan.
A `PlanRecipe` has all other attributes as C arrays, and keeps the descriptors that all sizes share:
weights, bias, the steps of the filter, pointwise functions and knobs. A finalized descriptor cannot
be changed, so any number of graphs may refer to it.

A recipe reports no errors. If a call fails, `PlanRecipe.make` returns None, and its caller makes
the plan descriptor by descriptor, which names what the library refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.graph.attributes import DESCRIPTOR, INT64, NUMERICAL_NOTE
from dnnffi.backends.cudnn.graph.build import ConvolutionGraph
from dnnffi.backends.cudnn.graph.descriptor import BackendDescriptor
from dnnffi.backends.cudnn.graph.engine import Engine, EngineConfig, KnobChoice, OperationGraph
from dnnffi.backends.cudnn.graph.execution import ExecutionPlan
from dnnffi.backends.cudnn.graph.geometry import Geometry, canonical
from dnnffi.backends.cudnn.graph.plans import Allowed, Candidate, PlanInfo
from dnnffi.backends.cudnn.graph.tensor import Tensor
from dnnffi.backends.cudnn.library import Library
from dnnffi.backends.vendor.handle import Handle
from dnnffi.backends.vendor.resource import ResourceGroup
from dnnffi.spec.checks import INT32_MAX

_MADE, _SIZES, _HANDLE = range(3)
"""The arrays that each plan has of its own: descriptors, dimensions and strides, handle."""

_MAX_NOTES = 16
"""Numerical notes of an engine at most; cuDNN 9.19 has 10 kinds."""


class _Varying(NamedTuple):
    """The value of an attribute that each plan has of its own: some elements of an array."""

    array: int
    offset: int
    num_elements: int = 1


class _Setting(NamedTuple):
    """The arguments that follow the descriptor in ``cudnnBackendSetAttribute``.

    ``values`` is None if each plan has its own values, at ``offset`` of one of its arrays.
    """

    number: int
    elements: int
    num_elements: int
    values: Any
    array: int = 0
    offset: int = 0


class _Step(NamedTuple):
    """The making of a descriptor: the enumerator of its kind, and its attributes."""

    kind: int
    settings: tuple[_Setting, ...]


class RecipePlan(ResourceGroup):
    """An execution plan that a recipe made, with the descriptors that only this plan uses.

    Attributes: ``library``, ``workspace_size`` (bytes).
    """

    workspace_size = 0

    def __init__(self, library: Library, out: Any, count: int, kept: object) -> None:
        super().__init__(out, count, library.lib.cudnnBackendDestroyDescriptor)
        self.library = library
        self._kept: Any = kept

    def close(self) -> None:
        super().close()
        self._kept = None

    def __repr__(self) -> str:
        # Errors show a plan in the same words however it was made.
        state = "closed" if self.closed else f"workspace_size={self.workspace_size}"
        return f"<ExecutionPlan {state}>"


class PlanRecipe:
    """Makes the plan of one engine for any number and size of images of a layer.

    ``graph`` is the graph of one size, and ``info`` has the engine and the knobs of a plan that was
    admitted for it. Threads may share a recipe; each plan is for the handle that it is made with.
    Raises `CudnnError` and `UnsupportedError` if the library refuses a knob.

    Attributes: ``operands`` (of the graphs, as `ConvolutionGraph.operands`), ``info``.
    """

    def __init__(self, graph: ConvolutionGraph, info: PlanInfo) -> None:
        self.operands = graph.operands
        self.info = info
        self._library = library = graph.graph.library
        self._channels_last = graph.channels_last
        self._notes = tuple(map(NUMERICAL_NOTE.encode, info.numerical_notes))
        self._steps: list[_Step] = []
        self._kept: list[Any] = []
        places: dict[object, _Varying] = {}
        rank = len(graph.kernel) + 2
        operations = graph.graph.values["operations"]
        operands = dict.fromkeys(value for one in operations for value in one.values.values())
        for tensor in operands:
            name = graph.images.get(tensor.values["uid"]) if isinstance(tensor, Tensor) else None
            if name is not None:
                first = 2 * rank * ("x", "y").index(name)
                sizes = {
                    "dims": _Varying(_SIZES, first, rank),
                    "strides": _Varying(_SIZES, first + rank, rank),
                }
                places[tensor] = self._add(tensor, {**tensor.values, **sizes})
        first_operation = len(self._steps)
        for one in operations:
            values = {name: places.get(value, value) for name, value in one.values.items()}
            places[one] = self._add(one, values)
        handle = _Varying(_HANDLE, 0)
        made = _Varying(_MADE, first_operation, len(operations))
        of_graph = self._add(OperationGraph, {"handle": handle, "operations": made})
        engine = self._add(Engine, {"graph": of_graph, "index": info.engine})
        knobs = tuple(KnobChoice(*one, library=library) for one in info.knobs.items()) or None
        config = self._add(EngineConfig, {"engine": engine, "knobs": knobs})
        self._add(ExecutionPlan, {"handle": handle, "config": config})
        self._engine = engine.offset

    def _add(
        self, kind: type[BackendDescriptor] | BackendDescriptor, values: Mapping[str, Any]
    ) -> _Varying:
        """Add the making of a descriptor; return its place among those of a plan."""
        settings = []
        for name, value in values.items():
            if value is None:
                continue
            number, elements, many, _ = kind.attributes[name]
            if isinstance(value, _Varying):
                setting = _Setting(
                    number, elements.number, value.num_elements, None, value.array, value.offset
                )
            elif many:
                setting = _Setting(number, elements.number, len(value), elements.new(value))
            else:
                setting = _Setting(number, elements.number, 1, elements.one(value))
            if elements is DESCRIPTOR and setting.values is not None:
                self._kept.append(value)
            settings.append(setting)
        self._steps.append(_Step(kind.number, tuple(settings)))
        return _Varying(_MADE, len(self._steps) - 1)

    def make(self, handle: Handle, geometry: Geometry, allowed: Allowed) -> Candidate | None:
        """Return the plan for another size of the layer, or None.

        None means that the plan must be made descriptor by descriptor: a call failed, cuDNN reports
        other notes of the engine than for the first size, the plan needs more workspace than is
        ``allowed``, the strides do not show the memory layout, or a dimension exceeds 32 bits.
        """
        geometry = geometry.of_rank_two()
        last = geometry.channels_last
        if last != self._channels_last:
            return None
        x, y = canonical(geometry.x, last), canonical(geometry.y, last)
        if max(*x.shape, *y.shape) > INT32_MAX:
            return None
        plan = self._make(handle, (*x.shape, *x.strides, *y.shape, *y.strides))
        if plan is None:
            # As `Library.error` does: a failed call may have left the handle on another stream.
            self._library.forget_streams()
            return None
        size, limit = plan.workspace_size, allowed.workspace_limit
        if limit is not None and size > limit:
            plan.close()
            return None
        return Candidate(plan, self.info._replace(workspace_size=size))

    def _make(self, handle: Handle, sizes: tuple[int, ...]) -> RecipePlan | None:
        """Return the plan for the shape and strides of x and y; None if a call failed."""
        library, steps = self._library, self._steps
        lib = library.lib
        create, finalize = lib.cudnnBackendCreateDescriptor, lib.cudnnBackendFinalize
        set_attribute = lib.cudnnBackendSetAttribute
        made = ffi.new("cudnnBackendDescriptor_t[]", len(steps))
        plan = RecipePlan(library, made, len(steps), (self, handle))
        arrays = made, ffi.new("int64_t[]", sizes), handle.pointer_array
        for place, (kind, settings) in enumerate(steps):
            status = create(kind, made + place)
            descriptor = made[place]
            for number, elements, count, values, array, offset in settings:
                if values is None:
                    values = arrays[array] + offset
                status = status or set_attribute(descriptor, number, elements, count, values)
            if status or finalize(descriptor):
                plan.close()
                return None
        size = self._workspace_size(made)
        if size is None:
            plan.close()
            return None
        plan.workspace_size = size
        plan.complete(descriptor)
        return plan

    def _workspace_size(self, made: Any) -> int | None:
        """Return the bytes that a plan needs; None if its engine has other notes than expected."""
        get_attribute = self._library.lib.cudnnBackendGetAttribute
        number, elements, _, _ = Engine.attributes["numerical_notes"]
        count, notes = ffi.new("int64_t *"), ffi.new("int[]", _MAX_NOTES)
        asked = number, elements.number, _MAX_NOTES, count, notes
        if get_attribute(made[self._engine], *asked) or count[0] != len(self._notes):
            return None
        if tuple(notes[0 : count[0]]) != self._notes:
            return None
        number = ExecutionPlan.attributes["workspace_size"].number
        size = ffi.new("int64_t *")
        if get_attribute(made[len(self._steps) - 1], number, INT64.number, 1, count, size):
            return None
        return int(size[0])
