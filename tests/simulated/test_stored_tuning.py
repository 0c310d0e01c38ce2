"""Tuning results on disk, whatever they say: no call is wrong or outside its options."""

from __future__ import annotations

import ctypes
import gc
import json
import warnings
from collections import Counter
from contextlib import contextmanager
from math import prod

import conformance
import conformance_conv
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dnnffi
from dnnffi import testing
from dnnffi.backends.conv_interface import OWN
from dnnffi.backends.cudnn.conv_executor import GraphExecutor
from dnnffi.backends.cudnn.graph import known_wrong
from dnnffi.backends.cudnn.rnn_executor import CudnnRNNExecutor
from dnnffi.errors import PerformanceWarning
from dnnffi.execution import store
from dnnffi.execution.stored_results import MAX_CHECKED
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import FORWARD, OPERATIONS, ConvProblem
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

SPEC = ConvSpec(in_channels=4, out_channels=6, kernel=(3, 2), groups=2)
FUSED = {"activation": "relu", "bias": True}
TENSOR_CORES, NONDETERMINISTIC, PLAIN = 1, 2, 3  # the engines of the stand-in that run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(store.ENVIRONMENT_VARIABLE, str(tmp_path))
    return tmp_path


def problem_of(operation=FORWARD, options=None, **more):
    return ConvProblem.of(operation, SPEC, (2, 4, 5, 6), options=options or ConvOptions(), **more)


def engine(number, time=1.0, *, fused=True, **knobs):
    """A candidate in a file."""
    return [[fused, number, list(map(list, knobs.items()))], time]


def run(simulator, problem):
    """Call a public function in a process that knows nothing, and check its result."""
    arrays = testing.conv_inputs(problem, 0)
    conformance_conv.check_values(problem, arrays, simulator.asarray, "cudnn")


def executor_of(simulator):
    (plan,) = simulator.conv.plans.values()
    return plan._of_thread().executor


def store_result(simulator, folder, problem, candidates, refused=()):
    """Let the file of a problem have these candidates; nothing is known in the process."""
    simulator.forget_plans()
    for path in folder.rglob("*.json"):
        path.unlink()
    tune = ConvOptions(**(problem.options._asdict() | {"tune": "now"}))
    run(simulator, problem._replace(options=tune))
    (path,) = folder.rglob("*.json")
    content = json.loads(path.read_text())
    content["value"] |= {"candidates": candidates, "refused": dict(refused)}
    path.write_text(json.dumps(content))
    simulator.forget_plans()


def double(array, address):
    """Let numbers on the device be twice what they are."""
    numbers = array.from_address(address)
    numbers[:] = [2 * number for number in numbers]
    return 0


@contextmanager
def wrong_results(simulator, *engines):
    """Let engines of cuDNN's write twice what is right, and count the runs of each engine."""
    right, runs = GraphExecutor.run, Counter()

    def doubled(self, launch, at):
        right(self, launch, at)
        runs[self.choice.engine] += 1
        if self.choice.engine in engines:
            size = prod(self.problem_of_test.result_shape)
            simulator.memory.enqueue(double, (ctypes.c_float * size, at.result))

    made = GraphExecutor.__init__

    def init(self, problem, *others):
        made(self, problem, *others)
        self.problem_of_test = problem

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphExecutor, "__init__", init)
        patch.setattr(GraphExecutor, "run", doubled)
        yield runs


@pytest.mark.parametrize(
    ("options", "stored", "used"),
    [
        ({"deterministic": True}, engine(NONDETERMINISTIC), TENSOR_CORES),
        ({"math": "strict"}, engine(TENSOR_CORES, tile_size=2), NONDETERMINISTIC),
        ({"workspace_limit": 0}, engine(TENSOR_CORES, tile_size=4), PLAIN),
        ({"workspace_limit": 64}, engine(TENSOR_CORES, tile_size=0), NONDETERMINISTIC),
        ({}, engine(0), TENSOR_CORES),
        ({}, engine(17), TENSOR_CORES),
        ({}, engine(-5), TENSOR_CORES),
        ({}, engine(OWN), TENSOR_CORES),
        ({}, engine(PLAIN, tile_size=1), TENSOR_CORES),
        ({}, engine(TENSOR_CORES, tile_size=5), TENSOR_CORES),
        ({}, engine(TENSOR_CORES, no_such_knob=1), TENSOR_CORES),
    ],
    ids=str,
)
def test_a_stored_engine_that_is_not_admitted_is_not_used(simulator, folder, options, stored, used):
    problem = problem_of(options=ConvOptions(**options))
    store_result(simulator, folder, problem, [stored])
    run(simulator, problem)
    assert executor_of(simulator).choice.engine == used
    assert executor_of(simulator).workspace_bytes <= options.get("workspace_limit", 4096)
    store_result(simulator, folder, problem, [stored, engine(PLAIN)])
    run(simulator, problem)
    assert executor_of(simulator).choice.engine == PLAIN, "the next one"


