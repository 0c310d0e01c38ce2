"""Convolutions on the stand-in: plans, fusion, tuning, faults, threads, and what is left."""

from __future__ import annotations

import gc
import itertools
import json
import threading
from functools import partial

import conformance_conv
import numpy as np
import pytest
from conformance import deviation

import dnnffi
from dnnffi import testing
from dnnffi.backends import registry
from dnnffi.backends.conv_interface import OWN, ConvAddresses, addresses_of
from dnnffi.backends.cudnn import conv_executor
from dnnffi.backends.cudnn.conv_executor import EngineExecutors, GraphExecutor
from dnnffi.backends.cudnn.graph import known_wrong
from dnnffi.backends.own.epilogue import EpilogueKernel
from dnnffi.backends.vendor.handle import close_handles, current_launch
from dnnffi.convolution import backend
from dnnffi.convolution import tuning as conv_tuning
from dnnffi.convolution.backend import conv_backends
from dnnffi.convolution.executor_plan import CAPTURED_AT, ExecutorConvPlan
from dnnffi.errors import (
    CompileError,
    CudaError,
    CudnnError,
    PerformanceWarning,
    UnsupportedError,
    ValidationError,
)
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import BACKWARD_DATA, FORWARD, OPERATIONS, ConvProblem
from dnnffi.spec.layouts import CHANNELS_LAST, LAYOUTS

INTERNAL_ERROR = 4000
SPEC = ConvSpec(in_channels=4, out_channels=6, kernel=(3, 2), stride=(1, 2), groups=2)
X_SHAPE = (2, 4, 5, 6)
conv = partial(dnnffi.conv, backend="cudnn")


def problem_of(operation=FORWARD, spec=SPEC, **more):
    return ConvProblem.of(operation, spec, X_SHAPE, **more)


FUSED = {"activation": "relu", "residual": True, "alpha": 0.5, "bias": True}


def check(simulator, problem, seed=0):
    arrays = testing.conv_inputs(problem, seed)
    return conformance_conv.check_values(problem, arrays, simulator.asarray, "cudnn")


def the_plan(simulator):
    (plan,) = simulator.conv.plans.values()
    return plan


def engine_of(simulator):
    return the_plan(simulator)._of_thread().executor.choice.engine


# Plans


def test_a_second_call_only_executes(simulator):
    problem = problem_of(**FUSED)
    arrays = testing.conv_inputs(problem, 0)
    given = [simulator.asarray(a) for a in (arrays.x, arrays.w, arrays.bias)]
    residual = simulator.asarray(arrays.residual)
    out = conv(*given, stride=(1, 2), groups=2, activation="relu", residual=residual)
    simulator.control.standin_reset()
    again = conv(*given, stride=(1, 2), groups=2, activation="relu", residual=residual)
    np.testing.assert_array_equal(out, again)
    assert simulator.calls("cudnnBackendExecute") == 1
    # One pack for new addresses: created, three attributes, finalized.
    assert simulator.calls("*") <= 6


def test_the_reference_runs_again_on_arrays_of_a_device(simulator, monkeypatch):
    monkeypatch.setattr(backend, "on_cupy", conv_backends.of("cudnn"))
    x = simulator.asarray(np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4))
    w = simulator.asarray(np.ones((1, 2, 2, 2), np.float32))
    expected = dnnffi.conv(np.array(x), np.array(w))
    for _ in range(2):
        found = dnnffi.conv(x, w, backend="reference")
        np.testing.assert_array_equal(found, expected)


def test_the_backend_that_knows_calls_is_the_one_that_is_kept(simulator):
    problem = problem_of(**FUSED)
    check(simulator, problem)
    kept = conv_backends.of("cudnn")
    conv_backends._make(registry.BACKENDS["cudnn"], kept.resources)  # by a thread that is too late
    check(simulator, problem)
    assert backend.on_cupy is kept


def test_plans_are_found_and_cleared(simulator):
    for operation in OPERATIONS:
        check(simulator, problem_of(operation))
    plans = [plan for plan in dnnffi.cached_plans() if isinstance(plan, ExecutorConvPlan)]
    assert len(plans) == 3
    assert all("engine 1" in plan.report() for plan in plans)
    del plans
    dnnffi.clear_plans()
    assert simulator.conv.plans.values() == []
    gc.collect()
    assert simulator.live("backend") == 0


def test_a_network_of_many_layers_keeps_its_plans(simulator):
    w = simulator.memory.zeros((1, 1, 1))
    images = [simulator.memory.zeros((1, 1, size)) for size in range(1, 200)]
    for x in images:
        conv(x, w)
    plans = simulator.conv.plans.values()
    assert len(plans) == len(images)
    for x in images:
        conv(x, w)
    again = simulator.conv.plans.values()
    assert all(one is other for one, other in zip(again, plans, strict=True))


