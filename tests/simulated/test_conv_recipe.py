"""Recipes on the stand-in: what a further image size of a layer costs, and when it is refused."""

from __future__ import annotations

import gc
from itertools import islice

import conformance_conv
import convolutions as conv
import numpy as np
import pytest
from convolutions import CASES

from dnnffi import testing
from dnnffi.backends.conv_interface import EngineChoice
from dnnffi.backends.cudnn.graph.build import UIDS, graph_of
from dnnffi.backends.cudnn.graph.execution import VariantPacks, execute
from dnnffi.backends.cudnn.graph.plans import Allowed, Candidates
from dnnffi.backends.cudnn.graph.recipe import PlanRecipe
from dnnffi.backends.vendor.handle import current_launch
from dnnffi.convolution import tuner as conv_tuner
from dnnffi.errors import CudnnError, UnsupportedError
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_problem import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST

INTERNAL_ERROR = 4000
SPEC = ConvSpec(in_channels=4, out_channels=8, kernel=(3, 3), padding=1)
FUSED = {"bias": True, "activation": "relu"}
SIZES = [(4, 8, 16), (2, 8, 16), (3, 11, 13), (1, 16, 17)]
CALLS = ("CreateDescriptor", "SetAttribute", "Finalize", "GetAttribute")


def problem_of(size, operation=FORWARD, spec=SPEC, *, layout=CHANNELS_LAST, **more):
    batch, *sizes = size
    shape = (batch, spec.in_channels, *sizes)
    return ConvProblem.of(operation, spec, shape, layout=layout, **more)


def check(simulator, problem):
    arrays = testing.conv_inputs(problem, 0)
    conformance_conv.check_values(problem, arrays, simulator.asarray, "cudnn")


def calls_of(simulator):
    return [simulator.calls(f"cudnnBackend{name}") for name in CALLS]


# Cost of a size

IMAGES = 2  # x and y
REFER = 4  # graph, engine, configuration, plan
PACK = 1  # of the addresses


@pytest.mark.parametrize(
    ("operation", "more", "descriptors", "attributes"),
    [
        (FORWARD, {}, IMAGES + 1 + REFER + PACK, 27),
        (BACKWARD_DATA, {}, IMAGES + 1 + REFER + PACK, 27),
        (BACKWARD_WEIGHTS, {}, IMAGES + 1 + REFER + PACK, 27),
        # A tensor between two operations for each pointwise one.
        (FORWARD, {"bias": True}, IMAGES + 1 + 2 + REFER + PACK, 37),
        (FORWARD, FUSED, IMAGES + 2 + 3 + REFER + PACK, 46),
    ],
)
def test_a_further_size_makes_what_has_images_and_what_refers_to_it(
    simulator, operation, more, descriptors, attributes
):
    check(simulator, problem_of(SIZES[0], operation, **more))
    for size in SIZES[1:]:
        simulator.control.standin_reset()
        check(simulator, problem_of(size, operation, **more))
        # The notes of the engine and the size of the workspace are read.
        assert calls_of(simulator) == [descriptors, attributes, descriptors, 2]


def test_the_knobs_of_an_engine_are_described_once(simulator):
    problem = problem_of(SIZES[0])
    check(simulator, problem)
    (plan,) = simulator.conv.plans.values()
    choice = plan._of_thread().executor.choice
    assert choice.knobs == (("tile_size", 3),)
    before = simulator.live("backend")
    check(simulator, problem_of(SIZES[1]))
    other = next(one for one in simulator.conv.plans.values() if one.problem != problem)
    assert other._of_thread().executor.choice == choice
    assert simulator.live("backend") == before + IMAGES + 1 + REFER + PACK


def test_the_classes_of_a_layer_share_a_recipe_for_a_choice(simulator):
    check(simulator, problem_of(SIZES[0]))
    tuner = simulator.conv.tuner
    (recipes,) = tuner._recipes.values()
    assert len(recipes) == 1
    check(simulator, problem_of((64, 80, 80)))
    assert len(tuner._states) == 2
    assert tuner._recipes.values() == [recipes]
    assert len(recipes) == 1
    check(simulator, problem_of(SIZES[0], **FUSED))
    assert len(tuner._recipes) == 2
    simulator.conv.clear()
    assert len(tuner._recipes) == 0


def test_recipes_are_bounded(simulator, monkeypatch):
    check(simulator, problem_of(SIZES[0]))
    monkeypatch.setattr(conv_tuner, "MAX_CLASSES", 3)
    monkeypatch.setattr(conv_tuner, "MAX_RECIPES", 2)
    tuner = conv_tuner.ConvTuner(simulator.conv.source)
    for channels in range(1, 9):
        spec = ConvSpec(in_channels=channels, out_channels=8, kernel=(3, 3))
        state = tuner.state(problem_of(SIZES[0], spec=spec), 0)
    assert len(tuner._recipes) == 3
    for engine in range(8):
        state.recipes.get(EngineChoice(True, engine, ()), object)
    assert len(state.recipes) == 2


