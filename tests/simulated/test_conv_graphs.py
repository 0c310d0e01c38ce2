"""Convolutions on the stand-in that are called again: graphs replayed, checks left out."""

from __future__ import annotations

import gc
import threading
import weakref

import conformance_conv
import numpy as np
import pytest
from conformance import deviation
from stress.bounds import check_refused_in_child

import dnnffi
from dnnffi import testing
from dnnffi.convolution import executor_plan
from dnnffi.convolution.executor_plan import CAPTURED_AT
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import DEFAULTS, ConvOptions
from dnnffi.spec.conv_problem import (
    BACKWARD_DATA,
    BACKWARD_WEIGHTS,
    FORWARD,
    OPERATIONS,
    RESULTS,
    ConvProblem,
)
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST, LAYOUTS

INTERNAL_ERROR = 4000
SPEC = ConvSpec(in_channels=4, out_channels=6, kernel=(3, 2), stride=(1, 2), groups=2)
X_SHAPE = (2, 4, 5, 6)
SQUARE = {"in_channels": 4, "out_channels": 4, "kernel": (3, 3)}
FUSED = {"activation": "relu", "residual": True, "alpha": 0.5, "bias": True}

pytestmark = pytest.mark.usefixtures("pool")


class Arrays:
    """A problem, its arrays on the stand-in, and calls of it."""

    def __init__(
        self, simulator, operation=FORWARD, spec=SPEC, layout=CHANNELS_FIRST, seed=0, **more
    ):
        self.host = simulator
        self.problem = ConvProblem.of(operation, spec, X_SHAPE, layout=layout, **more)
        values = testing.conv_inputs(self.problem, seed)
        self.given = [self.put(a) for a in conformance_conv.arguments(self.problem, values)]
        self.shape = spec.weight_shape if operation == BACKWARD_WEIGHTS else X_SHAPE
        name = "conv_transpose" if spec.transposed else "conv"
        self.function = getattr(dnnffi, name if operation == FORWARD else f"{name}_{operation}")
        self.keywords = testing.conv_keywords(self.problem) | {"backend": "cudnn"}
        if self.problem.options == DEFAULTS:
            self.keywords["options"] = None

    def put(self, array):
        if array is None or array.ndim == 1 or self.problem.layout != CHANNELS_LAST:
            return None if array is None else self.host.asarray(array)
        placed = self.host.asarray(np.ascontiguousarray(np.moveaxis(array, 1, -1)))
        return placed.transpose(0, placed.ndim - 1, *range(1, placed.ndim - 1))

    def call(self, *, given=None, shape=None, **changes):
        """The function on these arrays, with some keywords changed."""
        given = self.given if given is None else given
        keywords = self.keywords | changes
        if self.problem.operation == FORWARD:
            *positional, residual = given
            return self.function(*positional, **({"residual": residual} | keywords))
        return self.function(*given, self.shape if shape is None else shape, **keywords)

    def expected(self):
        """Compute the reference's result from the current values of the arrays."""
        doubles = (None if a is None else np.array(a, np.float64) for a in self.given)
        return conformance_conv.ReferenceConvPlan(self.problem).run(*doubles)

    def check(self, found):
        assert deviation(found, self.expected()) <= conformance_conv.tolerance(self.problem)

    def plan(self, **more):
        """A plan that its user holds."""
        problem = self.problem
        return dnnffi.ConvPlan(
            *(problem.spec, X_SHAPE),
            operation=problem.operation,
            layout=problem.layout,
            activation=problem.activation,
            residual=problem.residual,
            alpha=problem.alpha,
            bias=problem.bias,
            backend="cudnn",
            **more,
        )


def known_calls(simulator):
    """Return the number of signatures under which plans are kept; keys of problems are flat."""
    return sum(isinstance(key[0], tuple) for key in simulator.conv.plans._made)


def the_plan(simulator):
    (plan,) = simulator.conv.plans.values()
    return plan


def captures(simulator):
    return len(simulator.memory.graphs)


