"""A model of `RNNStream`: each row alone, on the reference; and schedules of calls."""

from __future__ import annotations

from typing import NamedTuple

import conformance
import numpy as np
from hypothesis import strategies as st

import dnnffi
from dnnffi import RNNSpec
from dnnffi.device.arrays import to_host
from dnnffi.device.dtypes import dtype_object

SPECS = {
    "lstm": RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2, dtype="float64"),
    "projected": RNNSpec(mode="lstm", input_size=3, hidden_size=5, proj_size=2, dtype="float64"),
    "gru": RNNSpec(mode="gru", input_size=2, hidden_size=4, num_layers=3, dtype="float64"),
    "relu": RNNSpec(mode="rnn_relu", input_size=4, hidden_size=3, bias=False, dtype="float64"),
}
BATCH = 4


def weights_of(spec, layout="torch", to_array=np.asarray):
    """Weights over an array of ``to_array``, and the same ones on the host.

    The numbers are small, so that no state grows.
    """
    size = dnnffi.weight_layout(spec, layout).size
    scale = spec.hidden_size**-0.5
    flat = np.random.default_rng(0).uniform(-scale, scale, size).astype(dtype_object(spec.dtype))
    on_host = dnnffi.RNNWeights(flat, spec, backend=layout)
    return dnnffi.RNNWeights(to_array(flat), spec, backend=layout), on_host


class Call(NamedTuple):
    """A call of `run` with ``steps``, 0 for x [B, I]; or of `reset`, with None as steps.

    ``state`` says what a reset sets: "zeros", or "one" state for all rows, or one for "each".
    """

    rows: tuple[int, ...] | None
    steps: int | None
    state: str = "zeros"


def schedules(batch=BATCH):
    """Lists of calls: rows come and go, and begin anew."""
    some = st.lists(st.integers(0, batch - 1), min_size=1, unique=True).map(tuple)
    rows = st.none() | some
    runs = st.builds(Call, rows, st.sampled_from([0, 0, 0, 1, 3]))
    resets = st.builds(Call, rows, st.none(), st.sampled_from(["zeros", "one", "each"]))
    return st.lists(st.one_of(runs, runs, runs, resets), min_size=1, max_size=12)


class Model:
    """The rows of a stream, each with a state of its own, in float64."""

    def __init__(
        self, weights, batch=BATCH, batch_first=False, to_array=np.asarray, to_host=to_host
    ):
        spec = weights.spec
        self.spec, self.batch, self.batch_first = spec, batch, batch_first
        self.to_array, self.to_host = to_array, to_host
        wide = RNNSpec(**{**vars_of(spec), "dtype": "float64"})
        flat = np.asarray(weights.flat).astype("float64")
        self.weights = dnnffi.RNNWeights(flat, wide, backend=weights.backend)
        self.states = [self._zeros() for _ in range(batch)]
        self.rng = np.random.default_rng(1)

    def _zeros(self):
        spec = self.spec
        shapes = [spec.h_shape(1), *([spec.c_shape(1)] if spec.has_cell else [])]
        return tuple(np.zeros(shape) for shape in shapes)

    def play(self, stream, call, allowed, out=None):
        """Make a call of a stream, and compare y and the states of all rows."""
        rows = range(self.batch) if call.rows is None else call.rows
        if call.steps is None:
            self._reset(stream, call, rows)
        else:
            found, expected = self._run(stream, call, rows, out)
            assert conformance.deviation(self.to_host(found), expected) < allowed
        self.compare(stream, allowed)

    def compare(self, stream, allowed):
        """Compare the states of all rows."""
        found = stream.state
        for index, part in enumerate(found if self.spec.has_cell else (found,)):
            expected = np.concatenate([state[index] for state in self.states], axis=1)
            assert conformance.deviation(self.to_host(part), expected) < allowed

    def _run(self, stream, call, rows, out):
        shape = (max(call.steps, 1), len(rows), self.spec.input_size)
        x = self.rng.standard_normal(shape).astype(dtype_object(self.spec.dtype))
        expected = np.concatenate(
            [self._row(row, x[:, [place]].astype("float64")) for place, row in enumerate(rows)],
            axis=1,
        )
        if call.steps == 0:
            x, expected = x[0], expected[0]
        elif self.batch_first:
            x, expected = (np.ascontiguousarray(one.swapaxes(0, 1)) for one in (x, expected))
        return stream.run(self.to_array(x), rows=call.rows, out=out), expected

    def _row(self, row, x):
        hx = self.states[row] if self.spec.has_cell else self.states[row][0]
        y, after = getattr(dnnffi, self.spec.mode)(x, hx, self.weights)
        self.states[row] = after if self.spec.has_cell else (after,)
        return y

    def _reset(self, stream, call, rows):
        if call.state == "zeros":
            for row in rows:
                self.states[row] = self._zeros()
            stream.reset(call.rows)
            return
        count = 1 if call.state == "one" else len(rows)
        given = [
            self.rng.uniform(-1, 1, (one.shape[0], count, one.shape[2])).astype(
                dtype_object(self.spec.dtype)
            )
            for one in self._zeros()
        ]
        for place, row in enumerate(rows):
            at = 0 if count == 1 else place
            self.states[row] = tuple(one[:, [at]].astype("float64") for one in given)
        arrays = tuple(map(self.to_array, given))
        stream.reset(call.rows, arrays if self.spec.has_cell else arrays[0])


def vars_of(spec):
    """The arguments of a spec."""
    names = ("mode", "input_size", "hidden_size", "num_layers", "bias", "proj_size")
    return {name: getattr(spec, name) for name in names}
