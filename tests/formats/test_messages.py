"""Messages about long input stay short: they show the first names and count the others."""

from __future__ import annotations

from types import SimpleNamespace

import bounded
import numpy as np
import pytest

import dnnffi
from dnnffi import ConvSpec, RNNProblem, RNNSpec, RNNWeights

LONG = "x" * 2_000_000
MANY = {f"name{index}": np.zeros(1) for index in range(100_000)}
MAX_CHARS = 4_000

LSTM = {"weight_ih_l0": np.ones((16, 3)), "weight_hh_l0": np.ones((16, 4))}
SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=4)


def node(**fields):
    return SimpleNamespace(**{"op_type": "LSTM", "domain": "", "input": ["X", "W", "R"]} | fields)


def attribute(name, **fields):
    values = {"type": 2, "i": 0, "f": 0.0, "s": b"", "floats": [], "strings": []}
    return SimpleNamespace(name=name, **values | fields)


CASES = {
    "missing layers": lambda: RNNWeights.from_torch(LSTM | {"weight_ih_l9999": 0}, "lstm"),
    "unexpected names": lambda: RNNWeights.from_torch(LSTM | MANY, "lstm"),
    "other names": lambda: RNNWeights.from_torch(MANY, "lstm"),
    "other prefixes": lambda: RNNWeights.from_torch(
        {f"{name}.weight_ih_l0": 0 for name in MANY}, "lstm"
    ),
    "a long name": lambda: RNNWeights.from_torch(LSTM | {LONG: 0}, "lstm"),
    "a long prefix that is not there": lambda: RNNWeights.from_torch(LSTM, "lstm", prefix=LONG),
    "a long prefix": lambda: RNNWeights.from_torch(
        {LONG + name: array.T for name, array in LSTM.items()}, "lstm", prefix=LONG
    ),
    "names that are numbers": lambda: RNNWeights.from_torch(dict.fromkeys(range(10**5)), "lstm"),
    "a long mode": lambda: RNNWeights.from_torch(LSTM, LONG),
    "a mode with many entries": lambda: RNNWeights.from_torch(LSTM, list(MANY)),
    "a dtype with many fields": lambda: RNNWeights.from_torch(
        LSTM | {"weight_ih_l0": np.zeros(3, [(name, "f4") for name in MANY])}, "lstm"
    ),
    "a long layout": lambda: RNNWeights.from_torch(LSTM, "lstm", backend=LONG),
    "a flag that is a list": lambda: RNNWeights.from_keras(
        [np.ones((3, 12))], "gru", reset_after=list(MANY)
    ),
    "a long input of a node": lambda: RNNWeights.from_onnx(node(input=["X", LONG, LONG]), {}),
    "a long operator": lambda: RNNWeights.from_onnx(node(op_type=LONG), {}),
    "a long attribute": lambda: RNNWeights.from_onnx(
        node(attribute=[attribute(LONG)]), {"W": np.ones((1, 16, 3)), "R": np.ones((1, 16, 4))}
    ),
    "many activations": lambda: RNNWeights.from_onnx(
        node(attribute=[attribute("activations", type=8, strings=[b"Tanh"] * 100_000)]),
        {"W": np.ones((1, 16, 3)), "R": np.ones((1, 16, 4))},
    ),
    "many nodes": lambda: RNNWeights.from_onnx(
        [node(attribute=[]), node(op_type="GRU", attribute=[])] * 5_000, {}
    ),
    "a long reset": lambda: RNNWeights.from_onnx(
        np.ones((1, 12, 3)), np.ones((1, 12, 4)), mode="gru", linear_before_reset=LONG
    ),
    "names of no cell of Flax": lambda: RNNWeights.from_flax(MANY),
    "unexpected names in Flax": lambda: RNNWeights.from_flax({"i": 0, "h": 0} | MANY),
    "unexpected names in a layer of Flax": lambda: RNNWeights.from_flax({"i": MANY, "h": MANY}),
    "unexpected names in Equinox": lambda: RNNWeights.from_equinox(
        {"weight_ih": np.ones((16, 3)), "weight_hh": np.ones((16, 4))} | MANY
    ),
    "modes of many cells": lambda: RNNWeights.from_equinox(
        [
            {"weight_ih": np.ones((16, 4)), "weight_hh": np.ones((16, 4))},
            {"weight_ih": np.ones((12, 4)), "weight_hh": np.ones((12, 4))},
        ]
        * 2_000
    ),
    "directions of many layers": lambda: RNNWeights.from_flax(
        [{"i": {"kernel": np.ones((4, 4))}, "h": {"kernel": np.ones((4, 4))}}] * 2_000
        + [[{"i": {"kernel": np.ones((4, 4))}, "h": {"kernel": np.ones((4, 4))}}] * 2]
    ),
    "a long start": lambda: RNNWeights.random(SPEC, np.random.default_rng(0), like=LONG),
    "a shape of many dimensions": lambda: RNNSpec.from_weight_shapes("gru", [(1,) * 10**6] * 2),
    "a long dtype": lambda: RNNSpec(mode="gru", input_size=3, hidden_size=4, dtype=LONG),
    "a long option": lambda: RNNProblem.dense(SPEC, steps=2, batch=3, options={LONG: 1}),
    "a long algorithm": lambda: RNNProblem.dense(
        SPEC, steps=2, batch=3, options={"algorithm": LONG}
    ),
    "a flag that is long": lambda: RNNProblem.dense(
        SPEC, steps=2, batch=3, options={"validate": LONG}
    ),
    "many bounds": lambda: RNNProblem.dense(
        SPEC, steps=2, batch=3, options={"clip": [0.0] * 10**6}
    ),
    "a long kernel": lambda: ConvSpec(in_channels=1, out_channels=1, kernel=LONG),
    "a long padding": lambda: ConvSpec(in_channels=1, out_channels=1, kernel=(3,), padding=LONG),
    "weights of many dimensions": lambda: ConvSpec.from_weight_shape((1,) * 10**6),
}


