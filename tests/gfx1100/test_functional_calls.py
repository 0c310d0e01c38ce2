"""The functions on the real libMIOpen: the type of results, dropout, leaks, faults."""

from __future__ import annotations

import ctypes
import gc

import conformance
import numpy as np
import pytest
from conformance import MIOPEN, Case, problem_of

import dnnffi
from dnnffi import testing
from dnnffi.backends.miopen.dropout import Generator, mixed
from dnnffi.backends.miopen.rnn_executor import MiopenRNNExecutor
from dnnffi.dropout import DropoutState
from dnnffi.errors import (
    ContextError,
    DnnffiError,
    MiopenError,
    PerformanceWarning,
    UnsupportedError,
)
from dnnffi.foreign import DeviceArray
from dnnffi.rnn.executor_plan import ExecutorPlan
from dnnffi.runtime.hip import RuntimeCallError
from dnnffi.spec.rnn import RNNSpec
from simulators.gfx1100.hip_arrays import DlpackArray, HipArray, HipError, OutOfMemoryError

SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2)
LAUNCH_FAILED = 719


def arrays_of(spec=SPEC, steps=5, batch=3):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(spec.x_shape(steps, batch)).astype(spec.dtype)
    shapes = [p.shape for p in spec.parameter_shapes()]
    return x, [rng.uniform(-0.5, 0.5, shape).astype(spec.dtype) for shape in shapes]


def packed_of(weights, spec=SPEC, array=DlpackArray):
    flat = dnnffi.RNNWeights.pack(weights, spec, backend="miopen").flat
    return dnnffi.RNNWeights(array.of(flat), spec, backend="miopen")