def test_an_empty_batch_asks_no_library(simulator):
    x, w = simulator.memory.empty((0, 4, 5, 6)), simulator.memory.zeros(SPEC.weight_shape)
    simulator.control.standin_reset()
    assert conv(x, w, groups=2).shape == (0, 6, 3, 5)
    assert simulator.calls("*") == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_are_copied_and_the_layout_stays(simulator, layout):
    problem = problem_of(layout=layout)
    arrays = testing.conv_inputs(problem, 0)
    room = simulator.memory.zeros((2, 10, 12, 8))
    view = room[:, ::2, ::2, ::2] if layout == CHANNELS_LAST else room[:, :8:2, ::2, :6]
    view = view.transpose(0, 3, 1, 2) if layout == CHANNELS_LAST else view[:, :, :5]
    view[...] = arrays.x
    w = simulator.asarray(arrays.w)
    found = conv(view, w, stride=(1, 2), groups=2, options={"math": "strict"})
    assert deviation(found, conformance_conv.expected(problem, arrays)) < 1e-5
    assert the_plan(simulator).problem.layout == layout


def test_an_address_that_is_not_aligned(simulator):
    problem = problem_of()
    arrays = testing.conv_inputs(problem, 0)
    room = simulator.memory.zeros((arrays.x.size + 1,))
    x = room[1:].reshape(X_SHAPE)
    x[...] = arrays.x
    found = conv(x, simulator.asarray(arrays.w), stride=(1, 2), groups=2)
    assert deviation(found, conformance_conv.expected(problem, arrays)) < 1e-5


def at_an_odd_address(simulator, array):
    """The same numbers in memory that is not aligned to them."""
    room = simulator.memory.empty((array.nbytes + 1,), np.uint8)[1:]
    moved = room.view(array.dtype).reshape(array.shape)
    moved[...] = array
    assert moved.data.ptr % 2
    return moved


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["x", "w"])
def test_an_array_that_is_not_aligned_to_its_elements_is_copied_as_bytes(simulator, name, layout):
    problem = problem_of(layout=layout)
    arrays = testing.conv_inputs(problem, 0)
    last = layout == CHANNELS_LAST

    def put(array, odd):
        array = np.ascontiguousarray(np.moveaxis(array, 1, -1)) if last else array
        placed = at_an_odd_address(simulator, array) if odd else simulator.asarray(array)
        return placed.transpose(0, 3, 1, 2) if last else placed

    x, w = (put(getattr(arrays, one), one == name) for one in ("x", "w"))
    before = simulator.memory.copies
    found = conv(x, w, stride=(1, 2), groups=2)
    assert simulator.memory.copies == before + 1
    assert deviation(found, conformance_conv.expected(problem, arrays)) < 1e-5


def test_an_array_in_another_layout_that_is_not_aligned_is_copied(simulator):
    problem = problem_of(layout=CHANNELS_LAST)
    arrays = testing.conv_inputs(problem, 0)
    x = simulator.asarray(np.ascontiguousarray(np.moveaxis(arrays.x, 1, -1))).transpose(0, 3, 1, 2)
    found = conv(x, at_an_odd_address(simulator, arrays.w), stride=(1, 2), groups=2)
    assert deviation(found, conformance_conv.expected(problem, arrays)) < 1e-5


def test_an_array_with_gaps_that_is_not_aligned_to_its_elements_is_refused(simulator):
    w = simulator.memory.zeros(SPEC.weight_shape)
    x = at_an_odd_address(simulator, np.zeros((2, 4, 5, 12), "f4"))[..., ::2]
    message = r"^x must begin at a multiple of its elements' 4 bytes; it is at 0x"
    with pytest.raises(ValueError, match=message):
        conv(x, w, stride=(1, 2), groups=2)
    plan = dnnffi.ConvPlan(SPEC, X_SHAPE, backend="cudnn")
    with plan, pytest.raises(ValueError, match=message):
        plan.run(x, w)


# Launches


@pytest.mark.parametrize("fused", [True, False])
def test_an_executor_runs_where_the_launch_says(simulator, monkeypatch, fused):
    if not fused:
        simulator.control.standin_set_max_operations(1)
    problem = problem_of(**FUSED)
    arrays = testing.conv_inputs(problem, 0)
    check(simulator, problem)
    executor = the_plan(simulator)._of_thread().executor
    assert executor.fused == fused
    given = [simulator.asarray(a) for a in conformance_conv.arguments(problem, arrays)]
    out = simulator.memory.zeros(problem.result_shape)
    workspace = simulator.memory.empty((executor.workspace_bytes,), np.uint8)
    at = ConvAddresses(*addresses_of(given), out.data.ptr, workspace.data.ptr)
    launch = simulator.conv.resources.launch(0, simulator.memory.new_stream())
    streams, allocations = [], simulator.memory.allocations
    kernel = EpilogueKernel.run

    def run(self, launch, at):
        streams.append(launch.stream.ptr)
        kernel(self, launch, at)

    def none():
        raise AssertionError("an executor asks for no current stream")

    monkeypatch.setattr(EpilogueKernel, "run", run)
    monkeypatch.setattr(simulator.memory, "current_stream", none)
    simulator.control.standin_reset()
    executor.run(launch, at)
    assert deviation(out, conformance_conv.expected(problem, arrays)) < 1e-5
    assert simulator.calls("cudnnSetStream") == 0
    assert simulator.memory.allocations == allocations
    assert streams == ([] if fused else [launch.stream.ptr])


