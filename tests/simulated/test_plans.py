"""Plans on the stand-in: tuned in a loop, replayed by addresses, held by their user."""

from __future__ import annotations

import gc
import itertools
import os
import re
import sys
import threading
from functools import partial

import conformance
import numpy as np
import pytest
from conformance import Case, problem_of
from stress.bounds import check_refused_in_child

import dnnffi
from dnnffi import testing
from dnnffi.backends import registry
from dnnffi.backends.cudnn.rnn_executor import CudnnRNNExecutor
from dnnffi.dropout import DropoutState
from dnnffi.errors import (
    ContextError,
    CudnnError,
    PerformanceWarning,
    UnsupportedError,
)
from dnnffi.execution.replay import MAX_GRAPHS
from dnnffi.execution.workspaces import PER_THREAD_STREAM
from dnnffi.rnn import staging
from dnnffi.rnn.network import CALLS_BEFORE_TUNING
from dnnffi.rnn.route_choice import RouteChoice
from dnnffi.spec.rnn import RNNSpec
from simulators.cuda.memory import Stream

SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2, dtype="float64")
STEPS, BATCH = 5, 3
lstm = partial(dnnffi.lstm, backend="cudnn")
lstm_forward = partial(dnnffi.lstm_forward, backend="cudnn")


def weights_of(simulator, spec=SPEC, seed=0):
    rng = np.random.default_rng(seed)
    size = dnnffi.weight_layout(spec, "cudnn").size
    flat = rng.uniform(-0.5, 0.5, size).astype(spec.dtype)
    return dnnffi.RNNWeights(simulator.asarray(flat), spec)