@pytest.mark.filterwarnings("ignore::dnnffi.PerformanceWarning")
@pytest.mark.parametrize("array", [HipArray, DlpackArray])
@pytest.mark.parametrize("loose", [False, True])
@pytest.mark.parametrize("mode", ["lstm", "rnn_tanh"])
def test_arrays_in_and_the_allocators_own_out(miopen, mode, loose, array):
    spec = RNNSpec(mode=mode, input_size=3, hidden_size=4, num_layers=2)
    x, weights = arrays_of(spec)
    given = [array.of(w) for w in weights] if loose else packed_of(weights, spec, array)
    h = array.of(np.zeros(spec.h_shape(3), "f4"))
    hx = (h, h) if spec.has_cell else h
    options = {"allocator": array}
    keywords = {"num_layers": 2, "backend": "miopen", "options": options}
    y, state, ctx = getattr(dnnffi, f"{mode}_forward")(array.of(x), hx, given, **keywords)
    grads = ctx.backward(y, state)
    listed = grads.weights if loose else [grads.weights.flat]
    of_hx = list(grads.hx) if spec.has_cell else [grads.hx]
    states = list(state) if spec.has_cell else [state]
    assert {type(a) for a in (y, *states, grads.x, *of_hx, *listed)} == {array}

    zeros = np.zeros(spec.h_shape(3), "f4")
    hx = (zeros, zeros) if spec.has_cell else zeros
    wanted, state, ctx = getattr(dnnffi, f"{mode}_forward")(x, hx, weights, num_layers=2)
    expected = ctx.backward(wanted, state)
    np.testing.assert_allclose(y.get(), wanted, atol=1e-5)
    np.testing.assert_allclose(grads.x.get(), expected.x, atol=1e-5)
    found = [a.get() for a in grads.weights] if loose else grads.weights.to("torch").arrays()
    for one, other in zip(found, expected.weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_loose_weights_are_said_once(miopen, monkeypatch):
    monkeypatch.setattr("dnnffi.rnn.backend._warned", False)
    x, weights = arrays_of()
    loose = [DlpackArray.of(w) for w in weights]
    with pytest.warns(PerformanceWarning, match=r"RNNWeights\.pack") as warned:
        dnnffi.lstm(DlpackArray.of(x), None, loose, num_layers=2, options=miopen.options)
    assert warned[0].filename == __file__
    dnnffi.lstm(DlpackArray.of(x), None, loose, num_layers=2, options=miopen.options)


def test_weights_over_a_foreign_buffer(miopen):
    _, weights = arrays_of()
    flat = dnnffi.RNNWeights.pack(weights, SPEC, backend="miopen").flat
    buffer = DlpackArray.of(flat)
    packed = dnnffi.RNNWeights(buffer, SPEC, backend="miopen")
    assert packed.flat is buffer
    for one, other in zip(packed.arrays(), weights, strict=True):
        np.testing.assert_array_equal(one, other)
    empty = dnnffi.RNNWeights(DlpackArray(flat.shape, "float32"), SPEC, backend="miopen")
    dnnffi.RNNWeights.pack(weights, SPEC, backend="miopen", out=empty.flat)
    np.testing.assert_array_equal(empty.flat.get(), flat)
    tanh = RNNSpec(mode="rnn_tanh", input_size=3, hidden_size=4)
    _, weights = arrays_of(tanh)
    views = packed_of(weights, tanh).arrays()
    assert {type(view) for view in views} == {DeviceArray}
    np.testing.assert_array_equal(views[1].get(), weights[1])


def test_a_known_problem_makes_no_descriptors(miopen):
    x, weights = arrays_of()
    arguments = DlpackArray.of(x), None, packed_of(weights)
    dnnffi.lstm(*arguments, options=miopen.options)
    before = sum(miopen.watched.calls.values())
    dnnffi.lstm(*arguments, options=miopen.options)
    # One to set h_0 to zeros, and one for the forward pass.
    assert sum(miopen.watched.calls.values()) == before + 2


def test_the_stream_of_the_options_is_used(miopen):
    stream = miopen.library.memory._runtime
    made = ctypes.c_void_p()
    stream.call("StreamCreate", ctypes.byref(made))
    x, weights = arrays_of()
    arguments = DlpackArray.of(x), None, packed_of(weights)
    before = miopen.watched.calls["miopenSetStream"]
    options = miopen.options | {"stream": lambda: made.value}
    y, _, ctx = dnnffi.lstm_forward(*arguments, options=options)
    ctx.backward(y)
    handle = miopen.library.local.handles[0]
    assert handle.launch.stream.ptr == made.value
    assert miopen.watched.calls["miopenSetStream"] == before + 1
    dnnffi.lstm(*arguments, options=miopen.options)
    assert handle.launch.stream.ptr == 0
    stream.call("StreamDestroy", made)


def test_retain_and_a_spent_reserve(miopen):
    x, weights = arrays_of()
    arguments = DlpackArray.of(x), None, packed_of(weights)
    y, _, ctx = dnnffi.lstm_forward(*arguments, options=miopen.options)
    first = ctx.backward(y, retain=True)
    second = ctx.backward(y)
    np.testing.assert_array_equal(first.x.get(), second.x.get())
    np.testing.assert_array_equal(first.weights.flat.get(), second.weights.flat.get())
    with pytest.raises(ContextError, match="retain=True"):
        ctx.backward(y)


def test_need_names_what_is_computed(miopen):
    x, weights = arrays_of()
    h = DlpackArray.of(np.zeros(SPEC.h_shape(3), "f4"))
    arguments = DlpackArray.of(x), (h, h), packed_of(weights)
    for need in (("x",), ("hx",), ("weights",), ()):
        y, _, ctx = dnnffi.lstm_forward(*arguments, options=miopen.options)
        before = miopen.watched.calls["miopenRNNBackwardWeightsSeqTensor"]
        grads = ctx.backward(y, need=need)
        assert {name for name in grads._fields if getattr(grads, name) is not None} == set(need)
        calls = miopen.watched.calls["miopenRNNBackwardWeightsSeqTensor"] - before
        assert calls == ("weights" in need)


def test_validate_compares_on_the_host(miopen, monkeypatch):
    x, weights = arrays_of()
    arguments = DlpackArray.of(x), None, packed_of(weights)
    options = miopen.options | {"validate": True}
    y, _, ctx = dnnffi.lstm_forward(*arguments, options=options)
    ctx.backward(y)
    monkeypatch.setattr(ExecutorPlan, "forward", wrong(ExecutorPlan.forward))
    with pytest.raises(dnnffi.ValidationError, match=r"y .*allowed"):
        dnnffi.lstm(*arguments, options=options)


def wrong(forward):
    def ran(self, *arguments):
        y, *rest = forward(self, *arguments)
        y.set(y.get() * 1.1)
        return y, *rest

    return ran


# Dropout


def masks_of(ctx, problem):
    """Return the dropout masks in a reserve space, which follow MIOpen's own part and the values.

    There is one mask between two layers. With lengths, MIOpen's part and the masks have the rows in
    the order in which they run, longest first.
    """
    spec, item = problem.spec, np.dtype(problem.spec.dtype).itemsize
    context = ctx._saved.context
    reserve = context.owner.get()[: context.executor._calls.reserve_bytes]
    lengths, layers = problem.row_lengths, spec.num_layers - 1
    width = spec.output_size * spec.num_directions
    cells, ran = problem.steps * problem.batch, sum(lengths)
    if problem.layout == "packed":
        cells = ran
    own = len(reserve) - cells * width * layers * (item + 1)
    start = own // cells * ran + ran * width * layers * item
    kept = reserve[start : start + ran * width * layers].reshape(layers, ran, width)
    assert set(np.unique(kept)) <= {0, 1}
    order = sorted(range(problem.batch), key=lambda row: -lengths[row])
    places = [(t, row) for t in range(problem.steps) for row in order if t < lengths[row]]
    masks = np.zeros((layers, problem.steps, problem.batch, width))
    for at, (step, row) in enumerate(places):
        masks[:, step, row] = kept[:, at] / (1 - problem.dropout)
    return list(masks)


@pytest.mark.parametrize("layout", conformance.LAYOUTS)
def test_gradients_with_dropout_are_the_reference_with_the_same_masks(miopen, layout):
    mode = conformance.MODES[conformance.LAYOUTS.index(layout) % 3]
    spec = RNNSpec(mode=mode, input_size=3, hidden_size=4, num_layers=3, bidirectional=True)
    rng = np.random.default_rng(1)
    problem = problem_of(spec, layout, 4, 3, rng, training=True, dropout=0.4)
    case = Case(problem, states=True, seed=1)
    arrays = conformance.arrays_of(case)
    keywords = testing.keywords(problem)
    keywords |= {"options": keywords["options"] | miopen.options, "backend": "miopen"}
    x, h_0, c_0 = (None if a is None else miopen.asarray(a) for a in arrays[:3])
    hx = (h_0, c_0) if spec.has_cell else h_0
    function = getattr(dnnffi, f"{spec.mode}_forward")
    *_, ctx = function(
        x, hx, packed_of(arrays.weights, spec), **keywords, dropout=0.4,
        dropout_state=DropoutState(3),
    )  # fmt: skip
    masks = masks_of(ctx, problem)
    assert all((mask == 0).any() and (mask > 0).any() for mask in masks)
    _, found = conformance.run(
        case, arrays, miopen.asarray, "miopen", miopen.options,
        dropout=0.4, dropout_state=DropoutState(3),
    )  # fmt: skip
    conformance.assert_close(case, found, conformance.expected(case, arrays, masks), MIOPEN)
    conformance.passed(problem)


def test_dropout_moves_on_and_is_repeated_by_seed_and_by_saved_state(miopen):
    x, weights = arrays_of()
    arguments = DlpackArray.of(x), None, packed_of(weights)

    def step(state):
        y, _, ctx = dnnffi.lstm_forward(
            *arguments, dropout=0.5, dropout_state=state, options=miopen.options
        )
        return y.get(), ctx.backward(y).x.get()

    state = DropoutState(7)
    first = step(state)
    saved = state.save()
    second = step(state)
    assert not np.array_equal(first[0], second[0])
    again = DropoutState(7)
    for found, wanted in ((step(again), first), (step(DropoutState.restore(saved)), second)):
        np.testing.assert_array_equal(found[0], wanted[0])
        np.testing.assert_array_equal(found[1], wanted[1])
    assert not np.array_equal(step(DropoutState(8))[0], first[0])
    assert saved["states"] == (1).to_bytes(8, "little")


def test_the_library_itself_repeats_its_masks(miopen, monkeypatch):
    # This fails if a newer version advances its states, or draws new masks for each layer.
    spec = RNNSpec(mode="rnn_tanh", input_size=3, hidden_size=8, num_layers=3)
    rng = np.random.default_rng(0)
    problem = problem_of(spec, "dense", 4, 3, rng, training=True, dropout=0.5)
    x, weights = arrays_of(spec, 4, 3)
    arguments = DlpackArray.of(x), None, packed_of(weights, spec)
    monkeypatch.setattr("dnnffi.backends.miopen.dropout.mixed", lambda seed, use: seed)
    state = DropoutState(7)
    contexts = []
    for _ in range(2):
        *_, ctx = dnnffi.rnn_tanh_forward(
            *arguments, dropout=0.5, dropout_state=state, options=miopen.options
        )
        contexts.append(masks_of(ctx, problem))
    np.testing.assert_array_equal(contexts[0], contexts[1])
    np.testing.assert_array_equal(contexts[0][0], contexts[0][1])  # of the two layers


def test_groups_of_rows_drop_different_values(miopen, monkeypatch):
    monkeypatch.setattr(MiopenRNNExecutor, "max_positions", lambda *_: 5 * 3)
    miopen.forget()
    x, weights = arrays_of()
    y, _, _ = dnnffi.lstm_forward(
        *(DlpackArray.of(np.tile(x, (1, 2, 1))), None, packed_of(weights)),
        dropout=0.5, dropout_state=DropoutState(7), options=miopen.options,
    )  # fmt: skip
    miopen.forget()
    of_groups = np.split(y.get(), 2, axis=1)
    assert not np.array_equal(*of_groups)


def test_everything_dropped(miopen):
    x, weights = arrays_of()
    arguments = DlpackArray.of(x), None, packed_of(weights)
    y, _, ctx = dnnffi.lstm_forward(*arguments, dropout=1.0, options=miopen.options)
    grads = ctx.backward(y)
    masks = [np.zeros((5, 3, 4))]
    expected = conformance.reference.forward(SPEC, x, None, None, weights, masks=masks)
    np.testing.assert_allclose(y.get(), expected.y, atol=1e-5)
    assert not grads.x.get().any()


def test_a_dropout_state_stays_where_it_was_used(miopen):
    x, weights = arrays_of()
    state = DropoutState(5)
    arguments = DlpackArray.of(x), None, packed_of(weights)
    dnnffi.lstm_forward(*arguments, dropout=0.5, dropout_state=state, options=miopen.options)
    message = "dropout_state belongs to miopen device 0 with an allocator"
    with pytest.raises(ValueError, match=message):
        dnnffi.lstm_forward(x, None, weights, num_layers=2, dropout=0.5, dropout_state=state)


def test_saved_states_of_another_backend(miopen):
    generator = Generator(miopen.library, 0, seed=1)
    with pytest.raises(ValueError, match="saved states have 32 bytes; MIOpen's have 8"):
        generator.restore(np.zeros(32, np.uint8))
    generator.close()


def test_seeds_are_mixed():
    assert len({mixed(seed, use) for seed in range(30) for use in range(30)}) == 900
    assert mixed(0, 0) == 0xE220A8397B1DCDAF  # splitmix64's first number


# Leaks, faults, memory running out


ONE_LAYER = RNNSpec(mode="lstm", input_size=3, hidden_size=4)


def training_step(miopen, packed=False, spec=ONE_LAYER, loose=False, **keywords):
    """Run a training step with padding and without h_0, and return dx."""
    x, weights = arrays_of(spec, 2, 2)
    given = [DlpackArray.of(w) for w in weights] if loose else packed_of(weights, spec)
    keywords |= {"batch_sizes": (2, 1)} if packed else {"lengths": (1, 2)}
    x = x.reshape(4, 3)[:3] if packed else x
    y, _, ctx = dnnffi.lstm_forward(
        DlpackArray.of(x), None, given, options=miopen.options, **keywords
    )
    return ctx.backward(y).x.get()


def error_of(function, *arguments, **keywords):
    """Return the error of a call without its traceback, which keeps arrays alive, or None."""
    try:
        function(*arguments, **keywords)
    except (MemoryError, DnnffiError, HipError) as error:
        return error.with_traceback(None)
    return None


def test_nothing_is_left_of_many_steps(miopen):
    training_step(miopen)
    gc.collect()
    allocations, modules = miopen.hip.gfx1100_live_allocations(), miopen.hip.gfx1100_live_modules()
    objects = miopen.watched.live()
    for _ in range(10):
        training_step(miopen)
    gc.collect()
    assert miopen.hip.gfx1100_live_allocations() == allocations
    assert miopen.hip.gfx1100_live_modules() == modules
    assert miopen.watched.live() == objects


def test_plans_are_bounded_and_close(miopen, monkeypatch):
    x, weights = arrays_of(steps=9)
    w = packed_of(weights)
    dnnffi.lstm(DlpackArray.of(x), None, w, options=miopen.options)
    plans = miopen.rnn.plans
    monkeypatch.setattr(plans, "capacity", 2)
    for steps in range(1, 6):
        dnnffi.lstm(DlpackArray.of(x[:steps]), None, w, options=miopen.options)
    gc.collect()
    assert miopen.watched.live()["RNNDescriptor"] == 2
    plans.clear()
    gc.collect()
    assert set(miopen.watched.live()) == {"Handle"}


@pytest.mark.parametrize(
    ("status", "packed"), [(3, False), (7, False), (8, False), (5, True), (7, True)]
)
def test_a_status_at_each_call_leaves_nothing_behind(miopen, status, packed):
    training_step(miopen, packed)
    expected = UnsupportedError if status == 8 else MiopenError
    failed = set()
    for nth in range(1, 200):
        miopen.forget()
        assert miopen.watched.live() == {}
        assert miopen.hip.gfx1100_live_allocations() == 0
        miopen.watched.fail(nth, status)
        raised = error_of(training_step, miopen, packed)
        if raised is None:
            break
        assert isinstance(raised, expected)
        assert miopen.watched.failed in str(raised)
        failed.add(miopen.watched.failed)
        del raised
    miopen.watched.fault = None
    names = ("ForwardTraining", "BackwardData", "BackwardWeights") if packed else (
        "Forward", "BackwardSeqData", "BackwardWeightsSeqTensor"
    )  # fmt: skip
    assert {f"miopenRNN{name}" for name in names} <= failed
    assert {"miopenCreate", "miopenSetStream", "miopenSetTensor"} <= failed
    training_step(miopen, packed)


@pytest.mark.parametrize(
    "function",
    ["DropoutGetStatesSize", "CreateDropoutDescriptor", "SetDropoutDescriptor",
     "RestoreDropoutDescriptor", "SetRNNDescriptor_V2"],
)  # fmt: skip
def test_a_status_at_each_call_of_dropout_leaves_nothing_behind(miopen, function):
    function = getattr(miopen.watched, f"miopen{function}")
    name = next(n for n, f in miopen.watched._functions.items() if f is function)
    miopen.watched._functions[name] = lambda *arguments: 7
    raised = error_of(training_step, miopen, spec=SPEC, dropout=0.5, dropout_state=DropoutState(1))
    assert isinstance(raised, MiopenError)
    assert raised.function == name
    del raised
    miopen.watched._functions[name] = function
    miopen.forget()
    assert miopen.watched.live() == {}
    assert miopen.hip.gfx1100_live_allocations() == 0


@pytest.mark.filterwarnings("ignore::dnnffi.PerformanceWarning")
@pytest.mark.parametrize(
    ("what", "loose"),
    [
        *((what, False) for what in ("hipMalloc", "launch", "hipGetDevice", "copy")),
        ("hipMemcpyAsync", True),  # loose weights are copied to one buffer
    ],
)
def test_a_fault_at_each_call_of_hip_leaves_nothing_behind(miopen, what, loose):
    wanted = training_step(miopen, loose=loose)
    hip, what = miopen.hip, what.encode()
    before = hip.gfx1100_calls(what)
    training_step(miopen, loose=loose)
    count = hip.gfx1100_calls(what) - before
    assert count > 0
    raised = 0
    for nth in range(1, count + 1):
        gc.collect()
        objects = miopen.watched.live(), hip.gfx1100_live_allocations()
        hip.gfx1100_fail(what, nth, 2 if what == b"hipMalloc" else LAUNCH_FAILED)
        error = error_of(training_step, miopen, loose=loose)
        hip.gfx1100_fail(what, 0, 0)
        if error is not None:
            raised += 1
            known = (MiopenError, RuntimeCallError, OutOfMemoryError, HipError)
            assert isinstance(error, known)
        del error
        gc.collect()
        assert (miopen.watched.live(), hip.gfx1100_live_allocations()) == objects
    assert raised == count
    np.testing.assert_array_equal(training_step(miopen, loose=loose), wanted)


def test_memory_running_out_at_each_allocation_leaves_nothing_behind(miopen):
    training_step(miopen)
    refused = 0
    for nth in range(1, 100):
        miopen.forget()
        miopen.hip.gfx1100_fail(b"hipMalloc", nth, 2)
        raised = error_of(training_step, miopen)
        if raised is None:
            break
        assert isinstance(raised, OutOfMemoryError)
        refused += 1
        del raised
        miopen.forget()
        assert miopen.hip.gfx1100_live_allocations() == 0
        assert miopen.watched.live() == {}
    miopen.hip.gfx1100_fail(b"hipMalloc", 0, 0)
    assert refused > 8


def test_a_context_survives_memory_running_out_in_backward(miopen):
    x, weights = arrays_of()
    arguments = DlpackArray.of(x), None, packed_of(weights)
    y, _, ctx = dnnffi.lstm_forward(*arguments, options=miopen.options)
    expected = dnnffi.lstm_forward(*arguments, options=miopen.options)[2].backward(y)
    refused = 0
    for nth in range(1, 100):
        miopen.hip.gfx1100_fail(b"hipMalloc", nth, 2)
        try:
            grads = ctx.backward(y)
        except OutOfMemoryError:
            refused += 1
        else:
            break
    miopen.hip.gfx1100_fail(b"hipMalloc", 0, 0)
    assert refused > 0
    np.testing.assert_array_equal(grads.x.get(), expected.x.get())


def test_nan_and_infinity_go_where_the_reference_has_them(miopen):
    x, weights = arrays_of()
    x[1, 0, 0], x[3, 1, 1] = np.nan, np.inf
    y = dnnffi.lstm(DlpackArray.of(x), None, packed_of(weights), options=miopen.options)[0]
    wanted = dnnffi.lstm(x, None, weights, num_layers=2)[0]
    np.testing.assert_array_equal(np.isnan(y.get()), np.isnan(wanted))
