"""Size classes of convolutions on the stand-in: what a new size of a known layer costs."""

from __future__ import annotations

import gc
import json
import threading
from collections import Counter

import conformance_conv
import numpy as np
import pytest

import dnnffi
from dnnffi import testing
from dnnffi.backends.cudnn.graph import plans, recipe
from dnnffi.backends.vendor.handle import close_handles
from dnnffi.convolution import tuner as conv_tuner
from dnnffi.convolution import tuning as conv_tuning
from dnnffi.convolution.finder import CALLS_PER_ATTEMPT
from dnnffi.convolution.size_class import (
    MAX_NEIGHBOUR_STEPS,
    ConvSizeClass,
    layer_of,
    output_positions,
    size_class,
)
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import FORWARD, OPERATIONS, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST

SPEC = ConvSpec(in_channels=4, out_channels=8, kernel=(3, 3), padding=1)
LAST = {"layout": CHANNELS_LAST}  # rows are channels: aligned whatever the image
KNOWN = (4, 8, 16)  # N and sizes: 512 positions, of the class from 256 to 1023
SAME_CLASS = [(2, 8, 16), (3, 11, 13), (5, 9, 7), (1, 31, 33), (1, 16, 16), (7, 12, 12)]
NEXT_CLASS, FAR_CLASS = (8, 12, 12), (64, 80, 80)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    return tmp_path


def problem_of(size, operation=FORWARD, spec=SPEC, *, tune="auto", **more):
    batch, *sizes = size
    shape = (batch, spec.in_channels, *sizes)
    options = ConvOptions(tune=tune)
    return ConvProblem.of(operation, spec, shape, options=options, **{**LAST, **more})


def check(simulator, problem, seed=0):
    """Run the function, and compare with the reference."""
    arrays = testing.conv_inputs(problem, seed)
    conformance_conv.check_values(problem, arrays, simulator.asarray, "cudnn")
    return plan_of(simulator, problem)


def plan_of(simulator, problem):
    (plan,) = (plan for plan in simulator.conv.plans.values() if plan.problem == problem)
    return plan


def engine_of(plan):
    return plan._of_thread().executor.choice.engine


@pytest.fixture
def counts(monkeypatch):
    """Counts by name: heuristics asked, plans by how they were made, measurements, comparisons."""
    counts = Counter()

    def counted(module, name, label):
        function = getattr(module, name)

        def call(*arguments, **keywords):
            counts[label] += 1
            return function(*arguments, **keywords)

        monkeypatch.setattr(module, name, call)

    counted(plans, "EngineHeuristics", "heuristics")
    counted(plans, "ExecutionPlan", "plans")
    counted(recipe.PlanRecipe, "make", "plans by a recipe")
    counted(conv_tuner, "measure_executors", "measurements")
    counted(conv_tuner, "check", "comparisons")
    return counts


def costs(monkeypatch, **milliseconds):
    """Let candidates take the time that is given for their engine when they are measured."""

    def time(call, memory, best):
        return milliseconds.get(f"engine{seen[-1]}", 9.0)

    seen = []
    call_of = conv_tuning.ConvTrial.call

    def call(trial, executor, workspace):
        seen.append(executor.choice.engine)
        return call_of(trial, executor, workspace)

    monkeypatch.setattr(conv_tuning.ConvTrial, "call", call)
    monkeypatch.setattr(conv_tuning, "_time", time)


# Problems that share a class


@pytest.mark.parametrize(
    ("size", "low", "high"),
    [((1, 1, 1), 1, 3), ((1, 3, 1), 1, 3), ((2, 2, 1), 4, 15), ((4, 8, 16), 256, 1023)],
)
def test_a_class_is_a_power_of_four_of_output_positions(size, low, high):
    problem = problem_of(size)
    assert low <= output_positions(problem) <= high
    assert f"{low:,} to {high:,} output positions" in str(size_class(problem))


