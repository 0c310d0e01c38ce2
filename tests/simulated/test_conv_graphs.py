"""Convolutions on the stand-in that are called again: graphs replayed, checks left out."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import threading
import weakref
from contextlib import contextmanager

import conformance_conv
import numpy as np
import pytest
from conformance import deviation

import dnnffi
from dnnffi import testing
from dnnffi.backends.cudnn import conv_plan
from dnnffi.backends.cudnn.conv_plan import CAPTURED_AT
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


@pytest.fixture(autouse=True)
def pool(host, monkeypatch):
    """Blocks that are given back are used again, as by CuPy's pool: the last one first."""
    memory = host.memory
    new, scratch, free = memory._allocate, memory.scratch, {}

    def allocate(size):
        blocks = free.setdefault(size, [])
        block = blocks.pop() if blocks else new(size)
        lent = (ctypes.c_char * size).from_buffer(block)
        ctypes.memset(lent, 0xA5, size)
        weakref.finalize(lent, blocks.append, block).atexit = False
        return lent

    @contextmanager
    def scratch_of_its_own():
        kept = dict(free)
        free.clear()
        with scratch():
            yield
            free.clear()
        free.update(kept)

    monkeypatch.setattr(memory, "_allocate", allocate)
    monkeypatch.setattr(memory, "scratch", scratch_of_its_own)
    yield
    free.clear()


class Arrays:
    """A problem, its arrays on the stand-in, and calls of it."""

    def __init__(self, host, operation=FORWARD, spec=SPEC, layout=CHANNELS_FIRST, seed=0, **more):
        self.host = host
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


def the_plan(host):
    (plan,) = host.conv.plans.values()
    return plan


def captures(host):
    return len(host.memory.graphs)


def launches(host):
    return sum(graph().launches for graph in host.memory.graphs if graph() is not None)


def executions(host, call):
    """Return how many computing calls of the library ``call`` makes, and how many other calls."""
    host.control.standin_reset()
    call()
    computed = host.calls("cudnnBackendExecute")
    return computed, host.calls("*") - computed


# Replaying


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_replays_are_right_and_see_what_changes_in_the_arrays(host, operation, layout, transposed):
    spec = ConvSpec(in_channels=4, out_channels=6, kernel=(3, 2), groups=2, transposed=transposed)
    arrays = Arrays(host, operation, spec, layout, **(FUSED if operation == FORWARD else {}))
    for call in range(1, 3 * CAPTURED_AT):
        arrays.check(arrays.call())
        assert captures(host) == (call >= CAPTURED_AT)
        assert launches(host) == max(0, call - CAPTURED_AT + 1)
        arrays.given[call % 2][...] *= -1.5
    assert the_plan(host).graph_count == 1


def test_what_no_engine_fuses_is_in_the_graph(host):
    host.control.standin_set_max_operations(1)
    arrays = Arrays(host, **FUSED)
    with arrays.plan() as plan:
        out = plan.run(*arrays.given)
        for call in range(2 * CAPTURED_AT):
            plan.run(*arrays.given, out=out)
            arrays.check(out)
            arrays.given[2 + call % 2][...] += 0.25  # bias and residual
        assert "one kernel more" in plan.report()
        assert launches(host) == CAPTURED_AT + 2


def test_activation_alone_behind_a_held_plan_is_in_the_graph(host):
    host.control.standin_set_max_operations(1)
    arrays = Arrays(host, activation="relu")
    x, w, *_ = arrays.given
    with arrays.plan() as plan:
        out = plan.run(x, w)
        for _ in range(2 * CAPTURED_AT):
            out[...] = 7
            plan.run(x, w, out=out)
            arrays.check(out)
    assert captures(host) == 1


def test_a_graph_keeps_its_executor_and_its_handle(host):
    arrays = Arrays(host)
    for _ in range(CAPTURED_AT):
        arrays.call()
    (graph,) = host.memory.graphs
    assert graph().executor is the_plan(host)._of_thread().executor
    assert graph().handle is host.library.local.handles[0]


def test_a_replay_asks_the_library_for_nothing_but_to_compute(host):
    arrays = Arrays(host)
    for _ in range(CAPTURED_AT):
        arrays.call()
    assert executions(host, arrays.call) == (1, 0)


def test_other_addresses_are_not_replayed(host):
    first, second = Arrays(host), Arrays(host, seed=1)
    for _ in range(CAPTURED_AT):
        first.check(first.call())
    count = launches(host)
    second.check(second.call())
    assert launches(host) == count
    kept = first.call()  # so that the next result is elsewhere
    first.check(first.call())
    assert launches(host) == count + 1
    first.check(kept)


