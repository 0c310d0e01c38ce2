"""`RNNStream` on a GPU: cuDNN and dnnffi's kernels, rows that come and go, replays, streams."""

from __future__ import annotations

import numpy as np
import pytest
from kept_state import BATCH, Call, Model, weights_of

import dnnffi
from dnnffi import RNNSpec, RNNStream
from dnnffi.errors import UnsupportedError

cupy = pytest.importorskip("cupy")

SPECS = {
    "lstm": RNNSpec(mode="lstm", input_size=48, hidden_size=64, num_layers=2, dtype="float16"),
    "gru": RNNSpec(mode="gru", input_size=64, hidden_size=64, dtype="float16"),
    "tanh": RNNSpec(mode="rnn_tanh", input_size=32, hidden_size=64, dtype="float32"),
}
PROJECTED = RNNSpec(mode="lstm", input_size=32, hidden_size=64, proj_size=32, dtype="float32")
ALLOWED = 1e-2
CALLS = (
    *[Call(None, 0)] * 3,
    Call((2,), 0),
    Call((2,), 0),
    Call((3, 0, 1), 0),
    Call((1, 2), 5),
    Call((0, 2), None),
    Call((2, 3), 1),
    Call(None, 4),
    Call((1, 3), None, "each"),
    Call(None, None, "one"),
    Call((3, 2, 1, 0), 0),
    Call(None, 0),
)


@pytest.fixture(autouse=True)
def _forgotten():
    dnnffi.clear_plans()
    yield
    dnnffi.clear_plans()


def stream_of(spec, **keywords):
    weights, on_host = weights_of(spec, "cudnn", cupy.asarray)
    model = Model(on_host, to_array=cupy.asarray, batch_first=keywords.get("batch_first", False))
    return RNNStream(weights, batch=BATCH, **keywords), model


OPTIONS = {
    "standard": {"algorithm": "standard", "tune": "off"},
    "own": {"algorithm": "own", "tune": "off"},
    "by rule": {"tune": "off"},
    "tuned": {"tune": "now"},
}


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_rows_that_come_and_go_are_each_row_alone(spec, options, batch_first):
    stream, model = stream_of(spec, options=options, batch_first=batch_first)
    with stream:
        for call in CALLS:
            model.play(stream, call, ALLOWED)


def test_a_projection_has_states_of_two_sizes():
    stream, model = stream_of(PROJECTED)
    with stream:
        for call in CALLS:
            model.play(stream, call, ALLOWED)


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("rows", [None, (3, 1)])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_tuned_step_into_the_same_array_replays_a_graph(spec, rows):
    stream, model = stream_of(spec, options={"tune": "now"})
    count = BATCH if rows is None else len(rows)
    x = cupy.zeros((count, spec.input_size), spec.dtype)
    out = cupy.zeros((count, spec.output_size), spec.dtype)
    model.to_array = lambda values: x.set(values) or x

    def launches():
        plans = [sizes.plan for sizes in stream._sizes.values()]
        graphs = [one for plan in plans for one in plan.operations.forward_graphs.values()]
        return sum(graph.launches for graph in graphs)

    with stream:
        for _ in range(6):
            model.play(stream, Call(rows, 0), ALLOWED, out)
        for _ in range(4):
            before = launches()
            model.play(stream, Call(rows, 0), ALLOWED, out)
            assert launches() == before + 1


@pytest.mark.usefixtures("replayed")
def test_steps_into_new_arrays_stay_right():
    stream, model = stream_of(SPECS["lstm"])
    with stream:
        for index in range(60):
            model.play(stream, Call((index % 3,) if index % 7 == 6 else None, 0), ALLOWED)


def test_nan_stays_in_its_row():
    spec = SPECS["gru"]
    for options in OPTIONS.values():
        stream, _ = stream_of(spec, options=options)
        x = cupy.ones((BATCH, spec.input_size), spec.dtype)
        x[1] = np.nan
        with stream:
            for _ in range(2):
                y = cupy.isnan(stream.run(x))
                assert y.all(axis=1).tolist() == [False, True, False, False]
                assert y.any(axis=1).tolist() == [False, True, False, False]
            stream.reset(rows=[1])
            assert not cupy.isnan(stream.state).any()


@pytest.mark.parametrize("null_stream", [True, False])
def test_work_runs_on_the_current_stream(null_stream):
    stream, model = stream_of(SPECS["lstm"])
    current = cupy.cuda.Stream.null if null_stream else cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream, current:
        for call in CALLS:
            model.play(stream, call, ALLOWED)
    current.synchronize()


def test_a_capture_of_the_user_is_refused():
    spec = SPECS["gru"]
    stream, model = stream_of(spec)
    x = cupy.ones((BATCH, spec.input_size), spec.dtype)
    out = cupy.empty((BATCH, spec.output_size), spec.dtype)
    current = cupy.cuda.Stream(non_blocking=True)
    with stream:
        model.play(stream, Call(None, 0), ALLOWED)
        cupy.cuda.Device().synchronize()
        with current:
            stream.run(x, out=out)
            before = stream.state
            current.begin_capture()
            try:
                with pytest.raises(UnsupportedError, match="capture an RNNPlan"):
                    stream.run(x, out=out)
            finally:
                current.end_capture()
            assert cupy.array_equal(stream.state, before)


def test_arrays_of_another_device_or_kind_are_refused_by_name():
    spec = SPECS["gru"]
    stream, model = stream_of(spec)
    with stream:
        assert stream.device == 0
        with pytest.raises(TypeError, match=r"^x must be a CuPy array"):
            stream.run(np.ones((BATCH, spec.input_size), spec.dtype))
        x = cupy.ones((BATCH, spec.input_size), spec.dtype)
        out = cupy.zeros((BATCH, 2 * spec.output_size), spec.dtype)[:, ::2]
        with pytest.raises(ValueError, match=r"^out must be contiguous"):
            stream.run(x, out=out)
        model.compare(stream, ALLOWED)