def test_positions_are_those_of_the_output():
    spec = ConvSpec(in_channels=4, out_channels=8, kernel=(2, 2), stride=2)
    assert output_positions(problem_of((3, 8, 6), spec=spec)) == 3 * 4 * 3
    up = ConvSpec(in_channels=4, out_channels=8, kernel=(2, 2), stride=2, transposed=True)
    assert output_positions(problem_of((3, 8, 6), spec=up)) == 3 * 16 * 12


def test_rows_of_whole_16_bytes_are_a_class_of_their_own():
    sizes = ((1, 9, 8), (1, 9, 9), (1, 9, 10), (1, 9, 12))
    first = [size_class(problem_of(size, layout=CHANNELS_FIRST)) for size in sizes]
    assert [one.is_aligned for one in first] == [True, False, False, True]
    assert {size_class(problem_of(size)) for size in sizes} == {ConvSizeClass(3, True)}


def test_the_largest_problem_has_one_of_34_classes():
    spec = ConvSpec(in_channels=1, out_channels=1, kernel=(1, 1), dtype="float16")
    assert size_class(problem_of((2**15, 2**9, 2**9), spec=spec)).magnitude == 16


def test_a_class_is_not_its_own_neighbour_and_has_each_once():
    for magnitude in range(6):
        one = ConvSizeClass(magnitude, False)
        others = list(one.neighbours())
        assert one not in others
        assert len(set(others)) == len(others)
        assert {abs(other.magnitude - magnitude) for other in others} <= {
            *range(MAX_NEIGHBOUR_STEPS + 1)
        }
        assert all(other.magnitude >= 0 for other in others)


def test_a_layer_has_everything_but_the_images():
    problem = problem_of(KNOWN)
    assert layer_of(problem) == layer_of(problem_of(FAR_CLASS, tune="now"))
    changed = [
        problem_of(KNOWN, "backward_data"),
        problem_of(KNOWN, layout=CHANNELS_FIRST),
        problem_of(KNOWN, bias=True),
        problem_of(KNOWN, activation="relu"),
        problem_of(KNOWN, residual=True, alpha=0.5),
        problem_of(KNOWN, spec=ConvSpec(in_channels=4, out_channels=8, kernel=(3, 3))),
        problem._replace(options=ConvOptions(deterministic=True)),
        problem._replace(options=ConvOptions(math="strict")),
        problem._replace(options=ConvOptions(workspace_limit=64)),
    ]
    assert len({layer_of(problem), *map(layer_of, changed)}) == len(changed) + 1


# A new size of a known class


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_new_size_asks_no_heuristic_and_makes_one_plan(simulator, counts, operation):
    check(simulator, problem_of(KNOWN, operation))
    assert counts["heuristics"] == 1
    counts.clear()
    for size in SAME_CLASS:
        check(simulator, problem_of(size, operation))
    assert counts == {"plans by a recipe": len(SAME_CLASS)}


def test_a_new_size_costs_the_same_number_of_calls_each_time(simulator, folder):
    check(simulator, problem_of(KNOWN, tune="now"))
    seen, kernels, captures = set(), [], len(simulator.memory.graphs)
    kernel = simulator.memory.kernel
    simulator.memory.kernel = lambda *given, **more: kernels.append(given) or kernel(*given, **more)
    for size in SAME_CLASS:
        simulator.control.standin_reset()
        check(simulator, problem_of(size, tune="now"))
        names = ("CreateDescriptor", "Finalize", "SetAttribute", "GetAttribute")
        seen.add(tuple(simulator.calls(f"cudnnBackend{name}") for name in names))
        assert simulator.calls("cudnnBackendExecute") == 1
        assert simulator.calls("cudnnCreate") == simulator.calls("cudnnSetStream") == 0
    ((created, finalized, _, _),) = seen
    # x, y, operation, graph, engine, configuration, plan, addresses
    assert created == finalized == 8
    assert kernels == []
    assert len(simulator.memory.graphs) == captures


