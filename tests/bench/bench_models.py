"""Helpers of the tests of models: problems in float64, and comparisons of results."""

from __future__ import annotations

from itertools import chain

import numpy as np

from dnnffi.bench import array_models
from dnnffi.bench.creator import Limits
from dnnffi.bench.shapes import Shape

ONE = Shape("lstm", "float64", 4, 3, 2, 5)
TWO = Shape("lstm", "float64", 4, 3, 5, 5, layers=3)
VARYING = Shape("lstm", "float64", 6, 5, 2, 4, lengths=(2, 6, 1, 6, 4))
SHAPES = {
    "one layer": ONE,
    "layers": TWO,
    "lengths": VARYING,
    "gru": Shape("gru", "float64", 4, 3, 2, 5, layers=2, directions=2),
    "relu": Shape("rnn_relu", "float64", 4, 3, 2, 5),
}


def fitting(creator):
    """The shapes that a creator takes."""
    limits = creator.limits or Limits()
    return [name for name, shape in SHAPES.items() if not limits.why_not(shape)]


def host(value):
    """A result as a flat list of NumPy arrays, without what is None."""
    if value is None:
        return []
    if isinstance(value, tuple | list):
        return list(chain.from_iterable(map(host, value)))
    if hasattr(value, "arrays"):  # RNNWeights
        return host(value.arrays())
    if hasattr(value, "detach"):  # PyTorch
        return [value.detach().cpu().numpy()]
    return [value.get() if hasattr(value, "get") else np.asarray(value)]


def run(create, shape, *, place="cpu", training=True, **keywords):
    """Outputs (y, states, perhaps more) and, in training, the gradients."""
    return create(shape, shape.draw(seed=1), place, training, **keywords).once()


def check(found, expected):
    found, expected = host(found), host(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


def check_against_the_reference(create, shape):
    """Outputs in both phases, and all gradients."""
    outputs, gradients = run(array_models.functional, shape)
    trained, found = run(create, shape)
    inferred, _ = run(create, shape, training=False)
    check(trained[:2], outputs[:2])
    check(inferred[:2], outputs[:2])
    check(list(found), list(gradients))