# Fusion


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("transposed", [False, True])
def test_what_no_engine_fuses_is_added_afterwards(simulator, transposed, layout):
    spec = ConvSpec(in_channels=4, out_channels=6, kernel=(3, 2), groups=2, transposed=transposed)
    problem = problem_of(FORWARD, spec, layout=layout, **FUSED)
    check(simulator, problem)
    assert "residual and bias and relu: in the same kernel" in the_plan(simulator).report()
    simulator.conv.clear()
    simulator.control.standin_set_max_operations(1)
    check(simulator, problem)
    assert "residual and bias and relu: after the convolution" in the_plan(simulator).report()


# Tuning


def costs(monkeypatch, *times):
    """Let the candidates of the next measurement have these times."""
    each = iter(times)
    monkeypatch.setattr(conv_tuning, "_time", lambda call, memory, best: next(each))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("operation", OPERATIONS)
def test_tuned_and_found_on_disk(simulator, folder, operation):
    options = ConvOptions(tune="now")
    check(simulator, problem_of(operation, options=options))
    tuning = the_plan(simulator).finder.tuning
    assert tuning.source == "measured"
    assert set(tuning.times) == {
        *("engine 1 tile_size=3", "engine 1 tile_size=2", "engine 2", "engine 3")
    }
    assert "nobody can run" in tuning.refused["engine 0"]
    simulator.conv.clear()
    graphs = len(simulator.memory.graphs)
    check(simulator, problem_of(operation))
    assert the_plan(simulator).finder.tuning == tuning._replace(source="disk")
    assert "read from disk" in the_plan(simulator).report()
    assert len(simulator.memory.graphs) == graphs


