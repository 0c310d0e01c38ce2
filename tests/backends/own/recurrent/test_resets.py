"""Kernels whose states are replaced between steps, against the reference."""

from __future__ import annotations

import conformance
import numpy as np
import pytest
from backends.own.recurrent.emulated_network import ResetArrays, rows_of, way
from backends.own.recurrent.kernel_setup import ALLOWED, Setup

from dnnffi.backends.own.recurrent import config
from dnnffi.spec.problem import RNNProblem

CLUSTER = {"cluster": True}

SETUPS = (
    Setup("lstm", "float16", 24, way(), way(staged=False)),
    Setup("lstm", "float32", 20, way(8, 8, 2, (2, 2), (0, 0)), way(16, 8, 2), ragged=True),
    Setup("gru", "float32", 22, way(16, 16, 1, (3, 2)), way(24, 8, staged=False), ragged=True),
    Setup("gru", "bfloat16", 40, way(16, 8, 2, (1, 4), staged=False), way(40, 8, 1, (3, 2))),
    Setup("rnn_tanh", "float32", 33, way(16, 16), way(24, 8, 1), ragged=True),
    Setup("rnn_relu", "float32", 17, way(8, 8, 2), way(8, 8, 2, staged=False)),
    Setup("lstm", "float32", 33, way(16, 8, 1, (1, 4), chunks=2), way(8, 32), strict=True),
    Setup("lstm", "float32", 37, way(), way(16, 16, 1, (4, 1), (1, 1), scatter=True)),
    Setup(
        *("gru", "float32", 50),
        way(16, 64, 1, (3, 2), (0, 0), chunks=3, ring=2, stream_ring=2),
        way(8, 32, 1, (2, 1), (1, 1), scatter=True, team=2),
        ragged=True,
    ),
    Setup("lstm", "float32", 21, way(24, 16, 1, **CLUSTER), way(16, **CLUSTER), ragged=True),
    Setup("gru", "float32", 14, way(8, 8, 1, (3, 2), **CLUSTER), way(8, **CLUSTER)),
    Setup("lstm", "float32", 12, rows_of(4, 2), rows_of(4, 2), ragged=True),
    Setup("gru", "float32", 30, rows_of(8, 1, 4), rows_of(8, 1, 4)),
    Setup("rnn_tanh", "float32", 9, rows_of(2), rows_of(2)),
    Setup("lstm", "float32", 12, way(), way(staged=False), clip="propagate", strict=True),
    Setup("lstm", "float16", 41, way(24, 8, 1, (6, 2), (0, 1))),
    # Products of float16, of states that can exceed 1.
    Setup("lstm", "float32", 24, way(), way(staged=False), narrow=True),
    Setup("gru", "float32", 30, way(16, 8, 1, (3, 1), **CLUSTER), way(), narrow=True, ragged=True),
)


def drawn(case, rng, rate, size):
    """Draw resets of a case, and their states in float64: none, one for all rows, or one each.

    A share ``rate`` of the steps is reset; ``size`` is the magnitude of the states.
    """
    problem, spec = case.problem, case.problem.spec
    flags = (rng.random(problem.x_shape[:-1]) < rate).astype(np.uint8)
    rows = rng.choice([0, 1, problem.batch])
    if rows == 0:
        return ResetArrays(flags), None
    dtype = conformance.dtype_object(spec.dtype)
    states = [
        None if shape is None else (size * abs(rng.standard_normal(shape))).astype(dtype)
        for shape in (spec.h_shape(rows), spec.c_shape(rows) if spec.has_cell else None)
    ]
    up = tuple(None if state is None else state.astype("f8") for state in states)
    return ResetArrays(flags, *states), up