def test_a_measured_choice_is_that_of_every_size_of_the_class(
    simulator, folder, counts, monkeypatch
):
    costs(monkeypatch, engine2=1.0)
    check(simulator, problem_of(KNOWN, tune="now"))
    counts.clear()
    for tune in ("auto", "now"):
        for size in SAME_CLASS:
            plan = check(simulator, problem_of(size, tune=tune))
            assert engine_of(plan) == 2
    assert counts == {"plans by a recipe": 2 * len(SAME_CLASS)}
    report = plan.report()
    assert "size class of the layer: 256 to 1,023 output positions" in report
    assert "(x has 1,008)" in report
    assert "measured in this process, for x [4, 4, 8, 16], ms:" in report


def test_a_plan_without_tuning_is_by_the_heuristics_of_its_sizes_whatever_was_measured(
    simulator, folder, counts, monkeypatch
):
    costs(monkeypatch, engine2=1.0)
    check(simulator, problem_of(KNOWN, tune="now"))
    counts.clear()
    captures = len(simulator.memory.graphs)
    problem = problem_of(SAME_CLASS[0], tune="off")
    for _ in range(8):
        plan = check(simulator, problem)
    assert engine_of(plan) == 1
    assert not plan.autotune()
    assert len(simulator.memory.graphs) == captures
    assert counts["heuristics"] == 1
    assert counts["measurements"] == counts["comparisons"] == 0
    assert f"for x {list(problem.x_shape)}; tuning is off" in plan.report()


def test_a_plan_without_tuning_does_not_choose_for_its_class(simulator, counts):
    check(simulator, problem_of(KNOWN, tune="off"))
    counts.clear()
    check(simulator, problem_of(SAME_CLASS[0]))
    assert counts["heuristics"] == 1


def test_a_report_names_the_problem_that_the_heuristics_were_asked_for(simulator):
    check(simulator, problem_of(KNOWN))
    plan = check(simulator, problem_of(SAME_CLASS[1]))
    assert "picked by the library's heuristics for x [4, 4, 8, 16]; not measured" in plan.report()


def test_sizes_of_another_class_ask_the_heuristics(simulator, counts):
    check(simulator, problem_of(KNOWN))
    check(simulator, problem_of(NEXT_CLASS))
    check(simulator, problem_of(KNOWN, layout=CHANNELS_FIRST))
    assert counts["heuristics"] == 3
    assert counts["comparisons"] == counts["measurements"] == 0


# Refusals


@pytest.fixture
def odd(monkeypatch, counts):
    """Engines that compute no further problem."""
    engines = set()
    make = recipe.PlanRecipe.make

    def by_recipe(known, *asked):
        return None if known.info.engine in engines else make(known, *asked)

    monkeypatch.setattr(recipe.PlanRecipe, "make", by_recipe)
    monkeypatch.setattr(plans, "known_wrong", lambda graph, e: "is odd" if e in engines else "")
    return engines


def test_a_size_that_the_choice_cannot_compute_is_run_by_the_heuristics(
    simulator, folder, counts, odd, monkeypatch
):
    costs(monkeypatch, engine2=1.0)
    assert engine_of(check(simulator, problem_of(KNOWN, tune="now"))) == 2
    odd.add(2)
    counts.clear()
    plan = check(simulator, problem_of(SAME_CLASS[0]))
    assert engine_of(plan) == 1
    assert counts["heuristics"] == 1
    assert counts["measurements"] == counts["comparisons"] == 0
    report = plan.report()
    assert "the choice of the class was refused 1 time(s)" in report
    assert "gave up engine 2: " in report
    assert "is odd" in report
    # The answers of the heuristics carry over too.
    counts.clear()
    assert engine_of(check(simulator, problem_of(SAME_CLASS[1]))) == 1
    assert counts["heuristics"] == 0
    odd.clear()
    plan = check(simulator, problem_of(SAME_CLASS[2]))
    assert engine_of(plan) == 2
    assert "refused 2 time(s)" in plan.report()


def test_a_heuristic_choice_that_is_refused_is_asked_for_anew(simulator, counts, odd):
    assert engine_of(check(simulator, problem_of(KNOWN))) == 1
    odd.add(1)
    assert engine_of(check(simulator, problem_of(SAME_CLASS[0]))) == 2
    counts.clear()
    assert engine_of(check(simulator, problem_of(SAME_CLASS[1]))) == 2
    assert counts == {"plans by a recipe": 1}