TWO = [True, 2, []]
WRONG = {
    "no float": {"candidates": [[TWO, 10**400]]},
    "infinite": {"candidates": [[TWO, float("inf")]]},
    "no number": {"candidates": [[TWO, float("nan")]]},
    "before its start": {"candidates": [[TWO, -1.0]]},
    "no engine": {"candidates": [[[True, float("inf"), []], 1.0]]},
    "no flag": {"candidates": [[["yes", 2, []], 1.0]]},
    "no knob": {"candidates": [[[True, 1, [[["tile_size"], 2]]], 1.0]]},
    "no value": {"candidates": [[[True, 1, [["tile_size", True]]], 1.0]]},
    "no pair": {"candidates": [[[True, 1, [["tile_size"]]], 1.0]]},
    "no list": {"candidates": [[3, 1.0]]},
    "no candidates": {"candidates": None},
    "no reasons": {"refused": 3},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_a_file_with_something_else_in_it_is_ignored(simulator, folder, wrong):
    check(simulator, problem_of(options=ConvOptions(tune="now")))
    simulator.conv.clear()
    (path,) = folder.rglob("*.json")
    content = json.loads(path.read_text())
    content["value"] |= wrong
    path.write_text(json.dumps(content))
    with pytest.warns(PerformanceWarning, match="a tuning result is ignored"):
        check(simulator, problem_of())
    assert the_plan(simulator).finder.tuning is None
    assert "not measured" in the_plan(simulator).report()


def test_the_fastest_is_used(simulator, folder, monkeypatch):
    costs(monkeypatch, 3.0, 1.0, 2.0, 4.0)
    check(simulator, problem_of(options=ConvOptions(tune="now")))
    assert the_plan(simulator).finder.tuning.times == {
        "engine 1 tile_size=3": 3.0,
        "engine 2": 1.0,
        "engine 3": 2.0,
        "engine 1 tile_size=2": 4.0,
    }
    assert engine_of(simulator) == 2


@pytest.mark.parametrize("source", ["measured", "disk"])
def test_the_fastest_is_made_again_as_it_was_measured(simulator, folder, monkeypatch, source):
    costs(monkeypatch, 3.0, 2.0, 2.0, 1.0)
    check(simulator, problem_of(options=ConvOptions(tune="now")))
    if source == "disk":
        simulator.conv.clear()
        check(simulator, problem_of())
    assert the_plan(simulator).finder.tuning.source == source
    # Set otherwise, the stand-in's engine needs 1024 bytes for each size of its tiles.
    report = the_plan(simulator).report()
    assert "engine 1; knobs tile_size 2; workspace 3072 bytes" in report


def test_another_thread_has_the_plan_of_the_first(simulator):
    check(simulator, problem_of())
    plan, sizes = the_plan(simulator), []

    def look():
        with simulator.memory.use(plan.device):
            sizes.append(plan._of_thread().executor.workspace_bytes)

    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert sizes == [4096, 4096]


def wrong_in(monkeypatch, number):
    """Let the results of one candidate be twice what they are."""
    sample, calls = conv_tuning.sample, []

    def found(array):
        calls.append(None)
        return 2 * sample(array) if len(calls) == number else sample(array)

    monkeypatch.setattr(conv_tuning, "sample", found)


def test_a_candidate_whose_results_differ_is_not_eligible(simulator, folder, monkeypatch):
    wrong_in(monkeypatch, 2)
    check(simulator, problem_of(options=ConvOptions(tune="now")))
    tuning = the_plan(simulator).finder.tuning
    assert "differ from those of most" in tuning.refused["engine 2"]
    assert "engine 2" not in tuning.times


def test_what_most_find_is_right_not_what_the_first_finds(simulator, folder, monkeypatch):
    wrong_in(monkeypatch, 1)
    check(simulator, problem_of(options=ConvOptions(tune="now")))
    tuning = the_plan(simulator).finder.tuning
    assert "differ from those of most" in tuning.refused["engine 1 tile_size=3"]
    assert set(tuning.times) == {"engine 1 tile_size=2", "engine 2", "engine 3"}


def test_those_near_the_fastest_are_measured_in_turns(simulator, folder, monkeypatch):
    costs(monkeypatch, 1.0, 1.19, 1.05, 1.3)
    asked = []

    def in_turns(trial, executors, choices):
        asked.append(list(choices))
        return {"engine 1 tile_size=3": 3.0, "engine 2": 2.5, "engine 3": 2.6}

    monkeypatch.setattr(conv_tuning, "_in_turns", in_turns)
    check(simulator, problem_of(options=ConvOptions(tune="now")))
    assert asked == [["engine 1 tile_size=3", "engine 3", "engine 2"]]
    assert engine_of(simulator) == 2  # though "engine 1 tile_size=2" took 1.3 at its own time


def finalists(simulator):
    """A trial, executors and choices of two of them."""
    problem = problem_of()
    check(simulator, problem)
    executors = EngineExecutors(simulator.library, problem, current_launch(simulator.library))
    choices = {str(one.choice): one.choice for one in itertools.islice(executors, 2)}
    return conv_tuning.ConvTrial(problem, 0, simulator.conv.resources), executors, choices


def test_plans_taking_turns_have_the_mean_of_several_places(simulator, monkeypatch):
    turns = iter([5.0, 1.0, 2.0, 3.0, *[4.0, 3.0, 9.0, 1.0], *[3.0, 2.5, 3.0, 2.0]])
    monkeypatch.setattr(simulator.memory, "elapsed", lambda call: call() or next(turns))
    times = conv_tuning._in_turns(*finalists(simulator))
    assert times == pytest.approx({"engine 1 tile_size=3": 0.3, "engine 2": 0.4 / 3})
    assert next(turns, None) is None


def test_the_places_are_different_ones(simulator, monkeypatch):
    seen, turns = [], conv_tuning._turns

    def kept(trial, executors):
        seen.append(trial)
        return turns(trial, executors)

    monkeypatch.setattr(conv_tuning, "_turns", kept)
    conv_tuning._in_turns(*finalists(simulator))
    addresses = {trial.arrays[0].data.ptr for trial in seen}
    assert len(seen) == len(addresses) == 3


def test_plans_taking_turns_share_a_workspace(simulator, monkeypatch):
    call, given = conv_tuning.ConvTrial.call, []

    def kept(trial, executor, workspace):
        given.append((workspace.data.ptr, workspace.nbytes, executor.workspace_bytes))
        return call(trial, executor, workspace)

    monkeypatch.setattr(conv_tuning.ConvTrial, "call", kept)
    conv_tuning._in_turns(*finalists(simulator))
    assert len(given) == 6
    for (at, nbytes, one), (beside, _, other) in zip(given[::2], given[1::2], strict=True):
        assert at == beside
        assert nbytes == max(one, other) > 0


def test_without_memory_for_another_place_the_first_decides(simulator, monkeypatch):
    def none(trial):
        raise MemoryError("no more of it")

    monkeypatch.setattr(conv_tuning.ConvTrial, "elsewhere", none)
    monkeypatch.setattr(conv_tuning, "_turns", lambda trial, executors: dict.fromkeys(executors, 2))
    assert set(conv_tuning._in_turns(*finalists(simulator)).values()) == {2}


def test_what_fails_in_turns_leaves_it_to_the_first_measurement(simulator, monkeypatch):
    def fails(trial, executors):
        raise CudnnError("function", 1, "STATUS")

    monkeypatch.setattr(conv_tuning, "_turns", fails)
    assert conv_tuning._in_turns(*finalists(simulator)) == {}


def test_a_candidate_that_writes_nothing_is_not_eligible(simulator, folder, monkeypatch):
    call, calls = conv_tuning.ConvTrial.call, []

    def nothing_by_the_second(trial, executor, workspace):
        calls.append(executor.choice.engine)
        return (lambda stream: None) if len(calls) == 2 else call(trial, executor, workspace)

    monkeypatch.setattr(conv_tuning.ConvTrial, "call", nothing_by_the_second)
    check(simulator, problem_of(options=ConvOptions(tune="now")))
    assert calls == [1, 2, 3, 1]
    assert "differ from those of most" in the_plan(simulator).finder.tuning.refused["engine 2"]


def test_a_file_of_another_version_is_not_believed(simulator, folder):
    check(simulator, problem_of(options=ConvOptions(tune="now")))
    (path,) = folder.rglob("*.json")
    path.write_text(path.read_text().replace("tile_size", "no_such_knob"))
    simulator.conv.clear()
    check(simulator, problem_of())
    assert engine_of(simulator) in (1, 2, 3)


def test_a_plan_is_measured_by_one_at_a_time(simulator, folder, monkeypatch):
    check(simulator, problem_of())
    plan = the_plan(simulator)
    measure, inner = plan.finder._tuner.measure, []

    def measured(*arguments):
        inner.append(plan.autotune())  # as a signal handler, or another thread
        return measure(*arguments)

    monkeypatch.setattr(plan.finder._tuner, "measure", measured)
    assert plan.autotune()
    assert inner == [False]
    assert plan.autotune()
    assert inner == [False, False]


# Faults


def test_a_plan_that_fails_is_followed_by_the_next(simulator):
    check(simulator, problem_of())
    assert engine_of(simulator) == 1
    for expected in (2, 3):
        simulator.control.standin_fail(b"cudnnBackendExecute", 1, INTERNAL_ERROR)
        check(simulator, problem_of())
        assert engine_of(simulator) == expected
    simulator.control.standin_fail(b"cudnnBackendExecute", 1, INTERNAL_ERROR)
    with pytest.raises(CudnnError, match="cudnnBackendExecute"):
        check(simulator, problem_of())
    check(simulator, problem_of())
    assert engine_of(simulator) == 1, "a later call begins anew"
    assert "gave up engine 1" in the_plan(simulator).report()


def test_executors_that_were_made_before_the_choice_changed_are_made_again(simulator, monkeypatch):
    check(simulator, problem_of())
    plan, made = the_plan(simulator), []
    first = plan.finder.first

    def changed_meanwhile(executors):
        made.append(first(executors))
        if len(made) == 1:
            plan._ask_again()
        return made[-1]

    monkeypatch.setattr(plan.finder, "first", changed_meanwhile)
    plan._ask_again()
    for _ in range(3):
        check(simulator, problem_of())
    assert len(made) == 2


def test_after_the_last_plan_has_failed_a_call_begins_with_the_measured_one(
    simulator, folder, monkeypatch
):
    costs(monkeypatch, 2.0, 1.0, 3.0, 4.0)
    problem, used = problem_of(options=ConvOptions(tune="now")), []
    check(simulator, problem)
    with pytest.raises(CudnnError, match="cudnnBackendExecute"):  # noqa: PT012 - the last
        while True:
            used.append(engine_of(simulator))
            simulator.control.standin_fail(b"cudnnBackendExecute", 1, INTERNAL_ERROR)
            check(simulator, problem)
    assert used[0] == 2
    assert used[-1] == 3
    check(simulator, problem)
    assert engine_of(simulator) == 2


def test_without_memory_for_the_workspace_one_call_runs_another_engine(simulator):
    problem = problem_of()
    arrays = testing.conv_inputs(problem, 0)
    x, w = simulator.asarray(arrays.x), simulator.asarray(arrays.w)
    conv(x, w, stride=(1, 2), groups=2)
    simulator.conv.resources.workspaces.clear()
    simulator.memory.fail_allocation = 1  # the result has its memory, the workspace not
    found = conv(x, w, stride=(1, 2), groups=2)
    assert deviation(found, conformance_conv.expected(problem, arrays)) < 1e-5
    assert engine_of(simulator) == 1
    simulator.memory.fail_allocation = 0
    with pytest.raises(MemoryError):
        conv(x, w, stride=(1, 2), groups=2)


def test_engines_that_ran_without_memory_are_there_if_others_fail(simulator, monkeypatch):
    problem = problem_of()
    check(simulator, problem)
    with monkeypatch.context() as patch:
        patch.setattr(simulator.conv.resources.workspaces, "take", without_memory)
        check(simulator, problem)
    for expected in (2, 3):
        simulator.control.standin_fail(b"cudnnBackendExecute", 1, INTERNAL_ERROR)
        check(simulator, problem)
        assert engine_of(simulator) == expected


def test_without_memory_an_engine_that_fails_is_followed_by_the_next(simulator, monkeypatch):
    problem, ran = problem_of(), []
    check(simulator, problem)
    run = GraphExecutor.run

    def recorded(executor, launch, at):
        ran.append(executor.choice.engine)
        run(executor, launch, at)

    monkeypatch.setattr(GraphExecutor, "run", recorded)
    monkeypatch.setattr(simulator.conv.resources.workspaces, "take", without_memory)
    simulator.control.standin_fail(b"cudnnBackendExecute", 1, INTERNAL_ERROR)
    check(simulator, problem)
    assert ran == [2, 3]
    assert engine_of(simulator) == 1


def without_memory(*size):
    raise MemoryError("no more of it")


def test_without_memory_only_an_engine_that_needs_less_is_tried(simulator, folder, monkeypatch):
    costs(monkeypatch, 2.0, 1.0, 3.0, 4.0)
    check(simulator, problem_of(options=ConvOptions(tune="now")))
    assert engine_of(simulator) == 2  # of 64 bytes, before which the heuristics have one of 4096
    problem = problem_of(options=ConvOptions(tune="now"))
    arrays = testing.conv_inputs(problem, 0)
    x, w = simulator.asarray(arrays.x), simulator.asarray(arrays.w)
    simulator.conv.resources.workspaces.clear()
    ran = []
    monkeypatch.setattr(GraphExecutor, "run", lambda own, launch, at: ran.append(own.choice.engine))
    simulator.memory.fail_allocation = 1
    conv(x, w, stride=(1, 2), groups=2, options={"tune": "now"})
    assert ran == [3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"math": "strict", "deterministic": True, "workspace_limit": 0}, "engine 3"),
        ({"math": "strict", "workspace_limit": 64}, "engine 2"),
    ],
)
def test_only_what_the_options_allow(simulator, options, words):
    check(simulator, problem_of(options=ConvOptions(**options)))
    assert words in the_plan(simulator).report()