def test_addresses_are_counted_each_for_themselves(host):
    pair = [Arrays(host, seed=seed) for seed in range(2)]
    for call in range(1, 2 * CAPTURED_AT):
        for arrays in pair:
            arrays.check(arrays.call())
        assert captures(host) == 2 * (call >= CAPTURED_AT)


def test_a_copy_of_what_cudnn_does_not_take_is_replayed_on(host):
    arrays = Arrays(host)
    room = host.memory.zeros((2, 4, 5, 12))
    view = room[..., ::2]
    for call in range(2 * CAPTURED_AT):
        arrays.given[0][...] += call
        view[...] = arrays.given[0]
        arrays.check(arrays.call(given=[view, *arrays.given[1:]]))
    assert launches(host) == CAPTURED_AT + 1


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_workspaces_up_to_the_limit_are_those_of_the_stream(host, monkeypatch, limit):
    monkeypatch.setattr(conv_plan, "MOST_SHARED_WORKSPACE", limit)
    arrays = Arrays(host)
    for _ in range(2 * CAPTURED_AT):
        arrays.check(arrays.call())
    size = the_plan(host)._of_thread().executor.workspace_bytes
    assert size > 0
    assert host.conv.resources.workspaces.nbytes == (size if limit else 0)
    assert captures(host) == 1


def test_a_held_plan_takes_any_workspace_of_the_stream(host, monkeypatch):
    monkeypatch.setattr(conv_plan, "MOST_SHARED_WORKSPACE", 0)
    arrays = Arrays(host)
    with arrays.plan() as plan:
        plan.run(*arrays.given)
        assert host.conv.resources.workspaces.nbytes > 0


def test_a_workspace_that_has_moved_is_not_the_graphs(host):
    arrays = Arrays(host)
    for _ in range(CAPTURED_AT):
        arrays.call()
    count, workspaces = launches(host), host.conv.resources.workspaces
    (old,) = workspaces.buffers.values()
    workspaces.get(0, 0, 2 * old.nbytes)
    arrays.check(arrays.call())
    assert launches(host) == count


def test_streams_have_graphs_of_their_own(host):
    arrays = Arrays(host)
    streams = [host.memory.new_stream() for _ in range(2)]
    for call in range(1, 2 * CAPTURED_AT):
        for stream in streams:
            host.memory.stream = stream
            arrays.check(arrays.call())
        assert captures(host) == 2 * (call >= CAPTURED_AT)


def test_graphs_are_counted_with_those_of_networks_and_reported(host):
    arrays = Arrays(host)
    for _ in range(CAPTURED_AT):
        arrays.call()
    assert host.conv.resources.graphs.nbytes == 1000
    assert the_plan(host).report().endswith("1 graphs, 1,000 bytes")
    dnnffi.clear_plans()
    gc.collect()
    assert host.conv.resources.graphs.nbytes == 0


def test_memory_is_told_where_there_are_convolutions_alone(host):
    arrays = Arrays(host)
    for _ in range(CAPTURED_AT):
        arrays.call()
    assert host.rnn is None
    size = the_plan(host)._of_thread().executor.workspace_bytes
    assert size > 0
    assert dnnffi.held_memory()["cudnn"] == (size, 1000, 0)
    dnnffi.clear_plans()
    gc.collect()
    assert dnnffi.held_memory()["cudnn"] == (0, 0, 0)


# Causes that end a graph


def test_inside_a_capture_of_the_user_calls_are_his(host):
    arrays = Arrays(host)
    host.memory.stream = host.memory.new_stream()
    with arrays.plan() as plan:
        x, w, *_ = arrays.given
        out = plan.run(x, w)
        for _ in range(CAPTURED_AT):
            plan.run(x, w, out=out)
            arrays.call()
        counts, shared = (captures(host), launches(host)), host.conv.resources.workspaces.nbytes
        host.memory.capture_number = 17
        allocations = host.memory.allocations
        for call in (arrays.call, lambda: plan.run(x, w, out=out)):
            for _ in range(2 * CAPTURED_AT):
                assert executions(host, call)[0] == 1
        assert (captures(host), launches(host)) == counts
        # One result and two workspaces, which are the user's.
        assert host.memory.allocations - allocations == 2 * CAPTURED_AT * 3
        assert host.conv.resources.workspaces.nbytes == shared
        host.memory.capture_number = 0
        plan.run(x, w, out=out)
        assert launches(host) == counts[1] + 1
    assert len(host.conv.resources.graphs.of_users) == 3


