"""ONNX's own cases for its operators, recorded by `oracle_onnx_nodes.py`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from record import decoded
from test_onnx import attribute

import dnnffi
from dnnffi import RNNWeights

PATH = Path(__file__).with_name("recorded_onnx_nodes.json")
RECORD = json.loads(PATH.read_text(encoding="utf-8"))
CASES, OPERATORS = RECORD["cases"], RECORD["operators"]
RESET = r"^linear_before_reset must be 1; with 0, which is ONNX's default, .*; the node has 0$"
REVERSE = r"^direction must be forward, or bidirectional with two directions of weights; got 'rev"
REFUSED = {
    "test_lstm_with_peepholes": r"^P: the node has peepholes \(P\), which no backend has$",
    "test_lstm_reverse": REVERSE,
    "test_gru_reverse": REVERSE,
    "test_simple_rnn_reverse": REVERSE,
    "test_gru_defaults": RESET,
    "test_gru_with_initial_bias": RESET,
    "test_gru_seq_length": RESET,
    "test_gru_batchwise": RESET,
    "test_gru_bidirectional": RESET,
}
# One step from a state of zeros: the reset gate has nothing to act on, wherever it acts.
OF_ONE_STEP = ("test_gru_defaults", "test_gru_with_initial_bias", "test_gru_batchwise")


def named(names, taken):
    found = [case for case in CASES if (case["name"] in names) is taken]
    return pytest.mark.parametrize("case", found, ids=lambda case: case["name"])


def node_of(case):
    values = case["attributes"].items()
    return SimpleNamespace(
        op_type=case["op_type"],
        input=case["input"],
        attribute=[
            attribute(name, value.encode() if isinstance(value, str) else value)
            for name, value in values
        ],
    )


def check(case, weights):
    """Check that the network's outputs for X are the case's Y, Y_h and Y_c."""
    spec, by_batch = weights.spec, case["attributes"].get("layout", 0) == 1
    x = decoded(case["read"]["X"])
    y, state = getattr(dnnffi, spec.mode)(x, None, weights, batch_first=by_batch)
    states = state if spec.has_cell else (state,)
    y = y.reshape(*y.shape[:2], spec.num_directions, spec.hidden_size)
    found = {"Y": y if by_batch else y.swapaxes(1, 2)}
    for name, one in zip(("Y_h", "Y_c"), states, strict=False):
        found[name] = one.swapaxes(0, 1) if by_batch else one
    assert case["given"]
    for name, expected in decoded(case["given"]).items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-6, strict=True)


@named(REFUSED, False)
def test_a_node_gives_what_onnx_says(case):
    check(case, RNNWeights.from_onnx(node_of(case), decoded(case["read"])))


@named(REFUSED, True)
def test_a_node_of_another_function_is_refused(case):
    with pytest.raises(ValueError, match=REFUSED[case["name"]]):
        RNNWeights.from_onnx(node_of(case), decoded(case["read"]))


@named(OF_ONE_STEP, True)
def test_a_gru_of_one_step_gives_what_onnx_says(case):
    node, read = node_of(case), decoded(case["read"])
    node.attribute.append(attribute("linear_before_reset", 1))
    check(case, RNNWeights.from_onnx(node, read))


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# Another value of an attribute than the one of a plain node, by its type.
VALUES = {1: 2.0, 2: 7, 3: b"reverse", 6: [0.5], 8: [b"Elu"]}
# Attributes that change the shapes of outputs only, whatever their value is.
SHAPES_ONLY = {"output_sequence"}


def plain_node(operator, inputs=("X", "W", "R"), **attributes):
    if operator == "GRU":
        attributes = {"linear_before_reset": 1} | attributes
    return node_of({"op_type": operator, "input": list(inputs), "attributes": attributes})


def plain_arrays(operator):
    rows = GATES[operator] * 4
    return {"W": np.ones((1, rows, 3), "float32"), "R": np.ones((1, rows, 4), "float32")}


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_attribute_of_onnx_is_looked_at(operator):
    for name, number in OPERATORS[operator]["attributes"].items():
        node = plain_node(operator, **{name: VALUES[number]})
        if name in SHAPES_ONLY:
            RNNWeights.from_onnx(node, plain_arrays(operator))
            continue
        with pytest.raises(ValueError, match=rf"^(the {name}|{name})\b") as raised:
            RNNWeights.from_onnx(node, plain_arrays(operator))
        assert "attribute of type" not in str(raised.value)


@pytest.mark.parametrize("operator", OPERATORS)
def test_attributes_that_onnx_does_not_list_are_refused(operator):
    listed = OPERATORS[operator]["attributes"]
    others = {name for one in OPERATORS.values() for name in one["attributes"]} - set(listed)
    for name in (*others, "made_up"):
        with pytest.raises(ValueError, match=rf"^unknown attribute {name} of the node"):
            RNNWeights.from_onnx(plain_node(operator, **{name: 0}), plain_arrays(operator))


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_input_of_onnx_is_looked_at(operator):
    inputs = OPERATORS[operator]["inputs"]
    assert inputs[:4] == ["X", "W", "R", "B"]
    for at, name in enumerate(inputs[4:], 4):
        node = plain_node(operator, ["X", "W", "R", *[""] * (at - 3), "given"])
        with pytest.raises(ValueError, match=rf"^{name}: the node "):
            RNNWeights.from_onnx(node, plain_arrays(operator) | {"given": np.ones((1, 2, 4))})
    with pytest.raises(ValueError, match=rf"^a node of {operator} has {len(inputs)} inputs"):
        RNNWeights.from_onnx(plain_node(operator, [*inputs, "given"]), plain_arrays(operator))


def test_a_list_of_nodes_has_one():
    with pytest.raises(ValueError, match=r"^nodes must have at least one node; got none$"):
        RNNWeights.from_onnx([], {})


def test_the_versions_of_the_operators_were_recorded():
    assert [one["versions"] for one in OPERATORS.values()] == [
        [1, 7, 14, 22],
        [1, 3, 7, 14, 22],
        [1, 7, 14, 22],
    ]
    assert all(one["domains"] == [""] for one in OPERATORS.values())


def test_all_cases_were_recorded():
    names = {case["name"] for case in CASES}
    assert len(names) == len(CASES) == 18
    assert {case["op_type"] for case in CASES} == {"LSTM", "GRU", "RNN"}
    assert REFUSED.keys() <= names