def test_an_engine_that_is_known_to_be_wrong_is_not_used(simulator, folder, monkeypatch):
    costs(monkeypatch, 2.0, 1.0, 3.0, 4.0)
    check(simulator, problem_of(options=ConvOptions(tune="now")))
    assert engine_of(simulator) == 2
    simulator.conv.clear()
    wrong = tuple(known_wrong.KnownWrong("forward", e, "is wrong", False) for e in (1, 2))
    monkeypatch.setattr(known_wrong, "TABLE", wrong)
    check(simulator, problem_of())  # what is on disk does not count against it
    assert engine_of(simulator) == 3
    simulator.conv.clear()
    check(simulator, problem_of(layout=CHANNELS_LAST))
    assert engine_of(simulator) == 1


def test_no_engine_is_an_error_that_says_what_to_change(simulator):
    simulator.control.standin_set_max_operations(0)
    with pytest.raises(UnsupportedError, match="has no engine for forward") as caught:
        check(simulator, problem_of(options=ConvOptions(math="strict", workspace_limit=0)))
    text = str(caught.value)
    assert "no engine fuses 1 operations" in text
    assert "options['math'] other than 'strict'" in text
    assert "a larger options['workspace_limit']" in text
    assert "or backend='reference'" in text
    assert "deterministic'] False" not in text


