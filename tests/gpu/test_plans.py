"""Tuned plans and CUDA graphs on a GPU, against the reference."""

from __future__ import annotations

import gc
import threading

import conformance
import numpy as np
import pytest
from conformance import Case, problem_of

import dnnffi
from dnnffi.device.cupy import cupy_memory
from dnnffi.dropout import DropoutState
from dnnffi.rnn.network import CALLS_BEFORE_TUNING
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.rnn import RNNSpec

cupy = pytest.importorskip("cupy")

NOW = RNNOptions(tune="now")
TUNED = conformance.matrix()[::7]


@pytest.fixture(autouse=True)
def _forgotten():
    dnnffi.clear_plans()
    yield
    dnnffi.clear_plans()


@pytest.mark.parametrize("case", TUNED, ids=str)
def test_tuned_problems_of_the_matrix(case):
    options = case.problem.options._replace(tune="now", algorithm="auto")
    case = case._replace(problem=case.problem._replace(options=options))
    for _ in range(4):
        conformance.check(case, cupy.asarray, "cudnn")
    for plan in dnnffi.cached_plans():
        assert plan.finder.choice is not None
        assert plan.finder.choice.times


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("mode", conformance.MODES)
@pytest.mark.parametrize("hidden", [16, 48, 128, 256])
def test_tuned_problems_that_every_algorithm_takes(mode, dtype, hidden):
    spec = RNNSpec(mode=mode, input_size=64, hidden_size=hidden, dtype=dtype)
    rng = np.random.default_rng(hidden)
    problem = problem_of(spec, "dense", 6, 16, rng, training=True, options=NOW)
    for seed in range(4):
        conformance.check(Case(problem, states=True, seed=seed), cupy.asarray, "cudnn")
    assert any(len(plan.finder.choice.times) > 1 for plan in dnnffi.cached_plans())


def network(mode="lstm", dtype="float32", size=64, layers=2):
    spec = RNNSpec(mode=mode, input_size=size, hidden_size=size, num_layers=layers, dtype=dtype)
    rng = np.random.default_rng(0)
    flat = rng.uniform(-0.2, 0.2, dnnffi.weight_layout(spec, "cudnn").size).astype(dtype)
    x = rng.standard_normal(spec.x_shape(12, 8)).astype(dtype)
    return spec, dnnffi.RNNWeights(cupy.asarray(flat), spec), cupy.asarray(x)


def test_graphs_that_are_garbage_are_not_destroyed_in_a_capture():
    memory, array = cupy_memory(), cupy.ones(4)
    array += 1

    def record(stream):
        array.__iadd__(1)
        for_the_collector = [[] for _ in range(10 * gc.get_threshold()[0])]
        del for_the_collector

    garbage = [memory.capture(record)]
    garbage.append(garbage)
    del garbage
    memory.capture(record)  # CuPy would say that it could not destroy the first one


def test_a_call_in_the_middle_of_a_capture_is_refused_and_not_captured():
    _, weights, x = network()
    expected = dnnffi.lstm(x, None, weights, options={"tune": "off"})[0]
    array, refused = cupy.ones(4), []
    array += 1

    def record(stream):
        array.__iadd__(1)
        for call in (
            lambda: dnnffi.lstm(x, None, weights, options={"tune": "off"}),
            lambda: dnnffi.matmul(x[0], x[0].T, math="strict"),
        ):
            with pytest.raises(dnnffi.CaptureError, match="by a signal handler"):
                call()
            refused.append(call)

    dnnffi.matmul(x[0], x[0].T, math="strict")
    graph = cupy_memory().capture(record)
    assert len(refused) == 2
    graph.launch(cupy.cuda.get_current_stream())
    assert array.tolist() == [3, 3, 3, 3]
    again = dnnffi.lstm(x, None, weights, options={"tune": "off"})[0]
    assert cupy.array_equal(again, expected)


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("null_stream", [True, False])
def test_a_loop_is_tuned_captured_and_stays_right(null_stream):
    _, weights, x = network()
    stream = cupy.cuda.Stream.null if null_stream else cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        first, _ = dnnffi.lstm(x, None, weights, options={"algorithm": "standard", "tune": "off"})
        dnnffi.clear_plans()
        for _ in range(4 * CALLS_BEFORE_TUNING):
            y, _ = dnnffi.lstm(x, None, weights)
            x *= 1  # work of the user's own between the calls
        assert conformance.deviation(y, first.get().astype("f8")) < 5e-3  # TF32
    (plan,) = dnnffi.cached_plans()
    assert plan.finder.choice.replayed is not None
    assert plan.operations.graph_count > 0
    stream.synchronize()


