"""Graphs of convolution on a GPU, compared with NumPy: numbers, plans, what is allowed.

`tests/convolutions.py` has the problems. Where cuDNN proposes no engine, a test is skipped with its
words.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import convolutions as conv
import numpy as np
import pytest
from convolutions import CASES, TOLERANCES, Case, Problem

from dnnffi.backends.cudnn import library as cudnn
from dnnffi.backends.cudnn.graph.build import graph_of
from dnnffi.backends.cudnn.graph.engine import Engine, EngineConfig
from dnnffi.backends.cudnn.graph.execution import ExecutionPlan, execute
from dnnffi.backends.cudnn.graph.plans import Allowed, Candidates
from dnnffi.backends.cudnn.graph.recipe import PlanRecipe
from dnnffi.backends.vendor.handle import close_handles, current_launch

cupy = pytest.importorskip("cupy")

TF32 = 3e-3
"""Allowed where float32 may be rounded to the 10 bits of TF32."""

RESNET = Case((8, 64, 28, 28), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1))
MEMORY = SimpleNamespace(asarray=cupy.asarray, empty=cupy.empty)

both_layouts = pytest.mark.parametrize("channels_last", [False, True])
each_dtype = pytest.mark.parametrize("dtype", TOLERANCES)
each_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


@pytest.fixture(scope="module")
def library():
    return cudnn.load()


@pytest.fixture
def handle(library):
    return current_launch(library).owner


def wrong(problem, candidate, found, expected):
    """Describe the error of a result if it exceeds what its engine's notes allow; "" if not."""
    notes = " ".join(map(str, candidate.info.numerical_notes))
    allowed = problem.tolerance
    if problem.dtype == "float32" and ("tensor_core" in notes or "down_convert" in notes):
        allowed = TF32
    elif "winograd" in notes or "fft" in notes:
        allowed *= 10
    difference = conv.deviation(found, expected)
    if difference < allowed:
        return ""
    return f"off by {difference:.3g}, {allowed:.3g} are allowed: {candidate.info}"


def check(problem, handle, graph, written, expected, **allowed):
    candidate = conv.first(Candidates(handle, graph, Allowed(**allowed)))
    found = problem.run(handle, candidate, graph, written)
    assert not wrong(problem, candidate, found, expected)


def first_or_skip(handle, graph):
    """The best plan; skips where cuDNN proposes none."""
    candidates = Candidates(handle, graph)
    candidate = next(candidates, None)
    if candidate is None:
        # A proposed engine that cannot be used is an error.
        assert not candidates.refused
        pytest.skip("cuDNN proposes no engine")
    return candidate


@each_case
@both_layouts
@each_dtype
def test_convolutions(handle, case, channels_last, dtype):
    problem = Problem(case, dtype, channels_last, MEMORY)
    geometry = case.geometry(dtype, channels_last)
    for math in ("default", "strict"):
        graph = graph_of("forward", geometry, handle)
        check(problem, handle, graph, "y", problem.forward(), math=math)
        for operation, written, expected in problem.gradients():
            check(
                problem, handle, graph_of(operation, geometry, handle), written, expected, math=math
            )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@both_layouts
@pytest.mark.parametrize("name", ["2d", "2d strided", "2d groups", "2d depthwise", "1d", "3d"])
def test_every_engine_gives_the_same(handle, name, channels_last, dtype):
    problem = Problem(CASES[name], dtype, channels_last, MEMORY)
    geometry = CASES[name].geometry(dtype, channels_last)
    failures, runs = [], 0
    forward = ("forward", "y", problem.forward())
    for operation, written, expected in (forward, *problem.gradients()):
        graph = graph_of(operation, geometry, handle)
        for candidate in Candidates(handle, graph, Allowed("fast")):
            found = problem.run(handle, candidate, graph, written)
            runs += 1
            if problems := wrong(problem, candidate, found, expected):
                failures.append(f"{written}: {problems}")
    assert not failures, f"{len(failures)} of {runs} runs:\n" + "\n".join(failures)
    assert runs >= 3


