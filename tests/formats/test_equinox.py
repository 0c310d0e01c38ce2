"""Equinox's cells: their equations, layers and directions, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from equations import check, equinox, run, x_of

from dnnffi import RNNWeights

GATES = {"lstm": 4, "gru": 3}
H = 4


def cell_of(mode, inputs=3, biased=True, seed=0):
    rng = np.random.default_rng(seed)
    rows = GATES[mode] * H
    shapes = {"weight_ih": (rows, inputs), "weight_hh": (rows, H)}
    if biased:
        shapes["bias"] = (rows,)
    if biased and mode == "gru":
        shapes["bias_n"] = (H,)
    return {name: rng.uniform(-0.5, 0.5, shape) for name, shape in shapes.items()}


def as_object(cell, module="equinox.nn._rnn", name=None, **fields):
    """A cell of Equinox, or of another module: an object whose fields are arrays and settings."""
    name = name or ("GRUCell" if len(cell["weight_ih"]) == 3 * H else "LSTMCell")
    made = type(name, (), {"__module__": module})()
    absent = {"bias": None} | ({"bias_n": None} if name == "GRUCell" else {})
    vars(made).update(absent | {"input_size": 3, "hidden_size": H} | cell | fields)
    return made


def expected(mode, layers, weights):
    cells = [[equinox(mode)(cell) for cell in layer] for layer in layers]
    return run(cells, x_of(weights.spec), H)


@pytest.mark.parametrize("given_as", [as_object, dict])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("mode", GATES)
def test_a_cell(mode, biased, given_as):
    cell = cell_of(mode, biased=biased)
    weights = RNNWeights.from_equinox(given_as(cell, use_bias=biased))
    assert (weights.spec.mode, weights.spec.bias) == (mode, biased)
    check(weights, expected(mode, [[cell]], weights))


@pytest.mark.parametrize("mode", GATES)
def test_layers_of_two_directions(mode):
    layers = [
        [cell_of(mode, inputs, seed=seed + d) for d in (0, 1)]
        for seed, inputs in ((0, 3), (5, 2 * H))
    ]
    weights = RNNWeights.from_equinox(layers)
    assert (weights.spec.num_layers, weights.spec.num_directions) == (2, 2)
    check(weights, expected(mode, layers, weights))


def test_the_fields_of_a_cell_that_are_no_arrays_are_passed_over():
    fields = cell_of("gru") | {"input_size": 3, "hidden_size": H, "use_bias": True}
    assert RNNWeights.from_equinox(fields).spec.hidden_size == H


def without(mode, *names):
    return {name: array for name, array in cell_of(mode).items() if name not in names}


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (object(), "cell must be a cell of Equinox, .*; got builtins.object, which may compute"),
        ({}, "cell must be a cell of Equinox; this dict has no weight_ih and no weight_hh$"),
        (  # a subclass of the user's, which may have another __call__
            as_object(cell_of("lstm"), module="mine"),
            "cell must be a cell of Equinox, .*; got mine.LSTMCell, which may compute something",
        ),
        (
            as_object(cell_of("gru"), name="MinimalCell"),
            "cell must be a cell of Equinox, .*; got equinox.nn._rnn.MinimalCell",
        ),
        (
            as_object(cell_of("lstm"), peephole=np.zeros(H)),
            "cell has unexpected names: peephole$",
        ),
        (as_object(cell_of("gru"), use_bias=False), "cell has a bias but use_bias=False"),
        (cell_of("lstm") | {"use_bias": False}, "cell has a bias but use_bias=False"),
        (without("gru", "weight_hh"), "cell must be .*; this dict has no weight_hh$"),
        (  # of torch.nn.LSTMCell
            without("lstm", "bias") | {"bias_ih": np.zeros(16), "bias_hh": np.zeros(16)},
            "cell has unexpected names: bias_ih, bias_hh; PyTorch's cells have .*from_torch$",
        ),
        (without("gru", "bias"), "cell has bias_n but no bias$"),
        (without("gru", "bias_n"), "cell has bias but no bias_n$"),
        (cell_of("lstm") | {"bias_n": np.zeros(H)}, "cell has bias_n, which an LSTM has not$"),
        (
            cell_of("gru") | {"weight_ih": np.zeros((3, 12))},
            r"cell.weight_ih must have shape \(12, 12\); got \(3, 12\)",
        ),
        (
            cell_of("gru") | {"weight_hh": np.zeros((4, 12))},
            "cell.weight_hh: 4 is not 4 .* times the hidden size 12",
        ),
        (cell_of("gru") | {"bias": np.zeros(3)}, r"cell.bias must have shape \(12,\); got \(3,\)$"),
        (
            {"weight_ih": np.zeros((4, 3)), "weight_hh": np.zeros((4, 4))},
            "cell.weight_hh must be of an LSTM or a GRU; got shape",
        ),
        ([cell_of("gru"), cell_of("lstm", H)], "cells must be of one mode; got gru, lstm$"),
    ],
)
def test_what_is_refused(cell, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        RNNWeights.from_equinox(cell)
