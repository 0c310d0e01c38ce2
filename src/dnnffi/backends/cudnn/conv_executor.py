"""Executors of convolutions on cuDNN: a problem as a graph, and an executor for each plan.

A transposed convolution is backward data of the ordinary one with the same weights, so each of its
three operations is one of the ordinary three with ``x`` and ``y`` exchanged.

Asymmetric padding: cuDNN's graph API has an attribute for the padding of either side, but whether
its engines compute sides that differ was not verified. So cuDNN convolves a copy of the image with
more zeros on one side, which is in the workspace (`PaddedImage`). dnnffi's own kernels read the
image itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import cast

from dnnffi.backends.conv_interface import (
    OWN,
    ChosenExecutor,
    ConvAddresses,
    ConvResources,
    EngineChoice,
    Recipes,
    TunableExecutors,
    TunableSource,
)
from dnnffi.backends.cudnn.graph.build import UIDS, ConvolutionGraph, graph_of
from dnnffi.backends.cudnn.graph.engine import Engine, EngineConfig
from dnnffi.backends.cudnn.graph.execution import VariantPacks, execute
from dnnffi.backends.cudnn.graph.geometry import Geometry, Layout
from dnnffi.backends.cudnn.graph.plans import (
    ALL,
    FEW,
    MODES,
    Allowed,
    Candidate,
    Candidates,
    PlanInfo,
    Refusal,
    candidate_of,
)
from dnnffi.backends.cudnn.graph.recipe import PlanRecipe
from dnnffi.backends.cudnn.library import Library
from dnnffi.backends.cudnn.limits import CONV_LIMITS
from dnnffi.backends.own.bias import MAX_POSITIONS, bias_gradient, can_sum
from dnnffi.backends.own.depthwise import gather, weights
from dnnffi.backends.own.depthwise.faster import is_faster
from dnnffi.backends.own.depthwise.tile import Tile
from dnnffi.backends.own.epilogue import EpilogueKernel
from dnnffi.backends.own.image_copy import WORKSPACE_ALIGNMENT, ImageCopyByKernel
from dnnffi.backends.vendor.handle import Handle
from dnnffi.backends.vendor.limits import check_limits
from dnnffi.device.arrays import check_aligned
from dnnffi.device.interface import Array, Launch, MemoryWithGraphs
from dnnffi.errors import CompileError, CudaError, CudnnError, UnsupportedError
from dnnffi.spec.conv_padding import PaddedImage
from dnnffi.spec.conv_problem import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, ConvProblem

_MEASURED_MODES = ("a", "b", "fallback")
"""The heuristics asked where candidates are measured."""

_MAX_SHOWN = 4

_NO_KERNEL = CompileError, CudaError, UnsupportedError
"""Errors of a kernel of dnnffi's that cannot be compiled or loaded."""

_GRAPHS: dict[tuple[str, bool], tuple[str, tuple[str, ...]]] = {
    # (operation, transposed): ordinary operation, operands in the order of the arguments, result
    (FORWARD, False): (FORWARD, ("x", "w", "y")),
    (BACKWARD_DATA, False): (BACKWARD_DATA, ("y", "w", "x")),
    (BACKWARD_WEIGHTS, False): (BACKWARD_WEIGHTS, ("y", "x", "w")),
    (FORWARD, True): (BACKWARD_DATA, ("y", "w", "x")),
    (BACKWARD_DATA, True): (FORWARD, ("x", "w", "y")),
    (BACKWARD_WEIGHTS, True): (BACKWARD_WEIGHTS, ("x", "y", "w")),
}


class OwnWeights(weights.DepthwiseWeights):
    """A kernel of dnnffi's for backward weights."""

    fused = True
    choice = EngineChoice(True, OWN, ())


class OwnGather(gather.DepthwiseGather):
    """A kernel of dnnffi's for forward and backward data."""

    fused = True

    def __init__(
        self,
        problem: ConvProblem,
        memory: MemoryWithGraphs,
        choice: EngineChoice,
        *,
        specialized: bool,
    ) -> None:
        tile = Tile(*(value for _, value in choice.knobs))
        super().__init__(problem, memory, tile, specialized=specialized)
        self.choice = choice