def test_a_plan_that_fails_when_it_runs_is_followed_by_the_next(simulator):
    check(simulator, problem_of(KNOWN))
    simulator.control.standin_fail(b"cudnnBackendExecute", 1, 4000)
    assert engine_of(check(simulator, problem_of(SAME_CLASS[0]))) == 2
    assert engine_of(check(simulator, problem_of(KNOWN))) == 1


# On disk


def test_a_class_is_stored_once_and_compared_once_in_a_process(
    simulator, folder, counts, monkeypatch
):
    costs(monkeypatch, engine2=1.0)
    for size in (KNOWN, *SAME_CLASS):
        check(simulator, problem_of(size, tune="now"))
    assert len(list(folder.rglob("*.json"))) == 1
    simulator.conv.clear()
    counts.clear()
    for size in SAME_CLASS:
        plan = check(simulator, problem_of(size))
        assert engine_of(plan) == 2
    assert counts["comparisons"] == 1
    assert counts["measurements"] == 0
    assert "read from disk, for x [4, 4, 8, 16], ms:" in plan.report()
    check(simulator, problem_of(SAME_CLASS[0], tune="now"))
    assert counts["measurements"] == 0


@pytest.mark.parametrize("shape", [None, 3, ["4"], [True], [1.0]])
def test_a_file_without_the_shape_that_was_measured_is_ignored(simulator, folder, shape):
    check(simulator, problem_of(KNOWN, tune="now"))
    simulator.conv.clear()
    (path,) = folder.rglob("*.json")
    content = json.loads(path.read_text())
    content["value"]["x_shape"] = shape
    path.write_text(json.dumps(content))
    with pytest.warns(dnnffi.PerformanceWarning, match="a tuning result is ignored"):
        assert check(simulator, problem_of(KNOWN)).finder.tuning is None


# Neighbours


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_class_that_is_not_measured_takes_the_choice_of_its_neighbour(
    simulator, folder, counts, monkeypatch, is_stored
):
    costs(monkeypatch, engine2=1.0)
    check(simulator, problem_of(KNOWN, tune="now"))
    if is_stored:
        simulator.conv.clear()
    counts.clear()
    plan = check(simulator, problem_of(NEXT_CLASS))
    assert engine_of(plan) == 2
    assert counts["comparisons"] == 1
    assert counts["measurements"] == 0
    assert "taken over from a neighbouring class, for x [4, 4, 8, 16], ms:" in plan.report()
    counts.clear()
    assert engine_of(check(simulator, problem_of((9, 12, 12)))) == 2
    assert counts == {"plans by a recipe": 1}


def test_a_measured_class_is_not_compared_when_its_neighbour_is_measured(
    simulator, folder, monkeypatch, counts
):
    costs(monkeypatch, engine2=1.0)
    check(simulator, problem_of(NEXT_CLASS, tune="now"))
    check(simulator, problem_of(KNOWN, tune="now"))
    counts.clear()
    assert engine_of(check(simulator, problem_of((9, 12, 12)))) == 2
    assert counts["comparisons"] == 0


def test_a_class_far_from_a_measured_one_asks_the_heuristics(simulator, folder, monkeypatch):
    costs(monkeypatch, engine2=1.0)
    check(simulator, problem_of(KNOWN, tune="now"))
    tuner = simulator.conv.tuner
    assert tuner.state(problem_of(FAR_CLASS), 0).neighbour is None
    assert tuner.state(problem_of(NEXT_CLASS), 0).neighbour is not None


def test_the_choice_of_a_neighbour_that_computes_something_else_is_not_taken(
    simulator, folder, monkeypatch
):
    costs(monkeypatch, engine2=1.0)
    check(simulator, problem_of(KNOWN, tune="now"))
    monkeypatch.setattr(conv_tuning, "disagreement", lambda *_: "differs")
    plan = check(simulator, problem_of(NEXT_CLASS))
    assert plan.finder.tuning is None or engine_of(plan) == 1


