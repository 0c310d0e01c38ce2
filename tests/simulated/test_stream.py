"""`RNNStream` on the stand-in: tuned, replayed, without allocations, on one or more devices."""

from __future__ import annotations

import gc
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kept_state import BATCH, SPECS, Call, Model, schedules, weights_of
from stress import user_arrays
from stress.bounds import check_refused_in_child
from stress.user_arrays import UserArray

import dnnffi
from dnnffi import RNNStream
from dnnffi.backends import registry
from dnnffi.errors import UnsupportedError
from dnnffi.rnn.network import CALLS_BEFORE_TUNING
from dnnffi.rnn.stream_states import _BufferPair

LSTM = SPECS["lstm"]
EXACT = 1e-12


def stream_on(simulator, spec=LSTM, **keywords):
    """A stream on the stand-in, and the model of its rows."""
    weights, on_host = weights_of(spec, "cudnn", simulator.asarray)
    model = Model(
        on_host, to_array=simulator.asarray, batch_first=keywords.get("batch_first", False)
    )
    return RNNStream(weights, **{"batch": BATCH, "backend": "cudnn"} | keywords), model


def launches(simulator):
    return sum(graph().launches for graph in simulator.memory.graphs if graph() is not None)


@pytest.mark.parametrize("tune", ["off", "now"])
@pytest.mark.parametrize("name", SPECS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=schedules(), batch_first=st.booleans())
def test_rows_that_come_and_go_are_each_row_alone(shared_simulator, name, tune, calls, batch_first):
    keywords = {"options": {"tune": tune}, "batch_first": batch_first}
    stream, model = stream_on(shared_simulator, SPECS[name], **keywords)
    with stream:
        for call in calls:
            model.play(stream, call, EXACT)


def test_steps_in_a_loop_are_tuned_and_replayed_and_stay_right(simulator):
    stream, model = stream_on(simulator)
    with stream:
        for _ in range(4 * CALLS_BEFORE_TUNING):
            model.play(stream, Call(None, 0), EXACT)
        assert "measured in this process" in stream.report()
        assert launches(simulator) > 0


@pytest.mark.parametrize("algorithm", ["auto", "standard"])
def test_a_step_that_is_not_tuned_allocates_nothing_for_the_same_array(simulator, algorithm):
    options = {"algorithm": algorithm, "tune": "off"}
    stream, _ = stream_on(simulator, options=options)
    x = simulator.asarray(np.zeros((BATCH, LSTM.input_size)))
    out = simulator.asarray(np.zeros((BATCH, LSTM.output_size)))
    with stream:
        for _ in range(2):
            stream.run(x, out=out)
        before = simulator.memory.allocations
        stream.run(x, out=out)
        assert simulator.memory.allocations == before


@pytest.mark.parametrize("rows", [None, (2, 0)])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_tuned_step_into_the_same_array_is_one_launch_and_allocates_nothing(
    simulator, name, rows
):
    spec = SPECS[name]
    stream, model = stream_on(simulator, spec, options={"tune": "now"})
    count = BATCH if rows is None else len(rows)
    x = simulator.asarray(np.zeros((count, spec.input_size)))
    out = simulator.asarray(np.zeros((count, spec.output_size)))
    model.to_array = lambda values: x.set(values) or x
    call = Call(rows, 0)
    with stream:
        for _ in range(6):  # the state has two buffers, and each order of them its own graph
            model.play(stream, call, EXACT, out)
        for _ in range(3):
            before = simulator.memory.allocations, simulator.memory.copies, launches(simulator)
            stream.run(x, rows=rows, out=out)
            after = simulator.memory.allocations, simulator.memory.copies, launches(simulator)
            assert after == (before[0], before[1], before[2] + 1)


def test_rows_are_copied_by_consecutive_ranges_when_they_change(simulator, monkeypatch):
    stream, _ = stream_on(simulator, options={"tune": "off"})
    copied, copy_rows = [], simulator.memory.copy_rows

    def counted(*arguments):
        copied.append(arguments[4])  # bytes of a row of the copy
        copy_rows(*arguments)

    monkeypatch.setattr(simulator.memory, "copy_rows", counted)
    row_bytes = 8 * LSTM.hidden_size
    x = simulator.asarray(np.zeros((3, LSTM.input_size)))
    with stream:
        stream.run(x, rows=[0, 1, 3])
        assert copied == [2 * row_bytes, 2 * row_bytes, row_bytes, row_bytes]  # of h and c each
        copied.clear()
        for _ in range(5):
            stream.run(x, rows=[0, 1, 3])
        assert copied == []
        stream.run(x, rows=[1, 2, 3])
        assert len(copied) == 4 + 2