def own_choices(problem: ConvProblem) -> list[EngineChoice]:
    """Return the kernels of dnnffi's for a problem, what is likely best first."""
    if weights.has_kernel(problem):
        return [OwnWeights.choice]
    if not gather.has_kernel(problem):
        return []
    return list(map(_own_choice, gather.tiles(problem)))


def _own_choice(tile: Tile) -> EngineChoice:
    return EngineChoice(True, OWN, tuple(tile._asdict().items()))


def own_choice_for(problem: ConvProblem, choice: EngineChoice) -> EngineChoice:
    """Return the choice for ``problem`` that stands for one of another size of its layer.

    Raises ``ValueError`` for a kernel that the problem does not have.
    """
    offered = own_choices(problem)
    if choice in offered:
        return choice
    names = tuple(name for name, _ in choice.knobs)
    tile = None
    if offered and offered[0].knobs and choice.fused and names == Tile._fields:
        tile = gather.tile_for(problem, Tile(*(value for _, value in choice.knobs)))
    if tile is None:
        raise ValueError(f"{choice} is not for {problem}")
    return _own_choice(tile)


class GraphExecutor:
    """One problem by one plan of cuDNN's (``cudnnBackendExecute``).

    ``graph_operands`` are those of the plan's graph. ``epilogue`` follows it where the graph is of
    the convolution alone. ``image_copy`` makes the padded image that the graph is for, if the
    problem has asymmetric padding.
    """

    def __init__(
        self,
        problem: ConvProblem,
        graph_operands: tuple[str, ...],
        found: Candidate,
        epilogue: EpilogueKernel | None,
        image_copy: ImageCopyByKernel | None = None,
    ) -> None:
        self.fused = epilogue is None
        self._info = found.info
        self._image_copy = image_copy
        self.workspace_bytes = found.info.workspace_size
        if image_copy is not None:
            self.workspace_bytes = image_copy.workspace_bytes
        self.choice = EngineChoice(self.fused, found.info.engine, tuple(found.info.knobs.items()))
        self._plan = found.plan
        self._epilogue = epilogue
        asked = problem.operation, problem.spec.transposed, graph_operands
        uids, self._addresses = _order_in_pack(*asked)
        self._packs = VariantPacks(uids, library=found.plan.library)

    def run(self, launch: Launch, at: ConvAddresses) -> None:
        copy = self._image_copy
        convolved = at if copy is None else copy.before(launch, at)
        execute(launch, self._plan, self._packs.at(self._addresses(convolved)))
        if copy is not None:
            copy.after(launch, at)
        if self._epilogue is not None:
            self._epilogue.run(launch, at)

    def close(self) -> None:
        """Release the plan and the packs."""
        self._packs.clear()
        self._plan.close()

    def __str__(self) -> str:
        if self._image_copy is None:
            return str(self._info)
        return f"{self._info}; on a padded copy of the image, with it {self.workspace_bytes} bytes"


@lru_cache(maxsize=64)  # asked for each size
def _order_in_pack(
    operation: str, transposed: bool, graph_operands: tuple[str, ...]
) -> tuple[tuple[int, ...], Callable[[ConvAddresses], tuple[int, ...]]]:
    """Return the uids of a graph's operands, and what takes their addresses and the workspace's."""
    _, (*read, result) = _GRAPHS[operation, transposed]
    more = [name for name in ("bias", "residual") if name in graph_operands]
    in_pack = ("first", "second", *more, "result", "workspace")
    addresses = itemgetter(*map(ConvAddresses._fields.index, in_pack))
    return tuple(UIDS[name] for name in (*read, *more, result)), addresses


