"""Plans and packs of graphs on the simulator of cuDNN, and what is left of them."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

import convolutions as conv
import numpy as np
import pytest
from convolutions import CASES, Problem

from dnnffi.backends.cudnn.graph import plans
from dnnffi.backends.cudnn.graph.build import graph_of
from dnnffi.backends.cudnn.graph.engine import Engine, EngineConfig, OperationGraph
from dnnffi.backends.cudnn.graph.execution import (
    MAX_PACKS,
    ExecutionPlan,
    VariantPacks,
    execute,
)
from dnnffi.backends.cudnn.graph.plans import Allowed, Candidates
from dnnffi.backends.vendor.handle import current_launch
from dnnffi.errors import CudnnError, UnsupportedError

INTERNAL_ERROR = 4000
SMALL = CASES["2d odd"]


@pytest.fixture
def memory(simulator):
    return SimpleNamespace(asarray=simulator.asarray, empty=simulator.memory.empty)


@pytest.fixture
def handle(simulator):
    return current_launch(simulator.library).owner


# Plans


@pytest.fixture
def graph(simulator, handle):
    made = graph_of("forward", SMALL.geometry("float32"), handle)
    yield made
    made.graph.close()


def engines(handle, graph, *, modes=("a", "fallback"), **allowed):
    found = Candidates(handle, graph, Allowed(**allowed), modes=modes)
    return [candidate.info.engine for candidate in found], found


def test_candidates_come_in_the_order_of_the_heuristics(handle, graph):
    assert engines(handle, graph)[0] == [1, 2, 3]
    assert engines(handle, graph, modes=("b",))[0] == [1, 1, 3]
    assert engines(handle, graph, modes=("fallback", "a"))[0] == [3, 1, 2]


def test_what_the_library_refuses_is_passed_over_and_said(handle, graph):
    _, found = engines(handle, graph)
    (refusal,) = found.refused
    assert (refusal.mode, refusal.engine) == ("a", 0)
    assert "nobody can run" in refusal.reason


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ({"math": "strict"}, [2, 3]),
        ({"math": "fast"}, [1, 2, 3]),
        ({"deterministic": True}, [1, 3]),
        ({"math": "strict", "deterministic": True}, [3]),
        ({"workspace_limit": 4096}, [1, 2, 3]),
        ({"workspace_limit": 4095}, [2, 3]),
        ({"workspace_limit": 0}, [3]),
    ],
)
def test_only_what_is_allowed(handle, graph, allowed, expected):
    found, candidates = engines(handle, graph, **allowed)
    assert found == expected
    assert {refusal.engine for refusal in candidates.refused} == {0, 1, 2, 3} - set(expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_tensor_cores_are_no_lack_of_precision_but_for_float32(handle, dtype):
    graph = graph_of("forward", SMALL.geometry(dtype), handle)
    assert engines(handle, graph, math="strict")[0] == [1, 2, 3]


def test_the_notes_that_exclude():
    assert Allowed().excluded_notes("float32") == {"down_convert_inputs"}
    assert Allowed("fast").excluded_notes("float32") == frozenset()
    assert Allowed("strict", True).excluded_notes("float32") == {
        "down_convert_inputs",
        "nondeterministic",
        "reduced_precision_reduction",
        "tensor_core",
    }
    with pytest.raises(ValueError, match="math must be one of default, strict, fast"):
        Allowed("exact").excluded_notes("float32")


def test_a_mode_is_asked_when_those_before_are_used_up(simulator, handle, graph):
    found = Candidates(handle, graph, first=4)
    simulator.control.standin_reset()
    next(found)
    assert simulator.calls("cudnnBackendExecute") == 0
    with_one = simulator.calls("cudnnBackendFinalize")
    next(found)
    assert simulator.calls("cudnnBackendFinalize") == with_one + 1


@pytest.mark.parametrize("first", [1, 2, 4, 5])
def test_a_mode_is_asked_for_more_when_the_first_are_used_up(simulator, handle, graph, first):
    found = Candidates(handle, graph, modes=("a",), first=first)
    assert [candidate.info.engine for candidate in found] == [1, 2, 3]
    assert [refusal.engine for refusal in found.refused] == [0]
    simulator.control.standin_reset()


def test_each_mode_is_asked_for_few_at_first_and_each_plan_says_which_it_was(
    handle, graph, monkeypatch
):
    asked, ask = [], plans.EngineHeuristics

    def heuristics(graph, mode, library):
        made = ask(graph, mode, library=library)
        results = made.results
        made.results = lambda most: asked.append((mode, most)) or results(most)
        return made

    monkeypatch.setattr(plans, "EngineHeuristics", heuristics)
    found = Candidates(handle, graph, modes=("fallback", "a"), first=1)
    infos = [candidate.info for candidate in found]
    assert [(info.mode, info.engine) for info in infos] == [("fallback", 3), ("a", 1), ("a", 2)]
    assert [(refusal.mode, refusal.engine) for refusal in found.refused] == [("a", 0)]
    assert asked == [("fallback", 1), ("fallback", 8), ("a", 1), ("a", 8)]


def test_nothing_is_asked_before_the_first(simulator, handle, graph):
    simulator.control.standin_reset()
    Candidates(handle, graph)
    assert simulator.calls("*") == 0


def test_a_graph_that_no_engine_fuses(simulator, handle):
    graph = graph_of("forward", SMALL.geometry("float32"), handle, bias=True, relu=True)
    simulator.control.standin_set_max_operations(2)
    found, candidates = engines(handle, graph)
    assert found == []
    assert "no engine fuses 3 operations" in candidates.refused[0].reason


def test_an_error_of_the_heuristics_leads_to_the_next_mode(simulator, handle, graph):
    # The second descriptor that is finalized from here on: the first is the heuristics of "a".
    simulator.control.standin_fail(b"cudnnBackendFinalize", 1, INTERNAL_ERROR)
    found, candidates = engines(handle, graph)
    assert found == [3]
    assert candidates.refused[0].engine is None


def test_the_report(handle, graph):
    infos = [candidate.info for candidate in Candidates(handle, graph)]
    assert infos[0].knobs == {"tile_size": 3}
    assert [str(info) for info in infos] == [
        "engine 1; knobs tile_size 3; workspace 4096 bytes; tensor_core, runtime_compilation",
        "engine 2; no knobs; workspace 64 bytes; nondeterministic, winograd",
        "engine 3; no knobs; workspace 0 bytes; no notes",
    ]


def test_a_plan_made_again_from_its_parts(simulator, handle, graph):
    info = conv.first(Candidates(handle, graph)).info
    engine = Engine(graph.graph, info.engine, library=simulator.library)
    config = EngineConfig(engine, info.knobs, library=simulator.library)
    assert config.knobs() == info.knobs
    assert config.engine().index == info.engine
    plan = ExecutionPlan(handle, config, library=simulator.library)
    assert plan.workspace_size == info.workspace_size


@pytest.mark.parametrize("knobs", [{"tile_size": 5}, {"stages": 1}, {999: 1}])
def test_knobs_that_the_engine_has_not(simulator, graph, knobs):
    engine = Engine(graph.graph, 1, library=simulator.library)
    with pytest.raises(UnsupportedError, match="EngineConfig"):
        EngineConfig(engine, knobs, library=simulator.library)


def test_a_knob_that_nobody_has(simulator, graph):
    engine = Engine(graph.graph, 1, library=simulator.library)
    with pytest.raises(ValueError, match=r"knob must be one of .*tile_size.*got 'tile'"):
        EngineConfig(engine, {"tile": 1}, library=simulator.library)


def test_an_engine_that_there_is_not(simulator, graph):
    with pytest.raises(CudnnError, match=r"Engine\(graph=<.*>, index=4\): .*there is no engine 4"):
        Engine(graph.graph, 4, library=simulator.library)
    with pytest.raises(ValueError, match="index must be from 0"):
        Engine(graph.graph, -1, library=simulator.library)
    simulator.control.standin_reset()


# Packs


def test_a_pack_is_made_once_for_the_same_addresses(simulator, handle, memory):
    packs = VariantPacks((1, 2, 3), library=simulator.library)
    simulator.control.standin_reset()
    first = packs.at((16, 32, 48, 0))
    assert packs.at((16, 32, 48, 0)) is first
    assert packs.at((16, 32, 64, 0)) is not first
    assert packs.at((16, 32, 48, 128)) is not first
    assert simulator.calls("cudnnBackendCreateDescriptor") == 3


def test_packs_do_not_grow_without_end(simulator):
    packs = VariantPacks((1,), library=simulator.library)
    kept = packs.at((0, 0))
    for address in range(1, 2 * MAX_PACKS):
        packs.at((address, 0))
    gc.collect()
    assert simulator.live("backend") == MAX_PACKS + 1
    packs.clear()
    del kept
    assert simulator.live("backend") == 0


@pytest.mark.parametrize("function", ["CreateDescriptor", "SetAttribute", "Finalize"])
def test_a_pack_that_is_refused_is_named_and_gone(simulator, function):
    packs = VariantPacks((1,), library=simulator.library)
    simulator.control.standin_fail(f"cudnnBackend{function}".encode(), 1, INTERNAL_ERROR)
    with pytest.raises(CudnnError, match=f"cudnnBackend{function} .* for VariantPack"):
        packs.at((16, 0))
    assert simulator.live("backend") == 0


def test_threads_share_packs_and_have_plans_of_their_own(simulator, memory):
    problem = Problem(SMALL, "float32", False, memory)
    expected = problem.forward()
    graph = graph_of("forward", SMALL.geometry("float32"), library=simulator.library)
    packs = conv.packs_of(graph)
    failures = []

    def work():
        from dnnffi.backends.vendor.handle import close_handles

        try:
            handle = current_launch(simulator.library).owner
            candidate = conv.first(Candidates(handle, graph, Allowed(workspace_limit=0)))
            for _ in range(20):
                y = memory.empty(SMALL.y, np.float32)
                named = problem.arrays | {"y": y}
                pack = packs.at((*(named[name].data.ptr for name in graph.operands), 0))
                execute(current_launch(simulator.library), candidate.plan, pack)
                assert conv.deviation(y, expected) < problem.tolerance
            close_handles(simulator.library)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize(
    ("name", "moved", "message"),
    [
        ("x", lambda address: address + 16, "tensor 1: its 360 bytes do not lie inside"),
        ("x", lambda address: address + 4, "tensor 1 is not aligned to 16 bytes"),
        ("y", lambda address: 0, "tensor 3 is NULL"),
        ("workspace", lambda address: 0, "the workspace is NULL"),
    ],
)
def test_an_error_of_a_call_names_the_plan(simulator, handle, memory, name, moved, message):
    problem = Problem(SMALL, "float32", False, memory)
    graph = graph_of("forward", SMALL.geometry("float32"), handle)
    plan = conv.first(Candidates(handle, graph)).plan
    arrays = problem.arrays | {"workspace": memory.empty((plan.workspace_size,), np.uint8)}
    addresses = {name: arrays[name].data.ptr for name in (*graph.operands, "workspace")}
    addresses[name] = moved(addresses[name])
    pack = conv.packs_of(graph).at(tuple(addresses.values()))
    with pytest.raises(CudnnError, match=message) as caught:
        execute(current_launch(simulator.library), plan, pack)
    assert caught.value.function == "cudnnBackendExecute"
    assert "ExecutionPlan workspace_size=4096" in caught.value.problem
    simulator.control.standin_reset()


def test_a_pack_without_one_of_the_tensors(simulator, handle, memory):
    graph = graph_of("forward", SMALL.geometry("float32"), handle)
    plan = conv.first(Candidates(handle, graph)).plan
    pack = VariantPacks((1, 2), library=simulator.library).at((16, 32, 0))
    with pytest.raises(CudnnError, match="the variant pack has no tensor 3"):
        execute(current_launch(simulator.library), plan, pack)
    simulator.control.standin_reset()


# Life


def everything(simulator, handle, memory):
    """Build, plan and run a fused convolution."""
    problem = Problem(SMALL, "float32", False, memory)
    geometry = SMALL.geometry("float32")
    graph = graph_of(
        "forward", geometry, handle, bias=True, residual=True, relu=True, library=simulator.library
    )
    candidate = conv.first(Candidates(handle, graph))
    conv.run(handle, candidate, graph, problem.arrays, memory)


def test_whichever_call_fails_nothing_is_left_behind(simulator, handle, memory):
    everything(simulator, handle, memory)
    gc.collect()
    assert simulator.live("backend") == 0
    total = simulator.calls("*")
    simulator.control.standin_reset()
    everything(simulator, handle, memory)
    total = simulator.calls("*")
    survived = 0
    for number in range(1, total + 1):
        simulator.control.standin_fail(b"*", number, INTERNAL_ERROR)
        try:
            everything(simulator, handle, memory)
            # An engine or a heuristic that fails is passed over.
            survived += 1
        except (CudnnError, UnsupportedError):
            pass
        simulator.control.standin_fail(b"*", 0, 0)
        assert simulator.live("backend") == 0, number
    assert 0 < survived < total / 3
    simulator.control.standin_reset()


def test_a_plan_keeps_what_it_runs_alive(simulator, handle, memory):
    problem = Problem(SMALL, "float32", False, memory)
    graph = graph_of("forward", SMALL.geometry("float32"), handle)
    plan = conv.first(Candidates(handle, graph)).plan
    operands, packs = graph.operands, conv.packs_of(graph)
    del graph
    gc.collect()
    workspace = memory.empty((plan.workspace_size,), np.uint8)
    addresses = [problem.arrays[name].data.ptr for name in operands]
    execute(current_launch(simulator.library), plan, packs.at((*addresses, workspace.data.ptr)))
    plan.close()
    gc.collect()
    assert simulator.live("backend") == 1
    packs.clear()
    assert simulator.live("backend") == 0


def test_closed_descriptors_are_an_error(simulator, handle, graph):
    plan = conv.first(Candidates(handle, graph)).plan
    plan.close()
    plan.close()
    pack = conv.packs_of(graph).at((16, 32, 48, 0))
    with pytest.raises(ValueError, match="this ExecutionPlan is closed"):
        execute(current_launch(simulator.library), plan, pack)
    graph.graph.close()
    with pytest.raises(ValueError, match="this OperationGraph is closed"):
        conv.first(Candidates(handle, graph))
    assert repr(plan) == "<ExecutionPlan closed>"


def test_a_graph_of_nothing(simulator):
    with pytest.raises(ValueError, match="operations: a graph needs at least one"):
        OperationGraph((), library=simulator.library)