@pytest.mark.parametrize("rate", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_states_are_replaced_as_in_the_reference(cublas, setup, rate):
    rng = np.random.default_rng(SETUPS.index(setup))
    for number in range(3):
        compare(cublas, setup, setup.problem(rng), rng, rate, number)


@pytest.mark.parametrize("steps", [15, 16, 17])
@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_windows_of_flags_follow_each_other(cublas, monkeypatch, setup, steps):
    """A window is 8 steps of 8 rows, 4 of 16, 1 of 64, and 8 and 16 of groups of 2 and 1."""
    monkeypatch.setattr(config, "_RESET_FLAGS", 16 if setup.forward.get("parts") else 64)
    rng = np.random.default_rng(100 * steps + SETUPS.index(setup))
    compare(cublas, setup, setup.problem(rng, steps=steps), rng, 0.2, steps)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("setup", [one for one in SETUPS if one.ragged], ids=str)
def test_rows_without_steps_have_no_flags(cublas, monkeypatch, setup, number):
    """Other rows have several windows; in the last case most groups have no step."""
    monkeypatch.setattr(config, "_RESET_FLAGS", 16 if setup.forward.get("parts") else 64)
    rng = np.random.default_rng(100 * number + SETUPS.index(setup))
    small = setup.problem(rng, batch=int(rng.integers(9, 20)))
    lengths = [int(length) for length in rng.integers(0, 20, small.batch)]
    if number == 2:
        lengths[3:] = [0] * (small.batch - 3)
    lengths[:2] = 0, 19
    problem = RNNProblem.dense(
        small.spec,
        steps=20,
        batch=small.batch,
        batch_first=bool(number % 2),
        lengths=lengths,
        training=small.training,
        options=small.options,
    )
    compare(cublas, setup, problem, rng, 0.3, number)


def compare(cublas, setup, problem, rng, rate, number):
    """Compare a setup with the reference on a problem with resets."""
    problem = problem._replace(has_resets=True)
    case = conformance.Case(problem, bool(rng.integers(2)), number)
    arrays = conformance.arrays_of(case)
    resets, reset_to = drawn(case, rng, rate, 4.0 if setup.narrow else 0.5)
    with setup.network(cublas, problem, seed=number * 1000) as network:
        found = network.results(arrays, resets=resets)
    done, grads = conformance.passes(case, arrays, resets=resets.flags, reset_to=reset_to)
    pairs = {"y": (found.y, done.y), "h_n": (found.h_n, done.h_n), "c_n": (found.c_n, done.c_n)}
    if problem.training:
        weights = [
            np.concatenate([np.asarray(a, "f8").ravel() for a in some])
            for some in (found.dweights, grads.weights)
        ]
        pairs |= {
            "dx": (found.dx, grads.x),
            "dh_0": (found.dh_0, grads.h_0),
            "dc_0": (found.dc_0, grads.c_0),
            "dweights": weights,
        }
        if reset_to is not None:
            names = "dreset_h", "dreset_c"
            pairs |= dict(
                zip(names, zip(network.dresets, grads.reset_to, strict=True), strict=True)
            )
    allowed = ALLOWED["strict" if setup.strict else setup.dtype]
    for name, (one, other) in pairs.items():
        if one is not None:
            error = conformance.deviation(one, other)
            assert error <= allowed, f"{name} of {case}: off by {error:.3g}, allowed {allowed}"


@pytest.mark.parametrize("number", range(4))
def test_steps_past_a_rows_end_are_not_read(cublas, number):
    """Flags past the end of a row change no gradient."""
    setup = SETUPS[1]
    rng = np.random.default_rng(number)
    problem = setup.problem(rng, batch=5)._replace(has_resets=True, layout="sequence_major")
    case = conformance.Case(problem, True, number)
    arrays = conformance.arrays_of(case)
    flags = (rng.random(problem.x_shape[:-1]) < 0.3).astype(np.uint8)
    past = np.arange(problem.steps)[:, None] >= np.array(problem.row_lengths)
    found = []
    for value in (0, 1):
        flags[past] = value
        with setup.network(cublas, problem) as network:
            found.append(np.asarray(network.results(arrays, resets=ResetArrays(flags)).dx).copy())
    np.testing.assert_array_equal(*found)
