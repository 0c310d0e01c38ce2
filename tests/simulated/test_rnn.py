"""The functional API and the executors, by the thousand, on the stand-in against the reference."""

from __future__ import annotations

import gc
import threading

import conformance
import numpy as np
import pytest
from conformance import Case, problem_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dnnffi
from dnnffi import testing
from dnnffi.backends.vendor.handle import close_handles
from dnnffi.device.graphs import uncollected
from dnnffi.dropout import DropoutState
from dnnffi.errors import (
    ContextError,
    CudnnError,
    DnnffiError,
    PerformanceWarning,
    UnsupportedError,
)
from dnnffi.reference import rnn as reference
from dnnffi.rnn.backend import rnn_backends
from dnnffi.rnn.executor import RNNExecutor
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.rnn import RNNSpec

SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2, dtype="float64")


def weights_of(simulator, spec, seed=0):
    rng = np.random.default_rng(seed)
    size = dnnffi.weight_layout(spec, "cudnn").size
    flat = rng.uniform(-0.5, 0.5, size).astype(spec.dtype)
    return dnnffi.RNNWeights(simulator.asarray(flat), spec)


def input_of(simulator, spec, steps=5, batch=3, seed=1):
    rng = np.random.default_rng(seed)
    return simulator.asarray(rng.standard_normal(spec.x_shape(steps, batch)).astype(spec.dtype))