def launches(simulator):
    return sum(graph().launches for graph in simulator.memory.graphs if graph() is not None)


def executions(simulator, call):
    """Return how many computing calls of the library ``call`` makes, and how many other calls."""
    simulator.control.standin_reset()
    call()
    computed = simulator.calls("cudnnBackendExecute")
    return computed, simulator.calls("*") - computed


# Replaying


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_replays_are_right_and_see_what_changes_in_the_arrays(
    simulator, operation, layout, transposed
):
    spec = ConvSpec(in_channels=4, out_channels=6, kernel=(3, 2), groups=2, transposed=transposed)
    arrays = Arrays(simulator, operation, spec, layout, **(FUSED if operation == FORWARD else {}))
    for call in range(1, 3 * CAPTURED_AT):
        arrays.check(arrays.call())
        assert captures(simulator) == (call >= CAPTURED_AT)
        assert launches(simulator) == max(0, call - CAPTURED_AT + 1)
        arrays.given[call % 2][...] *= -1.5
    assert the_plan(simulator).graph_count == 1


def test_what_no_engine_fuses_is_in_the_graph(simulator):
    simulator.control.standin_set_max_operations(1)
    arrays = Arrays(simulator, **FUSED)
    with arrays.plan() as plan:
        out = plan.run(*arrays.given)
        for call in range(2 * CAPTURED_AT):
            plan.run(*arrays.given, out=out)
            arrays.check(out)
            arrays.given[2 + call % 2][...] += 0.25  # bias and residual
        assert "after the convolution" in plan.report()
        assert launches(simulator) == CAPTURED_AT + 2


def test_activation_alone_behind_a_held_plan_is_in_the_graph(simulator):
    simulator.control.standin_set_max_operations(1)
    arrays = Arrays(simulator, activation="relu")
    x, w, *_ = arrays.given
    with arrays.plan() as plan:
        out = plan.run(x, w)
        for _ in range(2 * CAPTURED_AT):
            out[...] = 7
            plan.run(x, w, out=out)
            arrays.check(out)
    assert captures(simulator) == 1


def test_a_graph_keeps_its_executor_and_its_handle(simulator):
    arrays = Arrays(simulator)
    for _ in range(CAPTURED_AT):
        arrays.call()
    (graph,) = simulator.memory.graphs
    assert graph().executor is the_plan(simulator)._of_thread().executor
    assert graph().handle is simulator.library.local.handles[0]


def test_a_replay_asks_the_library_for_nothing_but_to_compute(simulator):
    arrays = Arrays(simulator)
    for _ in range(CAPTURED_AT):
        arrays.call()
    assert executions(simulator, arrays.call) == (1, 0)


def test_other_addresses_are_not_replayed(simulator):
    first, second = Arrays(simulator), Arrays(simulator, seed=1)
    for _ in range(CAPTURED_AT):
        first.check(first.call())
    count = launches(simulator)
    second.check(second.call())
    assert launches(simulator) == count
    kept = first.call()  # so that the next result is elsewhere
    first.check(first.call())
    assert launches(simulator) == count + 1
    first.check(kept)


def test_addresses_are_counted_each_for_themselves(simulator):
    pair = [Arrays(simulator, seed=seed) for seed in range(2)]
    for call in range(1, 2 * CAPTURED_AT):
        for arrays in pair:
            arrays.check(arrays.call())
        assert captures(simulator) == 2 * (call >= CAPTURED_AT)


def test_a_copy_of_what_cudnn_does_not_take_is_replayed_on(simulator):
    arrays = Arrays(simulator)
    room = simulator.memory.zeros((2, 4, 5, 12))
    view = room[..., ::2]
    for call in range(2 * CAPTURED_AT):
        arrays.given[0][...] += call
        view[...] = arrays.given[0]
        arrays.check(arrays.call(given=[view, *arrays.given[1:]]))
    assert launches(simulator) == CAPTURED_AT + 1


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_workspaces_up_to_the_limit_are_those_of_the_stream(simulator, monkeypatch, limit):
    monkeypatch.setattr(executor_plan, "MAX_SHARED_WORKSPACE", limit)
    arrays = Arrays(simulator)
    for _ in range(2 * CAPTURED_AT):
        arrays.check(arrays.call())
    size = the_plan(simulator)._of_thread().executor.workspace_bytes
    assert size > 0
    assert simulator.conv.resources.workspaces.nbytes == (size if limit else 0)
    assert captures(simulator) == 1