@pytest.mark.alone  # graphs are counted: what they hold is what the device has less
@pytest.mark.usefixtures("replayed")
def test_a_training_loop_with_weights_that_change():
    spec, weights, x = network()
    twin = dnnffi.RNNWeights(weights.flat.copy(), spec)
    options = {"algorithm": "standard", "tune": "off", "math": "strict"}
    for _ in range(4 * CALLS_BEFORE_TUNING):
        y, _, ctx = dnnffi.lstm_forward(x, None, weights, options={"math": "strict"})
        weights.flat -= 1e-3 * ctx.backward(y).weights.flat
        expected, _, ctx = dnnffi.lstm_forward(x, None, twin, options=options)
        twin.flat -= 1e-3 * ctx.backward(expected).weights.flat
    assert conformance.deviation(weights.flat, twin.flat.get().astype("f8")) < 1e-4
    assert max(plan.operations.graph_count for plan in dnnffi.cached_plans()) >= 3


@pytest.mark.usefixtures("replayed")
def test_dropout_is_the_same_replayed_or_not():
    _, weights, x = network()

    def run(tune):
        dnnffi.clear_plans()
        state = DropoutState(7)
        results = []
        for _ in range(3 * CALLS_BEFORE_TUNING):
            y, _, ctx = dnnffi.lstm_forward(
                x,
                None,
                weights,
                dropout=0.5,
                dropout_state=state,
                options={"tune": tune, "algorithm": "standard"},
            )
            results.append((y.get(), ctx.backward(y).x.get()))
        return results, max(plan.operations.graph_count for plan in dnnffi.cached_plans())

    (untuned, none), (tuned, graphs) = run("off"), run("auto")
    assert none == 0
    assert graphs > 0
    for (y, dx), (other_y, other_dx) in zip(untuned, tuned, strict=True):
        np.testing.assert_allclose(y, other_y, atol=1e-5)
        np.testing.assert_allclose(dx, other_dx, atol=1e-4)
    assert not np.allclose(untuned[0][0], untuned[1][0], atol=1e-3)


def test_two_streams_at_once():
    _, weights, x = network()
    expected = dnnffi.lstm(x, None, weights, options={"tune": "now"})[0].get()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    results = []
    for _ in range(10):
        for stream in streams:
            with stream:
                results.append(dnnffi.lstm(x, None, weights, options={"tune": "now"})[0])
    cupy.cuda.Device().synchronize()
    for y in results:
        assert conformance.deviation(y, expected.astype("f8")) < 1e-4


def test_threads_that_tune_the_same_problem():
    _, weights, x = network(size=128)
    expected = dnnffi.lstm(x, None, weights, options={"tune": "off"})[0].get().astype("f8")
    wrong = []

    def use():
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for _ in range(3 * CALLS_BEFORE_TUNING):
                y, _ = dnnffi.lstm(x, None, weights)
                stream.synchronize()
                if conformance.deviation(y, expected) > 5e-3:
                    wrong.append(y)

    cupy.cuda.Device().synchronize()
    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("training", [False, True])
def test_a_buffers_plan(training):
    spec, weights, x = network()
    options = {"tune": "now", "math": "strict"}
    y, (h_n, c_n), ctx = dnnffi.lstm_forward(
        x, None, weights, options={"math": "strict", "tune": "off"}
    )
    dy = cupy.random.default_rng(0).standard_normal(y.shape, dtype="float32")
    grads = ctx.backward(dy)
    with dnnffi.RNNPlan(spec, batch=8, steps=12, training=training, options=options) as plan:
        out = (cupy.empty_like(y), (cupy.empty_like(h_n), cupy.empty_like(c_n)))
        for _ in range(5):
            plan.forward(x, None, weights, out=out)
            assert conformance.deviation(out[0], y.get().astype("f8")) < 1e-4
            assert conformance.deviation(out[1][1], c_n.get().astype("f8")) < 1e-4
            if training:
                dx, _ = plan.backward_data(dy)
                dw = plan.backward_weights()
                assert conformance.deviation(dx, grads.x.get().astype("f8")) < 1e-4
                expected = grads.weights.flat.get().astype("f8")
                assert conformance.deviation(dw.flat, expected) < 1e-4
        assert "as a CUDA graph" in plan.report()