@settings(max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    problem=testing.problems(training=True, shortest=0),
    states=st.booleans(),
    clip=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_random_problems(simulator, problem, states, clip, seed):
    has_clip = clip and problem.spec.mode == "lstm"
    options = RNNOptions(clip=(-0.25, 0.125) if has_clip else None, tune="off")
    problem = problem._replace(options=options, dropout=0.0)
    conformance.check(Case(problem, states, seed), simulator.asarray, "cudnn")
    assert simulator.violation == ""


def test_gradients_with_dropout_are_the_reference_with_the_same_masks(simulator):
    for seed in range(20):
        spec = RNNSpec(
            mode=conformance.MODES[seed % 4],
            input_size=3,
            hidden_size=4,
            num_layers=3,
            bidirectional=bool(seed & 4),
            dtype="float64",
        )
        rng = np.random.default_rng(seed)
        layout = conformance.LAYOUTS[seed % 5]
        problem = problem_of(spec, layout, 4, 3, rng, training=True, dropout=0.4)
        case = Case(problem, states=True, seed=seed)
        arrays = conformance.arrays_of(case)
        keywords = {"dropout": 0.4, "dropout_state": DropoutState(seed)}
        ctx = forward_only(simulator, case, arrays, **keywords)
        masks = masks_of(simulator, ctx, problem)
        assert any((mask == 0).any() for mask in masks)
        keywords["dropout_state"] = DropoutState(seed)
        _, found = conformance.run(case, arrays, simulator.asarray, "cudnn", **keywords)
        conformance.assert_close(case, found, conformance.expected(case, arrays, masks))


def forward_only(simulator, case, arrays, **keywords):
    spec = case.problem.spec
    w = dnnffi.RNNWeights(
        simulator.asarray(dnnffi.RNNWeights.pack(arrays.weights, spec).flat), spec
    )
    h_0 = simulator.asarray(arrays.h_0)
    hx = (h_0, simulator.asarray(arrays.c_0)) if spec.has_cell else h_0
    function = getattr(dnnffi, f"{spec.mode}_forward")
    call = testing.keywords(case.problem)
    return function(simulator.asarray(arrays.x), hx, w, **call, backend="cudnn", **keywords)[-1]


def masks_of(simulator, ctx, problem):
    spec = problem.spec
    shape = (spec.num_layers - 1, *spec.y_shape(problem.steps, problem.batch))
    masks = np.empty(shape)
    reserve = ctx._saved.context.owner
    count = simulator.control.standin_dropout_masks(
        simulator.control_ffi.cast("void *", reserve.data.ptr),
        reserve.nbytes,
        simulator.control_ffi.cast("double *", masks.ctypes.data),
        masks.size,
    )
    assert count == masks.size
    return list(masks)


def error_of(function, *arguments):
    """Return a call's error without the frames that keep its arrays alive, or None."""
    try:
        function(*arguments)
    except (MemoryError, DnnffiError) as error:
        return error.with_traceback(None)
    return None


def training_step(simulator, dropout_state=None):
    """Make all calls of a training step, with dropout and weights in separate arrays."""
    loose = [simulator.asarray(a) for a in weights_of(simulator, SPEC).arrays()]
    y, _, ctx = dnnffi.lstm_forward(
        input_of(simulator, SPEC),
        None,
        loose,
        num_layers=2,
        backend="cudnn",
        dropout=0.5,
        dropout_state=dropout_state or DropoutState(1),
        options={"algorithm": "persist_dynamic", "clip": (-1, 1)},
    )
    return ctx.backward(y)


def test_the_handle_of_a_thread_is_destroyed_when_the_thread_ends(simulator):
    arguments = input_of(simulator, SPEC), None, weights_of(simulator, SPEC)
    dnnffi.lstm(*arguments, backend="cudnn")  # makes the plan, with this thread's handle
    thread = threading.Thread(target=lambda: dnnffi.lstm(*arguments, backend="cudnn"))
    with uncollected():
        thread.start()
        thread.join()
        assert simulator.calls("cudnnDestroy") == 1


@pytest.mark.filterwarnings("ignore::dnnffi.PerformanceWarning")
@pytest.mark.parametrize("name", ["BAD_PARAM", "NOT_SUPPORTED", "EXECUTION_FAILED"])
def test_a_status_at_each_call_leaves_nothing_behind(simulator, name):
    status = {"BAD_PARAM": 2000, "NOT_SUPPORTED": 3000, "EXECUTION_FAILED": 5000}[name]
    expected = UnsupportedError if name == "NOT_SUPPORTED" else CudnnError
    training_step(simulator)
    total = simulator.calls("*")
    assert total > 20
    failed = set()
    for nth in range(1, 10 * total):
        simulator.forget_plans()
        close_handles(simulator.library)
        gc.collect()
        assert simulator.live() == 0
        simulator.control.standin_reset()
        simulator.control.standin_fail(b"*", nth, status)
        raised = error_of(training_step, simulator)
        if raised is None:
            break
        function = simulator.control_ffi.string(simulator.control.standin_failed()).decode()
        assert isinstance(raised, expected)
        assert function in str(raised)
        assert f"CUDNN_STATUS_{name}" in str(raised)
        failed.add(function)
        del raised
    assert {"cudnnCreate", "cudnnSetStream", "cudnnSetRNNDescriptor_v8"} <= failed
    assert {"cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"} <= failed
    simulator.control.standin_reset()
    assert training_step(simulator).x.shape == (5, 3, 3)


@pytest.mark.filterwarnings("ignore::dnnffi.PerformanceWarning")
def test_memory_running_out_at_each_allocation_leaves_nothing_behind(simulator):
    training_step(simulator)
    refused = 0
    for count in range(1000):
        simulator.forget_plans()
        gc.collect()
        registered = simulator.control.standin_registered()
        simulator.memory.fail_allocation = count
        if error_of(training_step, simulator) is None:
            break
        refused += 1
        simulator.forget_plans()
        gc.collect()
        assert simulator.control.standin_registered() == registered
    simulator.memory.fail_allocation = None
    assert refused > 10


def test_a_context_survives_memory_running_out_in_backward(simulator):
    w, x = weights_of(simulator, SPEC), input_of(simulator, SPEC)
    y, _, ctx = dnnffi.lstm_forward(x, None, w, backend="cudnn")
    expected = dnnffi.lstm_forward(x, None, w, backend="cudnn")[2].backward(y)
    refused = 0
    for count in range(100):
        simulator.memory.fail_allocation = count
        try:
            grads = ctx.backward(y)
        except MemoryError:
            refused += 1
        else:
            break
    simulator.memory.fail_allocation = None
    assert refused > 0
    np.testing.assert_array_equal(grads.x, expected.x)
    np.testing.assert_array_equal(grads.weights.flat, expected.weights.flat)


def test_plans_are_bounded_and_close(simulator, monkeypatch):
    w = weights_of(simulator, SPEC)
    plans = rnn_backends.of("cudnn").plans
    monkeypatch.setattr(plans, "capacity", 4)
    for steps in range(1, 12):
        dnnffi.lstm(input_of(simulator, SPEC, steps), None, w, backend="cudnn")
    gc.collect()
    assert len(plans) == 4
    assert simulator.live("rnn") == 4
    plans.clear()
    gc.collect()
    assert simulator.live("rnn") == 0


def test_a_known_problem_makes_no_descriptors(simulator):
    w, x = weights_of(simulator, SPEC), input_of(simulator, SPEC)
    dnnffi.lstm(x, None, w, backend="cudnn")
    simulator.control.standin_reset()
    dnnffi.lstm(x, None, w, backend="cudnn")
    assert simulator.calls("*") == simulator.calls("cudnnRNNForward") == 1


def test_the_stream_is_set_when_it_changes(simulator):
    w, x = weights_of(simulator, SPEC), input_of(simulator, SPEC)
    untuned = {"backend": "cudnn", "options": {"tune": "off"}}
    dnnffi.lstm(x, None, w, **untuned)
    first, second = simulator.memory.stream, simulator.memory.new_stream()
    for stream in (second, second, first):
        simulator.memory.stream = stream
        dnnffi.lstm(x, None, w, **untuned)
        assert simulator.control.standin_stream_of(b"cudnnRNNForward") == stream.ptr
    assert simulator.calls("cudnnSetStream") == 3


def test_the_stream_is_set_again_after_a_failure(simulator):
    # cuDNN may leave its handle on a stream of its own.
    w, x = weights_of(simulator, SPEC), input_of(simulator, SPEC)
    y, _, ctx = dnnffi.lstm_forward(x, None, w, backend="cudnn")
    simulator.control.standin_fail(b"cudnnRNNBackwardData_v8", 1, 3000)
    with pytest.raises(UnsupportedError):
        ctx.backward(y)
    simulator.control.standin_reset()
    dnnffi.lstm(x, None, w, backend="cudnn")
    dnnffi.lstm(x, None, w, backend="cudnn")
    assert simulator.calls("cudnnSetStream") == 1


def test_loose_weights_are_packed_and_said_once(simulator, monkeypatch):
    monkeypatch.setattr("dnnffi.rnn.backend._warned", False)
    w, x = weights_of(simulator, SPEC), input_of(simulator, SPEC)
    loose = [simulator.asarray(a) for a in w.arrays()]
    with pytest.warns(PerformanceWarning, match=r"RNNWeights\.pack") as warned:
        y = dnnffi.lstm(x, None, loose, num_layers=2, backend="cudnn")[0]
    assert warned[0].filename == __file__
    dnnffi.lstm(x, None, loose, num_layers=2, backend="cudnn")  # again would be an error
    np.testing.assert_array_equal(y, dnnffi.lstm(x, None, w, backend="cudnn")[0])


def test_views_of_one_buffer_are_recognised_and_not_copied(simulator):
    w, x = weights_of(simulator, SPEC), input_of(simulator, SPEC)
    dnnffi.lstm(x, None, w, backend="cudnn")
    before = simulator.memory.allocations
    dnnffi.lstm(x, None, w, backend="cudnn")
    with_object = simulator.memory.allocations - before
    dnnffi.lstm(x, None, w.arrays(), num_layers=2, backend="cudnn")
    assert simulator.memory.allocations - before == 2 * with_object


def test_gradients_have_the_form_of_the_weights(simulator):
    w, x = weights_of(simulator, SPEC), input_of(simulator, SPEC)
    y, _, ctx = dnnffi.lstm_forward(x, None, w, backend="cudnn")
    flat = ctx.backward(y).weights
    assert isinstance(flat, dnnffi.RNNWeights)
    y, _, ctx = dnnffi.lstm_forward(x, None, w.arrays(), num_layers=2, backend="cudnn")
    listed = ctx.backward(y).weights
    for one, other in zip(flat.arrays(), listed, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("gaps", ["x", "h_0", "c_0", "dy", "dh_n", "dc_n"])
def test_an_array_with_gaps_gives_what_its_copy_gives(simulator, gaps):
    rng = np.random.default_rng(2)
    shapes = {"x": SPEC.x_shape(5, 3), "dy": SPEC.y_shape(5, 3)}
    shapes |= dict.fromkeys(("h_0", "c_0", "dh_n", "dc_n"), SPEC.h_shape(3))
    arrays = {name: simulator.asarray(rng.standard_normal(shape)) for name, shape in shapes.items()}
    weights = weights_of(simulator, SPEC)

    def run(x, h_0, c_0, dy, dh_n, dc_n):
        y, state, ctx = dnnffi.lstm_forward(x, (h_0, c_0), weights, backend="cudnn")
        grads = ctx.backward(dy, (dh_n, dc_n))
        inferred, _ = dnnffi.lstm(x, (h_0, c_0), weights, backend="cudnn")
        return [inferred, y, *state, grads.x, *grads.hx, grads.weights.flat]

    expected = run(**arrays)
    wide = simulator.asarray(np.repeat(arrays[gaps], 2, axis=-1))
    arrays[gaps] = wide[..., ::2]
    for one, other in zip(run(**arrays), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_retain(simulator):
    w, x = weights_of(simulator, SPEC), input_of(simulator, SPEC)
    y, _, ctx = dnnffi.lstm_forward(x, None, w, backend="cudnn")
    first = ctx.backward(y, retain=True)
    second = ctx.backward(y)
    np.testing.assert_array_equal(first.x, second.x)
    np.testing.assert_array_equal(first.weights.flat, second.weights.flat)
    with pytest.raises(ContextError, match="retain=True"):
        ctx.backward(y)


def test_need_names_what_is_computed(simulator):
    w, x = weights_of(simulator, SPEC), input_of(simulator, SPEC)
    h = simulator.memory.zeros(SPEC.h_shape(3), np.float64)
    for need in (("x",), ("hx",), ("weights",), ("x", "weights"), ()):
        y, _, ctx = dnnffi.lstm_forward(x, (h, h), w, backend="cudnn")
        simulator.control.standin_reset()
        grads = ctx.backward(y, need=need)
        assert {name for name in grads._fields if getattr(grads, name) is not None} == set(need)
        assert simulator.calls("cudnnRNNBackwardWeights_v8") == ("weights" in need)


def test_clipping_at_nan(simulator):
    for nan in ("propagate", "clip"):
        problem = problem_of(
            SPEC,
            "dense",
            3,
            2,
            np.random.default_rng(0),
            training=True,
            options=RNNOptions(clip=(-0.5, 0.25), clip_nan=nan),
        )
        case = Case(problem, states=True, seed=0)
        arrays = conformance.arrays_of(case)
        arrays.c_0[0, 0, 0] = np.nan
        y = conformance.run(case, arrays, simulator.asarray, "cudnn")[0][0]
        expected = conformance.expected(case, arrays).y
        np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_validate_finds_a_wrong_result(simulator, monkeypatch):
    w, x = weights_of(simulator, SPEC), input_of(simulator, SPEC)
    options = {"validate": True}
    y, _, ctx = dnnffi.lstm_forward(x, None, w, backend="cudnn", options=options)
    ctx.backward(y)
    monkeypatch.setattr(
        reference, "forward", lambda *a, forward=reference.forward, **k: tampered(forward(*a, **k))
    )
    with pytest.raises(dnnffi.ValidationError, match=r"h_n .*allowed"):
        dnnffi.lstm(x, None, w, backend="cudnn", options=options)


def tampered(done):
    return reference.Forward(done.y, done.h_n * 1.001, done.c_n, done.tape)


# Empty batches


@pytest.mark.filterwarnings("ignore:weights given as separate arrays")
@pytest.mark.parametrize("loose", [False, True], ids=["packed", "loose"])
@pytest.mark.parametrize("layout", ["time first", "batch first", "packed"])
def test_an_empty_batch_asks_no_library(simulator, layout, loose):
    x, weights = input_of(simulator, SPEC, batch=0), weights_of(simulator, SPEC)
    keywords = {"backend": "cudnn", "dropout": 0.5, "lengths": []}
    if layout == "batch first":
        x, keywords = x.reshape(0, 5, 3), keywords | {"batch_first": True}
    elif layout == "packed":
        x, keywords = x.reshape(0, 3), keywords | {"lengths": None, "batch_sizes": [0, 0]}
    given, more = weights, {}
    if loose:
        given, more = [simulator.asarray(a) for a in weights.arrays()], {"num_layers": 2}
    simulator.control.standin_reset()
    for _ in range(3):
        y, (h_n, c_n), ctx = dnnffi.lstm_forward(x, None, given, **keywords, **more)
        gradients = ctx.backward(y, (h_n, c_n))
    assert y.shape == (*x.shape[:-1], 4)
    assert h_n.shape == c_n.shape == (2, 0, 4)
    assert gradients.x.shape == x.shape
    assert gradients.hx is None
    found = gradients.weights if loose else [gradients.weights.flat]
    assert [a.shape for a in found] == [a.shape for a in (given if loose else [weights.flat])]
    assert all(isinstance(a, simulator.memory.ndarray) and not a.any() for a in found)
    assert loose or gradients.weights.layout == weights.layout
    assert len(weights._networks) == 0
    assert simulator.calls("*") == 0


def test_results_of_an_empty_batch_are_on_the_device_of_x(simulator):
    simulator.memory.devices = 2
    simulator.memory.device = 1
    x, weights = input_of(simulator, SPEC, batch=0), weights_of(simulator, SPEC)
    simulator.memory.device = 0
    y, (h_n, c_n), ctx = dnnffi.lstm_forward(x, None, weights, backend="cudnn")
    gradients = ctx.backward(y)
    for a in (y, h_n, c_n, gradients.x, gradients.weights.flat):
        assert a.device_number == 1


def test_weights_of_another_layout_are_refused_of_an_empty_batch_too(simulator):
    x, weights = input_of(simulator, SPEC, batch=0), weights_of(simulator, SPEC)
    arrays = dnnffi.RNNWeights(
        simulator.asarray(np.array(weights.to("torch").flat)), SPEC, backend="torch"
    )
    with pytest.raises(ValueError, match="layout of 'torch'"):
        dnnffi.lstm(x, None, arrays, backend="cudnn")


@pytest.mark.parametrize("lengths", [(), (0, 0, 0)])
def test_an_executor_has_a_step(simulator, lengths):
    problem = dnnffi.RNNProblem.dense(SPEC, steps=5, batch=len(lengths), lengths=lengths)
    with pytest.raises(ValueError, match=r"^problem must have a row with at least one step"):
        RNNExecutor(problem, library=simulator.library)
