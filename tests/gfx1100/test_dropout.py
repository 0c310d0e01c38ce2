"""Dropout between the layers of an RNN: the real libMIOpen's random numbers on the device."""

from __future__ import annotations

import numpy as np
import pytest
from gfx1100.rnn_network import Network, Problem
from gfx1100.test_rnn import TOLERANCES, error, expected, run

from dnnffi.spec.rnn import RNNSpec

XORWOW = 0


def seeded(session, probability, seed):
    """Create a dropout descriptor with new states."""
    result = session.new("Dropout")
    size = session.size("miopenDropoutGetStatesSize", session.handle)
    states = session.allocate(size)
    session.check(
        *("miopenSetDropoutDescriptor", result, session.handle, probability, states, size),
        *(seed, False, False, XORWOW),
    )
    return result


def outputs(session, probability, seed):
    """Return results of the library with dropout, and of the reference without dropout."""
    spec = RNNSpec(mode="gru", input_size=4, hidden_size=5, num_layers=2)
    network = Network(session, spec, dropout=seeded(session, probability, seed))
    problem = Problem(network, steps=3, batch=2)
    arrays, _ = run(session, network, problem)
    return arrays, expected(spec, problem)[0]


def test_inference_drops_nothing(session):
    arrays, wanted = outputs(session, 0.5, 1)
    assert error(arrays["inference_y"], wanted["y"]) < TOLERANCES["float32"]


@pytest.mark.parametrize("name", ["y", "dx"])
def test_training_drops_and_a_seed_decides_what(session, name):
    first, wanted = outputs(session, 0.5, 1)
    again, _ = outputs(session, 0.5, 1)
    other, _ = outputs(session, 0.5, 2)
    np.testing.assert_array_equal(first[name], again[name])
    assert error(first[name], wanted[name]) > 1e-2
    assert error(first[name], other[name]) > 1e-2