def test_a_stored_engine_that_is_known_to_be_wrong_is_not_used(simulator, folder, monkeypatch):
    store_result(simulator, folder, problem_of(), [engine(NONDETERMINISTIC), engine(PLAIN)])
    wrong = (known_wrong.KnownWrong("forward", NONDETERMINISTIC, "is wrong"),)
    monkeypatch.setattr(known_wrong, "TABLE", wrong)
    run(simulator, problem_of())
    assert executor_of(simulator).choice.engine == PLAIN


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_stored_engine_with_wrong_results_is_not_used(simulator, folder, operation):
    with wrong_results(simulator, NONDETERMINISTIC):
        problem = problem_of(operation)
        store_result(simulator, folder, problem, [engine(NONDETERMINISTIC), engine(PLAIN)])
        run(simulator, problem)
        assert executor_of(simulator).choice.engine == PLAIN
        assert "differ from those of engine 1" in dnnffi.cached_plans()[-1].report()


def test_an_engine_that_was_measured_is_used_by_a_process_where_the_heuristics_are_wrong(
    simulator, folder
):
    with wrong_results(simulator, TENSOR_CORES):
        problem = problem_of()
        store_result(simulator, folder, problem, [engine(NONDETERMINISTIC), engine(PLAIN)])
        run(simulator, problem)
        assert executor_of(simulator).choice.engine == NONDETERMINISTIC


def test_two_settings_of_a_wrong_engine_do_not_outvote_other_engines(simulator):
    with wrong_results(simulator, TENSOR_CORES):
        run(simulator, problem_of(options=ConvOptions(tune="now")))
        assert executor_of(simulator).choice.engine in (NONDETERMINISTIC, PLAIN)


def test_another_setting_of_a_wrong_engine_proves_nothing(simulator, folder):
    with wrong_results(simulator, NONDETERMINISTIC):
        problem = problem_of()
        # The heuristics' second plan is the stored engine itself, and agrees with it.
        store_result(simulator, folder, problem, [engine(NONDETERMINISTIC)])
        run(simulator, problem)
        assert executor_of(simulator).choice.engine == TENSOR_CORES


def test_a_stored_result_is_compared_once_in_a_process(simulator, folder):
    with wrong_results(simulator) as runs:
        problem = problem_of()
        store_result(simulator, folder, problem, [engine(PLAIN)])
        runs.clear()
        run(simulator, problem)
        assert runs == {TENSOR_CORES: 1, PLAIN: 2}, "one of them is the call"
        simulator.conv.plans.clear()
        run(simulator, problem)
        assert runs == {TENSOR_CORES: 1, PLAIN: 3}


def test_the_plan_of_the_heuristics_needs_no_comparison(simulator, folder):
    with wrong_results(simulator) as runs:
        problem = problem_of()
        store_result(simulator, folder, problem, [engine(TENSOR_CORES, tile_size=3)])
        runs.clear()
        run(simulator, problem)
        assert runs == {TENSOR_CORES: 1}
        assert "read from disk" in dnnffi.cached_plans()[-1].report()


def test_few_candidates_of_a_large_file_are_run(simulator, folder):
    with wrong_results(simulator, NONDETERMINISTIC) as runs:
        problem = problem_of()
        store_result(simulator, folder, problem, [engine(NONDETERMINISTIC)] * 1000)
        runs.clear()
        run(simulator, problem)
        assert runs.total() <= 1 + MAX_CHECKED + 4
        assert executor_of(simulator).choice.engine == TENSOR_CORES


def test_where_nothing_stored_may_be_used_a_call_that_asks_for_it_measures(simulator, folder):
    problem = problem_of()
    store_result(simulator, folder, problem, [engine(17)])
    run(simulator, problem._replace(options=ConvOptions(tune="now")))
    assert "measured in this process" in dnnffi.cached_plans()[-1].report()
    simulator.forget_plans()
    run(simulator, problem)
    assert "read from disk" in dnnffi.cached_plans()[-1].report()