def test_an_executor_in_a_graph_of_the_user_is_not_closed(host):
    arrays = Arrays(host)
    host.memory.stream = host.memory.new_stream()
    host.memory.capture_number = 17
    arrays.call()
    host.memory.capture_number = 0
    executor = the_plan(host)._of_thread().executor
    host.control.standin_fail(b"cudnnBackendExecute", 1, INTERNAL_ERROR)
    arrays.check(arrays.call())
    assert the_plan(host)._of_thread().executor is not executor
    assert not executor._plan.closed


def test_a_plan_that_falls_has_no_graph_of_the_one_before(host):
    arrays = Arrays(host)
    for _ in range(CAPTURED_AT):
        arrays.call()
    (graph,) = host.memory.graphs
    assert graph().executor is the_plan(host)._of_thread().executor
    kept = arrays.call()
    host.control.standin_fail(b"cudnnBackendExecute", 1, INTERNAL_ERROR)
    arrays.check(arrays.call())  # elsewhere, because of what is kept
    gc.collect()
    assert graph() is None
    assert host.conv.resources.graphs.nbytes == 0
    del kept
    for _ in range(2 * CAPTURED_AT):
        arrays.check(arrays.call())
    assert captures(host) == 2


def test_a_tuned_plan_has_no_graph_of_the_one_before(host):
    arrays = Arrays(host)
    for _ in range(CAPTURED_AT):
        arrays.call()
    (graph,) = host.memory.graphs
    assert the_plan(host).autotune()
    gc.collect()
    assert graph() is None
    assert the_plan(host).graph_count == 0
    before = captures(host)
    for call in range(1, 2 * CAPTURED_AT):
        arrays.check(arrays.call())
        assert captures(host) - before == (call >= CAPTURED_AT)


def test_a_closed_plan_has_no_graph(host):
    arrays = Arrays(host)
    plan = arrays.plan()
    x, w, *_ = arrays.given
    out = plan.run(x, w)
    for _ in range(CAPTURED_AT):
        plan.run(x, w, out=out)
    (graph,) = host.memory.graphs
    plan.close()
    gc.collect()
    assert graph() is None
    with pytest.raises(ValueError, match="this plan is closed"):
        plan.run(x, w, out=out)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_a_capture_that_fails_is_not_tried_again(host, error):
    arrays = Arrays(host)
    other = Arrays(host, seed=1)
    host.memory.fail_capture = error
    tries = []
    capture = host.memory.capture
    host.memory.capture = lambda record: tries.append(1) or capture(record)
    for _ in range(3 * CAPTURED_AT):
        for each in (arrays, other):
            each.check(each.call())
    assert len(tries) == 1
    assert the_plan(host).fallen == []
    host.memory.fail_capture = None
    assert the_plan(host).autotune()
    before = captures(host)
    for _ in range(CAPTURED_AT):
        arrays.check(arrays.call())
    assert captures(host) == before + 1


def test_threads_have_graphs_of_their_own_which_go_with_them(host):
    from dnnffi.backends.vendor.handle import close_handles

    arrays = [Arrays(host, seed=seed) for seed in range(4)]
    failures = []

    def work(own):
        try:
            for _ in range(5 * CAPTURED_AT):
                own.check(own.call())
            close_handles(host.library)
        except BaseException as error:
            failures.append(error)

    # One after the other: the stand-in's captures are those of the process.
    for own in arrays:
        thread = threading.Thread(target=work, args=(own,))
        thread.start()
        thread.join()
    assert failures == []
    assert captures(host) == len(arrays)
    gc.collect()
    assert [graph() for graph in host.memory.graphs] == [None] * len(arrays)
    assert host.conv.resources.graphs.nbytes == 0


def test_threads_that_call_at_the_same_time(host, monkeypatch):
    from dnnffi.backends.vendor.handle import close_handles

    def refuse(record):
        raise RuntimeError("the stand-in's captures are those of the process")

    monkeypatch.setattr(host.memory, "capture", refuse)
    arrays = [Arrays(host, seed=seed) for seed in range(4)]
    failures = []

    def work(own):
        try:
            for _ in range(20):
                own.check(own.call())
            close_handles(host.library)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(own,)) for own in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(host.conv.calls) == 1


