"""`RNNStream` on an adapter: added and removed rows, states on the device, bad input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from kept_state import BATCH, Call, Model, schedules, weights_of

import dnnffi
from dnnffi import RNNSpec, RNNStream

pytestmark = pytest.mark.usefixtures("device")

GRU = RNNSpec(mode="gru", input_size=5, hidden_size=7, num_layers=2)
ALLOWED = {"float32": 1e-5, "float16": 1e-2}


def stream_of(spec, **keywords):
    weights, _ = weights_of(spec)
    model = Model(weights, batch_first=keywords.get("batch_first", False))
    return RNNStream(weights, batch=BATCH, backend="vulkan", **keywords), model


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=schedules())
def test_rows_that_come_and_go_are_each_row_alone(causal_spec, calls):
    stream, model = stream_of(causal_spec)
    with stream:
        for call in calls:
            model.play(stream, call, ALLOWED[causal_spec.dtype])


@pytest.mark.parametrize("algorithm", ["stepwise", "persistent"])
def test_parts_with_the_batch_first(algorithm):
    stream, model = stream_of(GRU, batch_first=True, options={"algorithm": algorithm})
    with stream:
        for call in (Call(None, 3), Call(None, 0), Call((2, 1), 4), Call(None, 2)):
            model.play(stream, call, ALLOWED["float32"])


def test_the_states_of_all_rows_stay_on_the_device(writes, submissions):
    stream, _ = stream_of(GRU)
    x = np.ones((BATCH, GRU.input_size), "float32")
    with stream:
        stream.run(x)
        writes.clear()
        submissions.clear()
        for _ in range(3):
            stream.run(x)
        assert (len(writes), len(submissions)) == (0, 3)
        stream.run(x[:2], rows=[2, 0])
        assert len(writes) == 2  # the lengths and the states of two rows


def test_a_call_that_fails_leaves_the_state(monkeypatch):
    stream, model = stream_of(GRU)
    x = np.ones((BATCH, GRU.input_size), "float32")
    with stream:
        model.play(stream, Call(None, 0), ALLOWED["float32"])

        def interrupted(*arguments):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:  # after the states on the device are new
            patch.setattr(stream._states, "_replace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                stream.run(x)
        for call in (Call(None, 0), Call((1,), 2)):
            model.play(stream, call, ALLOWED["float32"])


def test_a_stream_says_where_it_runs():
    stream, _ = stream_of(GRU)
    with stream:
        assert repr(stream) == f"RNNStream({GRU}, batch={BATCH}, vulkan)"
        stream.run(np.ones((BATCH, GRU.input_size), "float32"))
        assert "with the weights on the device" in stream.report()


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, r"^x must have the dtype of the weights, float32", {"x": np.ones((BATCH, 5))}),
        (ValueError, r"^x must have shape \[B, I\]", {"x": np.ones((3, 5), "f4")}),
        (ValueError, r"^rows must be distinct", {"x": np.ones((2, 5), "f4"), "rows": [1, 1]}),
        (
            ValueError,
            r"^out must have shape \(4, 7\)",
            {"x": np.ones((BATCH, 5), "f4"), "out": np.ones((3, 7), "f4")},
        ),
    ],
)
def test_wrong_arguments_are_named(error, message, arguments):
    stream, model = stream_of(GRU)
    with stream:
        model.play(stream, Call(None, 0), ALLOWED["float32"])
        with pytest.raises(error, match=message):
            stream.run(**arguments)
        model.compare(stream, ALLOWED["float32"])


def test_what_the_adapter_does_not_have_is_refused_at_the_beginning():
    spec = RNNSpec(mode="gru", input_size=5, hidden_size=7, dtype="float64")
    with pytest.raises(dnnffi.UnsupportedError, match="float64"):
        stream_of(spec)
    weights, _ = weights_of(GRU)
    with pytest.raises(ValueError, match="device"):
        RNNStream(weights, batch=BATCH, backend="vulkan", device=99)