@pytest.mark.parametrize("call", CASES.values(), ids=list(CASES))
def test_a_message_about_long_input_is_short(call):
    with pytest.raises((TypeError, ValueError)) as raised:
        call()
    assert len(str(raised.value)) < MAX_CHARS


def test_a_message_counts_the_names_that_it_leaves_out():
    message = r"^state_dict: unexpected: name0, name1, .*, name7, 99,992 more$"
    with pytest.raises(ValueError, match=message):
        RNNWeights.from_torch(LSTM | MANY, "lstm")


MANY_LAYERS = """
import dnnffi
names = ["weight_ih_l0", "weight_ih_l9999", *(f"weight_{at}" for at in range(150_000))]
try:
    dnnffi.RNNWeights.from_torch(dict.fromkeys(names))
except ValueError as error:
    print(error)
"""


def test_names_of_many_layers_among_many_others_are_refused_soon():
    assert "missing: weight_hh_l0, " in bounded.run(MANY_LAYERS)


def test_a_long_name_keeps_its_ends():
    with pytest.raises(ValueError, match=r"^state_dict: unexpected: x{100}\.\.\.x{100}$"):
        RNNWeights.from_torch(LSTM | {LONG: 0}, "lstm")


def test_an_integer_of_many_digits_is_shown_by_its_bits():
    message = r"^w must have no dimension of size 0; got shape \(0, an integer of 16610 bits"
    with pytest.raises(ValueError, match=message):
        ConvSpec.from_weight_shape((0, 10**5_000, 1))


def test_an_option_that_is_a_long_list_is_refused_briefly():
    with pytest.raises(TypeError) as raised:
        dnnffi.lstm(np.zeros((2, 3, 3)), None, [], options={"algorithm": [LONG] * 1_000})
    assert len(str(raised.value)) < MAX_CHARS