def test_a_class_is_looked_at_again_when_its_neighbour_was_measured(simulator, folder, monkeypatch):
    costs(monkeypatch, engine2=1.0)
    assert engine_of(check(simulator, problem_of(NEXT_CLASS))) == 1
    check(simulator, problem_of(KNOWN, tune="now"))
    assert engine_of(check(simulator, problem_of((9, 12, 12)))) == 2


def test_a_class_with_a_measured_neighbour_is_measured_once_among_few(
    simulator, folder, counts, monkeypatch
):
    costs(monkeypatch, engine2=1.0)
    check(simulator, problem_of(KNOWN, tune="now"))
    costs(monkeypatch, engine2=2.0, engine3=1.0)
    counts.clear()
    for size in ((8, 12, 12), (9, 12, 12), (10, 12, 12)):
        plan = check(simulator, problem_of(size, tune="now"))
        assert engine_of(plan) == 3
        assert counts["measurements"] == 1
    assert set(plan.finder.tuning.times) == {
        *("engine 2", "engine 3", "engine 1 tile_size=3", "engine 1 tile_size=2")
    }
    assert "measured in this process, for x [8, 4, 12, 12], ms:" in plan.report()
    assert len(list(folder.rglob("*.json"))) == 2


def test_of_a_neighbours_candidates_the_preferred_are_measured_and_what_the_heuristics_say(
    simulator, folder, monkeypatch
):
    costs(monkeypatch, engine2=1.0)
    monkeypatch.setattr(conv_tuner, "MAX_KNOWN", 1)
    check(simulator, problem_of(KNOWN, tune="now"))
    plan = check(simulator, problem_of(NEXT_CLASS, tune="now"))
    assert set(plan.finder.tuning.times) == {"engine 2", "engine 1 tile_size=3"}


def test_a_neighbours_candidates_are_measured_until_the_time_is_over(
    simulator, folder, monkeypatch
):
    costs(monkeypatch, engine2=1.0)
    check(simulator, problem_of(KNOWN, tune="now"))
    monkeypatch.setattr(conv_tuning, "CLASS_BUDGET", 0.0)
    plan = check(simulator, problem_of(NEXT_CLASS, tune="now"))
    assert set(plan.finder.tuning.times) == {"engine 2"}
    assert plan.finder.tuning.refused["others"] == "the time for measuring was over"


def test_all_candidates_are_measured_for_a_plan_that_is_tuned_by_its_user(
    simulator, folder, monkeypatch
):
    monkeypatch.setattr(conv_tuner, "MAX_KNOWN", 1)
    check(simulator, problem_of(KNOWN, tune="now"))
    plan = check(simulator, problem_of(NEXT_CLASS))
    assert plan.autotune()
    assert len(plan.finder.tuning.times) == 4
    assert check(simulator, problem_of((9, 12, 12))).finder.tuning is plan.finder.tuning


# Faults


def test_without_memory_to_measure_calls_run_and_it_is_tried_again(
    simulator, folder, counts, monkeypatch
):
    check(simulator, problem_of(KNOWN, tune="now"))
    counts.clear()

    def none(*_):
        raise MemoryError("no more of it")

    with monkeypatch.context() as patch:
        patch.setattr(conv_tuning.ConvTrial, "__init__", none)
        sizes = [(2, 8, 16 + number) for number in range(2 * CALLS_PER_ATTEMPT)]
        for size in sizes:
            check(simulator, problem_of(size, tune="now", bias=True))
    # At the first call, and once in as many calls of the class, whichever their sizes.
    assert counts["measurements"] == 3
    for size in sizes[:CALLS_PER_ATTEMPT]:
        plan = check(simulator, problem_of(size, tune="now", bias=True))
    assert counts["measurements"] == 4
    assert plan.finder.tuning.source == "measured"