def test_a_held_plan_takes_any_workspace_of_the_stream(simulator, monkeypatch):
    monkeypatch.setattr(executor_plan, "MAX_SHARED_WORKSPACE", 0)
    arrays = Arrays(simulator)
    with arrays.plan() as plan:
        plan.run(*arrays.given)
        assert simulator.conv.resources.workspaces.nbytes > 0


def test_a_workspace_that_has_moved_is_not_the_graphs(simulator):
    arrays = Arrays(simulator)
    for _ in range(CAPTURED_AT):
        arrays.call()
    count, workspaces = launches(simulator), simulator.conv.resources.workspaces
    (old,) = workspaces.buffers.values()
    workspaces.give_back(0, 0, workspaces.take(0, 0, 2 * old.nbytes))
    arrays.check(arrays.call())
    assert launches(simulator) == count


def test_streams_have_graphs_of_their_own(simulator):
    arrays = Arrays(simulator)
    streams = [simulator.memory.new_stream() for _ in range(2)]
    for call in range(1, 2 * CAPTURED_AT):
        for stream in streams:
            simulator.memory.stream = stream
            arrays.check(arrays.call())
        assert captures(simulator) == 2 * (call >= CAPTURED_AT)


def test_graphs_are_counted_with_those_of_networks_and_reported(simulator):
    arrays = Arrays(simulator)
    for _ in range(CAPTURED_AT):
        arrays.call()
    assert simulator.conv.resources.graphs.nbytes == 1000
    assert the_plan(simulator).report().endswith("1 graphs, 1,000 bytes")
    dnnffi.clear_plans()
    gc.collect()
    assert simulator.conv.resources.graphs.nbytes == 0


def test_memory_is_told_where_there_are_convolutions_alone(simulator):
    arrays = Arrays(simulator)
    for _ in range(CAPTURED_AT):
        arrays.call()
    assert simulator.rnn is None
    size = the_plan(simulator)._of_thread().executor.workspace_bytes
    assert size > 0
    assert dnnffi.held_memory()["cudnn"] == (size, 1000, 0)
    dnnffi.clear_plans()
    gc.collect()
    assert dnnffi.held_memory()["cudnn"] == (0, 0, 0)


# Causes that end a graph


def test_inside_a_capture_of_the_user_calls_are_his(simulator):
    arrays = Arrays(simulator)
    simulator.memory.stream = simulator.memory.new_stream()
    with arrays.plan() as plan:
        x, w, *_ = arrays.given
        out = plan.run(x, w)
        for _ in range(CAPTURED_AT):
            plan.run(x, w, out=out)
            arrays.call()
        counts, shared = (
            (captures(simulator), launches(simulator)),
            simulator.conv.resources.workspaces.nbytes,
        )
        simulator.memory.capture_number = 17
        allocations = simulator.memory.allocations
        for call in (arrays.call, lambda: plan.run(x, w, out=out)):
            for _ in range(2 * CAPTURED_AT):
                assert executions(simulator, call)[0] == 1
        assert (captures(simulator), launches(simulator)) == counts
        # One result and two workspaces, which are the user's.
        assert simulator.memory.allocations - allocations == 2 * CAPTURED_AT * 3
        assert simulator.conv.resources.workspaces.nbytes == shared
        simulator.memory.capture_number = 0
        plan.run(x, w, out=out)
        assert launches(simulator) == counts[1] + 1
    assert len(simulator.conv.resources.graphs.user_captures) == 3


