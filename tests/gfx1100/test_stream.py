"""`RNNStream` on the real libMIOpen: rows that come and go keep their states."""

from __future__ import annotations

import pytest
from kept_state import BATCH, Call, Model, weights_of

from dnnffi import RNNSpec, RNNStream
from dnnffi.errors import UnsupportedError
from simulators.gfx1100.hip_arrays import DlpackArray, HipArray

SPECS = {
    "lstm": RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2),
    "gru": RNNSpec(mode="gru", input_size=3, hidden_size=4),
    "relu": RNNSpec(mode="rnn_relu", input_size=4, hidden_size=3, bias=False),
}
CALLS = (
    Call(None, 0),
    Call((2, 0), 0),
    Call((1,), 3),
    Call((3, 0), None, "each"),
    Call((0, 1, 3), 0),
    Call(None, None, "one"),
    Call(None, 2),
    Call((2,), None),
    Call((3, 2), 1),
)
ALLOWED = 2e-5


def stream_on(array, spec, **keywords):
    weights, on_host = weights_of(spec, "miopen", array.of)
    model = Model(on_host, to_array=array.of, to_host=lambda found: found.get(), **keywords)
    options = {"allocator": array}
    stream = RNNStream(weights, batch=BATCH, backend="miopen", options=options, **keywords)
    return stream, model


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_rows_that_come_and_go_are_each_row_alone(miopen, name, batch_first):
    stream, model = stream_on(DlpackArray, SPECS[name], batch_first=batch_first)
    with stream:
        for call in CALLS:
            model.play(stream, call, ALLOWED)


def test_results_are_written_where_the_caller_wants_them(miopen):
    spec = SPECS["gru"]
    stream, model = stream_on(HipArray, spec)
    out = HipArray.empty((BATCH, spec.output_size), spec.dtype)
    with stream:
        for _ in range(3):
            model.play(stream, Call(None, 0), ALLOWED, out)
        x = model.to_array(model.rng.standard_normal((BATCH, 3)).astype("f4"))
        assert stream.run(x, out=out) is out


def test_a_type_that_miopen_does_not_have_is_refused(miopen):
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=4, dtype="float64")
    with pytest.raises(UnsupportedError, match="float64"):
        stream_on(DlpackArray, spec)