def test_a_class_that_is_met_in_a_capture_is_looked_up_behind_it(simulator, folder, counts):
    check(simulator, problem_of(KNOWN, tune="now"))
    simulator.conv.clear()
    counts.clear()
    simulator.memory.stream = simulator.memory.new_stream()
    simulator.memory.capture_number = 17
    check(simulator, problem_of(SAME_CLASS[0], tune="now"))
    assert counts["comparisons"] == counts["measurements"] == 0
    simulator.memory.capture_number = 0
    check(simulator, problem_of(SAME_CLASS[1], tune="now"))
    assert counts["comparisons"] == 1
    plan = check(simulator, problem_of(SAME_CLASS[0], tune="now"))
    assert plan.finder.tuning.source == "disk"
    assert counts["measurements"] == 0


# Memory and threads


def test_memory_is_that_of_layers_and_classes_however_many_sizes_came(simulator, monkeypatch):
    check(simulator, problem_of(KNOWN))
    backend = simulator.conv
    monkeypatch.setattr(backend.plans, "capacity", 16)
    random = np.random.default_rng(0)
    w = simulator.memory.zeros(SPEC.weight_shape).transpose(0, 1, 2, 3)
    left = []
    for _ in range(3):
        for _ in range(700):
            n, high, wide = map(int, random.integers(1, 40, 3))
            x = simulator.memory.empty((n % 3 + 1, high, wide, 4)).transpose(0, 3, 1, 2)
            dnnffi.conv(x, w, padding=1, backend="cudnn")
        gc.collect()
        left.append((simulator.live("backend"), len(backend.tuner._states)))
    assert left[0] == left[1] == left[2]
    assert left[0][1] <= 8
    assert len(backend.plans) == 16


def test_threads_with_new_sizes_of_a_layer_at_once(simulator, folder, counts, monkeypatch):
    def refuse(record):
        raise RuntimeError("the stand-in's captures are those of the process")

    costs(monkeypatch, engine2=1.0)
    check(simulator, problem_of(KNOWN, tune="now"))
    monkeypatch.setattr(simulator.memory, "capture", refuse)
    counts.clear()
    failures, barrier = [], threading.Barrier(4)

    def work(number):
        try:
            for size in SAME_CLASS:
                barrier.wait(timeout=60)
                problem = problem_of((size[0], size[1], size[2] + number), tune="now")
                if size_class(problem) == size_class(problem_of(KNOWN)):
                    assert engine_of(check(simulator, problem, seed=number)) == 2
        except BaseException as error:
            barrier.abort()
            failures.append(error)
        finally:
            close_handles(simulator.library)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert counts["heuristics"] == counts["measurements"] == counts["comparisons"] == 0


def test_a_class_is_measured_by_one_thread_and_used_by_the_others(simulator, folder, monkeypatch):
    costs(monkeypatch, engine2=1.0)
    seen = []
    measured = conv_tuner.measure_executors

    def measure(*arguments):
        if not seen:
            seen.append(None)
            # Another size in the middle of a measurement, as by a thread or a signal handler.
            plan = check(simulator, problem_of(SAME_CLASS[0], tune="now"))
            seen.append(engine_of(plan))
        return measured(*arguments)

    monkeypatch.setattr(conv_tuner, "measure_executors", measure)
    assert engine_of(check(simulator, problem_of(KNOWN, tune="now"))) == 2
    assert seen == [None, 1]
    assert engine_of(check(simulator, problem_of(SAME_CLASS[0], tune="now"))) == 2


def test_classes_go_with_the_plans_that_are_cleared(simulator):
    check(simulator, problem_of(KNOWN))
    assert len(simulator.conv.tuner._states) == 1
    dnnffi.clear_plans()
    assert len(simulator.conv.tuner._states) == 0


def test_the_states_of_classes_are_bounded(simulator, monkeypatch):
    monkeypatch.setattr(conv_tuner, "MAX_CLASSES", 3)
    check(simulator, problem_of(KNOWN))
    tuner = conv_tuner.ConvTuner(simulator.conv.source)
    for power in range(8):
        tuner.state(problem_of((4**power, 1, 1)), 0)
    assert len(tuner._states) == 3


def resources_of(simulator):
    check(simulator, problem_of(KNOWN))
    return simulator.conv.resources