@each_dtype
@both_layouts
@pytest.mark.parametrize("name", ["2d", "1d"])
@pytest.mark.parametrize("parts", ["b", "br", "zbr"])
def test_fused(handle, name, channels_last, dtype, parts):
    problem = Problem(CASES[name], dtype, channels_last, MEMORY)
    expected, geometry, options = problem.fused(parts)
    graph = graph_of("forward", geometry, handle, **options)
    must = dtype == "float16" and channels_last and name == "2d"
    candidate = conv.first(Candidates(handle, graph)) if must else first_or_skip(handle, graph)
    found = problem.run(handle, candidate, graph, "y")
    assert not wrong(problem, candidate, found, expected)


def test_a_fused_relu_keeps_nan(handle):
    problem = Problem(CASES["2d"], "float16", True, MEMORY)
    problem.values["x"][0, 0, 4, 3] = np.nan
    problem.arrays["x"] = problem.place(problem.values["x"])
    expected, geometry, options = problem.fused("br")
    graph = graph_of("forward", geometry, handle, **options)
    candidate = conv.first(Candidates(handle, graph))
    found = problem.run(handle, candidate, graph, "y").get()
    assert np.isnan(expected).any()
    assert (np.isnan(found) == np.isnan(expected)).all(), str(candidate.info)


# Allowed engines


@both_layouts
def test_float32_has_engines_on_the_tensor_cores_unless_strict(handle, channels_last):
    graph = graph_of("forward", RESNET.geometry("float32", channels_last), handle)
    default = [candidate.info for candidate in Candidates(handle, graph)]
    assert any("tensor_core" in info.numerical_notes for info in default), "\n".join(
        map(str, default)
    )
    strict = [candidate.info for candidate in Candidates(handle, graph, Allowed("strict"))]
    assert strict
    assert not any("tensor_core" in info.numerical_notes for info in strict)


def test_strict_is_as_precise_as_float32(handle):
    problem = Problem(RESNET, "float32", True, MEMORY)
    graph = graph_of("forward", RESNET.geometry("float32", True), handle)
    check(problem, handle, graph, "y", problem.forward(), math="strict")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_deterministic_is_the_same_every_time(handle, dtype):
    problem = Problem(RESNET, dtype, True, MEMORY)
    operation, written, _ = problem.gradients()[1]
    graph = graph_of(operation, RESNET.geometry(dtype, True), handle)
    for count, candidate in enumerate(Candidates(handle, graph, Allowed(deterministic=True))):
        first, *others = (problem.run(handle, candidate, graph, written).get() for _ in range(3))
        assert all((first == other).all() for other in others), str(candidate.info)
        if count == 3:
            break