def test_a_step_as_one_graph():
    spec, weights, x = network()
    twin = dnnffi.RNNWeights(weights.flat.copy(), spec)
    rate = cupy.float32(1e-3)

    def step_of(plan, weights):
        def step():
            y, _ = plan.forward(x, None, weights)
            plan.backward_data(y)
            weights.flat -= rate * plan.backward_weights().flat
            return (y * y).sum()

        return step

    options = {"math": "strict", "algorithm": "standard"}
    losses = []
    with dnnffi.RNNPlan(spec, batch=8, steps=12, training=True, options=options) as plan:
        graph = plan.capture(step_of(plan, weights))
        losses = [float(graph.launch()) for _ in range(10)]
    with dnnffi.RNNPlan(
        spec, batch=8, steps=12, training=True, options=options | {"tune": "off"}
    ) as plan:
        step = step_of(plan, twin)
        step()  # the capture runs the step once
        expected = [float(step()) for _ in range(10)]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert losses[-1] < losses[0]
    with pytest.raises(ValueError, match="closed"):
        graph.launch()


def test_a_graph_keeps_what_its_step_needs():
    spec, weights, x = network(size=64, layers=1)

    def captured():
        plan = dnnffi.RNNPlan(spec, batch=8, steps=12, options={"algorithm": "persist_dynamic"})
        plan.autotune()
        return plan.capture(lambda: plan.forward(x, None, weights)[0]), plan.forward(
            x, None, weights
        )[0].get()

    graph, expected = captured()
    gc.collect()
    for _ in range(3):
        assert conformance.deviation(graph.launch(), expected.astype("f8")) < 1e-4


@pytest.mark.usefixtures("replayed")
def test_graphs_go_before_the_kernels_that_they_need():
    spec, weights, x = network(size=64, layers=1)
    options = {"algorithm": "persist_dynamic", "tune": "now"}
    with dnnffi.RNNPlan(spec, batch=8, steps=12, options=options) as plan:
        out = plan.forward(x, None, weights)
        for _ in range(3):
            plan.autotune()
            gc.collect()
            for _ in range(4):
                plan.forward(x, None, weights, out=out)
        cupy.cuda.Device().synchronize()
        assert "1 graphs" in plan.report()


def test_a_capture_by_the_user_records_tuned_calls():
    _, weights, x = network()
    expected = None
    for _ in range(3 * CALLS_BEFORE_TUNING):
        expected = dnnffi.lstm(x, None, weights)[0]
    stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
    cupy.cuda.Device().synchronize()
    with stream, cupy.cuda.using_allocator(pool.malloc):
        dnnffi.lstm(x, None, weights)
        stream.begin_capture()
        y, _ = dnnffi.lstm(x, None, weights)
        graph = stream.end_capture()
        y.fill(0)
        graph.launch(stream)
    stream.synchronize()
    assert conformance.deviation(y, expected.get().astype("f8")) < 1e-4


def test_scratch_memory_of_the_tuning_is_given_back():
    _, weights, x = network(size=256)
    dnnffi.lstm(x, None, weights, options={"tune": "off"})
    cupy.cuda.Device().synchronize()
    used = cupy.get_default_memory_pool().total_bytes()
    dnnffi.lstm(x, None, weights, options={"tune": "now"})
    grown = cupy.get_default_memory_pool().total_bytes() - used
    assert grown < 2**20 + 2 * dnnffi.cached_plans()[-1].finder.route.workspace_bytes


def test_results_on_disk_are_used_by_another_process(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    _, weights, x = network(size=128)
    dnnffi.lstm(x, None, weights, options={"tune": "now"})
    (plan,) = dnnffi.cached_plans()
    assert plan.finder.choice.source == "measured"
    assert len(list(tmp_path.rglob("*.json"))) == 2  # of these sizes, and of their class
    dnnffi.clear_plans()
    dnnffi.lstm(x, None, weights)
    (again,) = dnnffi.cached_plans()
    assert again.finder.choice.source == "disk"
    assert again.finder.choice.direct == plan.finder.choice.direct
    assert "NVIDIA" in cupy_memory().device_name(0)