class EngineExecutors(TunableExecutors):
    """The executors of a problem for the calling thread, best first: an iterator that makes each.

    First those that compute everything in one graph, then, where something follows the convolution,
    those of the convolution alone and a kernel of dnnffi's. They are made with the handle of
    ``launch``. Before them comes a kernel of dnnffi's that is known to be faster. ``to_measure``
    asks for all that cuDNN knows, and first for all of dnnffi's, for which there is always time.
    ``refused`` lists the candidates that were left out so far, with reasons. Without
    ``specialized``, dnnffi's kernels are those that serve all sizes of a layer, if there are any.
    ``recipes`` are those of the layer: a plan that they have is made by one, and others are added.
    """

    def __init__(
        self,
        library: Library,
        problem: ConvProblem,
        launch: Launch,
        *,
        to_measure: bool = False,
        specialized: bool = True,
        recipes: Recipes | None = None,
    ) -> None:
        self._specialized = specialized
        self._recipes = recipes
        self._library = library
        self.problem = problem
        self._image = PaddedImage.of(problem)
        self._convolved = problem if self._image is None else self._image.problem
        self._device = launch.device
        self._memory = cast("MemoryWithGraphs", library.memory)
        self._compiles = not self._memory.kernel_problem()
        self._handle: Handle = launch.owner
        self._to_measure = to_measure
        options = problem.options
        limit = options.workspace_limit
        if limit is not None and self._image is not None:
            limit -= self._image.padded_bytes + WORKSPACE_ALIGNMENT
        self._allowed = Allowed(options.math, options.deterministic, limit)
        check_limits(CONV_LIMITS, problem, library)
        self.refused: list[Refusal] = []
        self._executors = self._all()

    def __iter__(self) -> Iterator[ChosenExecutor]:
        return self

    def __next__(self) -> ChosenExecutor:
        return next(self._executors)

    def _all(self) -> Iterator[ChosenExecutor]:
        self.refused.clear()  # of an earlier search
        own = self._own_choices()
        if not self._to_measure:
            own = own[:1] if self.run_by_record else []
        for choice in own:
            try:
                executor = self._own(choice)
            except _NO_KERNEL as error:
                self.refused.append(Refusal(str(choice), None, str(error)))
            else:
                yield executor
        try:
            self._check_image()
        except _NO_KERNEL as error:
            self.refused.append(Refusal("asymmetric padding", None, str(error)))
            return
        for fused in (True, False) if self._convolved.epilogue else (False,):
            if self.problem.epilogue and not fused and not self._compiles:
                self.refused.append(Refusal("a kernel more", None, "no kernels can be compiled"))
                continue
            try:
                graph = self._graph(fused)
            except (CudnnError, UnsupportedError) as error:
                self.refused.append(Refusal("the graph", None, str(error)))
                continue
            try:
                epilogue = self._epilogue_after(graph)
            except _NO_KERNEL as error:
                self.refused.append(Refusal("a kernel more", None, str(error)))
                continue
            modes, first = (_MEASURED_MODES, ALL) if self._to_measure else (MODES, FEW)
            asked = self._handle, graph, self._allowed
            for candidate in Candidates(*asked, modes=modes, first=first, refused=self.refused):
                yield self._by_graph(graph, candidate, epilogue)

    @cached_property
    def run_by_record(self) -> bool:
        """Whether a kernel of dnnffi's is known to be the fastest, without a measurement."""
        return is_faster(self.problem) and bool(self._own_choices())

    def _own_choices(self) -> list[EngineChoice]:
        return own_choices(self.problem) if self._compiles else []

    def _check_image(self) -> None:
        """Raise one of `_NO_KERNEL` if the padded image of asymmetric padding cannot be made."""
        if self._image is None:
            return
        if not self._compiles:
            raise self._library.unsupported(
                "pads the image of a convolution with asymmetric padding by a kernel of dnnffi, "
                "and none can be compiled"
            )
        limit = self._allowed.workspace_limit
        if limit is not None and limit < 0:
            raise self._library.unsupported(
                f"convolves a padded copy of the image for asymmetric padding, which is in the "
                f"workspace: options['workspace_limit'] must be at least "
                f"{self._image.padded_bytes + WORKSPACE_ALIGNMENT}"
            )
        ImageCopyByKernel(self._image, self._device, self._memory, 0)  # compiles the kernel

    def _epilogue_after(self, graph: ConvolutionGraph) -> EpilogueKernel | None:
        """Return the kernel that follows a graph; None if everything is in the graph."""
        return self._epilogue if self.problem.epilogue and not graph.fused else None

    def _by_graph(
        self, graph: ConvolutionGraph, candidate: Candidate, epilogue: EpilogueKernel | None
    ) -> GraphExecutor:
        executor = self._executor(graph.operands, candidate, epilogue)
        recipes, choice = self._recipes, executor.choice
        if recipes is not None and recipes.find(choice) is None:
            # Where the knobs cannot be described, each size is made descriptor by descriptor.
            with suppress(CudnnError, UnsupportedError, MemoryError):
                recipes.get(choice, lambda: PlanRecipe(graph, candidate.info))
        return executor

    def _by_recipe(self, choice: EngineChoice) -> GraphExecutor | None:
        """Return the executor of a choice, if there is a recipe that can make it."""
        recipe = None if self._recipes is None else self._recipes.find(choice)
        if recipe is None:
            return None
        made = recipe.make(self._handle, self._geometry, self._allowed)
        if made is None:
            return None
        epilogue = None if choice.fused else self._epilogue
        return self._executor(recipe.operands, made, epilogue)

    def _executor(
        self, operands: tuple[str, ...], made: Candidate, epilogue: EpilogueKernel | None
    ) -> GraphExecutor:
        copy = None
        if self._image is not None:
            asked = self._image, self._device, self._memory
            copy = ImageCopyByKernel(*asked, made.info.workspace_size)
        return GraphExecutor(self.problem, operands, made, epilogue, copy)

    @cached_property
    def _geometry(self) -> Geometry:
        return geometry_of(self._convolved)

    @cached_property
    def _epilogue(self) -> EpilogueKernel:
        return EpilogueKernel(self.problem, self._device, self._memory)

    def _own(self, choice: EngineChoice) -> ChosenExecutor:
        if choice.knobs:
            specialized = self._specialized
            return OwnGather(self.problem, self._memory, choice, specialized=specialized)
        return OwnWeights(self.problem, self._device, self._memory)

    def made_again(self, choice: EngineChoice) -> ChosenExecutor:
        """Return the executor of a choice made before, which may come from a file or a program.

        It passes the admission of those that heuristics propose: the problem's options, its
        workspace limit and the engines known to be wrong. Raises `CudnnError`, `UnsupportedError`;
        ``ValueError`` for an engine, a kernel of dnnffi's or a knob that does not exist, and for a
        kernel of dnnffi's if none can be compiled; `CompileError`, `CudaError` if this one cannot.
        """
        if choice.engine == OWN:
            if not self._compiles:
                raise ValueError(f"{choice} is not for {self.problem}: it cannot be compiled")
            return self._own(own_choice_for(self.problem, choice))
        if self.problem.epilogue and not choice.fused and not self._compiles:
            raise ValueError(f"{choice} needs a kernel of dnnffi, and none can be compiled")
        self._check_image()
        if (executor := self._by_recipe(choice)) is not None:
            return executor
        graph = self._graph(choice.fused and bool(self._convolved.epilogue))
        if not 0 <= choice.engine < graph.graph.read("engine_count"):
            raise ValueError(f"there is no {choice} for {self.problem}")
        epilogue = self._epilogue_after(graph)
        # Left open: the plan needs its engine, and keeps it alive.
        engine = Engine(graph.graph, choice.engine, library=self._library)
        config = EngineConfig(engine, dict(choice.knobs), library=self._library)
        notes = engine.numerical_notes, engine.behavior_notes
        info = PlanInfo("choice", choice.engine, dict(choice.knobs), 0, *notes)
        made = candidate_of(self._handle, graph, self._allowed, config, info)
        if isinstance(made, str):
            raise self._library.unsupported(f"does not use engine {choice.engine}: {made}")
        return self._by_graph(graph, made, epilogue)

    def smaller(self, nbytes: int) -> Iterator[ChosenExecutor]:
        for executor in self._all():
            if executor.workspace_bytes < nbytes:
                yield executor
            else:
                executor.close()

    def close(self) -> None:
        """Do nothing: executors share nothing native."""

    def reasons(self) -> dict[str, str]:
        return {
            one.mode if one.engine is None else f"engine {one.engine}": one.reason
            for one in self.refused
        }

    def nothing(self) -> UnsupportedError:
        """Return the error where no executor is left."""
        options = self.problem.options
        limit = f"has no engine for {self.problem}, with {options}"
        shown = "; ".join(map(str, self.refused[:_MAX_SHOWN]))
        more = len(self.refused) - _MAX_SHOWN
        if shown:
            limit += f". Not taken: {shown}" + (f"; and {more} more" if more > 0 else "")
        return self._library.unsupported(f"{limit}. {_what_to_change(self.problem)}")

    def _graph(self, fused: bool) -> ConvolutionGraph:
        problem = self._convolved
        operation, _ = _GRAPHS[problem.operation, problem.spec.transposed]
        return graph_of(
            operation,
            self._geometry,
            self._handle,
            bias=fused and problem.bias,
            residual=fused and problem.residual,
            alpha=problem.alpha,
            relu=fused and problem.activation == "relu",
            library=self._library,
        )