DEPTHWISE = ConvSpec(in_channels=4, out_channels=4, kernel=(3, 3), padding=1, groups=4)


@pytest.fixture
def without_kernels(simulator, monkeypatch):
    """The library where every kernel of dnnffi's fails to compile."""

    def kernel(*source, **keywords):
        raise CompileError(5, "NVRTC_ERROR_INVALID_OPTION", "nvrtcCompileProgram")

    monkeypatch.setattr(simulator.memory, "kernel", kernel)
    return simulator


def test_a_kernel_that_cannot_be_compiled_leaves_the_call_to_an_engine(
    without_kernels, monkeypatch
):
    monkeypatch.setattr(conv_executor, "is_faster", lambda problem: True)
    check(without_kernels, problem_of(spec=DEPTHWISE))
    assert engine_of(without_kernels) != OWN


@pytest.mark.usefixtures("folder")
def test_kernels_that_cannot_be_compiled_leave_the_measurement_to_engines(without_kernels):
    found = conv_tuning.measure_executors(
        problem_of(spec=DEPTHWISE), 0, conv_backends.of("cudnn").source
    )
    assert found.candidates


def test_a_call_that_needs_a_kernel_that_cannot_be_compiled_says_why(without_kernels):
    without_kernels.control.standin_set_max_operations(1)
    with pytest.raises(UnsupportedError, match="a kernel more: nvrtcCompileProgram returned"):
        check(without_kernels, problem_of(**FUSED))


def test_a_padded_image_whose_copy_cannot_be_compiled_says_why(without_kernels):
    with pytest.raises(UnsupportedError, match="padding: nvrtcCompileProgram returned"):
        check(without_kernels, problem_of(spec=ASYMMETRIC))


@pytest.mark.usefixtures("folder")
def test_an_executor_that_cannot_be_made_ends_the_measurement_with_what_was_found(
    simulator, monkeypatch
):
    all_executors = EngineExecutors._all

    def first_alone(self):
        yield next(all_executors(self))
        raise CudaError(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "cuModuleLoadData")

    monkeypatch.setattr(EngineExecutors, "_all", first_alone)
    found = conv_tuning.measure_executors(problem_of(), 0, conv_backends.of("cudnn").source)
    assert len(found.candidates) == 1


def test_a_second_search_lists_what_is_left_out_once(simulator):
    problem = problem_of(options=ConvOptions(math="strict"))
    executors = EngineExecutors(simulator.library, problem, current_launch(simulator.library))
    for executor in executors:
        executor.close()
    refused = list(executors.refused)
    assert refused
    for executor in executors.smaller(0):
        executor.close()
    assert executors.refused == refused


def test_an_output_padding_of_the_stride_or_more(simulator):
    x, w = simulator.memory.zeros((1, 2, 5)), simulator.memory.zeros((2, 2, 3))
    message = (
        r"^cuDNN [\d.]+: output_padding must be smaller than stride, \(1,\); got \(2,\); reference"
    )
    simulator.control.standin_reset()
    with pytest.raises(UnsupportedError, match=message):
        dnnffi.conv_transpose(x, w, dilation=3, output_padding=2, backend="cudnn")
    assert simulator.calls("*") == 0