def test_an_executor_in_a_graph_of_the_user_is_not_closed(simulator):
    arrays = Arrays(simulator)
    simulator.memory.stream = simulator.memory.new_stream()
    simulator.memory.capture_number = 17
    arrays.call()
    simulator.memory.capture_number = 0
    executor = the_plan(simulator)._of_thread().executor
    simulator.control.standin_fail(b"cudnnBackendExecute", 1, INTERNAL_ERROR)
    arrays.check(arrays.call())
    assert the_plan(simulator)._of_thread().executor is not executor
    assert not executor._plan.closed


def test_a_plan_that_falls_has_no_graph_of_the_one_before(simulator):
    arrays = Arrays(simulator)
    for _ in range(CAPTURED_AT):
        arrays.call()
    (graph,) = simulator.memory.graphs
    assert graph().executor is the_plan(simulator)._of_thread().executor
    kept = arrays.call()
    simulator.control.standin_fail(b"cudnnBackendExecute", 1, INTERNAL_ERROR)
    arrays.check(arrays.call())  # elsewhere, because of what is kept
    gc.collect()
    assert graph() is None
    assert simulator.conv.resources.graphs.nbytes == 0
    del kept
    for _ in range(2 * CAPTURED_AT):
        arrays.check(arrays.call())
    assert captures(simulator) == 2


def test_a_tuned_plan_has_no_graph_of_the_one_before(simulator):
    arrays = Arrays(simulator)
    for _ in range(CAPTURED_AT):
        arrays.call()
    (graph,) = simulator.memory.graphs
    assert the_plan(simulator).autotune()
    gc.collect()
    assert graph() is None
    assert the_plan(simulator).graph_count == 0
    before = captures(simulator)
    for call in range(1, 2 * CAPTURED_AT):
        arrays.check(arrays.call())
        assert captures(simulator) - before == (call >= CAPTURED_AT)


def test_a_closed_plan_has_no_graph(simulator):
    arrays = Arrays(simulator)
    plan = arrays.plan()
    x, w, *_ = arrays.given
    out = plan.run(x, w)
    for _ in range(CAPTURED_AT):
        plan.run(x, w, out=out)
    (graph,) = simulator.memory.graphs
    plan.close()
    gc.collect()
    assert graph() is None
    with pytest.raises(ValueError, match="this plan is closed"):
        plan.run(x, w, out=out)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_a_capture_that_fails_is_not_tried_again(simulator, error):
    arrays = Arrays(simulator)
    other = Arrays(simulator, seed=1)
    simulator.memory.fail_capture = error
    tries = []
    capture = simulator.memory.capture
    simulator.memory.capture = lambda record: tries.append(1) or capture(record)
    for _ in range(3 * CAPTURED_AT):
        for each in (arrays, other):
            each.check(each.call())
    assert len(tries) == 1
    assert the_plan(simulator).fallen == {}
    simulator.memory.fail_capture = None
    assert the_plan(simulator).autotune()
    before = captures(simulator)
    for _ in range(CAPTURED_AT):
        arrays.check(arrays.call())
    assert captures(simulator) == before + 1


def test_threads_have_graphs_of_their_own_which_go_with_them(simulator):
    from dnnffi.backends.vendor.handle import close_handles

    arrays = [Arrays(simulator, seed=seed) for seed in range(4)]
    failures = []

    def work(own):
        try:
            for _ in range(5 * CAPTURED_AT):
                own.check(own.call())
            close_handles(simulator.library)
        except BaseException as error:
            failures.append(error)

    # One after the other: the stand-in's captures are those of the process.
    for own in arrays:
        thread = threading.Thread(target=work, args=(own,))
        thread.start()
        thread.join()
    assert failures == []
    assert captures(simulator) == len(arrays)
    gc.collect()
    assert [graph() for graph in simulator.memory.graphs] == [None] * len(arrays)
    assert simulator.conv.resources.graphs.nbytes == 0