def test_the_states_of_named_rows_are_copied_back_once(simulator, monkeypatch):
    stream, _ = stream_on(simulator, options={"tune": "off"})
    with stream:
        stream.run(simulator.asarray(np.zeros((1, LSTM.input_size))), rows=[2])
        expected = [np.array(one) for one in stream.state]
        monkeypatch.setattr(simulator.memory, "copy_rows", None)
        for one, other in zip(stream.state, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_stream_runs_on_the_device_of_its_weights(simulator, monkeypatch):
    of_class = {np.ndarray: "host"}
    monkeypatch.setattr(registry, "kind", lambda array: of_class.get(type(array), "cuda"))
    simulator.memory.devices, simulator.memory.device = 2, 1
    stream, model = stream_on(simulator, backend=None)
    with stream:
        assert stream.device == 1
        assert repr(stream).endswith(f"batch={BATCH}, cudnn device 1)")
        model.to_array = partial(on_device, simulator, 1)
        simulator.memory.device = 0
        for call in (Call(None, 0), Call((3,), 2), Call((1, 2), None, "each"), Call(None, 1)):
            model.play(stream, call, EXACT)
            assert simulator.memory.device == 0
        y = stream.run(on_device(simulator, 1, np.zeros((BATCH, LSTM.input_size))))
        assert {y.device_number, stream.state[0].device_number} == {1}
        with pytest.raises(ValueError, match=r"^x must be on the device of "):
            stream.run(simulator.asarray(np.zeros((BATCH, LSTM.input_size))))
    simulator.memory.device = 1
    with pytest.raises(ValueError, match=r"^device is 0; the weights are on device 1$"):
        stream_on(simulator, device=0)


def on_device(simulator, number, values):
    with simulator.memory.use(number):
        return simulator.asarray(values)


def test_a_capture_of_the_user_is_refused(simulator):
    stream, model = stream_on(simulator, options={"tune": "now"})
    with stream:
        model.play(stream, Call(None, 0), EXACT)
        x = simulator.asarray(np.zeros((BATCH, LSTM.input_size)))
        simulator.memory.stream = simulator.memory.new_stream()
        simulator.memory.capture_number = 17
        for call in (
            lambda: stream.run(x),
            lambda: stream.run(x[:2], rows=[0, 3]),
            stream.reset,
            lambda: stream.state,
        ):
            with pytest.raises(UnsupportedError, match=r"capture cannot record its calls.*RNNPl"):
                call()
        simulator.memory.capture_number = 0
        model.compare(stream, EXACT)


def test_a_call_that_fails_leaves_the_state(simulator, monkeypatch):
    stream, model = stream_on(simulator, options={"tune": "off"})
    with stream:
        for call in (Call(None, 0), Call((1, 3), 2)):
            model.play(stream, call, EXACT)
        x = simulator.asarray(np.ones((BATCH, LSTM.input_size)))
        for arguments in ({"x": x}, {"x": x[:2], "rows": [0, 1]}, {"x": x[:2], "rows": [1, 3]}):
            simulator.memory.fail_allocation = 0
            with pytest.raises(MemoryError):
                stream.run(**arguments)
            model.compare(stream, EXACT)


def test_an_interrupt_at_the_end_of_a_call_leaves_one_state(simulator, monkeypatch):
    stream, _ = stream_on(simulator, options={"tune": "off"})
    x = simulator.asarray(np.ones((2, LSTM.input_size)))

    def interrupted(pair):
        flip(pair)
        raise KeyboardInterrupt

    flip = _BufferPair.flip
    with monkeypatch.context() as patch:
        patch.setattr(_BufferPair, "flip", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.run(x, rows=[1, 3])
    before = stream.state
    y = stream.run(x, rows=[1, 3])
    stream.reset(state=before)
    np.testing.assert_array_equal(stream.run(x, rows=[1, 3]), y)


@pytest.mark.parametrize("name", ["reset", "state"])
def test_a_forked_child_is_told_so(simulator, name):
    stream, _ = stream_on(simulator)
    check_refused_in_child((lambda: stream.state) if name == "state" else stream.reset)


def test_a_closed_stream_has_nothing_on_the_device(simulator):
    stream, model = stream_on(simulator, options={"tune": "now"})
    for rows in (None, (0, 2)):
        for _ in range(4):
            model.play(stream, Call(rows, 0), EXACT)
    stream.close()
    del stream
    dnnffi.clear_plans()
    gc.collect()
    assert simulator.control.standin_registered() == 0


def test_a_problem_that_the_backend_has_not_is_refused_at_the_beginning(simulator):
    weights, _ = weights_of(LSTM, "torch", simulator.asarray)
    with pytest.raises(ValueError, match=r"^weights are in the layout of 'torch'; backend 'cudnn'"):
        RNNStream(weights, batch=BATCH, backend="cudnn")


X = np.zeros((BATCH, LSTM.input_size))
OUT = (BATCH, LSTM.hidden_size)


def strided(simulator):
    return simulator.memory.zeros((OUT[0], 2 * OUT[1]), np.float64)[:, ::2]


WRONG = {
    "dtype of x": (
        TypeError,
        "^x must have the dtype of the weights, float64; got float32",
        lambda simulator, x: {"x": simulator.asarray(X.astype("f4"))},
    ),
    "shape of out": (
        ValueError,
        r"^out must have shape \(4, 4\); got \(1, 4, 4\)$",
        lambda simulator, x: {"x": x, "out": simulator.memory.zeros((1, *OUT), np.float64)},
    ),
    "dtype of out": (
        TypeError,
        "^out must have dtype float64; got float32$",
        lambda simulator, x: {"x": x, "out": simulator.memory.zeros(OUT)},
    ),
    "gaps in out": (
        ValueError,
        "^out must be contiguous",
        lambda simulator, x: {"x": x, "out": strided(simulator)},
    ),
    "out on the host": (
        TypeError,
        "^out must be a simulators.SimulatedArray; got ndarray$",
        lambda simulator, x: {"x": x, "out": np.zeros(OUT)},
    ),
}


@pytest.mark.parametrize(("error", "message", "arguments"), WRONG.values(), ids=WRONG)
def test_wrong_arrays_are_refused_by_name(simulator, error, message, arguments):
    stream, model = stream_on(simulator)
    x = simulator.asarray(X)
    with stream:
        model.play(stream, Call(None, 0), EXACT)
        for _ in range(2):
            with pytest.raises(error, match=message):
                stream.run(**arguments(simulator, x))
        model.compare(stream, EXACT)


def test_out_shares_no_memory_with_what_is_read(simulator):
    stream, _ = stream_on(simulator)
    memory = simulator.memory.zeros((BATCH, LSTM.hidden_size), np.float64)
    x = memory.reshape(-1)[: BATCH * LSTM.input_size].reshape(BATCH, LSTM.input_size)
    with stream, pytest.raises(ValueError, match=r"^(x and out|out and x) must not share memory"):
        stream.run(x, out=memory)


# With an allocator


class Allocator:
    """An allocator of a user's library; ``made`` are its arrays."""

    def __init__(self, simulator):
        self._allocate, self.made = simulator.memory._allocate, []

    def __call__(self, shape, dtype):
        self.made.append(UserArray(self._allocate, shape, dtype))
        return self.made[-1]

    def put(self, values):
        return UserArray.of(self._allocate, np.ascontiguousarray(values))


@pytest.fixture
def allocator(simulator, monkeypatch):
    user_arrays.install(monkeypatch)
    made = Allocator(simulator)
    yield made
    made.made.clear()
    user_arrays.forget(simulator.library)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_results_are_objects_of_the_allocator(allocator, name):
    spec = SPECS[name]
    weights, on_host = weights_of(spec, "cudnn", allocator.put)
    options = {"allocator": allocator, "tune": "now"}
    stream = RNNStream(weights, batch=BATCH, backend="cudnn", options=options)
    model = Model(on_host, to_array=allocator.put, to_host=np.asarray)
    with stream:
        for call in (
            *[Call(None, 0)] * 4,
            Call((2, 0), 3),
            Call((1,), None, "one"),
            Call((0, 1), None),
            Call(None, 2),
        ):
            model.play(stream, call, EXACT)
        x, out = allocator.put(np.zeros((BATCH, spec.input_size))), allocator.put(np.zeros(OUT))
        y, state = stream.run(x), stream.state
        for one in (y, *(state if spec.has_cell else (state,))):
            assert any(one is made for made in allocator.made)
        assert stream.run(x, out=out) is out
        assert np.asarray(out).any()