@pytest.mark.parametrize("what", ["a known call", "a held plan"])
def test_a_forked_child_is_told_so(host, what):
    arrays = Arrays(host)
    with arrays.plan() as plan:
        out = plan.run(*arrays.given)
        calls = {
            "a known call": arrays.call,
            "a held plan": lambda: plan.run(*arrays.given, out=out),
        }
        for _ in range(CAPTURED_AT):
            calls[what]()
        assert captures(host) == 1
        fork = multiprocessing.get_context("fork")
        results = fork.Queue()

        def child():
            try:
                calls[what]()
            except dnnffi.DnnffiError as error:
                results.put(str(error))
            else:
                results.put("no error")
            results.close()
            results.join_thread()
            os._exit(0)

        process = fork.Process(target=child)
        process.start()
        said = results.get(timeout=60)
        process.join()
    assert "forked after dnnffi had used the GPU" in said


# A held plan


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_held_plan_is_replayed(host, operation):
    arrays = Arrays(host, operation, **(FUSED if operation == FORWARD else {}))
    with arrays.plan() as plan:
        out = plan.run(*arrays.given)
        for call in range(2, 3 * CAPTURED_AT):
            out[...] = call
            assert plan.run(*arrays.given, out=out) is out
            arrays.check(out)
            assert captures(host) == (call >= CAPTURED_AT)
            arrays.given[call % 2][...] *= -1.5
        assert "1 graphs, 1,000 bytes" in plan.report()
        assert executions(host, lambda: plan.run(*arrays.given, out=out)) == (1, 0)


def test_a_held_plan_with_other_arrays_of_the_same_look(host):
    arrays, others = Arrays(host), Arrays(host, seed=1)
    with arrays.plan() as plan:
        out = plan.run(*arrays.given)
        for _ in range(2 * CAPTURED_AT):
            for each in (arrays, others):
                plan.run(*each.given, out=out)
                each.check(out)
    assert captures(host) == 2


def test_a_held_plan_whose_capture_fails(host):
    arrays = Arrays(host)
    host.memory.fail_capture = RuntimeError
    with arrays.plan() as plan:
        out = plan.run(*arrays.given)
        for _ in range(2 * CAPTURED_AT):
            out[...] = 0
            plan.run(*arrays.given, out=out)
            arrays.check(out)
        assert captures(host) == 0


def test_a_held_plan_on_a_device_that_is_not_current(host):
    arrays = Arrays(host)
    host.memory.devices = 2
    with arrays.plan(device=0) as plan:
        out = plan.run(*arrays.given)
        for _ in range(2 * CAPTURED_AT):
            plan.run(*arrays.given, out=out)
        host.memory.device = 1
        out[...] = 0
        plan.run(*arrays.given, out=out)
        assert host.memory.device == 1
        host.memory.device = 0
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


def known(host, *, operation=FORWARD, **more):
    """Arrays whose call is known."""
    arrays = Arrays(host, operation, **more)
    for _ in range(2):  # the first finds no engine yet
        arrays.check(arrays.call())
    assert len(host.conv.calls) >= 1
    return arrays