@pytest.mark.parametrize(
    ("x_shape", "geometry"),
    [
        ((1, 1, 3 * 10**9), {}),
        ((3 * 10**9, 1, 1), {}),
        ((1, 1, 5), {"padding": ((0, 2**31 - 1),), "stride": 2**31 - 1}),
    ],
    ids=["image", "batch", "padded image"],
)
def test_a_size_beyond_32_bits_is_refused_before_the_library_is_asked(simulator, x_shape, geometry):
    spec = ConvSpec.from_weight_shape((1, 1, 1), **geometry)
    problem = ConvProblem.of(FORWARD, spec, x_shape)
    with pytest.raises(UnsupportedError, match="at most 2147483647 positions in each dimension"):
        conv_backends.of("cudnn").prepare(problem, 0)


ASYMMETRIC = ConvSpec(in_channels=4, out_channels=6, kernel=(3, 2), padding=((0, 1), 1))


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(**FUSED),
        problem_of(BACKWARD_DATA),
        problem_of(**FUSED, spec=ASYMMETRIC),
        problem_of(BACKWARD_DATA, ASYMMETRIC),
    ],
    ids=["fused", "backward_data", "fused, asymmetric", "backward_data, asymmetric"],
)
@pytest.mark.parametrize("tune", ["auto", "now"])
def test_whichever_call_fails_nothing_is_left_behind(simulator, problem, tune):
    problem = problem._replace(options=ConvOptions(tune=tune))

    def everything():
        check(simulator, problem)
        simulator.conv.clear()

    everything()
    simulator.control.standin_reset()
    everything()
    total = simulator.calls("*")
    failed, survived = set(), 0
    # Tuning calls the library hundreds of times, much of it alike.
    for number in range(1, total + 1, 17 if tune == "now" else 1):
        simulator.control.standin_fail(b"*", number, INTERNAL_ERROR)
        try:
            everything()
        except (CudnnError, UnsupportedError):
            failed.add(simulator.control_ffi.string(simulator.control.standin_failed()))
        else:
            survived += 1  # an engine that fails is followed by the next
        simulator.control.standin_fail(b"*", 0, 0)
        simulator.conv.clear()
        if simulator.live("backend"):
            gc.collect()
        assert simulator.live("backend") == 0, number
    assert survived > 0
    # What follows the convolution may run by itself, and tuning goes on to the next candidate.
    assert bool(failed) == (problem.operation == BACKWARD_DATA and tune != "now")
    simulator.control.standin_reset()


def test_threads_have_plans_of_their_own(simulator):
    failures = []

    def work():
        try:
            # Fewer than are captured: what is captured here is captured of all threads.
            for _ in range(CAPTURED_AT - 1):
                check(simulator, problem_of(**FUSED))
            close_handles(simulator.library)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert the_plan(simulator) is not None


def test_validation_sees_a_wrong_result(simulator, monkeypatch):
    problem = problem_of()
    arrays = testing.conv_inputs(problem, 0)
    x, w = simulator.asarray(arrays.x), simulator.asarray(arrays.w)
    options = {"validate": True}
    conv(x, w, stride=(1, 2), groups=2, options=options)
    plan = the_plan(simulator)
    run_at = plan.run_at
    monkeypatch.setattr(plan, "run_at", lambda *given: 2 * run_at(*given))
    with pytest.raises(ValidationError, match="y "):
        conv(x, w, stride=(1, 2), groups=2, options=options)


# A held plan


def held(simulator, operation=FORWARD, layout="channels_first", **more):
    problem = problem_of(operation, layout=layout, **more)
    arrays = testing.conv_inputs(problem, 0)

    def put(array):
        if array is None or array.ndim == 1 or layout != CHANNELS_LAST:
            return None if array is None else simulator.asarray(array)
        return simulator.asarray(np.ascontiguousarray(np.moveaxis(array, 1, -1))).transpose(
            0, 3, 1, 2
        )

    given = [put(array) for array in conformance_conv.arguments(problem, arrays)]
    asked = {"operation": operation, "layout": layout, "backend": "cudnn"} | more
    plan = dnnffi.ConvPlan(SPEC, X_SHAPE, **asked)
    return plan, given, conformance_conv.expected(problem, arrays), put


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_buffers_plan(simulator, operation, layout):
    plan, given, expected, _ = held(simulator, operation, layout)
    with plan:
        out = plan.run(*given)
        assert deviation(out, expected) < 1e-5
        for seed in range(4):
            out[...] = seed
            assert plan.run(*given, out=out) is out
            assert deviation(out, expected) < 1e-5
        simulator.control.standin_reset()
        plan.run(*given, out=out)
        assert simulator.calls("*") == simulator.calls("cudnnBackendExecute") == 1
        plan.autotune()
        plan.run(*given, out=out)
        assert deviation(out, expected) < 1e-5
        assert "measured in this process" in plan.report()
    assert plan.closed
    with pytest.raises(ValueError, match="this plan is closed"):
        plan.run(*given)
    with pytest.raises(ValueError, match="this plan is closed"):
        plan.autotune()


