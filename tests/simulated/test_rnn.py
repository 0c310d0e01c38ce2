"""The functional API and the executors, by the thousand, on the stand-in against the reference."""

from __future__ import annotations

import gc

import conformance
import numpy as np
import pytest
from conformance import Case, problem_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dnnffi
from dnnffi import testing
from dnnffi.backends.vendor.handle import close_handles
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


def weights_of(host, spec, seed=0):
    rng = np.random.default_rng(seed)
    size = dnnffi.weight_layout(spec, "cudnn").size
    flat = rng.uniform(-0.5, 0.5, size).astype(spec.dtype)
    return dnnffi.RNNWeights(host.asarray(flat), spec)


def input_of(host, spec, steps=5, batch=3, seed=1):
    rng = np.random.default_rng(seed)
    return host.asarray(rng.standard_normal(spec.x_shape(steps, batch)).astype(spec.dtype))


@settings(max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    problem=testing.problems(training=True, shortest=0),
    states=st.booleans(),
    clip=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_random_problems(host, problem, states, clip, seed):
    if clip and problem.spec.mode == "lstm":
        problem = problem._replace(options=RNNOptions(clip=(-0.25, 0.125)))
    problem = problem._replace(dropout=0.0)
    conformance.check(Case(problem, states, seed), host.asarray, "cudnn")
    assert host.violation == ""


def test_gradients_with_dropout_are_the_reference_with_the_same_masks(host):
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
        ctx = forward_only(host, case, arrays, **keywords)
        masks = masks_of(host, ctx, problem)
        assert any((mask == 0).any() for mask in masks)
        keywords["dropout_state"] = DropoutState(seed)
        _, found = conformance.run(case, arrays, host.asarray, "cudnn", **keywords)
        conformance.assert_close(case, found, conformance.expected(case, arrays, masks))


def forward_only(host, case, arrays, **keywords):
    spec = case.problem.spec
    w = dnnffi.RNNWeights(host.asarray(dnnffi.RNNWeights.pack(arrays.weights, spec).flat), spec)
    h_0 = host.asarray(arrays.h_0)
    hx = (h_0, host.asarray(arrays.c_0)) if spec.has_cell else h_0
    function = getattr(dnnffi, f"{spec.mode}_forward")
    call = testing.keywords(case.problem)
    return function(host.asarray(arrays.x), hx, w, **call, backend="cudnn", **keywords)[-1]


def masks_of(host, ctx, problem):
    spec = problem.spec
    shape = (spec.num_layers - 1, *spec.y_shape(problem.steps, problem.batch))
    masks = np.empty(shape)
    reserve = ctx._saved.context.owner
    count = host.control.standin_dropout_masks(
        host.control_ffi.cast("void *", reserve.data.ptr),
        reserve.nbytes,
        host.control_ffi.cast("double *", masks.ctypes.data),
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


def training_step(host, dropout_state=None):
    """Make all calls of a training step, with dropout and weights in separate arrays."""
    loose = [host.asarray(a) for a in weights_of(host, SPEC).arrays()]
    y, _, ctx = dnnffi.lstm_forward(
        input_of(host, SPEC),
        None,
        loose,
        num_layers=2,
        backend="cudnn",
        dropout=0.5,
        dropout_state=dropout_state or DropoutState(1),
        options={"algorithm": "persist_dynamic", "clip": (-1, 1)},
    )
    return ctx.backward(y)


@pytest.mark.filterwarnings("ignore::dnnffi.PerformanceWarning")
@pytest.mark.parametrize("name", ["BAD_PARAM", "NOT_SUPPORTED", "EXECUTION_FAILED"])
def test_a_status_at_each_call_leaves_nothing_behind(host, name):
    status = {"BAD_PARAM": 2000, "NOT_SUPPORTED": 3000, "EXECUTION_FAILED": 5000}[name]
    expected = UnsupportedError if name == "NOT_SUPPORTED" else CudnnError
    training_step(host)
    total = host.calls("*")
    assert total > 20
    failed = set()
    for nth in range(1, 10 * total):
        host.forget_plans()
        close_handles(host.library)
        gc.collect()
        assert host.live() == 0
        host.control.standin_reset()
        host.control.standin_fail(b"*", nth, status)
        raised = error_of(training_step, host)
        if raised is None:
            break
        function = host.control_ffi.string(host.control.standin_failed()).decode()
        assert isinstance(raised, expected)
        assert function in str(raised)
        assert f"CUDNN_STATUS_{name}" in str(raised)
        failed.add(function)
        del raised
    assert {"cudnnCreate", "cudnnSetStream", "cudnnSetRNNDescriptor_v8"} <= failed
    assert {"cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"} <= failed
    host.control.standin_reset()
    assert training_step(host).x.shape == (5, 3, 3)


@pytest.mark.filterwarnings("ignore::dnnffi.PerformanceWarning")
def test_memory_running_out_at_each_allocation_leaves_nothing_behind(host):
    training_step(host)
    refused = 0
    for count in range(1000):
        host.forget_plans()
        gc.collect()
        registered = host.control.standin_registered()
        host.memory.fail_allocation = count
        if error_of(training_step, host) is None:
            break
        refused += 1
        host.forget_plans()
        gc.collect()
        assert host.control.standin_registered() == registered
    host.memory.fail_allocation = None
    assert refused > 10


def test_a_context_survives_memory_running_out_in_backward(host):
    w, x = weights_of(host, SPEC), input_of(host, SPEC)
    y, _, ctx = dnnffi.lstm_forward(x, None, w, backend="cudnn")
    expected = dnnffi.lstm_forward(x, None, w, backend="cudnn")[2].backward(y)
    refused = 0
    for count in range(100):
        host.memory.fail_allocation = count
        try:
            grads = ctx.backward(y)
        except MemoryError:
            refused += 1
        else:
            break
    host.memory.fail_allocation = None
    assert refused > 0
    np.testing.assert_array_equal(grads.x, expected.x)
    np.testing.assert_array_equal(grads.weights.flat, expected.weights.flat)


def test_plans_are_bounded_and_close(host, monkeypatch):
    w = weights_of(host, SPEC)
    plans = rnn_backends.of("cudnn").plans
    monkeypatch.setattr(plans, "capacity", 4)
    for steps in range(1, 12):
        dnnffi.lstm(input_of(host, SPEC, steps), None, w, backend="cudnn")
    gc.collect()
    assert len(plans) == 4
    assert host.live("rnn") == 4
    plans.clear()
    gc.collect()
    assert host.live("rnn") == 0


def test_a_known_problem_makes_no_descriptors(host):
    w, x = weights_of(host, SPEC), input_of(host, SPEC)
    dnnffi.lstm(x, None, w, backend="cudnn")
    host.control.standin_reset()
    dnnffi.lstm(x, None, w, backend="cudnn")
    assert host.calls("*") == host.calls("cudnnRNNForward") == 1


def test_the_stream_is_set_when_it_changes(host):
    w, x = weights_of(host, SPEC), input_of(host, SPEC)
    dnnffi.lstm(x, None, w, backend="cudnn")
    first, second = host.memory.stream, host.memory.new_stream()
    for stream in (second, second, first):
        host.memory.stream = stream
        dnnffi.lstm(x, None, w, backend="cudnn")
        assert host.control.standin_stream_of(b"cudnnRNNForward") == stream.ptr
    assert host.calls("cudnnSetStream") == 3


def test_the_stream_is_set_again_after_a_failure(host):
    # cuDNN may leave its handle on a stream of its own.
    w, x = weights_of(host, SPEC), input_of(host, SPEC)
    y, _, ctx = dnnffi.lstm_forward(x, None, w, backend="cudnn")
    host.control.standin_fail(b"cudnnRNNBackwardData_v8", 1, 3000)
    with pytest.raises(UnsupportedError):
        ctx.backward(y)
    host.control.standin_reset()
    dnnffi.lstm(x, None, w, backend="cudnn")
    dnnffi.lstm(x, None, w, backend="cudnn")
    assert host.calls("cudnnSetStream") == 1


def test_loose_weights_are_packed_and_said_once(host, monkeypatch):
    monkeypatch.setattr("dnnffi.rnn.backend._warned", False)
    w, x = weights_of(host, SPEC), input_of(host, SPEC)
    loose = [host.asarray(a) for a in w.arrays()]
    with pytest.warns(PerformanceWarning, match=r"RNNWeights\.pack") as warned:
        y = dnnffi.lstm(x, None, loose, num_layers=2, backend="cudnn")[0]
    assert warned[0].filename == __file__
    dnnffi.lstm(x, None, loose, num_layers=2, backend="cudnn")  # again would be an error
    np.testing.assert_array_equal(y, dnnffi.lstm(x, None, w, backend="cudnn")[0])


def test_views_of_one_buffer_are_recognised_and_not_copied(host):
    w, x = weights_of(host, SPEC), input_of(host, SPEC)
    dnnffi.lstm(x, None, w, backend="cudnn")
    before = host.memory.allocations
    dnnffi.lstm(x, None, w, backend="cudnn")
    with_object = host.memory.allocations - before
    dnnffi.lstm(x, None, w.arrays(), num_layers=2, backend="cudnn")
    assert host.memory.allocations - before == 2 * with_object


def test_gradients_have_the_form_of_the_weights(host):
    w, x = weights_of(host, SPEC), input_of(host, SPEC)
    y, _, ctx = dnnffi.lstm_forward(x, None, w, backend="cudnn")
    flat = ctx.backward(y).weights
    assert isinstance(flat, dnnffi.RNNWeights)
    y, _, ctx = dnnffi.lstm_forward(x, None, w.arrays(), num_layers=2, backend="cudnn")
    listed = ctx.backward(y).weights
    for one, other in zip(flat.arrays(), listed, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("gaps", ["x", "h_0", "c_0", "dy", "dh_n", "dc_n"])
def test_an_array_with_gaps_gives_what_its_copy_gives(host, gaps):
    rng = np.random.default_rng(2)
    shapes = {"x": SPEC.x_shape(5, 3), "dy": SPEC.y_shape(5, 3)}
    shapes |= dict.fromkeys(("h_0", "c_0", "dh_n", "dc_n"), SPEC.h_shape(3))
    arrays = {name: host.asarray(rng.standard_normal(shape)) for name, shape in shapes.items()}
    weights = weights_of(host, SPEC)

    def run(x, h_0, c_0, dy, dh_n, dc_n):
        y, state, ctx = dnnffi.lstm_forward(x, (h_0, c_0), weights, backend="cudnn")
        grads = ctx.backward(dy, (dh_n, dc_n))
        inferred, _ = dnnffi.lstm(x, (h_0, c_0), weights, backend="cudnn")
        return [inferred, y, *state, grads.x, *grads.hx, grads.weights.flat]

    expected = run(**arrays)
    wide = host.asarray(np.repeat(arrays[gaps], 2, axis=-1))
    arrays[gaps] = wide[..., ::2]
    for one, other in zip(run(**arrays), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_retain(host):
    w, x = weights_of(host, SPEC), input_of(host, SPEC)
    y, _, ctx = dnnffi.lstm_forward(x, None, w, backend="cudnn")
    first = ctx.backward(y, retain=True)
    second = ctx.backward(y)
    np.testing.assert_array_equal(first.x, second.x)
    np.testing.assert_array_equal(first.weights.flat, second.weights.flat)
    with pytest.raises(ContextError, match="retain=True"):
        ctx.backward(y)


def test_need_names_what_is_computed(host):
    w, x = weights_of(host, SPEC), input_of(host, SPEC)
    h = host.memory.zeros(SPEC.h_shape(3), np.float64)
    for need in (("x",), ("hx",), ("weights",), ("x", "weights"), ()):
        y, _, ctx = dnnffi.lstm_forward(x, (h, h), w, backend="cudnn")
        host.control.standin_reset()
        grads = ctx.backward(y, need=need)
        assert {name for name in grads._fields if getattr(grads, name) is not None} == set(need)
        assert host.calls("cudnnRNNBackwardWeights_v8") == ("weights" in need)


def test_clipping_at_nan(host):
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
        y = conformance.run(case, arrays, host.asarray, "cudnn")[0][0]
        expected = conformance.expected(case, arrays).y
        np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_validate_finds_a_wrong_result(host, monkeypatch):
    w, x = weights_of(host, SPEC), input_of(host, SPEC)
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
def test_an_empty_batch_asks_no_library(host, layout, loose):
    x, weights = input_of(host, SPEC, batch=0), weights_of(host, SPEC)
    keywords = {"backend": "cudnn", "dropout": 0.5, "lengths": []}
    if layout == "batch first":
        x, keywords = x.reshape(0, 5, 3), keywords | {"batch_first": True}
    elif layout == "packed":
        x, keywords = x.reshape(0, 3), keywords | {"lengths": None, "batch_sizes": [0, 0]}
    given, more = weights, {}
    if loose:
        given, more = [host.asarray(a) for a in weights.arrays()], {"num_layers": 2}
    host.control.standin_reset()
    for _ in range(3):
        y, (h_n, c_n), ctx = dnnffi.lstm_forward(x, None, given, **keywords, **more)
        gradients = ctx.backward(y, (h_n, c_n))
    assert y.shape == (*x.shape[:-1], 4)
    assert h_n.shape == c_n.shape == (2, 0, 4)
    assert gradients.x.shape == x.shape
    assert gradients.hx is None
    found = gradients.weights if loose else [gradients.weights.flat]
    assert [a.shape for a in found] == [a.shape for a in (given if loose else [weights.flat])]
    assert all(isinstance(a, host.memory.ndarray) and not a.any() for a in found)
    assert loose or gradients.weights.layout == weights.layout
    assert len(weights._networks) == 0
    assert host.calls("*") == 0


def test_results_of_an_empty_batch_are_on_the_device_of_x(host):
    host.memory.devices = 2
    host.memory.device = 1
    x, weights = input_of(host, SPEC, batch=0), weights_of(host, SPEC)
    host.memory.device = 0
    y, (h_n, c_n), ctx = dnnffi.lstm_forward(x, None, weights, backend="cudnn")
    gradients = ctx.backward(y)
    for a in (y, h_n, c_n, gradients.x, gradients.weights.flat):
        assert a.device_number == 1


def test_weights_of_another_layout_are_refused_of_an_empty_batch_too(host):
    x, weights = input_of(host, SPEC, batch=0), weights_of(host, SPEC)
    arrays = dnnffi.RNNWeights(
        host.asarray(np.array(weights.to("torch").flat)), SPEC, backend="torch"
    )
    with pytest.raises(ValueError, match="layout of 'torch'"):
        dnnffi.lstm(x, None, arrays, backend="cudnn")


@pytest.mark.parametrize("lengths", [(), (0, 0, 0)])
def test_an_executor_has_a_step(host, lengths):
    problem = dnnffi.RNNProblem.dense(SPEC, steps=5, batch=len(lengths), lengths=lengths)
    with pytest.raises(ValueError, match=r"^problem must have a row with at least one step"):
        RNNExecutor(problem, library=host.library)