@pytest.mark.parametrize(
    "changes",
    [{}, {"options": {"math": "strict"}}, {"options": {"deterministic": False}}],
    ids=str,
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_call_that_looks_like_an_earlier_one_is_not_checked(
    host, monkeypatch, operation, changes
):
    arrays = Arrays(host, operation)
    for _ in range(2):
        arrays.call(**changes)
    seen = checks(monkeypatch)
    arrays.check(arrays.call(**changes))
    other = Arrays(host, operation, seed=1)
    other.check(other.call(**changes))
    assert seen == []


def test_geometry_of_one_number_or_of_tuples_is_known(host, monkeypatch):
    spec = ConvSpec(in_channels=4, out_channels=6, kernel=(3, 2))
    arrays = Arrays(host, spec=spec)
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
    assert len(host.conv.plans) == 1


KNOWN_PADDING = {
    "same": {"padding": "same"},
    "same with a stride": {"padding": "same", "stride": 2},
    "valid": {"padding": "valid"},
    "pairs": {"padding": ((0, 1), (2, 1))},
    "a pair and a number": {"padding": (0, (1, 2))},
}


@pytest.mark.parametrize("geometry", KNOWN_PADDING.values(), ids=KNOWN_PADDING)
def test_padding_of_each_kind_is_known(host, monkeypatch, geometry):
    spec = ConvSpec(in_channels=4, out_channels=6, kernel=(3, 5), **geometry)
    arrays = Arrays(host, spec=spec)
    for _ in range(2):
        arrays.call(**geometry)
    seen = checks(monkeypatch)
    arrays.check(arrays.call(**geometry))
    assert seen == []


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_calls_with_asymmetric_padding_are_replayed(host, operation, transposed):
    spec = ConvSpec(
        in_channels=4,
        out_channels=6,
        kernel=(3, 5),
        stride=2,
        padding=((0, 1), (2, 0)),
        transposed=transposed,
    )
    fused = FUSED if operation == FORWARD else {}
    arrays = Arrays(host, operation, spec=spec, **fused)
    for _ in range(2 * CAPTURED_AT):
        arrays.check(arrays.call())
    assert launches(host) > 1


def test_a_known_call_does_not_serve_another_layout(host):
    last = known(host, layout=CHANNELS_LAST)
    first = Arrays(host, layout=CHANNELS_FIRST)
    for arrays in (first, last, first, last):
        found = arrays.call()
        arrays.check(found)
        channel = found.strides[1] == found.itemsize
        assert channel == (arrays.problem.layout == CHANNELS_LAST)


def test_known_calls_that_differ_in_one_thing_are_apart(host):
    plain = {"spec": ConvSpec(**SQUARE, padding=1)}
    spec = {"spec": ConvSpec(**SQUARE, padding=1, dilation=2)}
    cases = [
        Arrays(host, **plain),
        Arrays(host, BACKWARD_DATA, **plain),
        Arrays(host, BACKWARD_WEIGHTS, **plain),
        Arrays(host, **plain, activation="relu"),
        Arrays(host, **plain, bias=True),
        Arrays(host, **plain, residual=True),
        Arrays(host, **plain, residual=True, alpha=0.5),
        Arrays(host, **spec),
        Arrays(host, spec=ConvSpec(**SQUARE, padding=((0, 2), 1))),
        Arrays(host, spec=ConvSpec(**SQUARE, padding=((2, 0), 1))),
        Arrays(host, **plain, options=ConvOptions(math="strict")),
    ]
    cases[0].call()
    for _ in range(2 * CAPTURED_AT):
        for arrays in cases:
            arrays.check(arrays.call())
    assert len(host.conv.plans) == len(cases)


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
def test_what_equals_a_known_call_is_still_refused(host, changes, error, message):
    arrays = known(host)
    for options in ({}, {"options": {"deterministic": False}}):
        arrays.call(**options)
    host.control.standin_reset()
    with pytest.raises(error, match=message):
        arrays.call(**changes)
    assert host.calls("*") == 0


@pytest.mark.parametrize("operation", [BACKWARD_DATA, BACKWARD_WEIGHTS])
@pytest.mark.parametrize("wrong", [True, 1.0])
def test_a_shape_that_equals_a_known_one_is_still_refused(host, operation, wrong):
    spec = ConvSpec(in_channels=1, out_channels=1, kernel=(3, 2))
    x, w = host.memory.zeros((1, 1, 5, 6)), host.memory.zeros(spec.weight_shape)
    dy = host.memory.zeros(spec.y_shape(1, (5, 6)))
    other, shape = (w, x.shape) if operation == BACKWARD_DATA else (x, w.shape)
    function = getattr(dnnffi, f"conv_{operation}")
    for _ in range(3):
        function(dy, other, shape, backend="cudnn")
    host.control.standin_reset()
    name = "x" if operation == BACKWARD_DATA else "w"
    with pytest.raises(TypeError, match=rf"^{name}_shape\[1\] must be an integer; got"):
        function(dy, other, (1, wrong, *shape[2:]), backend="cudnn")
    assert host.calls("*") == 0


def wrong_arrays(host, given, index):
    """Yield wrong arrays for one argument, each with its error and a pattern of its text."""
    right = given[index]
    name = ("x", "w")[index]
    yield right.astype("f8"), TypeError, "dtype"
    yield right[:, :1], ValueError, "channels" if index else "must have"
    yield np.array(right), TypeError, rf"^{name} must be a CuPy array"
    yield None, TypeError, rf"^{name} must be a NumPy or CuPy array"
    yield right[0, 0], ValueError, "dimensions"


@pytest.mark.parametrize("index", [0, 1])
def test_wrong_arrays_of_a_known_call_are_refused(host, index):
    arrays = known(host)
    for wrong, error, words in wrong_arrays(host, arrays.given, index):
        given = list(arrays.given)
        given[index] = wrong
        host.control.standin_reset()
        with pytest.raises(error, match=words):
            arrays.call(given=given)
        assert host.calls("*") == 0


def test_types_of_one_size_are_told_apart(host):
    half, brain = (
        Arrays(host, spec=ConvSpec(in_channels=4, out_channels=6, kernel=(3, 2), dtype=dtype))
        for dtype in ("float16", "bfloat16")
    )
    for _ in range(3):
        half.check(half.call())
    host.control.standin_reset()
    with pytest.raises(
        TypeError,
        match=r"^w must have the dtype of x, float16; got bfloat16; ",
    ):
        half.call(given=[half.given[0], brain.given[1], None, None])
    assert host.calls("*") == 0
    found = brain.call()
    assert found.dtype.name == "bfloat16"
    brain.check(found)


def test_an_array_on_another_device_than_in_a_known_call_is_refused(host):
    arrays = known(host)
    w = arrays.given[1].copy()
    w.device_number = 1
    host.control.standin_reset()
    with pytest.raises(ValueError, match=r"^w must be where x is, 0; it is on 1$"):
        arrays.call(given=[arrays.given[0], w, None, None])
    assert host.calls("*") == 0


def test_a_known_call_on_another_device_is_another(host):
    arrays = known(host)
    host.memory.devices, host.memory.device = 2, 1
    others = Arrays(host)
    for _ in range(3):
        others.check(others.call())
    first, second = host.conv.plans.values()
    assert (first.device, second.device) == (0, 1)
    found = arrays.call()  # on its device, though it is not the current one
    assert (found.device_number, host.memory.device) == (0, 1)
    arrays.check(found)


def test_a_view_with_gaps_of_a_known_shape_is_copied(host):
    arrays = known(host)
    view = host.memory.zeros((2, 4, 5, 12))[..., ::2]
    for _ in range(CAPTURED_AT):
        view[...] = arrays.given[0]
        arrays.check(arrays.call(given=[view, *arrays.given[1:]]))
    assert len(host.conv.calls) == 1


@pytest.mark.parametrize("index", [0, 1])
def test_an_address_that_is_not_aligned_gets_a_copy(host, index):
    arrays = known(host)
    right = arrays.given[index]
    moved = host.memory.zeros((right.size + 1,), right.dtype)[1:].reshape(right.shape)
    moved[...] = right
    given = list(arrays.given)
    given[index] = moved
    for _ in range(2 * CAPTURED_AT):
        arrays.check(arrays.call(given=given))
    assert len(host.conv.calls) == 1


def test_a_known_call_is_validated(host, monkeypatch):
    arrays = Arrays(host)
    for _ in range(2):
        arrays.call(options={"validate": True})
    run_at = the_plan(host).run_at
    monkeypatch.setattr(the_plan(host), "run_at", lambda *given: 2 * run_at(*given))
    with pytest.raises(dnnffi.ValidationError, match=RESULTS[FORWARD]):
        arrays.call(options={"validate": True})


def test_known_calls_are_forgotten_with_the_plans(host, monkeypatch):
    arrays = known(host)
    held_by_the_user = dnnffi.cached_plans()
    dnnffi.clear_plans()
    assert len(host.conv.calls) == 0
    arrays.check(arrays.call())
    assert the_plan(host) not in held_by_the_user


def test_known_calls_keep_no_plan_alive(host, monkeypatch):
    arrays = known(host)
    plans = host.conv.plans
    plan = weakref.ref(the_plan(host))
    monkeypatch.setattr(plans, "capacity", 1)
    Arrays(host, BACKWARD_DATA).call()
    gc.collect()
    assert plan() is None
    arrays.check(arrays.call())


def test_known_calls_are_bounded(host, monkeypatch):
    calls = known(host).host.conv.calls
    monkeypatch.setattr(calls, "_most", 3)
    for batch in range(3, 9):
        x = host.memory.zeros((batch, 4, 5, 6))
        w = host.memory.zeros(SPEC.weight_shape)
        dnnffi.conv(x, w, stride=(1, 2), groups=2, backend="cudnn")
        assert len(calls) == min(batch - 1, 3) if batch < 5 else len(calls) <= 3


def test_an_empty_batch_stays_without_a_library(host):
    known(host)
    x, w = host.memory.zeros((0, 4, 5, 6)), host.memory.zeros(SPEC.weight_shape)
    host.control.standin_reset()
    for _ in range(3):
        assert dnnffi.conv(x, w, groups=2, backend="cudnn").shape == (0, 6, 3, 5)
    assert host.calls("*") == 0