def test_a_plan_takes_the_backend_and_the_device_of_the_arrays_of_its_first_call(
    simulator, monkeypatch
):
    monkeypatch.setattr(registry, "kind", lambda array: "cuda")  # these are NumPy's, of a subclass
    named, given, expected, _ = held(simulator)
    named.close()
    with dnnffi.ConvPlan(SPEC, X_SHAPE) as plan:
        plan.autotune()
        simulator.control.standin_reset()
        assert plan.device is None
        assert simulator.calls("*") == 0
        assert deviation(plan.run(*given), expected) < 1e-5
        assert plan.device == 0
        assert "measured in this process" in plan.report()


def test_a_buffers_plan_on_other_arrays(simulator):
    plan, given, expected, put = held(simulator)
    outs = [simulator.memory.zeros(plan.problem.result_shape, np.float32) for _ in range(2)]
    for _ in range(2):
        for out in outs:
            out[...] = 0
            plan.run(*given, out=out)
            assert deviation(out, expected) < 1e-5
    doubled = put(2 * np.array(given[0]))
    plan.run(doubled, *given[1:], out=outs[0])
    assert deviation(outs[0], 2 * expected) < 1e-5
    plan.close()


def test_a_buffers_plan_with_everything(simulator):
    plan, given, expected, _ = held(simulator, **FUSED)
    out = plan.run(*given)
    plan.run(*given, out=out)
    assert deviation(out, expected) < 1e-5
    simulator.control.standin_fail(b"cudnnBackendExecute", 1, INTERNAL_ERROR)
    out[...] = 0
    plan.run(*given, out=out)
    assert deviation(out, expected) < 1e-5
    plan.close()


def test_a_buffers_plan_counts_its_arrays(simulator):
    plan, (x, w, *_), _, _ = held(simulator)
    out = plan.run(x, w)
    plan.run(x, w, out=out)
    with pytest.raises(
        TypeError, match=r"^bias must be None, as in the problem; got SimulatedArray$"
    ):
        plan.run(x, w, x, out=out)
    with pytest.raises(TypeError, match=r"^w must be an array; got NoneType$"):
        plan.run(x, out=out)
    plan.close()


def test_a_buffers_plan_keeps_no_array_alive(simulator):
    plan, given, _, _ = held(simulator)
    out = plan.run(*given)
    plan.run(*given, out=out)
    before = simulator.control.standin_registered()
    del given, out
    gc.collect()
    assert simulator.control.standin_registered() <= before - 3
    plan.close()


def test_wrong_arguments_of_a_buffers_plan(simulator):
    plan, (x, w, *_), _, _ = held(simulator)
    small, out = (
        simulator.memory.zeros((2, 4, 5, 5)),
        simulator.memory.zeros(plan.problem.result_shape),
    )
    simulator.control.standin_reset()
    for arrays, keywords, error, message in (
        ((x,), {}, TypeError, r"^w must be an array; got NoneType$"),
        ((x, w, x), {}, TypeError, r"^bias must be None, as in the problem; got SimulatedArray$"),
        ((x, w, None, None, x), {}, TypeError, r"takes x, w, bias, residual; got 5 arrays$"),
        ((small, w), {}, ValueError, r"^x must have shape \(2, 4, 5, 6\); got \(2, 4, 5, 5\)$"),
        ((x.astype("f8"), w), {}, TypeError, r"^x must have dtype float32; got float64; "),
        ((x, np.zeros(w.shape, "f4")), {}, TypeError, r"^w must be a CuPy array"),
        ((x, w), {"out": small}, ValueError, r"^out must have shape \(2, 6, 3, 3\)"),
        (
            (x, w),
            {"out": out.astype("f8")},
            TypeError,
            r"^out must have dtype float32; .* float64$",
        ),
        ((x, w), {"out": out[..., ::-1]}, ValueError, r"^out must be without gaps, channels first"),
    ):
        with pytest.raises(error, match=message):
            plan.run(*arrays, **keywords)
    assert simulator.calls("*") == 0
    plan.close()
    for keywords, error, message in (
        ({"operation": "sideways"}, ValueError, "operation must be one of"),
        ({"layout": "NHWC"}, ValueError, "layout must be one of"),
        ({"bias": 1}, TypeError, "bias must be"),
        ({"device": 1, "backend": "cudnn"}, ValueError, "device must be from 0 to 0"),
        (
            {"options": {"validate": True}},
            ValueError,
            "works in functions only; call dnnffi.conv with",
        ),
    ):
        with pytest.raises(error, match=message):
            dnnffi.ConvPlan(SPEC, X_SHAPE, **keywords)
    with pytest.raises(TypeError, match="spec must be a ConvSpec; got tuple"):
        dnnffi.ConvPlan((), X_SHAPE)
    assert simulator.calls("*") == 0


def test_a_buffers_plan_of_the_reference():
    problem = problem_of(**FUSED)
    arrays = testing.conv_inputs(problem, 0)
    given = conformance_conv.arguments(problem, arrays)
    with dnnffi.ConvPlan(SPEC, X_SHAPE, backend="reference", **FUSED) as plan:
        out = np.empty(problem.result_shape, "f4")
        assert plan.run(*given, out=out) is out
        assert deviation(out, conformance_conv.expected(problem, arrays)) < 1e-5
        assert "forward" in plan.report()