def random(simulator, shape, seed, dtype="float64"):
    return simulator.asarray(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def on_reference(function, x, hx, weights, **keywords):
    """Compute a function by the reference on copies of the same arrays."""
    arrays = [np.array(a) for a in weights.arrays()]
    state = None if hx is None else tuple(np.array(a) for a in hx)
    return getattr(dnnffi, function)(
        np.array(x), state, arrays, num_layers=weights.spec.num_layers, **keywords
    )


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


def the_plan(simulator):
    (plan,) = simulator.rnn.plans.values()
    return plan


def launches(simulator):
    return sum(graph().launches for graph in simulator.memory.graphs if graph() is not None)


def test_a_problem_in_a_loop_is_tuned_and_replayed_and_stays_right(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    expected, (h_n, c_n) = on_reference("lstm", x, None, weights)
    for call in range(4 * CALLS_BEFORE_TUNING):
        y, state = lstm(x, None, weights)
        close(y, expected)
        close(state[0], h_n)
        close(state[1], c_n)
        tuned = the_plan(simulator).finder.choice is not None
        assert tuned == (call + 1 >= CALLS_BEFORE_TUNING)
    assert the_plan(simulator).finder.choice.replayed is not None
    assert launches(simulator) > CALLS_BEFORE_TUNING
    before = simulator.calls("cudnnRNNForward")
    lstm(x, None, weights)
    assert simulator.calls("cudnnRNNForward") == before + 1, "a replay is one call"


def test_a_context_names_its_backend_and_device(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    ctx = lstm_forward(x, None, weights)[-1]
    assert "float64, cudnn device 0, ready for backward>" in repr(ctx)
    assert simulator.calls("cudnnRNNForward") == 1  # showing it runs nothing


def test_replays_see_what_changed_in_the_arrays(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    for seed in range(3 * CALLS_BEFORE_TUNING):
        x.set(np.random.default_rng(seed).standard_normal(x.shape))
        weights.flat.set(np.random.default_rng(seed).uniform(-0.5, 0.5, weights.flat.shape))
        y, _ = lstm(x, None, weights)
        np.testing.assert_allclose(
            y, on_reference("lstm", x, None, weights)[0], rtol=1e-12, atol=1e-15
        )
    assert launches(simulator) > 0


@pytest.mark.parametrize("layout", ["dense", "batch_first_lengths", "packed"])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_training_in_a_loop_is_replayed_and_stays_right(simulator, mode, layout):
    spec = RNNSpec(mode=mode, input_size=3, hidden_size=4, bidirectional=True, dtype="float64")
    rng = np.random.default_rng(0)
    case = Case(problem_of(spec, layout, STEPS, BATCH, rng, training=True), states=True, seed=3)
    for _ in range(3 * CALLS_BEFORE_TUNING):
        conformance.check(case, simulator.asarray, "cudnn")
    plans = simulator.rnn.plans.values()
    assert all(plan.finder.choice is not None for plan in plans)
    training = next(plan for plan in plans if plan.problem.training)
    x, h_0, c_0 = (
        None if a is None else simulator.asarray(a) for a in conformance.arrays_of(case)[:3]
    )
    weights = weights_of(simulator, spec)
    hx = (h_0, c_0) if spec.has_cell else h_0
    keywords = testing.keywords(case.problem)
    before = launches(simulator)
    for _ in range(24):  # the heap gives the same addresses again in most of them
        y, _, ctx = getattr(dnnffi, f"{mode}_forward")(x, hx, weights, backend="cudnn", **keywords)
        ctx.backward(y, need="weights")
    assert launches(simulator) - before >= 2 * 4
    assert 1 <= training.operations.graph_count <= 3 * MAX_GRAPHS
    assert training.operations.graph_bytes == 1000 * training.operations.graph_count


def run_on_new_addresses(simulator, weights, calls):
    kept = []
    for seed in range(calls):
        x = random(simulator, SPEC.x_shape(STEPS, BATCH), seed)
        hx = None if seed % 2 else tuple(random(simulator, SPEC.h_shape(BATCH), n) for n in (2, 3))
        y, state = lstm(x, hx, weights)
        kept.append((x, hx, y, state))
        expected, (h_n, c_n) = on_reference("lstm", x, hx, weights)
        close(y, expected)
        close(state[0], h_n)
        close(state[1], c_n)
    return kept


def test_new_addresses_in_every_call_run_directly_where_copies_do_not_pay(simulator):
    weights = weights_of(simulator)
    simulator.memory.copy_costs = 0.2
    kept = run_on_new_addresses(simulator, weights, 8 * MAX_GRAPHS)
    copies = simulator.memory.copies
    kept += run_on_new_addresses(simulator, weights, 8)
    assert simulator.memory.copies == copies, "copies of the tuning alone"
    assert the_plan(simulator).operations.graph_count == 0
    assert the_plan(simulator).operations.staged_bytes == 0


def test_new_addresses_in_every_call_are_replayed_through_copies_where_they_pay(simulator):
    weights = weights_of(simulator)
    kept = run_on_new_addresses(simulator, weights, 8 * MAX_GRAPHS)
    plan = the_plan(simulator)
    assert plan.finder.choice.staged
    assert plan.operations.graph_count == 2, "one with states, one without"
    assert plan.operations.staged_bytes > 0
    copies, replayed = simulator.memory.copies, launches(simulator)
    calls = simulator.calls("cudnnRNNForward")
    kept += run_on_new_addresses(simulator, weights, 10)
    # x, y, h_n and c_n, and h_0 and c_0 in every second call
    assert simulator.memory.copies - copies == 10 * 4 + 5 * 2
    assert launches(simulator) - replayed == 10
    assert simulator.calls("cudnnRNNForward") - calls == 10
    assert "through copies" in plan.report()


def test_arrays_for_copies_are_those_of_one_stream(simulator):
    weights = weights_of(simulator)
    kept = run_on_new_addresses(simulator, weights, 4 * CALLS_BEFORE_TUNING)
    copies = simulator.memory.copies
    simulator.memory.stream = simulator.memory.new_stream()
    kept += run_on_new_addresses(simulator, weights, 4)
    assert simulator.memory.copies == copies


def test_arrays_for_copies_are_those_of_one_call(simulator):
    weights = weights_of(simulator)
    x, other = (random(simulator, SPEC.x_shape(STEPS, BATCH), seed) for seed in (101, 102))
    copy, handlers, found = simulator.memory.copy, [], []

    def copy_with_signals(*arguments):
        if handlers:
            handlers.pop()()
        copy(*arguments)

    simulator.memory.copy = copy_with_signals
    kept = run_on_new_addresses(simulator, weights, 4 * CALLS_BEFORE_TUNING)
    copies = simulator.memory.copies
    handlers.append(lambda: found.append(lstm(other, None, weights)[0]))
    kept.append(lstm(x, None, weights)[0])
    close(kept[-1], on_reference("lstm", x, None, weights)[0])
    close(found[0], on_reference("lstm", other, None, weights)[0])
    assert simulator.memory.copies - copies == 4, (
        "x, y, h_n and c_n of the call that was interrupted"
    )


def test_the_stream_of_each_thread_has_no_arrays_for_copies(simulator):
    # One address stands for the streams of all threads.
    weights = weights_of(simulator)
    simulator.memory.stream = Stream(PER_THREAD_STREAM)
    kept = run_on_new_addresses(simulator, weights, 4 * CALLS_BEFORE_TUNING)
    assert the_plan(simulator).finder.choice.staged
    copies = simulator.memory.copies
    kept += run_on_new_addresses(simulator, weights, 4)
    assert simulator.memory.copies == copies


def test_where_memory_for_copies_is_short_a_call_runs_directly(simulator):
    weights = weights_of(simulator)
    inputs = [random(simulator, SPEC.x_shape(STEPS, BATCH), seed) for seed in range(4)]
    with held(simulator, options={"tune": "now"}) as other:
        out = other.forward(inputs[-1], None, weights)  # and makes the workspace
    copies = simulator.memory.copies
    with held(simulator, options={"tune": "now"}) as plan:
        simulator.memory.fail_allocation = 0
        for x in inputs:
            plan.forward(x, None, weights, out=out)
            close(out[0], on_reference("lstm", x, None, weights)[0])
            assert simulator.memory.fail_allocation is None
            if x is inputs[0]:
                assert dnnffi.held_memory()["cudnn"].copies == 0
        assert simulator.memory.copies > copies


def test_a_problem_too_large_for_copies_is_not_staged(simulator, monkeypatch):
    weights = weights_of(simulator)
    monkeypatch.setattr(staging, "MAX_STAGED_BYTES", 100)
    run_on_new_addresses(simulator, weights, 2 * CALLS_BEFORE_TUNING)
    assert the_plan(simulator).finder.choice.times["cudnn standard"].staged is None
    assert not the_plan(simulator).finder.choice.staged


def test_no_tuning_where_it_is_off(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    for _ in range(3 * CALLS_BEFORE_TUNING):
        lstm(x, None, weights, options={"tune": "off"})
    assert the_plan(simulator).finder.choice is None
    assert simulator.memory.graphs == []
    assert "tuning is off" in the_plan(simulator).report()


def test_tuned_before_the_first_call_where_it_is_now(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    lstm(x, None, weights, options={"tune": "now"})
    assert the_plan(simulator).finder.choice.source == "measured"


def test_an_algorithm_that_was_named_stays(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    lstm(x, None, weights, options={"tune": "now", "algorithm": "persist_dynamic"})
    choice = the_plan(simulator).finder.choice
    assert set(choice.times) == {"cudnn persist_dynamic"}
    assert choice.direct == choice.replayed == "cudnn persist_dynamic"


def test_what_was_measured_is_used_again_for_other_lengths(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    lstm(x, None, weights, lengths=[5, 2, 3], options={"tune": "now"})
    measured = len(simulator.memory.graphs)
    lstm(x, None, weights, lengths=[5, 1, 4], options={"tune": "now"})
    assert len(simulator.memory.graphs) == measured
    plans = simulator.rnn.plans.values()
    assert [plan.finder.choice is not None for plan in plans] == [True, True]


def test_dropout_is_replayed_in_the_order_of_its_random_numbers(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)

    def run(tune):
        state = DropoutState(7)
        results = []
        for _ in range(3 * CALLS_BEFORE_TUNING):
            y, _, ctx = lstm_forward(
                x, None, weights, dropout=0.5, dropout_state=state, options={"tune": tune}
            )
            results.append((np.array(y), np.array(ctx.backward(y).x)))
        return results

    untuned, tuned = run("off"), run("auto")
    assert launches(simulator) > 0
    for (y, dx), (other_y, other_dx) in zip(untuned, tuned, strict=True):
        np.testing.assert_array_equal(y, other_y)
        np.testing.assert_array_equal(dx, other_dx)
    assert not np.array_equal(untuned[0][0], untuned[1][0])


# Faults


def each_failure(simulator, arm, spent):
    """Tune plans while the n-th of some calls fails, for each n; yield the choice and the report.

    ``arm(n)`` makes call n fail, from 0; ``spent()`` ends that and tells whether it failed. In any
    case the plan computes the same as before, and nothing is left allocated.
    """
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    expected = on_reference("lstm", x, None, weights)[0]

    def tuned(number):
        lstm(x, None, weights)
        plan = the_plan(simulator)
        arm(number)
        plan.autotune()
        failed = spent()
        close(lstm(x, None, weights)[0], expected)
        return failed, plan.finder.choice, plan.report()

    def held():
        simulator.forget_plans()
        return simulator.live(), simulator.control.standin_registered()

    lstm(x, None, weights)  # makes the thread's handle
    before = held()
    for number in itertools.count():
        failed, choice, report = tuned(number)
        assert held() == before, f"number {number}"
        if not failed:
            assert choice.times.keys() == BOTH
            return
        yield choice, report


def refused_in_turn(failures, words):
    """The candidates that were left out, each for a reason that ``words`` matches.

    Without the first there is no choice; without a graph or copies a candidate still has a time.
    """
    refused = set()
    for choice, report in failures:
        failed = (
            {}
            if choice is None
            else {name: why for name, why in choice.refused.items() if re.search(words, why)}
        )
        partly = [] if choice is None else [n for n, times in choice.times.items() if None in times]
        if not failed and not partly:  # of the first one, or when the plan began to use the choice
            refused.add("cudnn standard")
            continue
        assert len(failed) + len(partly) == 1
        assert failed.keys().isdisjoint(choice.times)
        assert all(why in report for why in failed.values())
        refused |= failed.keys()
    return refused


BOTH = {"cudnn standard", "cudnn persist_dynamic"}  # which take float64
STATIC = {"cudnn persist_static", "cudnn persist_static_small_h"}  # which are tried, and refuse it


def test_whichever_allocation_fails_its_candidate_is_skipped(simulator):
    memory = simulator.memory

    def spent():
        failed, memory.fail_allocation = memory.fail_allocation is None, None
        return failed

    failures = each_failure(simulator, partial(setattr, memory, "fail_allocation"), spent)
    assert refused_in_turn(failures, "MemoryError") == BOTH


def test_a_full_device_leaves_the_rule(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    lstm(x, None, weights)
    simulator.memory.fail_allocation = 0
    the_plan(simulator).autotune()
    assert the_plan(simulator).finder.choice is None
    y, _ = lstm(x, None, weights)
    close(y, on_reference("lstm", x, None, weights)[0])


def test_whichever_measurement_fails_on_the_device_its_candidate_is_skipped(simulator):
    elapsed, left = simulator.memory.elapsed, []

    def fail_late(calls):
        milliseconds = elapsed(calls)  # all was enqueued, and then waiting for it fails
        if left:
            left[0] -= 1
            if left[0] < 0:
                left.clear()
                raise RuntimeError("an illegal instruction was encountered")
        return milliseconds

    def spent():
        failed = not left
        left.clear()
        return failed

    simulator.memory.elapsed = fail_late
    failures = each_failure(simulator, left.append, spent)
    assert refused_in_turn(failures, "illegal instruction") == BOTH


@pytest.mark.parametrize(
    ("function", "words", "refused"),
    [
        ("cudnnRNNForward", "returned .*5000", BOTH),
        ("cudnnSetRNNDescriptor_v8", "CudnnError", {*BOTH, *STATIC}),
    ],
)
def test_whichever_call_of_the_library_fails_its_candidate_is_skipped(
    simulator, function, words, refused
):
    before = []

    def arm(number):
        before[:] = [simulator.calls(function) + number]
        simulator.control.standin_fail(function.encode(), number + 1, 5000)

    def spent():
        simulator.control.standin_fail(function.encode(), 0, 0)
        return simulator.calls(function) > before[0]

    assert refused_in_turn(each_failure(simulator, arm, spent), words) == refused


@pytest.mark.parametrize(
    "error", [lambda: CudnnError(5000, "FAILED", "cudnnRNNForward"), RuntimeError]
)
def test_a_capture_that_fails_ends_replaying_and_nothing_else(simulator, error):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    expected = on_reference("lstm", x, None, weights)[0]
    lstm(x, None, weights, options={"tune": "now"})
    simulator.memory.fail_capture = error
    for _ in range(6):
        y, _ = lstm(x, None, weights, options={"tune": "now"})
        close(y, expected)
    simulator.memory.fail_capture = None
    made = len(simulator.memory.graphs)
    for _ in range(6):
        lstm(x, None, weights, options={"tune": "now"})
    assert len(simulator.memory.graphs) == made


def test_no_candidate_that_can_be_captured_is_no_harm(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    simulator.memory.fail_capture = RuntimeError
    lstm(x, None, weights, options={"tune": "now"})
    assert the_plan(simulator).finder.choice.replayed is None


def test_no_tuning_inside_a_capture_of_the_user(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    simulator.memory.stream = simulator.memory.new_stream()  # the null stream cannot be captured
    simulator.memory.capture_number = 17
    for _ in range(2 * CALLS_BEFORE_TUNING):
        lstm(x, None, weights)
    assert the_plan(simulator).finder.choice is None
    assert the_plan(simulator).autotune() is False
    simulator.memory.capture_number = 0
    lstm(x, None, weights)
    assert the_plan(simulator).finder.choice is not None
    assert the_plan(simulator).autotune() is True


def test_inside_a_capture_of_the_user_calls_are_his(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    simulator.memory.stream = simulator.memory.new_stream()  # the null stream cannot be captured
    for _ in range(6):
        lstm(x, None, weights, options={"tune": "now"})
    replayed = launches(simulator)
    assert replayed
    simulator.memory.capture_number = 17
    for _ in range(6):
        lstm(x, None, weights, options={"tune": "now"})
    for _ in range(3):  # the workspace is the graph's own there, and alive during the call
        y, _, ctx = lstm_forward(x, None, weights, options={"tune": "now"})
        expected = on_reference("lstm_forward", x, None, weights)[2].backward(np.array(y))
        np.testing.assert_allclose(ctx.backward(y).x, expected.x, rtol=1e-10, atol=1e-14)
    assert launches(simulator) == replayed


def chosen(simulator, direct, replayed, staged=False):
    """Let measurements find this."""
    choice = RouteChoice(f"cudnn {direct}", f"cudnn {replayed}", {}, {}, staged=staged)
    simulator.rnn.tuner.measure = lambda problem, device, budget, borrowed: choice


@pytest.mark.parametrize("measured", ["before the warm-up", "after it"])
def test_no_kernels_are_compiled_in_a_capture_of_the_user(simulator, measured):
    weights = weights_of(simulator)
    simulator.memory.stream = simulator.memory.new_stream()
    x, other = (random(simulator, SPEC.x_shape(STEPS + more, BATCH), 1) for more in (0, 1))
    lstm(x if measured == "after it" else other, None, weights)
    chosen(simulator, "standard", "persist_dynamic")
    for _ in range(CALLS_BEFORE_TUNING):
        lstm(other, None, weights)
    if measured == "before the warm-up":
        lstm(x, None, weights)
    before = simulator.calls("cudnnBuildRNNDynamic")
    simulator.memory.capture_number = 17
    lstm(x, None, weights)
    simulator.memory.capture_number = 0
    assert simulator.calls("cudnnBuildRNNDynamic") == before


def kept_for_users(simulator):
    """The algorithms that captures of users keep alive, and how many handles."""
    kept = simulator.rnn.resources.graphs.user_captures
    algorithms = sorted(one.algorithm for one in kept if hasattr(one, "algorithm"))
    return algorithms, len(kept) - len(algorithms)


def test_a_capture_of_the_user_has_and_keeps_what_is_fastest_in_a_graph(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    simulator.memory.stream = simulator.memory.new_stream()
    lstm(x, None, weights)
    chosen(simulator, "standard", "persist_dynamic")
    for captured, expected in ((0, ([], 0)), (17, (["persist_dynamic"], 1))):
        simulator.memory.capture_number = captured
        lstm(x, None, weights, options={"tune": "now"})
        assert kept_for_users(simulator) == expected


@pytest.mark.parametrize("what", ["forward", "backward_data", "backward_weights", "backward"])
def test_a_capture_of_the_user_keeps_each_operation(simulator, what):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    simulator.memory.stream = simulator.memory.new_stream()
    lstm(x, None, weights)
    chosen(simulator, "persist_dynamic", "persist_dynamic")
    with held(simulator, training=True, options={"tune": "now"}) as plan:
        out = plan.forward(x, None, weights)
        for _ in range(2):  # run by the graph's executor from its capture on
            plan.forward(x, None, weights, out=out)
        if what == "backward_weights":
            plan.backward_data()
        assert kept_for_users(simulator) == ([], 0)
        simulator.memory.capture_number = 17
        plan.forward(x, None, weights) if what == "forward" else getattr(plan, what)()
        assert kept_for_users(simulator) == (["persist_dynamic"], 1)


@pytest.mark.parametrize("tune", ["auto", "off"])
def test_a_capture_of_the_user_keeps_what_runs_without_graphs_too(simulator, tune):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    simulator.memory.stream = simulator.memory.new_stream()
    lstm(x, None, weights)  # makes the handle
    y, _, ctx = lstm_forward(x, None, weights, options={"tune": tune})
    simulator.memory.capture_number = 17
    ctx.backward(y)
    assert kept_for_users(simulator) == (["standard"], 1)
    lstm(x, None, weights, options={"tune": tune})
    assert kept_for_users(simulator) == (["standard", "standard"], 1)


def test_two_threads_that_would_tune_the_same_problem(simulator):
    simulator.control.standin_check_threads(0)
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    lstm(x, None, weights)
    plan = the_plan(simulator)
    inside, go_on, measured = threading.Event(), threading.Event(), []
    tuner = plan.finder.network.tuner
    tune = tuner.measure

    def measure(problem, *rest):
        measured.append(problem)
        inside.set()
        assert go_on.wait(30)
        return tune(problem, *rest)

    tuner.measure = measure
    thread = threading.Thread(target=plan.autotune)
    thread.start()
    try:
        assert inside.wait(30)
        assert plan.autotune() is False
        y, _ = lstm(x, None, weights)
        np.testing.assert_allclose(
            y, on_reference("lstm", x, None, weights)[0], rtol=1e-12, atol=1e-15
        )
    finally:
        go_on.set()
        thread.join()
    assert len(measured) == 1
    assert plan.finder.choice is not None


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path / "results"))
    return tmp_path / "results"


def test_what_was_measured_is_used_by_the_next_process(simulator, folder):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    lstm(x, None, weights, options={"tune": "now"})
    measured = the_plan(simulator).finder.choice
    dnnffi.clear_plans()
    simulator.memory.graphs.clear()
    for _ in range(3):
        y, _ = lstm(x, None, weights)
    close(y, on_reference("lstm", x, None, weights)[0])
    assert the_plan(simulator).finder.choice == measured._replace(source="disk")
    assert "read from disk" in the_plan(simulator).report()
    assert len(simulator.memory.graphs) <= 2, "nothing was measured again"


def test_results_of_another_gpu_are_not_used(simulator, folder):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    lstm(x, None, weights, options={"tune": "now"})
    dnnffi.clear_plans()
    simulator.memory.device_name = lambda device: "another GPU"
    lstm(x, None, weights)
    assert the_plan(simulator).finder.choice is None
    the_plan(simulator).autotune()
    assert the_plan(simulator).finder.choice.source == "measured"
    assert len(list(folder.rglob("*.json"))) == 3  # of these sizes and of their class; of the class


@pytest.mark.parametrize("kind", ["no folder", "damaged"])
def test_calls_go_on_where_results_cannot_be_kept_or_read(simulator, folder, kind):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    expected = on_reference("lstm", x, None, weights)[0]
    if kind == "no folder":
        folder.write_text("in the way")
    else:
        lstm(x, None, weights, options={"tune": "now"})
        dnnffi.clear_plans()
        for path in folder.rglob("*.json"):
            path.write_bytes(path.read_bytes()[:-9])

    def loop():
        for _ in range(2 * CALLS_BEFORE_TUNING):
            close(lstm(x, None, weights)[0], expected)

    with pytest.warns(PerformanceWarning, match="DNNFFI_CACHE_DIR") as said:
        loop()
    assert len(said) == 1
    assert the_plan(simulator).finder.choice.source == "measured"


def test_a_forked_child_is_told_so(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    lstm(x, None, weights)
    check_refused_in_child(lambda: lstm(x, None, weights))


# Plans that a user holds


def held(simulator, training=False, spec=SPEC, **keywords):
    return dnnffi.RNNPlan(
        spec, batch=BATCH, steps=STEPS, training=training, **{"backend": "cudnn"} | keywords
    )


def test_a_buffers_plan_fills_given_arrays_and_is_replayed(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    hx = tuple(random(simulator, SPEC.h_shape(BATCH), seed) for seed in (2, 3))
    with held(simulator, options={"tune": "now"}) as plan:
        out = (
            simulator.memory.empty(SPEC.y_shape(STEPS, BATCH), np.float64),
            tuple(simulator.memory.empty(SPEC.h_shape(BATCH), np.float64) for _ in range(2)),
        )
        for seed in range(6):
            x.set(np.random.default_rng(seed).standard_normal(x.shape))
            result = plan.forward(x, hx, weights, out=out)
            assert result[0] is out[0]
            expected, state = on_reference("lstm", x, hx, weights)
            close(out[0], expected)
            close(out[1][0], state[0])
            close(out[1][1], state[1])
        allocations, before = simulator.memory.allocations, launches(simulator)
        plan.forward(x, hx, weights, out=out)
        assert simulator.memory.allocations == allocations
        assert launches(simulator) == before + 1
        report = plan.report()
        assert "measured in this process" in report
        assert "as a CUDA graph" in report


@pytest.fixture
def on_cuda(monkeypatch):
    """Treat the arrays, which are of a subclass of NumPy's, as arrays on a GPU."""
    of_class = {np.ndarray: "host"}
    monkeypatch.setattr(registry, "kind", lambda array: of_class.get(type(array), "cuda"))


def test_a_plan_takes_the_backend_and_the_device_of_the_arrays_of_its_first_call(
    simulator, on_cuda
):
    simulator.memory.devices = 2
    with dnnffi.RNNPlan(SPEC, batch=BATCH, steps=STEPS) as plan:
        assert plan.device is None
        assert "the arrays of the first call choose the backend" in plan.report()
        assert simulator.calls("*") == 0
        simulator.memory.device = 1
        x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
        weights = weights_of(simulator)
        simulator.memory.device = 0
        y, _ = plan.forward(x, None, weights)
        assert (plan.device, y.device_number) == (1, 1)
        close(y, on_reference("lstm", x, None, weights)[0])
        assert "workspace" in plan.report()  # which the reference has not


def test_a_plan_on_a_named_device_takes_the_backend_of_its_arrays(simulator, on_cuda):
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    with dnnffi.RNNPlan(SPEC, batch=BATCH, steps=STEPS, device=1) as plan:
        with pytest.raises(ValueError, match="device must be from 0 to 0; got 1"):
            plan.forward(x, None, weights_of(simulator))
        assert plan.device == 1


def test_the_device_of_a_plan_may_be_an_integer_of_numpy(simulator):
    with held(simulator, device=np.array(0)) as plan:
        assert type(plan.device) is int


def test_a_first_call_that_fails_chooses_no_backend(simulator, on_cuda):
    weights, x = weights_of(simulator), random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    with dnnffi.RNNPlan(SPEC, batch=BATCH, steps=STEPS) as plan:
        with pytest.raises(ValueError, match="x must have shape"):
            plan.forward(np.ones(3), None, weights)  # on the host
        close(plan.forward(x, None, weights)[0], on_reference("lstm", x, None, weights)[0])


def test_autotune_of_a_plan_without_a_backend_measures_at_the_first_call(simulator, on_cuda):
    with dnnffi.RNNPlan(SPEC, batch=BATCH, steps=STEPS) as plan:
        plan.autotune()
        assert simulator.calls("*") == 0
        plan.forward(random(simulator, SPEC.x_shape(STEPS, BATCH), 1), None, weights_of(simulator))
        assert "measured in this process" in plan.report()


def test_a_plan_without_a_backend_is_prepared_for_cudnn_by_a_capture(simulator):
    simulator.memory.capture_step = partial(StepGraph, simulator.memory)
    weights, x = weights_of(simulator), random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    with dnnffi.RNNPlan(SPEC, batch=BATCH, steps=STEPS) as plan:
        graph = plan.capture(lambda: plan.forward(x, None, weights)[0])
        assert plan.device == 0
        close(graph.result, on_reference("lstm", x, None, weights)[0])


def test_backwards_of_a_buffers_plan_into_the_same_arrays_are_replayed(simulator):
    weights, out_weights = weights_of(simulator), weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    dy = random(simulator, SPEC.y_shape(STEPS, BATCH), 2)
    state = [random(simulator, SPEC.h_shape(BATCH), seed) for seed in range(4)]
    out = random(simulator, x.shape, 3), tuple(state[:2])
    results = random(simulator, dy.shape, 4), tuple(state[2:])

    def apart(plan):
        plan.backward_data(dy, out=out)
        plan.backward_weights(out_weights)

    def together(plan):
        plan.backward(dy, out=out, out_weights=out_weights)

    with held(simulator, training=True, options={"tune": "now"}) as plan:
        for backward, graphs in ((apart, 2), (together, 1)):
            for _ in range(3):  # run, captured, replayed
                plan.forward(x, None, weights, out=results)
                before, allocations = launches(simulator), simulator.memory.allocations
                backward(plan)
            assert launches(simulator) - before == graphs
            assert simulator.memory.allocations == allocations


@pytest.mark.parametrize("tune", ["off", "now"])
def test_a_buffers_plan_trains(simulator, tune):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    dy = random(simulator, SPEC.y_shape(STEPS, BATCH), 2)
    dhx = tuple(random(simulator, SPEC.h_shape(BATCH), seed) for seed in (3, 4))
    _, _, ctx = on_reference("lstm_forward", x, None, weights)
    expected = ctx.backward(np.array(dy), tuple(np.array(a) for a in dhx))
    gradient = np.concatenate([a.ravel() for a in expected.weights])
    total = dnnffi.RNNWeights(simulator.memory.zeros(weights.flat.shape, np.float64), SPEC)
    with held(simulator, training=True, options={"tune": tune}) as plan:
        for _ in range(5):
            plan.forward(x, None, weights)
            dx, _ = plan.backward_data(dy, dhx)
            np.testing.assert_allclose(dx, expected.x, rtol=1e-10, atol=1e-14)
            found = plan.backward_weights()
            flat = np.concatenate([np.array(a).ravel() for a in found.arrays()])
            np.testing.assert_allclose(flat, gradient, rtol=1e-10, atol=1e-14)
        for _ in range(5):
            plan.forward(x, None, weights)
            (dx, _), found = plan.backward(dy, dhx)
            np.testing.assert_allclose(dx, expected.x, rtol=1e-10, atol=1e-14)
            flat = np.concatenate([np.array(a).ravel() for a in found.arrays()])
            np.testing.assert_allclose(flat, gradient, rtol=1e-10, atol=1e-14)
        for _ in range(3):
            plan.forward(x, None, weights)
            plan.backward_data(dy, dhx)
            assert plan.backward_weights(total, accumulate=True) is total
    flat = np.concatenate([np.array(a).ravel() for a in total.arrays()])
    np.testing.assert_allclose(flat, 3 * gradient, rtol=1e-10, atol=1e-14)


def test_inside_a_capture_of_the_user_steps_of_a_buffers_plan_are_his(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    dy = random(simulator, SPEC.y_shape(STEPS, BATCH), 2)
    dx, out_weights = simulator.memory.zeros(x.shape, np.float64), weights_of(simulator)
    out = dx, tuple(simulator.memory.zeros(SPEC.h_shape(BATCH), np.float64) for _ in range(2))
    expected = on_reference("lstm_forward", x, None, weights)[2].backward(np.array(dy)).x
    with held(simulator, training=True, options={"tune": "now"}) as plan:
        simulator.memory.stream = (
            simulator.memory.new_stream()
        )  # the null stream cannot be captured
        simulator.memory.capture_number, before = 17, len(simulator.memory.graphs)
        for _ in range(4):
            plan.forward(x, None, weights)
            plan.backward_data(dy, out=out)
            plan.backward_weights(out_weights)
            np.testing.assert_allclose(dx, expected, rtol=1e-10, atol=1e-14)
        assert len(simulator.memory.graphs) == before
        assert simulator.rnn.resources.workspaces.nbytes == 0  # his graph's own, then


def test_a_buffers_plan_on_the_reference_is_the_same(simulator):
    weights = weights_of(simulator)
    host_weights = dnnffi.RNNWeights(np.array(weights.flat), SPEC, backend="cudnn")
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    dy = random(simulator, SPEC.y_shape(STEPS, BATCH), 2)
    found = []
    for backend, w, given in (
        ("cudnn", weights, (x, dy)),
        ("reference", host_weights, (np.array(x), np.array(dy))),
    ):
        with held(simulator, training=True, backend=backend) as plan:
            y, _ = plan.forward(given[0], None, w)
            dx, _ = plan.backward_data(given[1])
            found.append([np.array(a) for a in (y, dx, plan.backward_weights().flat)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-14)


def test_backwards_of_a_buffers_plan_have_an_order(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    for backend in ("cudnn", "reference"):
        w = weights if backend == "cudnn" else dnnffi.RNNWeights(np.array(weights.flat), SPEC)
        with held(simulator, training=True, backend=backend) as plan:
            with pytest.raises(ContextError, match="forward"):
                plan.backward_data()
            plan.forward(x if backend == "cudnn" else np.array(x), None, w)
            with pytest.raises(ContextError, match="after backward data"):
                plan.backward_weights()
            plan.backward_data()
            with pytest.raises(ContextError, match="forward"):
                plan.backward_data()
            plan.backward_weights()
            with pytest.raises(ContextError, match="after backward data"):
                plan.backward_weights()
        with held(simulator, backend=backend) as plan:
            plan.forward(x if backend == "cudnn" else np.array(x), None, w)
            with pytest.raises(ContextError, match="training=True"):
                plan.backward_data()


def test_a_closed_plan_refuses_and_leaves_nothing(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    with held(simulator) as plan:
        plan.forward(x, None, weights)  # makes the thread's handle
    live = simulator.live()
    plan = held(simulator, training=True, options={"tune": "now"})
    plan.forward(x, None, weights)
    plan.close()
    plan.close()
    assert plan.closed
    with pytest.raises(ValueError, match="closed"):
        plan.forward(x, None, weights)
    with pytest.raises(ValueError, match="closed"):
        plan.backward_data()
    with pytest.raises(ValueError, match="closed"):
        plan.autotune()
    with pytest.raises(ValueError, match="closed"):
        plan.capture(int)
    del plan
    gc.collect()
    assert simulator.live() == live


def test_a_buffers_plan_in_another_thread(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    expected = on_reference("lstm", x, None, weights)[0]
    results = []
    with held(simulator, options={"tune": "now"}) as plan:

        def use():
            from dnnffi.backends.vendor.handle import close_handles

            results.extend(np.array(plan.forward(x, None, weights)[0]) for _ in range(5))
            close_handles(simulator.library)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert len(results) == 5
    for y in results:
        close(y, expected)


def test_each_stream_has_its_own_workspace(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    with held(simulator) as plan:
        plan.forward(x, None, weights)
        workspaces = simulator.rnn.resources.workspaces
        one = workspaces.nbytes
        assert one > 0
        plan.forward(x, None, weights)
        lstm(x, None, weights, options={"tune": "now"})
        assert workspaces.nbytes == one
        simulator.memory.stream = simulator.memory.new_stream()
        plan.forward(x, None, weights)
        assert workspaces.nbytes == 2 * one
        for _ in range(30):
            simulator.memory.stream = simulator.memory.new_stream()
            plan.forward(x, None, weights)
        assert workspaces.nbytes == 8 * one, "streams that are gone are forgotten"


GRU = RNNSpec(mode="gru", input_size=3, hidden_size=4, dtype="float64")


def test_wrong_arguments_of_a_buffers_plan_never_reach_the_library(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    y = simulator.memory.empty(SPEC.y_shape(STEPS, BATCH), np.float64)
    state = tuple(simulator.memory.empty(SPEC.h_shape(BATCH), np.float64) for _ in range(2))
    with held(simulator) as plan:
        plan.forward(x, None, weights)
        before = simulator.calls("cudnnRNNForward")
        for error, match, arguments, keywords in (
            (ValueError, "x must have shape", (x[:-1], None, weights), {}),
            (TypeError, "x must have the dtype", (x.astype("f4"), None, weights), {}),
            (TypeError, "x must be a", (np.array(x).tolist(), None, weights), {}),
            (TypeError, "weights must be an RNNWeights", (x, None, weights.flat), {}),
            (ValueError, "weights are those of", (x, None, weights_of(simulator, GRU)), {}),
            (TypeError, r"hx of an LSTM must be", (x, state[0], weights), {}),
            (ValueError, "h_0 must have shape", (x, (state[0][:1], state[1]), weights), {}),
            (TypeError, r"out must be \(y, \(h_n, c_n\)\)", (x, None, weights), {"out": y}),
            (ValueError, "y must have shape", (x, None, weights), {"out": (y[1:], state)}),
            (ValueError, "h_n must have shape", (x, None, weights), {"out": (y, (y, state[1]))}),
            (ValueError, "share memory", (x, None, weights), {"out": (y, (state[0], state[0]))}),
            (TypeError, "y must", (x, None, weights), {"out": (y.astype("f4"), state)}),
        ):
            with pytest.raises(error, match=match):
                plan.forward(*arguments, **keywords)
        assert simulator.calls("cudnnRNNForward") == before


def test_a_plan_that_replays_refuses_arrays_of_other_shapes(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    dy = random(simulator, SPEC.y_shape(STEPS, BATCH), 2)
    out = (
        simulator.memory.empty(SPEC.y_shape(STEPS, BATCH), np.float64),
        tuple(simulator.memory.empty(SPEC.h_shape(BATCH), np.float64) for _ in range(2)),
    )
    with held(simulator, training=True, options={"tune": "now"}) as plan:
        for _ in range(4):
            plan.forward(x, None, weights, out=out)
            plan.backward_data(dy)
        assert "as a CUDA graph" in plan.report()
        before = (
            launches(simulator),
            simulator.calls("cudnnRNNForward"),
            len(simulator.memory.graphs),
        )
        for other in (x[:-1], x[:, :-1], x[:, :, :-1], x[None], x.reshape(-1)):
            with pytest.raises(ValueError, match="x must have shape"):
                plan.forward(other, None, weights, out=out)
        for other in ((out[0][:-1], out[1]), (out[0], (out[1][0][:, :-1], out[1][1]))):
            with pytest.raises(ValueError, match=r"(y|h_n) must have shape"):
                plan.forward(x, None, weights, out=other)
        with pytest.raises(ValueError, match="dy must have shape"):
            plan.backward_data(dy[1:])
        found = (
            launches(simulator),
            simulator.calls("cudnnRNNForward"),
            len(simulator.memory.graphs),
        )
        assert found == before
        plan.forward(x, None, weights, out=out)
        close(out[0], on_reference("lstm", x, None, weights)[0])


def overlapping(wrong, empty):
    """x, dy, the weights and what `RNNPlan.backward` writes; two of them share memory."""
    x, dx = empty(SPEC.x_shape(STEPS, BATCH)), empty(SPEC.x_shape(STEPS, BATCH))
    dy = empty(SPEC.y_shape(STEPS, BATCH))
    states = [empty(SPEC.h_shape(BATCH)) for _ in range(2)]
    size = dnnffi.weight_layout(SPEC, "cudnn").size
    flats = [empty((size,)) for _ in range(2)]
    size = states[0].size
    if wrong == "dx is x":
        dx = x
    elif wrong == "dh_0 lies in x":
        states[0] = x.reshape(-1)[:size].reshape(states[0].shape)
    elif wrong == "the gradient is the weights":
        flats[1] = flats[0]
    elif wrong == "dx lies in the gradient":
        dx = flats[1][8 : 8 + x.size].reshape(x.shape)
    elif wrong == "dy lies in the gradient":
        dy = flats[1][8 : 8 + dy.size].reshape(dy.shape)
    weights, gradient = (dnnffi.RNNWeights(flat, SPEC) for flat in flats)
    for array in (x, dy, flats[0]):
        array[...] = 0
    return x, dy, weights, (dx, tuple(states)), gradient


OVERLAPS = {
    "dx is x": "(x and dx|dx and x)",
    "dh_0 lies in x": "(x and dh_0|dh_0 and x)",
    "the gradient is the weights": "(weights and out_weights|out_weights and weights)",
    "dx lies in the gradient": "(dx and out_weights|out_weights and dx)",
    "dy lies in the gradient": "(dy and out_weights|out_weights and dy)",
}


@pytest.mark.parametrize("tune", ["off", "now"])
@pytest.mark.parametrize("wrong", OVERLAPS)
def test_what_both_backwards_write_is_apart_from_all_that_they_read(simulator, wrong, tune):
    x, dy, weights, out, gradient = overlapping(
        wrong, lambda shape: simulator.memory.empty(shape, np.float64)
    )
    calls = "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"
    with held(simulator, training=True, options={"tune": tune}) as plan:
        plan.forward(x, None, weights)
        before = [simulator.calls(call) for call in calls]
        with pytest.raises(ValueError, match=f"^{OVERLAPS[wrong]} must not share memory"):
            plan.backward(dy, None, out, gradient)
        if wrong.endswith(" x"):  # which backward weights is to read
            with pytest.raises(ValueError, match=f"^{OVERLAPS[wrong]} must not share memory"):
                plan.backward_data(dy, None, out)
        assert [simulator.calls(call) for call in calls] == before
        plan.backward(dy)  # the forward pass can still be used


@pytest.mark.parametrize("wrong", OVERLAPS)
def test_a_plan_of_the_reference_refuses_what_a_librarys_does(wrong):
    x, dy, weights, out, gradient = overlapping(wrong, np.zeros)
    with dnnffi.RNNPlan(SPEC, batch=BATCH, steps=STEPS, training=True, backend="reference") as plan:
        plan.forward(x, None, weights)
        with pytest.raises(ValueError, match=f"^{OVERLAPS[wrong]} must not share memory"):
            plan.backward(dy, None, out, gradient)
        with pytest.raises(ValueError, match=r"^(x and h_n|h_n and x) must not share memory"):
            plan.forward(
                x, None, weights, out=(dy, (x.reshape(-1)[:24].reshape(2, 3, 4), out[1][1]))
            )
        plan.backward(dy)


@pytest.mark.parametrize("tune", ["off", "now"])
@pytest.mark.parametrize(
    "wrong", ["dh_0 is dc_0", "dx is dy", "dx lies in x", "the gradient is the weights"]
)
def test_results_of_backwards_that_share_memory_never_reach_the_library(simulator, wrong, tune):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    dy = random(simulator, SPEC.y_shape(STEPS, BATCH), 2)
    states = [random(simulator, SPEC.h_shape(BATCH), seed) for seed in (3, 4)]
    dx, other = (
        simulator.memory.empty(x.shape, np.float64),
        simulator.memory.empty(dy.shape, np.float64),
    )
    memory = other.reshape(-1)
    out, out_weights = (dx, tuple(states)), None
    if wrong == "dh_0 is dc_0":
        out = dx, (states[0], states[0])
    elif wrong == "dx is dy":
        dy, out = other, (memory[: x.size].reshape(x.shape), tuple(states))
    elif wrong == "dx lies in x":
        out = x, (x.reshape(-1)[: states[0].size].reshape(states[0].shape), states[1])
    else:
        out_weights = weights
        x = weights.flat[: x.size].reshape(x.shape)
    calls = "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"
    with held(simulator, training=True, options={"tune": tune}) as plan:
        plan.forward(x, None, weights)
        before = [simulator.calls(call) for call in calls]
        with pytest.raises(ValueError, match="must not share memory"):
            plan.backward(dy, None, out, out_weights)
        if out_weights is None:
            with pytest.raises(ValueError, match="must not share memory"):
                plan.backward_data(dy, None, out)
            assert [simulator.calls(call) for call in calls] == before
        else:
            plan.backward_data(dy)
            with pytest.raises(ValueError, match="must not share memory"):
                plan.backward_weights(out_weights)
            assert simulator.calls(calls[1]) == before[1]


def test_a_graph_goes_on_when_the_thread_that_captured_it_has_ended(simulator):
    simulator.control.standin_check_threads(0)
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    expected = on_reference("lstm", x, None, weights)[0]
    handles = simulator.live("handle")
    with held(simulator, options={"tune": "now"}) as plan:
        out = plan.forward(x, None, weights)

        def capture():
            for _ in range(4):
                plan.forward(x, None, weights, out=out)

        thread = threading.Thread(target=capture)
        thread.start()
        thread.join()
        gc.collect()
        assert plan._buffers.plan.operations.graph_count == 1
        # Its handle is there as long as the graph, which may use memory of the handle.
        assert simulator.live("handle") == handles + 2
        (graph,) = plan._buffers.plan.operations.forward_graphs.values()
        out[0].fill(0)
        graph.launch(simulator.memory.stream)
        close(out[0], expected)
        del graph
    gc.collect()
    assert simulator.live("handle") == handles + 1


@pytest.mark.parametrize("array", ["x", "h_0", "c_0", "dy", "dh_n", "dc_n"])
def test_an_array_that_is_not_aligned_gives_what_its_copy_gives(simulator, array):
    weights = weights_of(simulator)
    shapes = {"x": SPEC.x_shape(STEPS, BATCH), "dy": SPEC.y_shape(STEPS, BATCH)}
    shapes |= dict.fromkeys(("h_0", "c_0", "dh_n", "dc_n"), SPEC.h_shape(BATCH))
    arrays = {
        name: random(simulator, shape, seed) for seed, (name, shape) in enumerate(shapes.items())
    }

    def results(x, h_0, c_0, dy, dh_n, dc_n):
        found = []
        for _ in range(2):  # the second call is known
            y, _ = lstm(x, (h_0, c_0), weights, options={"tune": "off"})
            _, state, ctx = lstm_forward(x, (h_0, c_0), weights, options={"tune": "off"})
            grads = ctx.backward(dy, (dh_n, dc_n))
            found += [y, *state, grads.x, *grads.hx, grads.weights.flat]
        return found

    expected = results(**arrays)
    given = arrays[array]
    shifted = simulator.memory.empty((given.nbytes + 8,), np.uint8)[1 : given.nbytes + 1]
    arrays[array] = shifted.view(np.float64).reshape(given.shape)
    arrays[array][...] = given
    assert arrays[array].data.ptr % 8 == 1
    for one, other in zip(results(**arrays), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert simulator.violation == ""


@pytest.mark.parametrize("offset", [1, 2])
def test_an_array_that_begins_within_another_is_used_as_it_is(simulator, offset):
    weights = weights_of(simulator)
    size = int(np.prod(SPEC.x_shape(STEPS, BATCH)))
    x = random(simulator, (size + offset,), 1)[offset:].reshape(SPEC.x_shape(STEPS, BATCH))
    lstm(x, None, weights, options={"tune": "off"})
    before = simulator.memory.allocations
    y, _ = lstm(x, None, weights, options={"tune": "off"})
    assert simulator.memory.allocations - before == 4, "y, two states and the workspace: no copy"
    close(y, on_reference("lstm", x, None, weights)[0])


def test_what_cannot_be_copied_to_where_it_is_aligned_is_refused_by_name(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    raw = simulator.memory.empty((weights.flat.nbytes + 8,), np.uint8)
    flat = raw[1 : weights.flat.nbytes + 1].view(np.float64)
    before = simulator.calls("cudnnRNNForward")
    with pytest.raises(ValueError, match=r"^weights must begin at a multiple of 8 bytes"):
        lstm(x, None, dnnffi.RNNWeights(flat, SPEC))
    with pytest.raises(ValueError, match=r"^weights\[0\] must begin at a multiple of its elem"):
        lstm(x, None, dnnffi.RNNWeights(flat, SPEC).arrays(), num_layers=2)
    shifted = raw[1 : x.nbytes + 1].view(np.float64).reshape(x.shape)
    with (
        held(simulator) as plan,
        pytest.raises(ValueError, match=r"^x must begin at a multiple of 8"),
    ):
        plan.forward(shifted, None, weights)
    assert simulator.calls("cudnnRNNForward") == before


@pytest.mark.parametrize("options", [{"tune": "off"}, {"math": "strict", "tune": "off"}])
def test_a_known_call_is_few_frames_in_few_files(simulator, options):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    hx = tuple(random(simulator, SPEC.h_shape(BATCH), seed) for seed in (2, 3))
    found = []

    def call():
        found.append(lstm(x, hx, weights, options=options))

    for _ in range(2):
        call()
    frames = []

    def profile(frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and f"dnnffi{os.sep}" in path and "tests" not in path:
            frames.append((path, frame.f_code.co_name))

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    # The host's memory is no file of dnnffi's: on CuPy's a pair of states is a frame more.
    assert len(frames) <= 13, frames
    assert len({path for path, _ in frames}) <= 7, frames


def test_a_replayed_call_asks_nobody_how_it_runs(simulator, monkeypatch):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    lstm(x, None, weights, options={"tune": "now"})
    operations = the_plan(simulator).operations
    forward, asked = operations.forward, []
    monkeypatch.setattr(operations, "forward", lambda *at: asked.append(at) or forward(*at))
    for _ in range(40):  # results are freed, so that addresses come again
        lstm(x, None, weights, options={"tune": "now"})
    assert len(asked) < 40


@pytest.mark.parametrize("tune", ["off", "now"])
def test_a_buffers_plan_runs_on_its_device_whatever_the_current_one(simulator, tune):
    simulator.memory.devices = 2
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    dy = random(simulator, SPEC.y_shape(STEPS, BATCH), 2)
    expected = on_reference("lstm", x, None, weights)[0]
    with held(simulator, training=True, options={"tune": tune}) as plan:
        simulator.memory.device = 1
        for _ in range(4):
            y, _ = plan.forward(x, None, weights)
            dx, _ = plan.backward_data(dy)
            gradient = plan.backward_weights().flat
            assert [a.device_number for a in (y, dx, gradient)] == [0, 0, 0]
            close(y, expected)
        plan.autotune()
        assert simulator.memory.device == 1
        simulator.memory.device = 0


@pytest.mark.parametrize(
    ("error", "match", "arguments", "keywords"),
    [
        (TypeError, "spec must be an RNNSpec", ("lstm", 3, 5), {}),
        (TypeError, "batch must be an integer", (SPEC, 3.5, 5), {}),
        (ValueError, "0 or more rows in its batch; got B = -1", (SPEC, -1, 5), {}),
        (ValueError, "at least one time step", (SPEC, 3, 0), {}),
        (TypeError, "training must be", (SPEC, 3, 5), {"training": 2}),
        (ValueError, "lengths", (SPEC, 3, 5), {"lengths": [1, 2]}),
        (ValueError, "dropout acts in training", (SPEC, 3, 5), {"dropout": 0.5}),
        (TypeError, "dropout_state must be", (SPEC, 3, 5), {"dropout_state": 3}),
        (ValueError, "backend must be one of", (SPEC, 3, 5), {"backend": "cuda"}),
        (ValueError, "device must be from 0 to 0", (SPEC, 3, 5), {"device": 1, "backend": "cudnn"}),
        (ValueError, "device must be from 0 to", (SPEC, 3, 5), {"device": -1}),
        (ValueError, "'tune'. must be one of", (SPEC, 3, 5), {"options": {"tune": "yes"}}),
        (
            ValueError,
            "works in functions only; call dnnffi.lstm with",
            (SPEC, 3, 5),
            {"options": {"validate": True}},
        ),
    ],
)
def test_wrong_plans_are_refused(simulator, error, match, arguments, keywords):
    spec, batch, steps = arguments
    with pytest.raises(error, match=match):
        dnnffi.RNNPlan(spec, batch=batch, steps=steps, **keywords)


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_plan_for_an_empty_batch_asks_no_library(simulator, accumulate):
    simulator.memory.devices = 2
    simulator.memory.device = 1
    weights = weights_of(simulator)
    x, dy = random(simulator, (STEPS, 0, 3), 1), random(simulator, (STEPS, 0, 4), 1)
    out = weights.like(random(simulator, weights.flat.shape, 2))
    before = np.array(out.flat)
    simulator.memory.device = 0
    simulator.control.standin_reset()
    keywords = {"training": True, "dropout": 0.5, "device": 1, "backend": "cudnn"}
    with dnnffi.RNNPlan(SPEC, batch=0, steps=STEPS, **keywords) as plan:
        y, (h_n, _) = plan.forward(x, None, weights)
        dx, _ = plan.backward_data(dy)
        assert plan.backward_weights(out=out, accumulate=accumulate) is out
        plan.forward(x, None, weights)
        gradient = plan.backward(dy)[1]
        plan.autotune()
    assert (y.shape, h_n.shape, dx.shape) == ((STEPS, 0, 4), (2, 0, 4), (STEPS, 0, 3))
    np.testing.assert_array_equal(out.flat, before if accumulate else 0)
    assert gradient.layout == weights.layout
    assert not gradient.flat.any()
    assert {a.device_number for a in (y, h_n, dx, gradient.flat)} == {1}
    assert simulator.calls("*") == 0


def test_a_plan_of_another_device_refuses_arrays_of_this_one(simulator):
    simulator.memory.devices = 2
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    with held(simulator, device=1) as plan, pytest.raises(ValueError, match="device"):
        plan.forward(x, None, weights)


class StepGraph:
    """Stand-in for the graph of a user's step, with its result and whether it was closed."""

    def __init__(self, memory, step):
        self.device, self.result, self.closed = memory.device, step(), False

    def close(self):
        self.closed = True


def test_a_step_is_captured_on_the_device_of_its_plan_and_goes_with_it(simulator):
    simulator.memory.devices = 2
    with held(simulator, device=1) as plan:
        with pytest.raises(UnsupportedError, match="captures on CuPy arrays on CUDA only"):
            plan.capture(lambda: 3)
        simulator.memory.capture_step = partial(StepGraph, simulator.memory)
        graph = plan.capture(lambda: 3)
        assert (graph.device, graph.result, graph.closed) == (1, 3, False)
        simulator.memory.kind = "rocm"
        with pytest.raises(UnsupportedError, match="captures on CuPy arrays on CUDA only"):
            plan.capture(lambda: 3)
    assert graph.closed


def test_the_reference_captures_nothing(simulator):
    with (
        held(simulator, backend="reference") as plan,
        pytest.raises(UnsupportedError, match="graphs"),
    ):
        plan.capture(lambda: None)


def test_cached_plans_can_be_seen_and_forgotten(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    dnnffi.clear_plans()
    lstm(x, None, weights, options={"tune": "now"})
    (plan,) = dnnffi.cached_plans()
    assert plan.problem.spec == SPEC
    assert "standard" in plan.report()
    del plan
    dnnffi.clear_plans()
    assert dnnffi.cached_plans() == ()
    lstm(x, None, weights, options={"tune": "auto"})
    (plan,) = dnnffi.cached_plans()
    assert plan.finder.choice is None, "what was measured is forgotten too"


def test_plans_that_the_functions_keep_cannot_be_closed(simulator):
    lstm(random(simulator, SPEC.x_shape(STEPS, BATCH), 1), None, weights_of(simulator))
    assert not hasattr(the_plan(simulator), "close")


def test_memory_of_all_plans_is_shown(simulator):
    assert "cudnn" not in dnnffi.held_memory()  # it was not used
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    # Calls on new addresses use copies, which cost little here.
    kept = run_on_new_addresses(simulator, weights, 3 * CALLS_BEFORE_TUNING)
    with held(simulator, options={"tune": "now"}) as own:
        out = own.forward(x, None, weights)
        for _ in range(3):
            own.forward(x, None, weights, out=out)
        plans = [the_plan(simulator), own._buffers.plan]
        found = dnnffi.held_memory()["cudnn"]
        assert (
            found.graphs
            == sum(plan.operations.graph_bytes for plan in plans)
            > plans[0].operations.graph_bytes
            > 0
        )
        assert found.copies == sum(plan.operations.staged_bytes for plan in plans) > 0
        (buffer,) = simulator.rnn.resources.workspaces.buffers.values()
        assert found.workspaces == buffer.nbytes > 0
    del plans, own, kept, out
    dnnffi.clear_plans()
    gc.collect()
    assert dnnffi.held_memory()["cudnn"] == (0, 0, 0)


def test_a_plan_that_is_closed_holds_no_memory(simulator):
    weights, kept = weights_of(simulator), []
    with held(simulator, options={"tune": "now"}) as plan:
        for seed in range(4):  # on new addresses, through copies
            x = random(simulator, SPEC.x_shape(STEPS, BATCH), seed)
            kept.append((x, plan.forward(x, None, weights)))
        found = dnnffi.held_memory()["cudnn"]
        assert found.graphs > 0
        assert found.copies > 0
    assert dnnffi.held_memory()["cudnn"]._replace(workspaces=0) == (0, 0, 0)


# Candidates that need more memory than the plans hold


def larger(simulator, names, extra=1 << 16):
    """Let candidates ask for more workspace and reserve space than they did."""
    kernels = simulator.rnn.candidates
    make = kernels.make

    def make_larger(problem, candidate, launch, generator=None):
        executor = make(problem, candidate, launch, generator)
        if candidate in names:
            executor.workspace_bytes += extra
            executor.least_workspace_bytes = executor.workspace_bytes
            executor.reserve_bytes += extra if problem.training else 0
        return executor

    kernels.make = make_larger


@pytest.mark.parametrize("training", [False, True])
def test_what_runs_directly_may_need_more_workspace_than_what_is_captured(simulator, training):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    _, _, ctx = on_reference("lstm_forward", x, None, weights)
    lstm(x, None, weights)
    larger(simulator, ("cudnn standard",))
    chosen(simulator, "standard", "persist_dynamic")
    with held(simulator, training=training, options={"tune": "now"}) as plan:
        y, _ = plan.forward(x, None, weights)
        close(y, on_reference("lstm", x, None, weights)[0])
        if training:
            np.testing.assert_allclose(
                plan.backward_data(y)[0], ctx.backward(np.array(y)).x, rtol=1e-10, atol=1e-14
            )


@pytest.mark.parametrize("function", ["lstm", "lstm_forward"])
def test_a_call_on_its_way_while_another_thread_tunes(simulator, function):
    simulator.control.standin_check_threads(0)
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    run = {"lstm": lstm, "lstm_forward": lstm_forward}[function]
    run(x, None, weights)
    larger(simulator, ("cudnn standard", "cudnn persist_dynamic"))
    plan = the_plan(simulator)
    parts, tuned = plan.parts, []
    empty, take = parts.empty, parts.take_workspace

    def tune_between(shape, dtype):
        array = empty(shape, dtype)
        if array.dtype == np.uint8 and not tuned:  # the workspace, or the reserve space
            tuned.append(True)
            thread = threading.Thread(target=plan.autotune)
            thread.start()
            thread.join()
        return array

    parts.empty = tune_between
    parts.take_workspace = lambda device, stream, nbytes: tune_between((nbytes,), np.dtype("u1"))
    y = run(x, None, weights)[0]
    parts.empty, parts.take_workspace = empty, take
    assert plan.finder.choice is not None
    close(y, on_reference("lstm", x, None, weights)[0])


@pytest.mark.parametrize("training", [False, True])
def test_another_choice_leaves_no_graph_of_the_one_before(simulator, training):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    with held(simulator, training=training, options={"tune": "now"}) as plan:
        out = plan.forward(x, None, weights)
        for _ in range(3):
            plan.forward(x, None, weights, out=out)
        assert plan._buffers.plan.operations.graph_count == 1
        before = plan._buffers.plan.finder.route.replayed
        plan.autotune()
        assert plan._buffers.plan.finder.route.replayed is not before
        # Its descriptors are gone, and backward runs on the reserve space of the new one.
        assert plan._buffers.plan.operations.graph_count == 0


def test_no_graph_is_left_where_replaying_ends(simulator):
    weights = weights_of(simulator)
    x, other = (random(simulator, SPEC.x_shape(STEPS, BATCH), seed) for seed in (1, 2))
    with held(simulator, options={"tune": "now"}) as plan:
        out = plan.forward(x, None, weights)
        for _ in range(3):
            plan.forward(x, None, weights, out=out)
        simulator.memory.fail_capture = RuntimeError
        for _ in range(3):
            plan.forward(other, None, weights, out=out)
        assert plan._buffers.plan.finder.route.replayed is None
        assert plan._buffers.plan.operations.graph_count == 0
        assert "as a CUDA graph" not in plan.report()


def test_after_a_forward_that_failed_there_is_no_backward(simulator):
    weights = weights_of(simulator)
    x, other = (random(simulator, SPEC.x_shape(STEPS, BATCH), seed) for seed in (1, 2))
    with held(simulator, training=True, options={"tune": "off"}) as plan:
        plan.forward(x, None, weights)
        simulator.control.standin_fail(b"cudnnRNNForward", 1, 5000)
        with pytest.raises(CudnnError):
            plan.forward(other, None, weights)
        simulator.control.standin_fail(b"cudnnRNNForward", 0, 0)
        with pytest.raises(ContextError, match="backward needs a forward pass before it"):
            plan.backward_data()


def test_a_plan_made_inside_a_capture_is_measured_behind_it(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    simulator.memory.stream = simulator.memory.new_stream()
    simulator.memory.capture_number = 17
    lstm(x, None, weights, options={"tune": "now"})
    assert the_plan(simulator).finder.choice is None
    simulator.memory.capture_number = 0
    lstm(x, None, weights, options={"tune": "now"})
    assert the_plan(simulator).finder.choice is not None


@pytest.mark.parametrize("tune", ["auto", "off"])
@pytest.mark.parametrize("what", ["backward_data", "backward_weights", "a new plan", "autotune"])
def test_a_forked_child_is_told_so_whatever_it_does(simulator, what, tune):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    with held(simulator, training=True, options={"tune": tune}) as plan:
        plan.forward(x, None, weights)
        if what == "backward_weights":
            plan.backward_data()
        does = {
            "backward_data": plan.backward_data,
            "backward_weights": plan.backward_weights,
            "a new plan": lambda: dnnffi.RNNPlan(
                SPEC, batch=BATCH, steps=STEPS + 1, backend="cudnn"
            ),
            "autotune": plan.autotune,
        }[what]
        check_refused_in_child(does)


def test_new_sizes_do_not_compile_what_a_size_of_their_class_has_chosen(simulator):
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    lstm(x, None, weights)
    chosen(simulator, "persist_dynamic", "persist_dynamic")
    for _ in range(CALLS_BEFORE_TUNING):
        lstm(x, None, weights)
    built = simulator.calls("cudnnBuildRNNDynamic")
    other = random(simulator, SPEC.x_shape(STEPS + 1, BATCH), 2)
    y, _ = lstm(other, None, weights)
    close(y, on_reference("lstm", other, None, weights)[0])
    assert simulator.calls("cudnnBuildRNNDynamic") == built


@pytest.mark.parametrize("training", [False, True])
def test_no_other_call_can_have_the_workspace_of_one_that_runs(simulator, monkeypatch, training):
    """A signal handler may call dnnffi between two kernels of a call."""
    weights = weights_of(simulator)
    x = random(simulator, SPEC.x_shape(STEPS, BATCH), 1)
    left = []

    def watch(name):
        real = getattr(CudnnRNNExecutor, name)

        def run(*given, **more):
            left.append(dict(simulator.rnn.resources.workspaces.buffers))
            return real(*given, **more)

        monkeypatch.setattr(CudnnRNNExecutor, name, run)

    with held(simulator, training=training, options={"tune": "off"}) as plan:
        y, _ = plan.forward(x, None, weights)
        for name in ("forward", "backward_data", "backward_weights"):
            watch(name)
        plan.forward(x, None, weights)
        if training:
            plan.backward(y)
    assert left == [{}] * (3 if training else 1)
    assert simulator.rnn.resources.workspaces.buffers