def test_another_choice_of_a_layer_has_a_recipe_of_its_own(simulator):
    check(simulator, problem_of(SIZES[0]))
    simulator.control.standin_fail(b"cudnnBackendExecute", 1, INTERNAL_ERROR)
    check(simulator, problem_of(SIZES[1]))
    (recipes,) = simulator.conv.tuner._recipes.values()
    assert [recipe.info.engine for recipe in recipes.values()] == [1, 2]


SPECS = {
    "2d": SPEC,
    "1d": ConvSpec(in_channels=4, out_channels=4, kernel=(3,), stride=2),
    "3d": ConvSpec(in_channels=2, out_channels=3, kernel=(2, 1, 2), padding=(1, 0, 1)),
    "groups": ConvSpec(in_channels=4, out_channels=8, kernel=(3, 2), groups=2, stride=(2, 1)),
    "pointwise": ConvSpec(in_channels=4, out_channels=8, kernel=(1, 1)),
    "transposed": ConvSpec(
        in_channels=4, out_channels=6, kernel=(3, 3), stride=2, padding=1, transposed=True
    ),
    "asymmetric": ConvSpec(
        in_channels=4, out_channels=8, kernel=(3, 3), stride=2, padding=((0, 1), (2, 1))
    ),
    "asymmetric transposed": ConvSpec(
        in_channels=4, out_channels=6, kernel=(3, 3), padding=((0, 1), (2, 1)), transposed=True
    ),
    "float64": ConvSpec(in_channels=3, out_channels=2, kernel=(2, 2), dtype="float64"),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("layout", [CHANNELS_FIRST, CHANNELS_LAST])
@pytest.mark.parametrize(
    ("operation", "more"),
    [
        (FORWARD, {}),
        (FORWARD, FUSED),
        (FORWARD, {"residual": True, "alpha": 0.5, "activation": "relu"}),
        (BACKWARD_DATA, {}),
        (BACKWARD_WEIGHTS, {}),
    ],
    ids=["forward", "fused", "residual", "backward_data", "backward_weights"],
)
def test_all_sizes_have_the_results_of_the_reference(
    shared_simulator, name, layout, operation, more
):
    spec = SPECS[name]
    for batch, *sizes in ((2, 6, 8, 5), (3, 6, 7, 4), (2, 5, 9, 6)):
        size = batch, *sizes[: spec.rank]
        check(shared_simulator, problem_of(size, operation, spec, layout=layout, **more))


# Recipes by themselves


@pytest.fixture
def handle(simulator):
    return current_launch(simulator.library).owner


CASE = CASES["2d"]
OTHER = CASE._replace(x=(3, 8, 11, 6))


def made(handle, case=CASE, **more):
    """The graph of a case, and the recipe of its first plan."""
    graph = graph_of("forward", case.geometry("float32", True), handle, **more)
    candidate = conv.first(Candidates(handle, graph))
    candidate.plan.close()
    return graph, PlanRecipe(graph, candidate.info)


def run(simulator, plan, recipe, case):
    """Run a plan of a case; return its result and the expected one."""
    operands = case.operands()
    arrays = {name: conv.placed(simulator, operands[name], "float32", True) for name in ("x", "w")}
    y = conv.placed(simulator, np.full(case.y, np.nan), "float32", True)
    workspace = simulator.memory.empty((max(1, plan.workspace_size),), np.uint8)
    arrays |= {"y": y, "workspace": workspace}
    packs = VariantPacks([UIDS[name] for name in recipe.operands], library=simulator.library)
    addresses = tuple(arrays[name].data.ptr for name in (*recipe.operands, "workspace"))
    execute(current_launch(simulator.library), plan, packs.at(addresses))
    return y, conv.forward(operands["x"], operands["w"], case.y, *case.steps)


def test_a_plan_of_another_size(simulator, handle):
    graph, recipe = made(handle)
    candidate = recipe.make(handle, OTHER.geometry("float32", True), Allowed())
    assert candidate.info == recipe.info._replace(workspace_size=candidate.plan.workspace_size)
    y, expected = run(simulator, candidate.plan, recipe, OTHER)
    assert conv.deviation(y, expected) < conv.TOLERANCES["float32"]
    graph.graph.close()


def test_a_recipe_keeps_what_has_no_images_and_a_plan_keeps_the_recipe(simulator, handle):
    graph, recipe = made(handle)
    graph.graph.close()
    del graph
    gc.collect()
    assert simulator.live("backend") == 3  # w, convolution, knob
    candidate = recipe.make(handle, OTHER.geometry("float32", True), Allowed())
    y, expected = run(simulator, candidate.plan, recipe, OTHER)
    assert conv.deviation(y, expected) < conv.TOLERANCES["float32"]
    del recipe
    gc.collect()
    assert simulator.live("backend") == 3 + IMAGES + 1 + REFER
    candidate.plan.close()
    candidate.plan.close()
    gc.collect()
    assert simulator.live("backend") == 0


def test_a_plan_is_shown_like_one_that_was_made_by_itself(simulator, handle):
    _, recipe = made(handle)
    plan = recipe.make(handle, OTHER.geometry("float32", True), Allowed()).plan
    assert repr(plan) == "<ExecutionPlan workspace_size=4096>"
    pack = VariantPacks((1, 2), library=simulator.library).at((16, 32, 0))
    with pytest.raises(CudnnError, match="no tensor 3") as caught:
        execute(current_launch(simulator.library), plan, pack)
    assert caught.value.problem == repr(plan)
    plan.close()
    assert repr(plan) == "<ExecutionPlan closed>"
    with pytest.raises(ValueError, match="is closed"):
        _ = plan.pointer
    simulator.control.standin_reset()


@pytest.mark.parametrize(
    ("case", "last", "changed", "allowed"),
    [
        pytest.param(OTHER, True, {"numerical_notes": ("fft",)}, {}, id="other note"),
        pytest.param(OTHER, True, {"numerical_notes": ()}, {}, id="no note"),
        pytest.param(OTHER, True, {"engine": 0}, {}, id="engine that is refused"),
        pytest.param(OTHER, True, {"engine": 99}, {}, id="engine that does not exist"),
        pytest.param(OTHER, True, {}, {"workspace_limit": 4095}, id="workspace"),
        pytest.param(OTHER, False, {}, {}, id="layout"),
    ],
)
def test_a_size_that_is_left_to_others(simulator, handle, case, last, changed, allowed):
    graph, recipe = made(handle)
    recipe = PlanRecipe(graph, recipe.info._replace(**changed))
    gc.collect()
    before = simulator.live("backend")
    assert recipe.make(handle, case.geometry("float32", last), Allowed(**allowed)) is None
    assert simulator.live("backend") == before
    simulator.control.standin_reset()


def test_a_layout_that_strides_cannot_tell_is_left_to_others(handle):
    case = CASES["2d pointwise"]
    _, recipe = made(handle, case)
    small = case._replace(x=(2, 16, 1, 1))
    assert recipe.make(handle, small.geometry("float32", True), Allowed()) is None
    large = case._replace(x=(2, 16, 3, 1))
    assert recipe.make(handle, large.geometry("float32", True), Allowed()) is not None


def test_a_dimension_beyond_32_bits_is_left_to_others(handle):
    _, recipe = made(handle)
    large = OTHER._replace(x=(1, 8, 2**31, 6))
    assert recipe.make(handle, large.geometry("float32", True), Allowed()) is None


@pytest.mark.parametrize("knobs", [{999: 1}, {"stages": 1}])
def test_an_engine_that_has_no_such_knob(handle, knobs):
    graph, recipe = made(handle)
    try:
        recipe = PlanRecipe(graph, recipe.info._replace(knobs=knobs))
    except (CudnnError, UnsupportedError):
        return
    assert recipe.make(handle, OTHER.geometry("float32", True), Allowed()) is None


# Failures


def test_whichever_call_fails_nothing_is_left_behind(simulator, handle):
    _, recipe = made(handle)
    geometry = OTHER.geometry("float32", True)
    gc.collect()
    before = simulator.live("backend")
    simulator.control.standin_reset()
    recipe.make(handle, geometry, Allowed()).plan.close()
    total = simulator.calls("*")
    assert total == 40
    for number in range(1, total + 1):
        simulator.control.standin_fail(b"*", number, INTERNAL_ERROR)
        assert recipe.make(handle, geometry, Allowed()) is None
        assert simulator.live("backend") == before
        # The stream of the handle is set again: cuDNN may have left it on another one.
        assert handle.launch is None
        current_launch(simulator.library)
    simulator.control.standin_reset()


def test_whichever_call_fails_the_plan_is_made_by_itself(simulator):
    sizes = ((1, high, wide) for high in range(16, 32) for wide in range(16, 32))
    check(simulator, problem_of(next(sizes)))
    failures = 40
    for number, size in enumerate(islice(sizes, failures), start=1):
        simulator.control.standin_fail(b"*", number, INTERNAL_ERROR)
        check(simulator, problem_of(size))
        (plan,) = (one for one in simulator.conv.plans.values() if one.problem == problem_of(size))
        assert plan.fallen == {}
        assert simulator.calls("cudnnBackendExecute") == 1 + number
    assert len(simulator.conv.plans.values()) == 1 + failures
    simulator.control.standin_reset()


def test_an_interrupt_while_a_plan_is_made_leaves_nothing(simulator, handle, monkeypatch):
    _, recipe = made(handle)
    gc.collect()
    before = simulator.live("backend")
    real = simulator.library.lib

    class Interrupting:
        """The library; an interrupt follows the finalizing call ``number``."""

        def __init__(self, number):
            self.left = number

        def __getattr__(self, name):
            return getattr(real, name)

        def cudnnBackendFinalize(self, descriptor):
            status = real.cudnnBackendFinalize(descriptor)
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return status

    for number in range(1, 8):
        monkeypatch.setattr(simulator.library, "lib", Interrupting(number))
        with pytest.raises(KeyboardInterrupt):
            recipe.make(handle, OTHER.geometry("float32", True), Allowed())
        gc.collect()
        assert simulator.live("backend") == before
    monkeypatch.setattr(simulator.library, "lib", real)