def test_workspaces_are_as_small_as_asked_for(handle):
    graph = graph_of("backward_weights", RESNET.geometry("float16", True), handle)
    sizes = [candidate.info.workspace_size for candidate in Candidates(handle, graph)]
    limit = sorted(sizes)[len(sizes) // 2]
    limited = list(Candidates(handle, graph, Allowed(workspace_limit=limit)))
    assert limited
    assert max(candidate.info.workspace_size for candidate in limited) <= limit


@pytest.mark.parametrize("mode", ["a", "b", "fallback", "instant"])
def test_each_mode_of_the_heuristics(handle, mode):
    problem = Problem(CASES["2d"], "float16", True, MEMORY)
    graph = graph_of("forward", CASES["2d"].geometry("float16", True), handle)
    candidate = conv.first(Candidates(handle, graph, modes=(mode,)))
    found = problem.run(handle, candidate, graph, "y")
    assert conv.deviation(found, problem.forward()) < problem.tolerance


# Plans


def test_a_plan_made_again_from_its_parts(handle, library):
    problem = Problem(CASES["2d"], "float16", True, MEMORY)
    graph = graph_of("forward", CASES["2d"].geometry("float16", True), handle)
    candidate = conv.first(Candidates(handle, graph))
    expected = problem.run(handle, candidate, graph, "y").get()
    info = candidate.info
    engine = Engine(graph.graph, info.engine, library=library)
    config = EngineConfig(engine, info.knobs, library=library)
    rebuilt = ExecutionPlan(handle, config, library=library)
    assert rebuilt.workspace_size == info.workspace_size
    found = problem.run(handle, candidate._replace(plan=rebuilt), graph, "y").get()
    assert (found == expected).all()


@both_layouts
@pytest.mark.parametrize("parts", ["", "br", "zbr"])
def test_a_recipe_makes_plans_of_other_sizes(handle, channels_last, parts):
    _, geometry, options = Problem(RESNET, "float16", channels_last, MEMORY).fused(parts)
    graph = graph_of("forward", geometry, handle, **options)
    recipe = PlanRecipe(graph, first_or_skip(handle, graph).info)
    problem = Problem(RESNET._replace(x=(5, 64, 32, 24)), "float16", channels_last, MEMORY)
    expected, geometry, _ = problem.fused(parts)
    candidate = recipe.make(handle, geometry, Allowed())
    assert candidate is not None
    assert not wrong(problem, candidate, problem.run(handle, candidate, graph, "y"), expected)


@both_layouts
def test_a_recipe_makes_plans_of_gradients_of_other_sizes(handle, channels_last):
    problem = Problem(RESNET._replace(x=(5, 64, 32, 24)), "float16", channels_last, MEMORY)
    for operation, written, expected in problem.gradients():
        graph = graph_of(operation, RESNET.geometry("float16", channels_last), handle)
        recipe = PlanRecipe(graph, first_or_skip(handle, graph).info)
        geometry = problem.case.geometry("float16", channels_last)
        candidate = recipe.make(handle, geometry, Allowed())
        assert candidate is not None
        found = problem.run(handle, candidate, graph, written)
        assert not wrong(problem, candidate, found, expected)


def test_what_a_plan_needs_outlives_its_graph(handle):
    problem = Problem(CASES["2d"], "float32", False, MEMORY)
    graph = graph_of("forward", CASES["2d"].geometry("float32"), handle)
    candidate = conv.first(Candidates(handle, graph, Allowed("strict")))
    graph.graph.close()
    found = problem.run(handle, candidate, graph, "y")
    assert conv.deviation(found, problem.forward()) < problem.tolerance


def test_capture_in_a_cuda_graph(library):
    problem = Problem(CASES["2d"], "float16", True, MEMORY)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        handle = current_launch(library).owner
        graph = graph_of("forward", CASES["2d"].geometry("float16", True), handle)
        candidate = conv.first(Candidates(handle, graph))
        y = problem.run(handle, candidate, graph, "y")
        workspace = cupy.empty(max(candidate.info.workspace_size, 1), "uint8")
        arrays = problem.arrays | {"y": y}
        packs = conv.packs_of(graph)
        addresses = (*(arrays[name].data.ptr for name in graph.operands), workspace.data.ptr)
        stream.begin_capture()
        execute(current_launch(library), candidate.plan, packs.at(addresses))
        captured = stream.end_capture()
        packs.clear()
        expected = y.get()
        problem.arrays["x"][...] *= 2
        captured.launch(stream)
        stream.synchronize()
        assert (y.get() == 2 * expected).all()


def test_threads_with_plans_of_their_own(library):
    problem = Problem(CASES["2d"], "float16", True, MEMORY)
    expected, failures = problem.forward(), []

    def work():
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                handle = current_launch(library).owner
                # A plan of a graph without a handle is refused when it is to run (9.19).
                graph = graph_of("forward", CASES["2d"].geometry("float16", True), handle)
                candidate = conv.first(Candidates(handle, graph))
                for _ in range(20):
                    found = problem.run(handle, candidate, graph, "y")
                    stream.synchronize()
                    assert conv.deviation(found, expected) < problem.tolerance
            close_handles(library)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