def test_threads_that_call_at_the_same_time(simulator, monkeypatch):
    from dnnffi.backends.vendor.handle import close_handles

    def refuse(record):
        raise RuntimeError("the stand-in's captures are those of the process")

    monkeypatch.setattr(simulator.memory, "capture", refuse)
    arrays = [Arrays(simulator, seed=seed) for seed in range(4)]
    failures = []

    def work(own):
        try:
            for _ in range(20):
                own.check(own.call())
            close_handles(simulator.library)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(own,)) for own in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert known_calls(simulator) == 1


@pytest.mark.parametrize("what", ["a known call", "a held plan"])
def test_a_forked_child_is_told_so(simulator, what):
    arrays = Arrays(simulator)
    with arrays.plan() as plan:
        out = plan.run(*arrays.given)
        calls = {
            "a known call": arrays.call,
            "a held plan": lambda: plan.run(*arrays.given, out=out),
        }
        for _ in range(CAPTURED_AT):
            calls[what]()
        assert captures(simulator) == 1
        check_refused_in_child(calls[what])


# A held plan


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_held_plan_is_replayed(simulator, operation):
    arrays = Arrays(simulator, operation, **(FUSED if operation == FORWARD else {}))
    with arrays.plan() as plan:
        out = plan.run(*arrays.given)
        for call in range(2, 3 * CAPTURED_AT):
            out[...] = call
            assert plan.run(*arrays.given, out=out) is out
            arrays.check(out)
            assert captures(simulator) == (call >= CAPTURED_AT)
            arrays.given[call % 2][...] *= -1.5
        assert "1 graphs, 1,000 bytes" in plan.report()
        assert executions(simulator, lambda: plan.run(*arrays.given, out=out)) == (1, 0)


def test_a_held_plan_with_other_arrays_of_the_same_look(simulator):
    arrays, others = Arrays(simulator), Arrays(simulator, seed=1)
    with arrays.plan() as plan:
        out = plan.run(*arrays.given)
        for _ in range(2 * CAPTURED_AT):
            for each in (arrays, others):
                plan.run(*each.given, out=out)
                each.check(out)
    assert captures(simulator) == 2


def test_a_held_plan_whose_capture_fails(simulator):
    arrays = Arrays(simulator)
    simulator.memory.fail_capture = RuntimeError
    with arrays.plan() as plan:
        out = plan.run(*arrays.given)
        for _ in range(2 * CAPTURED_AT):
            out[...] = 0
            plan.run(*arrays.given, out=out)
            arrays.check(out)
        assert captures(simulator) == 0


def test_a_held_plan_on_a_device_that_is_not_current(simulator):
    arrays = Arrays(simulator)
    simulator.memory.devices = 2
    with arrays.plan(device=0) as plan:
        out = plan.run(*arrays.given)
        for _ in range(2 * CAPTURED_AT):
            plan.run(*arrays.given, out=out)
        simulator.memory.device = 1
        out[...] = 0
        plan.run(*arrays.given, out=out)
        assert simulator.memory.device == 1
        simulator.memory.device = 0
        arrays.check(out)


# Calls that look like an earlier one


def checks(monkeypatch):
    """A list that grows by one for each call whose arguments are checked."""
    seen = []
    checked = dnnffi.convolution.functions._checked
    monkeypatch.setattr(
        dnnffi.convolution.functions,
        "_checked",
        lambda *given: seen.append(given) or checked(*given),
    )
    return seen


def known(simulator, *, operation=FORWARD, **more):
    """Arrays whose call is known."""
    arrays = Arrays(simulator, operation, **more)
    for _ in range(2):  # the first finds no engine yet
        arrays.check(arrays.call())
    assert known_calls(simulator) >= 1
    return arrays


