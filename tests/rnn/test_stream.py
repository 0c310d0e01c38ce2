"""`RNNStream` on the reference: steps, rows that come and go, resets, arrays for y, bad input."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from weakref import ref

import numpy as np
import pytest
from host_arrays import LIBRARIES, Allocator, values_of
from hypothesis import given
from hypothesis import strategies as st
from kept_state import BATCH, SPECS, Call, Model, schedules, weights_of

import dnnffi
from dnnffi import RNNSpec, RNNStream
from dnnffi.rnn import stream as stream_module
from dnnffi.rnn.stream_states import RowRange, row_ranges

GRU = SPECS["gru"]
EXACT = 1e-12


def random(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def gru_stream(**keywords):
    return RNNStream(weights_of(GRU)[0], **{"batch": BATCH} | keywords)


def parts(state):
    return state if isinstance(state, tuple) else (state,)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_steps_and_parts_are_the_whole_sequence(name, batch_first):
    spec = SPECS[name]
    weights, _ = weights_of(spec)
    x = random((7, BATCH, spec.input_size))
    expected, after = getattr(dnnffi, spec.mode)(x, None, weights)
    turned = (lambda one: one.swapaxes(0, 1)) if batch_first else (lambda one: one)
    with RNNStream(weights, batch=BATCH, batch_first=batch_first) as stream:
        found = [stream.run(step)[None] for step in x[:3]]
        found.append(turned(stream.run(turned(x[3:]))))
        np.testing.assert_allclose(np.concatenate(found), expected, rtol=EXACT)
        for one, other in zip(parts(stream.state), parts(after), strict=True):
            np.testing.assert_allclose(one, other, rtol=EXACT)


@pytest.mark.parametrize("name", SPECS)
@given(calls=schedules(), batch_first=st.booleans())
def test_rows_that_come_and_go_are_each_row_alone(name, calls, batch_first):
    weights, _ = weights_of(SPECS[name])
    stream = RNNStream(weights, batch=BATCH, batch_first=batch_first)
    model = Model(weights, batch_first=batch_first)
    for call in calls:
        model.play(stream, call, EXACT)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_each_dtype_is_kept(dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=4, dtype=dtype)
    weights, _ = weights_of(spec)
    stream = RNNStream(weights, batch=BATCH)
    model = Model(weights)
    for call in (Call(None, 0), Call((2, 0), 3), Call((2,), None, "one"), Call(None, 1)):
        model.play(stream, call, 5e-2 if dtype == "bfloat16" else 1e-2)
    assert {one.dtype.name for one in stream.state} == {dtype}


@pytest.mark.parametrize("rows", [[3, 1], (3, 1), np.array([3, 1]), iter([3, 1])], ids=type)
def test_rows_are_any_ordered_integers(rows):
    stream = gru_stream()
    x = random((2, GRU.input_size))
    y = stream.run(x, rows=rows)
    expected, _ = dnnffi.gru_step(x, None, weights_of(GRU)[0])
    np.testing.assert_allclose(y, expected, rtol=EXACT)
    assert stream.state.any(axis=(0, 2)).tolist() == [False, True, False, True]


@pytest.mark.parametrize("name", SPECS)
def test_other_rows_stay_as_they_are_bit_by_bit(name):
    spec = SPECS[name]
    stream = RNNStream(weights_of(spec)[0], batch=BATCH)
    stream.run(random((BATCH, spec.input_size)))
    before = parts(stream.state)
    stream.run(random((3, 2, spec.input_size), 1), rows=[2, 0])
    for one, other in zip(parts(stream.state), before, strict=True):
        assert one[:, [1, 3]].tobytes() == other[:, [1, 3]].tobytes()
        assert (one[:, [0, 2]] != other[:, [0, 2]]).any()


@pytest.mark.parametrize("rows", [None, (3, 1)])
def test_nan_stays_in_its_row(rows):
    stream = gru_stream()
    x = random((BATCH if rows is None else len(rows), GRU.input_size))
    x[1] = np.nan
    for _ in range(2):
        y = stream.run(x, rows=rows)
        assert np.isnan(y).all(axis=1).nonzero()[0].tolist() == [1]
        assert np.isnan(stream.state).any(axis=(0, 2)).nonzero()[0].tolist() == [1]
    stream.reset(rows=[1])
    assert not np.isnan(stream.state).any()


def test_results_and_states_are_new_arrays():
    stream = gru_stream()
    x = random((BATCH, GRU.input_size))
    y, state = stream.run(x), stream.state
    kept = state.copy()
    y[...] = state[...] = np.nan
    np.testing.assert_array_equal(stream.state, kept)
    assert stream.run(x) is not y
    given_state = np.ones(GRU.h_shape(BATCH))
    stream.reset(state=given_state)
    given_state[...] = 5
    assert (stream.state == 1).all()


@pytest.mark.parametrize("rows", [None, [3, 1]])
@pytest.mark.parametrize("steps", [None, 3])
def test_y_is_written_into_out(rows, steps):
    count = BATCH if rows is None else len(rows)
    leading = (count,) if steps is None else (steps, count)
    stream, other = gru_stream(), gru_stream()
    out = np.full((*leading, GRU.hidden_size), np.nan)
    for seed in range(3):
        x = random((*leading, GRU.input_size), seed)
        assert stream.run(x, rows=rows, out=out) is out
        np.testing.assert_array_equal(out, other.run(x, rows=rows))


def test_a_write_to_the_weights_acts_on_the_next_call():
    weights, _ = weights_of(GRU)
    stream = RNNStream(weights, batch=BATCH)
    x = random((BATCH, GRU.input_size))
    stream.run(x)
    weights.flat *= 0.5
    stream.reset()
    expected, _ = dnnffi.gru_step(x, None, weights)
    np.testing.assert_allclose(stream.run(x), expected, rtol=EXACT)


def test_the_options_are_those_of_the_functions():
    spec = SPECS["lstm"]
    weights, _ = weights_of(spec)
    options = {"clip": (-0.01, 0.02), "math": "strict"}
    stream = RNNStream(weights, batch=BATCH, options=options)
    x = random((5, BATCH, spec.input_size))
    expected, _ = dnnffi.lstm(x, None, weights, options=options)
    options["clip"] = None
    np.testing.assert_allclose(stream.run(x), expected, rtol=EXACT)
    assert not np.allclose(expected, dnnffi.lstm(x, None, weights)[0], atol=1e-3)


@pytest.mark.parametrize("library", LIBRARIES)
def test_results_on_the_host_are_objects_of_the_allocator(library):
    spec, allocator = SPECS["lstm"], Allocator(library)
    weights, on_host = weights_of(spec, to_array=LIBRARIES[library])
    stream = RNNStream(weights, batch=BATCH, options={"allocator": allocator})
    model = Model(on_host, to_array=LIBRARIES[library], to_host=values_of)
    for call in (Call(None, 0), Call((2, 0), 3), Call((1,), None, "one"), Call(None, 1)):
        model.play(stream, call, EXACT)
    x, out = (LIBRARIES[library](np.ones((BATCH, size))) for size in (3, 4))
    assert all(map(allocator.has_made, (stream.run(x), *stream.state)))
    assert stream.run(x, out=out) is out
    assert (values_of(out) != 1).all()


def test_an_allocator_that_fails_leaves_the_state():
    def allocator(shape, dtype):
        if len(shape) == 2:
            raise MemoryError("no memory for y")
        return np.empty(shape, dtype)

    stream = gru_stream(options={"allocator": allocator})
    with pytest.raises(MemoryError, match="for y"):
        stream.run(random((BATCH, GRU.input_size)))
    assert not stream.state.any()


def test_plans_of_many_sizes_are_bounded(monkeypatch):
    monkeypatch.setattr(stream_module, "MAX_PLANS", 2)
    weights, _ = weights_of(GRU)
    stream, model = RNNStream(weights, batch=BATCH), Model(weights)
    for steps in (0, 1, 2, 3, 0, 3, 2, 1):
        model.play(stream, Call((2, 1), steps), EXACT)
        assert len(stream._sizes) <= 2


def test_the_ranges_of_rows():
    assert row_ranges((3, 4, 1, 2, 5)) == [RowRange(3, 0, 2), RowRange(1, 2, 2), RowRange(5, 4, 1)]
    assert row_ranges(range(4)) == [RowRange(0, 0, 4)]


# The object


def test_a_stream_says_what_it_is():
    stream = gru_stream()
    assert (stream.spec, stream.batch, stream.device, stream.closed) == (GRU, BATCH, 0, False)
    assert repr(stream) == f"RNNStream({GRU}, batch={BATCH}, reference)"
    stream.run(random((BATCH, GRU.input_size)))
    assert "the NumPy reference; there is nothing to choose" in stream.report()
    stream.close()
    assert repr(stream) == stream.report() == f"RNNStream({GRU}, batch={BATCH}, closed)"


def test_a_closed_stream_refuses_each_call_and_keeps_no_weights():
    weights = weights_of(GRU)[0]
    with RNNStream(weights, batch=BATCH) as stream:
        stream.run(random((BATCH, GRU.input_size)))
    stream.close()
    assert stream.closed
    for call in (
        lambda: stream.run(random((BATCH, GRU.input_size))),
        stream.reset,
        lambda: stream.state,
    ):
        with pytest.raises(ValueError, match=r"^this stream is closed$"):
            call()
    kept = ref(weights.flat)
    dnnffi.clear_plans()
    del weights
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("again", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_stream_says_what_can_be_pickled(again):
    with pytest.raises(TypeError, match=r"^RNNStream .* Instead pickle its RNNWeights and stream"):
        again(gru_stream())


def test_one_call_at_a_time(monkeypatch):
    stream, x = gru_stream(), random((BATCH, GRU.input_size))
    inside, go_on, run = threading.Event(), threading.Event(), stream._states.run

    def slow(*arguments):
        inside.set()
        assert go_on.wait(30)
        return run(*arguments)

    monkeypatch.setattr(stream._states, "run", slow)
    thread = threading.Thread(target=stream.run, args=(x,))
    thread.start()
    try:
        assert inside.wait(30)
        for call in (lambda: stream.run(x), stream.reset, lambda: stream.state):
            with pytest.raises(ValueError, match="in use by another thread"):
                call()
    finally:
        go_on.set()
        thread.join()
    assert stream.state.any()


def test_a_call_that_fails_leaves_the_state(monkeypatch):
    stream, x = gru_stream(), random((BATCH, GRU.input_size))
    stream.run(x)
    before = stream.state

    def interrupted(*arguments, **keywords):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stream._states, "_function", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.run(x, rows=None)
    np.testing.assert_array_equal(stream.state, before)
    stream.run(x)


# Bad input

X = random((BATCH, GRU.input_size))
OUT = np.zeros((BATCH, GRU.hidden_size))
TWO_DIRECTIONS = RNNSpec(mode="gru", input_size=2, hidden_size=3, bidirectional=True)
READ_ONLY = np.broadcast_to(0.0, OUT.shape)
_SHAPE = rf"^x must have shape \[B, I\] of one step, or \[T, B, I\] of several, with B = {BATCH} "

CONSTRUCTION = {
    "a list of weights": (TypeError, "^weights must be an RNNWeights; got list", {"weights": []}),
    "two directions": (
        ValueError,
        "^weights must be of one direction.*run whole sequences, with dnnffi.gru$",
        {"weights": weights_of(TWO_DIRECTIONS)[0]},
    ),
    "batch 0": (ValueError, "^batch must be from 1 to 16777216; got 0$", {"batch": 0}),
    "batch as text": (TypeError, "^batch must be an integer; got str$", {"batch": "4"}),
    "batch_first": (TypeError, "^batch_first must be True or False; got 1$", {"batch_first": 1}),
    "device as text": (TypeError, "^device must be an integer; got str$", {"device": "0"}),
    "another device": (ValueError, "^device is 1; the weights are on device 0$", {"device": 1}),
    "backend": (ValueError, "^backend must be one of cudnn, .*got 'gpu'", {"backend": "gpu"}),
    "validate": (ValueError, "^options.*works in functions", {"options": {"validate": True}}),
    "unknown option": (ValueError, "unknown", {"options": {"unknown": True}}),
    "stream alone": (ValueError, r"^options\['stream'\] needs", {"options": {"stream": 0}}),
}
RUNS = {
    "a list": (TypeError, "^x must be a NumPy or CuPy array.*got list", ([[0.0] * 2] * 4,), {}),
    "one row": (ValueError, rf"{_SHAPE}.*got \(2,\)$", (X[0],), {}),
    "four dimensions": (ValueError, rf"{_SHAPE}.*got \(1, 1, 4, 2\)$", (X[None, None],), {}),
    "fewer rows": (ValueError, rf"{_SHAPE}rows and I = 2; got \(3, 2\)$", (X[:3],), {}),
    "fewer inputs": (ValueError, rf"{_SHAPE}rows and I = 2; got \(4, 1\)$", (X[:, :1],), {}),
    "rows of another count": (ValueError, "with B = 2 rows.*got", (X,), {"rows": [0, 1]}),
    "no step": (ValueError, "^x must have at least one time step; got T = 0$", (X[None][:0],), {}),
    "dtype": (TypeError, "^x must have the dtype of the weights, float64", (X.astype("f4"),), {}),
    "no rows": (ValueError, "^rows must name at least one row", (X[:0],), {"rows": []}),
    "a row too far": (
        ValueError,
        r"^rows\[1\] must be from 0 to 3 \(B - 1\); got 4$",
        (X[:2],),
        {"rows": [0, 4]},
    ),
    "a negative row": (ValueError, r"^rows\[0\] must be from 0 to 3", (X[:1],), {"rows": [-1]}),
    "a row twice": (
        ValueError,
        "^rows must be distinct; got 2 more than once$",
        (X[:3],),
        {"rows": [2, 1, 2]},
    ),
    "a row as a number": (TypeError, "^rows must be a sequence of integers", (X[:1],), {"rows": 0}),
    "a row of a float": (TypeError, r"^rows\[0\] must be an integer", (X[:1],), {"rows": [0.0]}),
    "a row of a bool": (TypeError, r"^rows\[0\] must be an integer", (X[:1],), {"rows": [True]}),
    "out, a list": (TypeError, "^out must be a NumPy or CuPy array", (X,), {"out": [0]}),
    "out of another shape": (ValueError, r"^out must have shape \(4, 4\)", (X,), {"out": OUT[1:]}),
    "out of a sequence": (ValueError, r"^out must have shape \(4, 4\)", (X,), {"out": OUT[None]}),
    "out of another dtype": (
        TypeError,
        "^out must have dtype float64; got float32$",
        (X,),
        {"out": OUT.astype("f4")},
    ),
    "out with gaps": (
        ValueError,
        "^out must be contiguous",
        (X,),
        {"out": np.zeros((4, 8))[:, ::2]},
    ),
    "out, read-only": (
        ValueError,
        "^out must be (writable|contiguous)",
        (X,),
        {"out": READ_ONLY},
    ),
}
RESETS = {
    "a row too far": (ValueError, r"^rows\[0\] must be from 0 to 3", {"rows": [4]}),
    "no rows": (ValueError, "^rows must name at least one row", {"rows": []}),
    "a pair": (TypeError, "^state must be one array: gru has no cell", {"state": (OUT, OUT)}),
    "text": (TypeError, "^state must be a NumPy or CuPy array.*got str$", {"state": "zeros"}),
    "shape": (
        ValueError,
        r"^state must have shape \(3, 4, 4\), or \(3, 1, 4\) for all rows; got \(3, 2, 4\)$",
        {"state": np.zeros((3, 2, 4))},
    ),
    "shape of rows": (
        ValueError,
        r"^state must have shape \(3, 2, 4\)",
        {"rows": [0, 1], "state": np.zeros((3, 4, 4))},
    ),
    "dtype": (
        TypeError,
        r"^state must have .*, float64; got float32; use state\.astype\('float64'\)$",
        {"state": np.zeros((3, 4, 4), "f4")},
    ),
}


@pytest.mark.parametrize(("error", "message", "keywords"), CONSTRUCTION.values(), ids=CONSTRUCTION)
def test_wrong_arguments_of_a_stream(error, message, keywords):
    arguments = {"weights": weights_of(GRU)[0], "batch": BATCH} | keywords
    with pytest.raises(error, match=message):
        RNNStream(arguments.pop("weights"), **arguments)


@pytest.mark.parametrize(("error", "message", "given", "keywords"), RUNS.values(), ids=RUNS)
def test_wrong_arguments_of_run(error, message, given, keywords):
    stream = gru_stream()
    stream.run(X)
    before = stream.state
    for _ in range(2):  # a refused call is refused again
        with pytest.raises(error, match=message):
            stream.run(*given, **keywords)
    np.testing.assert_array_equal(stream.state, before)


@pytest.mark.parametrize(("error", "message", "keywords"), RESETS.values(), ids=RESETS)
def test_wrong_arguments_of_reset(error, message, keywords):
    stream = gru_stream()
    stream.run(X)
    before = stream.state
    with pytest.raises(error, match=message):
        stream.reset(**keywords)
    np.testing.assert_array_equal(stream.state, before)


def test_out_shares_no_memory_with_x():
    weights, _ = weights_of(SPECS["relu"])
    memory = np.zeros(100)
    x = memory[: BATCH * 4].reshape(BATCH, 4)
    out = memory[2 : 2 + BATCH * 3].reshape(BATCH, 3)
    with pytest.raises(ValueError, match=r"^(x and out|out and x) must not share memory"):
        RNNStream(weights, batch=BATCH).run(x, out=out)


def test_the_state_of_an_lstm_is_a_pair():
    stream = RNNStream(weights_of(SPECS["projected"])[0], batch=BATCH)
    with pytest.raises(TypeError, match=r"^state of an LSTM must be \(h, c\) or None"):
        stream.reset(state=np.zeros((1, BATCH, 2)))
    with pytest.raises(ValueError, match=r"^state\[1\] must have shape \(1, 4, 5\)"):
        stream.reset(state=(np.zeros((1, BATCH, 2)), np.zeros((1, BATCH, 2))))
    with pytest.raises(TypeError, match=r"^c must be an array; give state=None for zero"):
        stream.reset(state=(np.zeros((1, BATCH, 2)), None))
