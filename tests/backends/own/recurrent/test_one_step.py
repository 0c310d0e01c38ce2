"""Networks of a single step on kernels of their own, against the reference."""

from __future__ import annotations

import conformance
import numpy as np
import pytest
from backends.own.recurrent.emulated_network import Network, kind_of
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnffi.backends.own.recurrent.config import Kind
from dnnffi.backends.own.recurrent.one_step import OneStepNetwork, division, divisions, is_one_step
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import BATCH_MAJOR, RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.rnn_size_class import size_class


class OneStep(Network):
    """A problem of one step on a device of four multiprocessors."""

    def made(self, *_):
        problem = self.problem
        of_layers = divisions(problem, kind_of(problem), size_class(problem).max_rows, 4)
        self.network = OneStepNetwork(problem, 0, self.memory, "own", of_layers)
        return self.network.bind(problem, self.launch)


def results(problem, arrays, offset=0):
    """Return the results of an inference on arrays ``offset`` bytes past a multiple of 256."""
    with OneStep(None, problem, None, offset=offset) as network:
        return network.results(arrays)


def check(spec, batch, *, states=True, options=None, offset=0, seed=0, bound=None):
    problem = RNNProblem.dense(
        spec, steps=1, batch=batch, training=False, options=options or RNNOptions()
    )
    assert is_one_step(size_class(problem))
    case = conformance.Case(problem, states, seed)
    arrays = conformance.arrays_of(case)
    found, expected = results(problem, arrays, offset), conformance.expected(case, arrays)
    bound = bound or {"float32": 2e-3, "float16": 3e-3, "bfloat16": 3e-2}[spec.dtype]
    for name in ("y", "h_n", "c_n") if spec.has_cell else ("y", "h_n"):
        assert conformance.deviation(getattr(found, name), getattr(expected, name)) < bound, name


MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@pytest.mark.parametrize("states", [True, False], ids=["states", "none"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("mode", MODES)
def test_layers_and_directions(mode, dtype, states):
    sizes = {"input_size": 24, "hidden_size": 40, "num_layers": 3, "bidirectional": True}
    check(RNNSpec(mode=mode, dtype=dtype, **sizes), 11, states=states)


@pytest.mark.parametrize(
    ("mode", "inputs", "hidden", "batch", "bias"),
    [
        ("lstm", 1, 1, 1, True),
        ("gru", 3, 17, 9, False),
        ("gru", 300, 8, 3, True),
        ("lstm", 5, 130, 33, True),
        ("rnn_tanh", 131, 33, 64, False),
        ("rnn_relu", 16, 64, 40, True),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_any_size(mode, inputs, hidden, batch, bias, dtype):
    check(RNNSpec(mode=mode, input_size=inputs, hidden_size=hidden, bias=bias, dtype=dtype), batch)


@pytest.mark.parametrize("offset", [2, 8])
def test_arrays_at_any_address(offset):
    check(RNNSpec(mode="gru", input_size=32, hidden_size=24, dtype="float16"), 5, offset=offset)


def test_strict_products_are_as_precise_as_float32():
    spec = RNNSpec(mode="lstm", input_size=40, hidden_size=32)
    check(spec, 4, options=RNNOptions(math="strict"), bound=2e-6)


@pytest.mark.parametrize("nan", ["propagate", "clip"])
def test_the_cell_is_clipped(nan):
    spec = RNNSpec(mode="lstm", input_size=8, hidden_size=16)
    options = RNNOptions(clip=(-0.1, 0.05), clip_nan=nan)
    check(spec, 4, options=options)
    case = conformance.Case(
        RNNProblem.dense(spec, steps=1, batch=4, training=False, options=options), True, 0
    )
    arrays = conformance.arrays_of(case)
    arrays.c_0[0, 1, 2] = np.nan
    h = results(case.problem, arrays).h_n
    assert np.isnan(h[0, 1, 2]) == (nan == "propagate")
    assert np.isnan(h).sum() == (nan == "propagate")


def test_nan_stays_in_its_row():
    spec = RNNSpec(mode="gru", input_size=16, hidden_size=24, dtype="float16")
    problem = RNNProblem.dense(spec, steps=1, batch=9, training=False)
    case = conformance.Case(problem, True, 0)
    arrays = conformance.arrays_of(case)
    clean = results(problem, arrays).y
    arrays.x[0, 4, 3] = np.nan
    y = results(problem, arrays).y
    assert np.isnan(y[0, 4]).all()
    others = [row for row in range(9) if row != 4]
    np.testing.assert_array_equal(y[0, others], clean[0, others])


SPEC = RNNSpec(mode="gru", input_size=5, hidden_size=24, dtype="float16", bidirectional=True)
ONE = RNNProblem.dense(SPEC, steps=1, batch=6, training=False)


@pytest.mark.parametrize(
    ("problem", "fits"),
    [
        (ONE, True),
        (
            RNNProblem.dense(SPEC, steps=1, batch=64, training=False)._replace(layout=BATCH_MAJOR),
            True,
        ),
        (RNNProblem.dense(SPEC, steps=1, batch=257, training=False), False),
        (RNNProblem.dense(SPEC, steps=2, batch=6, training=False), False),
        (RNNProblem.dense(SPEC, steps=1, batch=6, training=True), True),
        (
            RNNProblem.dense(SPEC, steps=2, batch=3, training=False)._replace(lengths=(1, 1, 1)),
            False,
        ),
    ],
)
def test_which_problems_they_run(problem, fits):
    assert is_one_step(size_class(problem)) is fits


@given(
    st.sampled_from(MODES),
    st.sampled_from(["float32", "float16"]),
    st.integers(1, 4096),
    st.integers(1, 4096),
    st.integers(1, 256),
    st.integers(1, 2),
)
@settings(max_examples=200)
def test_a_division_covers_a_layer(mode, dtype, hidden, inputs, batch, directions):
    one = division(Kind(mode, hidden, dtype), inputs, batch, directions, 132)
    assert one.rows < batch + 8
    assert 1 <= one.x_warps < one.threads // 32
    assert one.shared_bytes <= 96 << 10  # compute capability 8.6 has 99 KiB for a block
    assert one.blocks(batch, directions) * 8 * one.octets * one.rows >= hidden * batch * directions
    smaller = one.rows > 8 and one._replace(rows=one.rows // 2)
    assert not smaller or smaller.blocks(batch, directions) > 132