def test_a_stored_result_is_not_used_in_a_capture(simulator, folder):
    problem = problem_of()
    store_result(simulator, folder, problem, [engine(PLAIN)])
    simulator.memory.stream = simulator.memory.new_stream()
    simulator.memory.capture_number = 17
    run(simulator, problem)
    assert executor_of(simulator).choice.engine == TENSOR_CORES
    simulator.memory.capture_number = 0
    simulator.conv.plans.clear()
    simulator.conv.resources.graphs.user_captures.clear()
    run(simulator, problem)
    assert executor_of(simulator).choice.engine == PLAIN


KNOBS = st.lists(
    st.tuples(
        st.sampled_from(["tile_size", "split_k", "no_such_knob"]) | st.integers(-1, 2**33),
        st.integers(-1, 6) | st.integers(),
    ),
    max_size=2,
)
TIMES = st.floats(0, exclude_min=True, allow_infinity=False) | st.integers(1, 2**70)
CANDIDATES = st.lists(
    st.tuples(
        st.tuples(
            st.booleans(),
            st.sampled_from([TENSOR_CORES, NONDETERMINISTIC, PLAIN]) | st.integers(-2, 5),
            st.just([]) | KNOBS,
        ),
        TIMES,
    ),
    max_size=6,
)
NOTES = {TENSOR_CORES: "tensor_core", NONDETERMINISTIC: "nondeterministic"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    candidates=CANDIDATES,
    refused=st.dictionaries(st.text(), st.text() | st.integers(), max_size=2),
    operation=st.sampled_from(OPERATIONS),
    fused=st.booleans(),
    math=st.sampled_from(["default", "strict", "fast"]),
    deterministic=st.booleans(),
    limit=st.sampled_from([None, 0, 64, 2048]),
    wrong=st.sampled_from([NONDETERMINISTIC, PLAIN]),
)
def test_no_stored_result_makes_a_convolution_wrong_or_breaks_its_options(
    simulator, folder, candidates, refused, operation, fused, math, deterministic, limit, wrong
):
    options = ConvOptions(math=math, deterministic=deterministic, workspace_limit=limit)
    more = FUSED if fused and operation == FORWARD else {}
    problem = problem_of(operation, options, **more)
    run(simulator, problem)
    first = executor_of(simulator).choice.engine
    engines = () if wrong == first else (wrong,)  # errors of the first are not found
    with wrong_results(simulator, *engines):
        store_result(simulator, folder, problem, candidates, refused)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)  # of what is out of range
            run(simulator, problem)
        executor = executor_of(simulator)
        assert executor.choice.engine not in engines
        assert limit is None or executor.workspace_bytes <= limit
        assert math != "strict" or "tensor_core" not in str(executor)
        assert not deterministic or "nondeterministic" not in str(executor)
        del executor
        simulator.forget_plans()
    gc.collect()
    assert simulator.live("backend") == 0


# Networks


NETWORK = RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=2, dtype="float64")
ALGORITHMS = ("standard", "persist_static", "persist_static_small_h", "persist_dynamic")


@contextmanager
def wrong_networks(simulator, *algorithms):
    """Let algorithms of cuDNN's write twice what is right into h_n."""
    right = CudnnRNNExecutor.forward

    def forward(self, launch, at):
        right(self, launch, at)
        if self.algorithm in algorithms:
            size = prod(self.problem.h_shape)
            simulator.memory.enqueue(double, (ctypes.c_double * size, at.h_n))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudnnRNNExecutor, "forward", forward)
        yield


TRIPLES = st.tuples(TIMES, st.none() | TIMES, st.none() | TIMES)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    times=st.dictionaries(st.sampled_from(ALGORITHMS), TRIPLES),
    training=st.booleans(),
    wrong=st.sets(st.sampled_from(ALGORITHMS[1:])),
)
def test_no_stored_result_makes_a_network_wrong(simulator, folder, times, training, wrong):
    problem = RNNProblem.dense(NETWORK, steps=5, batch=2, training=training)
    case = conformance.Case(problem, True, 0)
    for path in folder.rglob("*.json"):
        path.unlink()
    conformance.check(case, simulator.asarray, "cudnn")
    plan = next(plan for plan in simulator.rnn.plans.values() if plan.problem.training == training)
    assert plan.autotune()
    (path,) = folder.rglob("*.json")
    content = json.loads(path.read_text())
    value = {
        "times": {f"cudnn {name}": taken for name, taken in times.items()},
        "refused": {f"cudnn {name}": "" for name in ALGORITHMS if name not in times},
    }
    path.write_text(json.dumps(content | {"value": value}))
    del plan
    simulator.forget_plans()
    with wrong_networks(simulator, *wrong):
        for _ in range(3):
            conformance.check(case, simulator.asarray, "cudnn")
    simulator.forget_plans()