def geometry_of(problem: ConvProblem) -> Geometry:
    """Return the convolution of a problem with symmetric padding and arrays without gaps."""
    spec = problem.spec
    last = problem.channels_last
    large, small = problem.x_shape, problem.y_shape
    if spec.transposed:
        large, small = small, large
    x, w, y = (Layout.packed(s, channels_last=last) for s in (large, spec.weight_shape, small))
    return Geometry(x, w, y, spec.dtype, spec.stride, spec.padding_before, spec.dilation)


def _what_to_change(problem: ConvProblem) -> str:
    options = problem.options
    ways = [
        "options['math'] other than 'strict'" if options.math == "strict" else "",
        "options['deterministic'] False" if options.deterministic else "",
        "a larger options['workspace_limit']" if options.workspace_limit is not None else "",
        "another layout, sizes or dtype",
        "backend='reference'",
    ]
    *others, last = filter(None, ways)
    return f"What may help: {', '.join(others)} or {last}"


class CudnnConvolutions(TunableSource):
    """libcudnn, on arrays of CuPy or of an allocator."""

    takes_strided = True
    failures = CudnnError, UnsupportedError, MemoryError

    def __init__(self, resources: ConvResources) -> None:
        self.resources = resources
        self.version = f"cuDNN {resources.library.version_text}"

    def executors(
        self,
        problem: ConvProblem,
        launch: Launch,
        *,
        to_measure: bool = False,
        specialized: bool = True,
        recipes: Recipes | None = None,
    ) -> EngineExecutors:
        return EngineExecutors(
            *(self.resources.library, problem, launch),
            to_measure=to_measure,
            specialized=specialized,
            recipes=recipes,
        )

    def backward_bias(self, dy: Array, device: int) -> Array:
        memory = self.resources.memory
        check_aligned("dy", dy)
        with memory.use(device):
            if not dy.size:
                return memory.zeros((dy.shape[1],), dy.dtype)
            if not can_sum(dy.shape):
                raise UnsupportedError(
                    "dnnffi",
                    "",
                    f"without CuPy the gradient of a bias has at most {MAX_POSITIONS:,} positions "
                    f"for each channel; dy has shape {dy.shape}",
                )
            return bias_gradient(dy, device, memory, self.resources.workspaces)

    def clear(self) -> None:
        """Do nothing: what is kept of layers is with their classes (`ConvClassState.recipes`)."""