@pytest.mark.parametrize(
    "changes",
    [{}, {"options": {"math": "strict"}}, {"options": {"deterministic": False}}],
    ids=str,
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_call_that_looks_like_an_earlier_one_is_not_checked(
    simulator, monkeypatch, operation, changes
):
    arrays = Arrays(simulator, operation)
    for _ in range(2):
        arrays.call(**changes)
    seen = checks(monkeypatch)
    arrays.check(arrays.call(**changes))
    other = Arrays(simulator, operation, seed=1)
    other.check(other.call(**changes))
    assert seen == []


def test_geometry_of_one_number_or_of_tuples_is_known(simulator, monkeypatch):
    spec = ConvSpec(in_channels=4, out_channels=6, kernel=(3, 2))
    arrays = Arrays(simulator, spec=spec)
    ways = ({"stride": 1, "padding": 0}, {"stride": (1, 1), "padding": (0, 0)})
    for _ in range(2):
        for way in ways:
            arrays.call(**way)
    seen = checks(monkeypatch)
    for way in ways:
        arrays.check(arrays.call(**way))
    assert seen == []
    arrays.check(arrays.call(stride=[1, 1]))
    assert len(seen) == 1
    assert len(simulator.conv.plans.values()) == 1


KNOWN_PADDING = {
    "same": {"padding": "same"},
    "same with a stride": {"padding": "same", "stride": 2},
    "valid": {"padding": "valid"},
    "pairs": {"padding": ((0, 1), (2, 1))},
    "a pair and a number": {"padding": (0, (1, 2))},
}


@pytest.mark.parametrize("geometry", KNOWN_PADDING.values(), ids=KNOWN_PADDING)
def test_padding_of_each_kind_is_known(simulator, monkeypatch, geometry):
    spec = ConvSpec(in_channels=4, out_channels=6, kernel=(3, 5), **geometry)
    arrays = Arrays(simulator, spec=spec)
    for _ in range(2):
        arrays.call(**geometry)
    seen = checks(monkeypatch)
    arrays.check(arrays.call(**geometry))
    assert seen == []


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_calls_with_asymmetric_padding_are_replayed(simulator, operation, transposed):
    spec = ConvSpec(
        in_channels=4,
        out_channels=6,
        kernel=(3, 5),
        stride=2,
        padding=((0, 1), (2, 0)),
        transposed=transposed,
    )
    fused = FUSED if operation == FORWARD else {}
    arrays = Arrays(simulator, operation, spec=spec, **fused)
    for _ in range(2 * CAPTURED_AT):
        arrays.check(arrays.call())
    assert launches(simulator) > 1


def test_a_known_call_does_not_serve_another_layout(simulator):
    last = known(simulator, layout=CHANNELS_LAST)
    first = Arrays(simulator, layout=CHANNELS_FIRST)
    for arrays in (first, last, first, last):
        found = arrays.call()
        arrays.check(found)
        channel = found.strides[1] == found.itemsize
        assert channel == (arrays.problem.layout == CHANNELS_LAST)


def test_known_calls_that_differ_in_one_thing_are_apart(simulator):
    plain = {"spec": ConvSpec(**SQUARE, padding=1)}
    spec = {"spec": ConvSpec(**SQUARE, padding=1, dilation=2)}
    cases = [
        Arrays(simulator, **plain),
        Arrays(simulator, BACKWARD_DATA, **plain),
        Arrays(simulator, BACKWARD_WEIGHTS, **plain),
        Arrays(simulator, **plain, activation="relu"),
        Arrays(simulator, **plain, bias=True),
        Arrays(simulator, **plain, residual=True),
        Arrays(simulator, **plain, residual=True, alpha=0.5),
        Arrays(simulator, **spec),
        Arrays(simulator, spec=ConvSpec(**SQUARE, padding=((0, 2), 1))),
        Arrays(simulator, spec=ConvSpec(**SQUARE, padding=((2, 0), 1))),
        Arrays(simulator, **plain, options=ConvOptions(math="strict")),
    ]
    cases[0].call()
    for _ in range(2 * CAPTURED_AT):
        for arrays in cases:
            arrays.check(arrays.call())
    assert len(simulator.conv.plans.values()) == len(cases)


WRONG = {
    "stride": ({"stride": True}, TypeError, "stride must be an integer; got bool"),
    "stride in a tuple": (
        {"stride": (True, 2)},
        TypeError,
        r"stride\[0\] must be an integer; got bool",
    ),
    "padding": ({"padding": False}, TypeError, "padding must be an integer; got bool"),
    "a float padding": ({"padding": 0.0}, TypeError, "padding must be an integer; got float"),
    "dilation": ({"dilation": (1, True)}, TypeError, r"dilation\[1\] must be an integer; got bool"),
    "a float groups": ({"groups": 2.0}, TypeError, "groups must be an integer; got float"),
    "alpha": ({"alpha": True}, TypeError, "alpha must be a number; got bool"),
    "activation": ({"activation": "tanh"}, ValueError, "activation must be 'relu' or None"),
    "backend": ({"backend": "cuda"}, ValueError, "backend must be one of"),
    "options": (
        {"options": {"deterministic": 0}},
        TypeError,
        r"options\['deterministic'\] must be True or False",
    ),
}


@pytest.mark.parametrize(("changes", "error", "message"), WRONG.values(), ids=WRONG)
def test_what_equals_a_known_call_is_still_refused(simulator, changes, error, message):
    arrays = known(simulator)
    for options in ({}, {"options": {"deterministic": False}}):
        arrays.call(**options)
    simulator.control.standin_reset()
    with pytest.raises(error, match=message):
        arrays.call(**changes)
    assert simulator.calls("*") == 0


@pytest.mark.parametrize("operation", [BACKWARD_DATA, BACKWARD_WEIGHTS])
@pytest.mark.parametrize("wrong", [True, 1.0])
def test_a_shape_that_equals_a_known_one_is_still_refused(simulator, operation, wrong):
    spec = ConvSpec(in_channels=1, out_channels=1, kernel=(3, 2))
    x, w = simulator.memory.zeros((1, 1, 5, 6)), simulator.memory.zeros(spec.weight_shape)
    dy = simulator.memory.zeros(spec.y_shape(1, (5, 6)))
    other, shape = (w, x.shape) if operation == BACKWARD_DATA else (x, w.shape)
    function = getattr(dnnffi, f"conv_{operation}")
    for _ in range(3):
        function(dy, other, shape, backend="cudnn")
    simulator.control.standin_reset()
    name = "x" if operation == BACKWARD_DATA else "w"
    with pytest.raises(TypeError, match=rf"^{name}_shape\[1\] must be an integer; got"):
        function(dy, other, (1, wrong, *shape[2:]), backend="cudnn")
    assert simulator.calls("*") == 0


def wrong_arrays(simulator, given, index):
    """Yield wrong arrays for one argument, each with its error and a pattern of its text."""
    right = given[index]
    name = ("x", "w")[index]
    yield right.astype("f8"), TypeError, "dtype"
    yield right[:, :1], ValueError, "channels" if index else "must have"
    yield np.array(right), TypeError, rf"^{name} must be a CuPy array"
    yield None, TypeError, rf"^{name} must be a NumPy or CuPy array"
    yield right[0, 0], ValueError, "dimensions"


@pytest.mark.parametrize("index", [0, 1])
def test_wrong_arrays_of_a_known_call_are_refused(simulator, index):
    arrays = known(simulator)
    for wrong, error, words in wrong_arrays(simulator, arrays.given, index):
        given = list(arrays.given)
        given[index] = wrong
        simulator.control.standin_reset()
        with pytest.raises(error, match=words):
            arrays.call(given=given)
        assert simulator.calls("*") == 0


def test_types_of_one_size_are_told_apart(simulator):
    half, brain = (
        Arrays(simulator, spec=ConvSpec(in_channels=4, out_channels=6, kernel=(3, 2), dtype=dtype))
        for dtype in ("float16", "bfloat16")
    )
    for _ in range(3):
        half.check(half.call())
    simulator.control.standin_reset()
    with pytest.raises(
        TypeError,
        match=r"^w must have the dtype of x, float16; got bfloat16; ",
    ):
        half.call(given=[half.given[0], brain.given[1], None, None])
    assert simulator.calls("*") == 0
    found = brain.call()
    assert found.dtype.name == "bfloat16"
    brain.check(found)


def test_an_array_on_another_device_than_in_a_known_call_is_refused(simulator):
    arrays = known(simulator)
    w = arrays.given[1].copy()
    w.device_number = 1
    simulator.control.standin_reset()
    with pytest.raises(ValueError, match=r"^w must be where x is, 0; it is on 1$"):
        arrays.call(given=[arrays.given[0], w, None, None])
    assert simulator.calls("*") == 0


def test_a_known_call_on_another_device_is_another(simulator):
    arrays = known(simulator)
    simulator.memory.devices, simulator.memory.device = 2, 1
    others = Arrays(simulator)
    for _ in range(3):
        others.check(others.call())
    first, second = simulator.conv.plans.values()
    assert (first.device, second.device) == (0, 1)
    found = arrays.call()  # on its device, though it is not the current one
    assert (found.device_number, simulator.memory.device) == (0, 1)
    arrays.check(found)


def test_a_view_with_gaps_of_a_known_shape_is_copied(simulator):
    arrays = known(simulator)
    view = simulator.memory.zeros((2, 4, 5, 12))[..., ::2]
    for _ in range(CAPTURED_AT):
        view[...] = arrays.given[0]
        arrays.check(arrays.call(given=[view, *arrays.given[1:]]))
    assert known_calls(simulator) == 1


@pytest.mark.parametrize("index", [0, 1])
def test_an_address_that_is_not_aligned_gets_a_copy(simulator, index):
    arrays = known(simulator)
    right = arrays.given[index]
    moved = simulator.memory.zeros((right.size + 1,), right.dtype)[1:].reshape(right.shape)
    moved[...] = right
    given = list(arrays.given)
    given[index] = moved
    for _ in range(2 * CAPTURED_AT):
        arrays.check(arrays.call(given=given))
    assert known_calls(simulator) == 1


def test_a_known_call_is_validated(simulator, monkeypatch):
    arrays = Arrays(simulator)
    for _ in range(2):
        arrays.call(options={"validate": True})
    run_at = the_plan(simulator).run_at
    monkeypatch.setattr(the_plan(simulator), "run_at", lambda *given: 2 * run_at(*given))
    with pytest.raises(dnnffi.ValidationError, match=RESULTS[FORWARD]):
        arrays.call(options={"validate": True})


def test_known_calls_are_forgotten_with_the_plans(simulator, monkeypatch):
    arrays = known(simulator)
    held_by_the_user = dnnffi.cached_plans()
    dnnffi.clear_plans()
    assert known_calls(simulator) == 0
    arrays.check(arrays.call())
    assert the_plan(simulator) not in held_by_the_user


def test_known_calls_keep_no_plan_alive(simulator, monkeypatch):
    arrays = known(simulator)
    plans = simulator.conv.plans
    plan = weakref.ref(the_plan(simulator))
    monkeypatch.setattr(plans, "capacity", 1)
    Arrays(simulator, BACKWARD_DATA).call()
    gc.collect()
    assert plan() is None
    arrays.check(arrays.call())


def test_known_calls_are_bounded(simulator, monkeypatch):
    known(simulator)
    monkeypatch.setattr(simulator.conv.plans, "capacity", 6)
    for batch in range(3, 9):
        x = simulator.memory.zeros((batch, 4, 5, 6))
        w = simulator.memory.zeros(SPEC.weight_shape)
        dnnffi.conv(x, w, stride=(1, 2), groups=2, backend="cudnn")
        assert known_calls(simulator) == min(batch - 1, 3)


def test_an_empty_batch_stays_without_a_library(simulator):
    known(simulator)
    x, w = simulator.memory.zeros((0, 4, 5, 6)), simulator.memory.zeros(SPEC.weight_shape)
    simulator.control.standin_reset()
    for _ in range(3):
        assert dnnffi.conv(x, w, groups=2, backend="cudnn").shape == (0, 6, 3, 5)
    assert simulator.calls("*") == 0
