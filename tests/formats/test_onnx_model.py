"""Whole ONNX models: nodes in subgraphs and functions, folded constants, and what is refused."""

from __future__ import annotations

import builtins
import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dnnffi import RNNWeights
from dnnffi.formats import onnx_model

INPUTS, H = 3, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OPSET = 16


def floats(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, shape).astype("float32")


def arrays_of(operator="LSTM", seed=0, directions=1):
    """W, R and B of a node."""
    rows = GATES[operator] * H
    shapes = (directions, rows, INPUTS), (directions, rows, H), (directions, 2 * rows)
    return [floats(*shape, seed=seed + at) for at, shape in enumerate(shapes)]


def rnn_node(inputs=("x", "W", "R", "B"), operator="LSTM", name="rnn", output="y", **attributes):
    return helper.make_node(
        operator, list(inputs), [output], name=name, hidden_size=H, **attributes
    )


def constant(output, array, name=""):
    tensor = numpy_helper.from_array(np.asarray(array))
    return helper.make_node("Constant", [], [output], name=name, value=tensor)


def value_info(name, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, None)


def graph_of(nodes, constants=(), inputs=("x",), outputs=("y",), name="graph"):
    tensors = [numpy_helper.from_array(one, key) for key, one in dict(constants).items()]
    return helper.make_graph(
        nodes, name, list(map(value_info, inputs)), list(map(value_info, outputs)), tensors
    )


def model_of(nodes, constants=(), functions=(), opset=OPSET, **graph):
    return helper.make_model(
        graph_of(nodes, constants, **graph),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("own", 1)],
        functions=functions,
        ir_version=8,
    )


def named_arrays(operator="LSTM", seed=0):
    return dict(zip("WRB", arrays_of(operator, seed), strict=True))


def check(weights, arrays):
    """The weights are those of W, R and B."""
    for found, expected in zip(weights.to_onnx(), arrays, strict=True):
        np.testing.assert_array_equal(found, expected)


def as_torch_exports(arrays, weights=("w_ih", "w_hh", "b_ih", "b_hh"), axes=True, prefix=""):
    """Nodes that make W, R and B of PyTorch's arrays, and these arrays: Slice, Concat, Unsqueeze.

    Gates are in the order i f g o in the arrays, i o f g in the operator.
    """
    W, R, B = (one[0] for one in arrays)
    parts = W, R, *B.reshape(2, -1)
    order = [0, 2, 3, 1]  # of the operator's gates i o f c those of PyTorch's i f g o
    given = {
        name: part.reshape(4, H, *part.shape[1:])[order].reshape(part.shape)
        for name, part in zip(weights, parts, strict=True)
    }
    nodes = [constant(f"{prefix}zero", [0]), constant(f"{prefix}unused", 1.0)]
    for name in weights:
        cuts = []
        for start, end in ((0, H), (3 * H, 4 * H), (H, 3 * H)):
            cut = f"{prefix}{name}_{start}"
            nodes += [constant(f"{cut}_start", [start]), constant(f"{cut}_end", [end])]
            inputs = [name, f"{cut}_start", f"{cut}_end", f"{prefix}zero"]
            nodes.append(helper.make_node("Slice", inputs, [cut]))
            cuts.append(cut)
        nodes.append(helper.make_node("Concat", cuts, [f"{prefix}{name}_iofc"], axis=0))
    joined = [f"{prefix}{name}_iofc" for name in weights]
    nodes.append(helper.make_node("Concat", joined[2:], [f"{prefix}b"], axis=0))
    for source, target in zip((*joined[:2], f"{prefix}b"), "WRB", strict=True):
        inputs, more = [source, f"{prefix}zero"], {}
        if not axes:
            inputs, more = [source], {"axes": [0]}
        nodes.append(helper.make_node("Unsqueeze", inputs, [f"{prefix}{target}"], **more))
    return nodes, given


def test_initializers_are_read():
    model = model_of([rnn_node()], named_arrays())
    found = RNNWeights.all_from_onnx(model)
    assert list(found) == ["rnn"]
    check(found["rnn"], arrays_of())
    check(RNNWeights.from_onnx(model), arrays_of())


def test_a_path_is_read(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model_of([rnn_node()], named_arrays()), path)
    check(RNNWeights.from_onnx(path), arrays_of())
    check(RNNWeights.all_from_onnx(str(path))["rnn"], arrays_of())


@pytest.mark.parametrize("opset", [11, 16])
def test_weights_behind_constant_nodes_are_folded(opset):
    arrays = arrays_of()
    nodes, given = as_torch_exports(arrays, axes=opset > 12)
    model = model_of([*nodes, rnn_node()], given, opset=opset)
    check(RNNWeights.from_onnx(model), arrays)


def test_nodes_in_any_order_are_folded():
    arrays = arrays_of()
    nodes, given = as_torch_exports(arrays)
    check(RNNWeights.from_onnx(model_of([rnn_node(), *nodes[::-1]], given)), arrays)


def test_weights_of_constant_nodes_in_branches_are_found():
    # spox writes Silero's model so: weights are unnamed Constant nodes in both branches of an If.
    branches = {}
    for at, name in enumerate(("then_branch", "else_branch")):
        nodes, given = as_torch_exports(arrays_of(seed=10 * at), prefix=name)
        made = [constant(key, one) for key, one in given.items()]
        last = rnn_node(["x", *(f"{name}{one}" for one in "WRB")], name=f"{name}/LSTM", output=name)
        branches[name] = graph_of([*made, *nodes, last], inputs=(), outputs=(name,))
    choice = helper.make_node("If", ["condition"], ["y"], **branches)
    found = RNNWeights.all_from_onnx(model_of([choice], inputs=("x", "condition")))
    assert sorted(found) == ["else_branch/LSTM", "then_branch/LSTM"]
    check(found["then_branch/LSTM"], arrays_of())
    check(found["else_branch/LSTM"], arrays_of(seed=10))


def test_a_subgraph_reads_values_of_the_graph_around_it():
    # As PyTorch exports a condition on the shape of x: weights outside, nodes inside.
    arrays = arrays_of()
    nodes, given = as_torch_exports(arrays)
    inner = graph_of([*nodes, rnn_node(output="inner")], inputs=(), outputs=("inner",))
    empty = graph_of([helper.make_node("Identity", ["x"], ["z"])], inputs=(), outputs=("z",))
    outer_if = helper.make_node("If", ["c"], ["w"], then_branch=inner, else_branch=empty)
    middle = graph_of([outer_if], inputs=(), outputs=("w",))
    choice = helper.make_node("If", ["c"], ["y"], then_branch=empty, else_branch=middle)
    check(RNNWeights.from_onnx(model_of([choice], given, inputs=("x", "c"))), arrays)


@pytest.mark.parametrize("operator", ["Loop", "Scan"])
def test_the_body_of_a_loop_is_searched(operator):
    body = graph_of([rnn_node(["step", "W", "R", "B"])], inputs=("step",))
    more = {"num_scan_inputs": 1} if operator == "Scan" else {}
    loop = helper.make_node(operator, ["x"], ["y"], body=body, **more)
    check(RNNWeights.from_onnx(model_of([loop], named_arrays())), arrays_of())


def function_of(nodes, inputs, name="own_lstm", attributes=(), defaults=()):
    return helper.make_function(
        "own",
        name,
        inputs,
        ["y"],
        nodes,
        [helper.make_opsetid("", OPSET), helper.make_opsetid("own", 1)],
        list(attributes),
        list(defaults),
    )


def call(inputs, name="call", function="own_lstm", output="y", **attributes):
    return helper.make_node(function, inputs, [output], name=name, domain="own", **attributes)


def test_a_function_is_read_for_each_call():
    function = function_of([rnn_node(["x", "w", "r", "b"])], ["x", "w", "r", "b"])
    constants = {key + "2": one for key, one in named_arrays(seed=10).items()} | named_arrays()
    calls = [
        call(["x", "W", "R", "B"], "first", output="mid"),
        call(["mid", "W2", "R2", "B2"], "second"),
    ]
    found = RNNWeights.all_from_onnx(model_of(calls, constants, [function]))
    assert list(found) == ["first/rnn", "second/rnn"]
    check(found["first/rnn"], arrays_of())
    check(found["second/rnn"], arrays_of(seed=10))


def test_an_argument_that_a_call_leaves_out_is_absent():
    function = function_of([rnn_node(["x", "w", "r", "b"])], ["x", "w", "r", "b"])
    model = model_of([call(["x", "W", "R"])], named_arrays(), [function])
    assert not RNNWeights.from_onnx(model).spec.bias


def test_the_result_of_a_function_is_a_constant():
    cast = helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)
    function = function_of([cast], ["w"], "to_float")
    W, R, B = arrays_of()
    halves = {"W16": W.astype("float16"), "R": R, "B": B}
    nodes = [call(["W16"], function="to_float", output="W"), rnn_node()]
    weights = RNNWeights.from_onnx(model_of(nodes, halves, [function]))
    check(weights, [W.astype("float16").astype("float32"), R, B])


def attribute_reference(node, name, parameter, kind):
    reference = node.attribute.add()
    reference.name, reference.ref_attr_name, reference.type = name, parameter, kind


@pytest.mark.parametrize("given", [{}, {"reset": 1}, {"reset": 0}])
def test_attributes_of_a_function_are_those_of_the_call(given):
    node = rnn_node(["x", "w", "r", "b"], "GRU")
    attribute_reference(node, "linear_before_reset", "reset", 2)
    default = helper.make_attribute("reset", 1)
    function = function_of([node], ["x", "w", "r", "b"], defaults=[default])
    model = model_of([call(["x", "W", "R", "B"], **given)], named_arrays("GRU"), [function])
    if given.get("reset") == 0:
        with pytest.raises(ValueError, match="linear_before_reset must be 1"):
            RNNWeights.from_onnx(model)
    else:
        check(RNNWeights.from_onnx(model), arrays_of("GRU"))


def test_an_attribute_whose_parameter_has_no_value_is_absent():
    node = rnn_node(["x", "w", "r", "b"])
    attribute_reference(node, "clip", "bound", 1)
    function = function_of([node], ["x", "w", "r", "b"], attributes=["bound"])
    model = model_of([call(["x", "W", "R", "B"])], named_arrays(), [function])
    check(RNNWeights.from_onnx(model), arrays_of())


FOLDED = {
    "Identity": ([], {}, lambda w: w),
    "Transpose": ([], {"perm": [0, 2, 1]}, lambda w: w.swapaxes(1, 2)),
    "Reshape": ([np.array([1, -1, INPUTS])], {}, lambda w: w.reshape(1, INPUTS, 4 * H)),
    "Squeeze": ([np.array([0])], {}, lambda w: w[None]),
    "Gather": ([np.array([1])], {"axis": 0}, lambda w: np.stack([0 * w[0], w[0]])),
    "Neg": ([], {}, lambda w: -w),
    "Add": ([np.float32(0)], {}, lambda w: w),
    "Mul": ([np.float32(2)], {}, lambda w: w / 2),
    "Tile": ([np.array([1, 2, 1])], {}, lambda w: w[:, : 2 * H]),
    "DequantizeLinear": ([np.float32(0.5)], {}, lambda w: (2 * w).astype("int8")),
}


@pytest.mark.parametrize("operator", FOLDED)
def test_operators_on_constants_are_evaluated(operator):
    W, R, B = arrays_of()
    if operator == "Tile":
        W[:, 2 * H :] = W[:, : 2 * H]
    if operator == "DequantizeLinear":
        W = (np.round(W * 20) / 2).astype("float32")
    more, attributes, inverse = FOLDED[operator]
    constants = {"stored": np.ascontiguousarray(inverse(W)), "R": R, "B": B}
    constants |= {f"more{at}": one for at, one in enumerate(more)}
    inputs = ["stored", *(f"more{at}" for at in range(len(more)))]
    node = helper.make_node(operator, inputs, ["W"], **attributes)
    # onnx evaluates DequantizeLinear from version 19 on.
    model = model_of([node, rnn_node()], constants, opset=19)
    check(RNNWeights.from_onnx(model), [W, R, B])


def test_each_result_of_a_node_is_found():
    both = floats(1, 8 * H, INPUTS)
    node = helper.make_node("Split", ["both"], ["W", "other"], axis=1)
    constants = named_arrays() | {"both": both}
    del constants["W"]
    nodes = [node, rnn_node(), rnn_node(["y", "other", "R", "B"], name="second", output="z")]
    found = RNNWeights.all_from_onnx(model_of(nodes, constants))
    for name, expected in zip(("rnn", "second"), np.split(both, 2, axis=1), strict=True):
        np.testing.assert_array_equal(found[name].to_onnx()[0], expected)


def test_states_of_zeros_are_folded():
    shape = constant("shape", np.array([1, 2, H]))
    zeros = helper.make_node("ConstantOfShape", ["shape"], ["h"])
    nodes = [shape, zeros, rnn_node(["x", "W", "R", "B", "", "h", "h"])]
    check(RNNWeights.from_onnx(model_of(nodes, named_arrays())), arrays_of())


def test_a_state_that_depends_on_an_input_is_not_looked_at():
    node = helper.make_node("Tanh", ["given"], ["h"])
    nodes = [node, rnn_node(["x", "W", "R", "B", "", "h", "h"])]
    model = model_of(nodes, named_arrays(), inputs=("x", "given"))
    check(RNNWeights.from_onnx(model), arrays_of())


def test_a_constant_state_is_refused():
    constants = named_arrays() | {"start": floats(1, 1, H), "shape": np.array([1, 2, H])}
    state = helper.make_node("Expand", ["start", "shape"], ["h"])
    model = model_of([state, rnn_node(["x", "W", "R", "B", "", "h"], "LSTM")], constants)
    expected = (
        r"^the model, node 'rnn': initial_h: the node begins from the constant 'h', which is not "
        r"zero; weights have no state\. Read the node by from_onnx\(node, initializers\) without "
        r"it and pass it to the call, in hx: initial_h = its value$"
    )
    with pytest.raises(ValueError, match=expected):
        RNNWeights.from_onnx(model)


def test_constant_lengths_are_refused():
    constants = named_arrays() | {"lens": np.array([2], "int32")}
    model = model_of([rnn_node(["x", "W", "R", "B", "lens"])], constants)
    expected = r"sequence_lens: .* the constant 'lens', .*without them and pass them to the call: l"
    with pytest.raises(ValueError, match=expected):
        RNNWeights.from_onnx(model)


def test_a_state_of_an_operator_that_is_not_evaluated_is_refused():
    constants = named_arrays() | {"start": floats(1, 1, H)}
    state = helper.make_node("Tanh", ["start"], ["h"])
    model = model_of([state, rnn_node(["x", "W", "R", "B", "", "h"])], constants)
    with pytest.raises(ValueError, match=r"initial_h, 'h', must be a constant; it is a result"):
        RNNWeights.from_onnx(model)


def test_names_are_deterministic():
    names = ["", "a", "a", "LSTM_0", "a_2", "", "GRU_5"]
    nodes = [rnn_node(name=name, output=f"y{at}") for at, name in enumerate(names)]
    nodes[5] = rnn_node(["x", "V", "S"], "GRU", "", "y5", linear_before_reset=1)
    W, R, _ = arrays_of("GRU")
    model = model_of(nodes, named_arrays() | {"V": W, "S": R})
    expected = ["LSTM_0_2", "a", "a_3", "LSTM_0", "a_2", "GRU_5_2"]
    found = list(RNNWeights.all_from_onnx(model_of(nodes[:6], named_arrays() | {"V": W, "S": R})))
    assert found == [*expected[:5], "GRU_5"]
    assert list(RNNWeights.all_from_onnx(model)) == [*expected, "GRU_5"]


def two_layers():
    first, second = arrays_of(), arrays_of(seed=10)
    second[0] = floats(1, 4 * H, H, seed=20)
    constants = dict(zip(("W", "R", "B", "W2", "R2", "B2"), [*first, *second], strict=True))
    nodes = [
        rnn_node(name="lower", output="mid"),
        rnn_node(["mid", "W2", "R2", "B2"], name="upper"),
    ]
    return model_of(nodes, constants), first, second


def test_one_node_is_selected():
    model, _, second = two_layers()
    check(RNNWeights.from_onnx(model, node="upper"), second)


def test_a_list_of_nodes_is_a_network_of_layers():
    model, first, second = two_layers()
    weights = RNNWeights.from_onnx(model, node=["lower", "upper"], mode="lstm")
    assert weights.spec.num_layers == 2
    for found, layers in zip(weights.to_onnx(), zip(first, second, strict=True), strict=True):
        for one, expected in zip(found, layers, strict=True):
            np.testing.assert_array_equal(one, expected)


def test_several_nodes_are_listed():
    with pytest.raises(ValueError, match=r"^the model has 2 nodes .* they are lower, upper$"):
        RNNWeights.from_onnx(two_layers()[0])


@pytest.mark.parametrize("node", ["other", [], ["lower", "other"]])
def test_an_unknown_node_is_refused(node):
    with pytest.raises(ValueError, match=r"^the model has no node .*; its nodes are lower, upper$"):
        RNNWeights.from_onnx(two_layers()[0], node=node)


@pytest.mark.parametrize("node", [0, [None], b"lower"])
def test_a_node_is_a_name(node):
    with pytest.raises(TypeError, match=r"^node must be a name, or a list of names, one for each"):
        RNNWeights.from_onnx(two_layers()[0], node=node)


def test_a_model_without_such_nodes():
    model = model_of([helper.make_node("Relu", ["x"], ["y"])])
    assert RNNWeights.all_from_onnx(model) == {}
    with pytest.raises(ValueError, match=r"its nodes are none: it has no LSTM, GRU or RNN$"):
        RNNWeights.from_onnx(model)


def test_an_operator_of_another_domain_is_no_node():
    other = helper.make_node("LSTM", ["x", "W", "R"], ["y"], domain="own")
    assert RNNWeights.all_from_onnx(model_of([other], named_arrays())) == {}


def test_a_refused_node_is_named():
    nodes = [rnn_node(), rnn_node(["x", "V", "S"], "GRU", "resets first", "z")]
    W, R, _ = arrays_of("GRU")
    model = model_of(nodes, named_arrays() | {"V": W, "S": R})
    with pytest.raises(ValueError, match=r"^the model, node 'resets first': linear_before_reset"):
        RNNWeights.all_from_onnx(model)
    check(RNNWeights.from_onnx(model, node="rnn"), arrays_of())


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [([floats(1)], {}), ([None, floats(1)], {}), ([], {"linear_before_reset": 1})],
)
def test_a_model_has_no_other_arguments(arguments, keywords):
    with pytest.raises(TypeError, match=r"^from_onnx takes a model and node=, without R, B and li"):
        RNNWeights.from_onnx("model.onnx", *arguments, **keywords)


def test_a_node_is_named_of_a_model_only():
    with pytest.raises(TypeError, match=r"^node= is for a model: a path or a ModelProto; got nda"):
        RNNWeights.from_onnx(*arrays_of(), mode="lstm", node="rnn")


@pytest.mark.parametrize("given", [None, b"bytes", floats(1), model_of([]).graph])
def test_another_object_is_no_model(given):
    with pytest.raises(TypeError, match=r"^model must be a path or an onnx\.ModelProto; got "):
        RNNWeights.all_from_onnx(given)


def test_the_mode_is_compared():
    with pytest.raises(ValueError, match=r"^the model, node 'rnn': mode is 'gru'; the node is 'ls"):
        RNNWeights.from_onnx(model_of([rnn_node()], named_arrays()), mode="gru")


def test_weights_that_depend_on_an_input_are_refused():
    node = helper.make_node("Unsqueeze", ["given", "zero"], ["W"])
    constants = named_arrays() | {"zero": np.array([0])}
    del constants["W"]
    model = model_of([node, rnn_node()], constants, inputs=("x", "given"))
    expected = r"W, 'W', must be a constant; it depends on the input 'given' of the model$"
    with pytest.raises(ValueError, match=expected):
        RNNWeights.from_onnx(model)
    direct = model_of([rnn_node(["x", "given", "R", "B"])], constants, inputs=("x", "given"))
    with pytest.raises(ValueError, match=r"it is the input 'given' of the model$"):
        RNNWeights.from_onnx(direct)


def test_an_input_with_an_initializer_has_its_value():
    model = model_of([rnn_node()], named_arrays(), inputs=("x", "W"))
    check(RNNWeights.from_onnx(model), arrays_of())


def test_the_result_of_a_choice_is_not_evaluated():
    branch = graph_of([constant("z", floats(1, 16, INPUTS))], inputs=(), outputs=("z",))
    choice = helper.make_node("If", ["c"], ["V"], then_branch=branch, else_branch=branch)
    model = model_of([choice, rnn_node(["x", "V", "R", "B"])], named_arrays(), inputs=("x", "c"))
    with pytest.raises(ValueError, match=r"it is a result of If, which chooses or repeats a subg"):
        RNNWeights.from_onnx(model)


def test_random_numbers_are_not_evaluated():
    drawn = helper.make_node("RandomNormal", [], ["V"], shape=[1, 16, INPUTS])
    model = model_of([drawn, rnn_node(["x", "V", "R", "B"])], named_arrays())
    expected = r"it is a result of RandomNormal, which is not evaluated; evaluated are Constant, I"
    with pytest.raises(ValueError, match=expected):
        RNNWeights.from_onnx(model)


def test_a_missing_value_is_named():
    constants = named_arrays()
    del constants["R"]
    with pytest.raises(ValueError, match=r"the model has no value 'R', which R of the node reads"):
        RNNWeights.from_onnx(model_of([rnn_node()], constants))
    nodes = [helper.make_node("Identity", ["lost"], ["R"], name="copy"), rnn_node()]
    with pytest.raises(ValueError, match=r"has no value 'lost', which Identity 'copy' reads"):
        RNNWeights.from_onnx(model_of(nodes, constants))


def test_a_value_of_an_inner_graph_is_unknown_outside():
    branch = graph_of([constant("V", floats(1, 16, INPUTS))], inputs=(), outputs=("V",))
    choice = helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    nodes = [choice, rnn_node(["x", "V", "R", "B"])]
    with pytest.raises(ValueError, match=r"the model has no value 'V'"):
        RNNWeights.from_onnx(model_of(nodes, named_arrays(), inputs=("x", "c")))


def test_a_cycle_is_refused():
    nodes = [
        helper.make_node("Identity", ["b"], ["a"]),
        helper.make_node("Add", ["W", "a"], ["b"]),
        rnn_node(["x", "a", "R", "B"]),
    ]
    with pytest.raises(ValueError, match=r"the graph has a cycle: '[ab]' depends on itself$"):
        RNNWeights.from_onnx(model_of(nodes, named_arrays()))


def test_a_cycle_through_a_function_is_refused():
    function = function_of([], ["y"], "same")
    nodes = [call(["a"], function="same", output="a"), rnn_node(["x", "a", "R", "B"])]
    with pytest.raises(ValueError, match=r"the graph has a cycle"):
        RNNWeights.from_onnx(model_of(nodes, named_arrays(), [function]))


def test_two_values_of_one_name_are_refused():
    nodes = [constant("W", floats(1, 16, INPUTS)), rnn_node()]
    with pytest.raises(ValueError, match=r"^the model: two values of a graph have the name 'W'$"):
        RNNWeights.from_onnx(model_of(nodes, named_arrays()))


def test_a_function_that_calls_itself_is_refused():
    function = function_of([call(["x"])], ["x"])
    with pytest.raises(ValueError, match=r"a function may not call itself$"):
        RNNWeights.all_from_onnx(model_of([call(["x"])], functions=[function]))


def test_calls_that_multiply_are_refused():
    functions = [function_of([rnn_node(["x", "x", "x"])], ["x"], "f0")]
    for at in range(1, 30):
        twice = [call(["x"], name, f"f{at - 1}", f"y{name}") for name in "ab"]
        functions.append(function_of(twice, ["x"], f"f{at}"))
    model = model_of([call(["x"], function="f29")], functions=functions)
    with pytest.raises(ValueError, match=r"calls of functions have more than 100,000 nodes"):
        RNNWeights.all_from_onnx(model)


def test_constants_that_double_are_refused():
    nodes = [helper.make_node("Concat", ["W", "W"], ["c0"], axis=0)]
    nodes += [
        helper.make_node("Concat", [f"c{at}"] * 2, [f"c{at + 1}"], axis=0, name=f"join {at}")
        for at in range(60)
    ]
    model = model_of([*nodes, rnn_node(["x", "c60", "R", "B"])], named_arrays())
    expected = (
        r"the result of Concat 'join 1\d' is not computed: .* more than 64 times the bytes of"
    )
    with pytest.raises(ValueError, match=expected):
        RNNWeights.from_onnx(model)


@pytest.mark.parametrize(
    ("operator", "inputs"),
    [
        ("ConstantOfShape", [np.array([2**40, 2**20])]),
        ("Expand", [np.float32(1), np.array([2**30, 2**30])]),
        ("Tile", [np.ones((1, 1), "float32"), np.array([2**30, 2**30])]),
        ("Gather", [np.ones((1, 2**16), "float32"), np.zeros(2**16, "int64")]),
        ("Add", [np.ones((2**16, 1), "float32"), np.ones((1, 2**16), "float32")]),
    ],
)
def test_a_large_result_is_refused_before_it_is_computed(operator, inputs):
    names = [f"in{at}" for at in range(len(inputs))]
    constants = named_arrays() | dict(zip(names, inputs, strict=True))
    nodes = [helper.make_node(operator, names, ["V"], name="large")]
    model = model_of([*nodes, rnn_node(["x", "V", "R", "B"])], constants)
    with pytest.raises(ValueError, match=rf"the result of {operator} 'large' .* more than 64 "):
        RNNWeights.from_onnx(model)


def test_many_nodes_of_the_same_weights_are_refused(monkeypatch):
    monkeypatch.setattr(onnx_model, "MIN_BUDGET_BYTES", 0)
    nodes = [rnn_node(["x", "W", "R"], output=f"y{at}") for at in range(100)]
    W, R = floats(1, 4 * 100, 100), floats(1, 4 * 100, 100)
    for node in nodes:
        del node.attribute[:]
    with pytest.raises(ValueError, match=r"^the model, node 'rnn_\d+': .* more than 64 t"):
        RNNWeights.all_from_onnx(model_of(nodes, {"W": W, "R": R}))


def test_one_of_many_nodes_is_read(monkeypatch):
    monkeypatch.setattr(onnx_model, "MIN_BUDGET_BYTES", 0)
    nodes = [rnn_node(output=f"y{at}") for at in range(1000)]
    check(RNNWeights.from_onnx(model_of(nodes, named_arrays()), node="rnn_7"), arrays_of())


TEXT = helper.make_tensor("text", TensorProto.STRING, [1], [b"text"])


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (helper.make_node("Gather", ["W", "zero"], ["V"], axis=7), "axis must be one of 3 dim"),
        (helper.make_node("Reshape", ["W", "odd"], ["V"]), "cannot be evaluated"),
        (helper.make_node("Expand", ["W", "W"], ["V"]), "sizes must be at most 64 integers"),
        (helper.make_node("Expand", ["W"], ["V"]), "Expand '' cannot be evaluated"),
        (
            helper.make_node("Split", ["W"], ["V"], num_outputs=2**40),
            "more than 64 times the bytes",
        ),
        (
            helper.make_node("ConstantOfShape", ["odd"], ["V"], value=TEXT),
            "value must have numbers of NumPy's types",
        ),
        (
            helper.make_node("DequantizeLinear", ["W", "R"], ["V"], block_size=2**40),
            "block_size must be 0",
        ),
        (
            helper.make_node("DequantizeLinear", ["W", "long"], ["V"], axis=0),
            "more than 64 times the bytes",
        ),
        (helper.make_node("DequantizeLinear", ["W", "odd2"], ["V"], axis=9), "cannot be evaluated"),
        (helper.make_node("DequantizeLinear", ["W"], ["V"]), "cannot be evaluated"),
        (helper.make_node("Cast", ["W"], ["V"], to=8), "to must be a type of numbers"),
        (helper.make_node("Cast", ["W"], ["V"]), "to must be a type of numbers"),
        (helper.make_node("Split", ["W", "odd"], ["V", "u", "v"]), "Split '' cannot be evaluated"),
    ],
)
def test_an_operator_that_does_not_fit_is_named(node, expected):
    constants = named_arrays() | {"zero": np.array([0]), "odd": np.array([7])}
    constants |= {"long": np.ones(2**17, "float32"), "odd2": np.ones(2, "float32")}
    model = model_of([node, rnn_node(["x", "V", "R", "B"])], constants)
    with pytest.raises(ValueError, match=expected):
        RNNWeights.from_onnx(model)


def constant_of(**attributes):
    return helper.make_node("Constant", [], ["V"], name="c", **attributes)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (
            constant_of(value_string=b"text"),
            r"Constant 'c' must have numbers; got value_string, type 3$",
        ),
        (constant_of(), r"Constant 'c' must have one attribute; got $"),
        (
            constant_of(value_int=1, value_float=1.0),
            r"must have one attribute; got value_(int|float), value_(int|float)$",
        ),
        (constant_of(value_floats=[1.0, 2.0]), r"V must have shape"),
        (constant_of(value_ints=[1, 2]), r"V must have one of the dtypes"),
    ],
)
def test_a_constant_is_an_array_of_numbers(node, expected):
    model = model_of([node, rnn_node(["x", "V", "R", "B"])], named_arrays())
    with pytest.raises(ValueError if "dtypes" not in expected else TypeError, match=expected):
        RNNWeights.from_onnx(model)


def damaged(**changes):
    """A model whose tensor W was changed."""
    model = model_of([rnn_node()], named_arrays())
    tensor = model.graph.initializer[0]
    assert tensor.name == "W"
    for name, value in changes.items():
        if name == "dims":
            tensor.dims[:] = value
        else:
            setattr(tensor, name, value)
    return model


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dims": [1, 2**20, INPUTS]}, "12,582,912 bytes expected; got 192"),
        ({"dims": [1, -16, INPUTS]}, r"the tensor 'W' has shape \(1, -16, 3\)"),
        ({"dims": [1] * 65}, "the tensor 'W' has shape"),
        ({"dims": [2**40, 2**40, 2**40]}, "more than 64 times the bytes of the model"),
        ({"raw_data": b""}, "192 bytes expected; got 0"),
        ({"data_type": TensorProto.STRING}, "must have numbers of NumPy's types; got the data_typ"),
        ({"data_type": 99}, "got the data_type 99"),
        ({"data_type": TensorProto.INT32}, "W must have one of the dtypes"),
    ],
)
def test_a_damaged_tensor_is_named(changes, expected):
    with pytest.raises((TypeError, ValueError), match=expected):
        RNNWeights.from_onnx(damaged(**changes))


def test_numbers_of_too_few_values_are_named():
    model = damaged()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1.0] * 5)
    with pytest.raises(ValueError, match=r"the tensor 'W' of shape \(1, 16, 3\) is damaged"):
        RNNWeights.from_onnx(model)


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_dtypes_are_kept(dtype):
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    arrays = [one.astype(kind) for one in arrays_of()]
    model = model_of([rnn_node()], dict(zip("WRB", arrays, strict=True)))
    weights = RNNWeights.from_onnx(model)
    assert weights.spec.dtype == dtype
    check(weights, arrays)


def test_a_sparse_initializer_is_refused():
    model = model_of([rnn_node()], named_arrays())
    del model.graph.initializer[0]
    sparse = model.graph.sparse_initializer.add()
    sparse.values.name = "W"
    with pytest.raises(ValueError, match=r"W, 'W', must be .*; it is a sparse initializer$"):
        RNNWeights.from_onnx(model)


def test_graphs_too_deep_inside_each_other_are_refused(monkeypatch):
    # Protobuf itself parses about 30 of them.
    monkeypatch.setattr(onnx_model, "MAX_DEPTH", 3)
    graph = graph_of([rnn_node()])
    for depth in range(5):
        model = helper.make_model(graph)
        model.graph.initializer.extend(numpy_helper.from_array(*one) for one in weights_items())
        if depth <= 3:
            check(RNNWeights.from_onnx(model), arrays_of())
            node = helper.make_node("If", ["x"], ["y"], then_branch=graph)
            graph = graph_of([node])
        else:
            with pytest.raises(ValueError, match=r"more than 3 deep inside each other"):
                RNNWeights.all_from_onnx(model)


def weights_items():
    return [(one, name) for name, one in named_arrays().items()]


def test_an_attribute_that_occurs_twice_is_refused():
    node = rnn_node()
    node.attribute.add().CopyFrom(node.attribute[0])
    with pytest.raises(ValueError, match=r"LSTM 'rnn' has the attribute hidden_size twice$"):
        RNNWeights.all_from_onnx(model_of([node], named_arrays()))


@pytest.mark.parametrize("content", [b"", b"text", b"\x3a\x05", bytes(100)])
def test_another_file_is_refused(content, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{path} is not (a whole|an) ONNX model"):
        RNNWeights.all_from_onnx(path)


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    whole = model_of([rnn_node()], named_arrays()).SerializeToString()
    for size in range(0, len(whole), 41):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"^{path}"):
            RNNWeights.from_onnx(path)


def test_changed_bytes_give_weights_or_an_error_that_names_the_file(tmp_path):
    path, rng = tmp_path / "model.onnx", np.random.default_rng(0)
    nodes, given = as_torch_exports(arrays_of())
    whole = model_of([*nodes, rnn_node()], given).SerializeToString()
    errors = []
    for _ in range(300):
        changed = np.frombuffer(whole, "uint8").copy()
        changed[rng.integers(len(whole), size=rng.integers(1, 4))] = rng.integers(256)
        path.write_bytes(changed.tobytes())
        try:
            RNNWeights.all_from_onnx(path)
        except (TypeError, ValueError) as error:
            errors.append(str(error))
    assert errors
    assert all(error.startswith(str(path)) for error in errors)


def test_a_fifo_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(OSError, match="is not a regular file but a FIFO"):
        RNNWeights.all_from_onnx(tmp_path / "model.onnx")


def test_a_large_file_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    onnx.save(model_of([rnn_node()], named_arrays()), path)
    monkeypatch.setattr(onnx_model, "MAX_FILE_BYTES", 100)
    with pytest.raises(OSError, match="has more than 100 bytes"):
        RNNWeights.all_from_onnx(path)


def external(folder, location="weights.bin", **entries):
    """The path of a model whose tensor W is in another file."""
    W, R, B = arrays_of()
    (folder / "weights.bin").write_bytes(bytes(8) + W.tobytes())
    model = model_of([rnn_node()], {"W": W, "R": R, "B": B})
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": "8", "length": str(W.nbytes)} | entries
    for key, value in entries.items():
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("entries", [{}, {"length": None}, {"checksum": "abc"}])
def test_data_beside_the_model_is_read(entries, tmp_path):
    path = external(tmp_path, **entries)
    check(RNNWeights.from_onnx(path), arrays_of())


@pytest.mark.parametrize(
    "location",
    ["../weights.bin", "/etc/passwd", "sub/weights.bin", "", ".", "..", "a\\b", "C:weights.bin"],
)
def test_data_elsewhere_is_refused(location, tmp_path):
    with pytest.raises(ValueError, match=r"'W' must be in a file in the model's folder; got the l"):
        RNNWeights.from_onnx(external(tmp_path, location))


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"offset": "-1"}, "offset and length of 'W' must be integers"),
        ({"offset": "8.0"}, "offset and length of 'W' must be integers"),
        ({"length": "1" * 30}, "offset and length of 'W' must be integers"),
        ({"offset": "9"}, "begins at byte 9 of .*, has 192 bytes, and the file 200$"),
        ({"length": "100"}, "has 192 bytes; its data begins at byte 8 of .*, has 100 bytes"),
    ],
)
def test_data_of_another_size_is_refused(entries, expected, tmp_path):
    with pytest.raises(ValueError, match=expected):
        RNNWeights.from_onnx(external(tmp_path, **entries))


def test_data_behind_a_link_is_refused(tmp_path):
    path = external(tmp_path, "link")
    (tmp_path / "link").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(ValueError, match=r"'W' must be in a regular file; .*link is a link$"):
        RNNWeights.from_onnx(path)


def test_data_in_a_fifo_is_refused(tmp_path):
    path = external(tmp_path, "fifo")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="is not a regular file but a FIFO"):
        RNNWeights.from_onnx(path)


def test_missing_data_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"other\.bin"):
        RNNWeights.from_onnx(external(tmp_path, "other.bin"))


def test_a_node_with_too_many_inputs_is_refused():
    inputs = ["x", "W", "R", "B", "", "", "", "", "W"]
    with pytest.raises(ValueError, match=r"a node of LSTM has 8 inputs .*; this one has 9$"):
        RNNWeights.from_onnx(model_of([rnn_node(inputs)], named_arrays()))


def test_a_function_without_versions_has_those_of_the_model():
    # Version 1 of Unsqueeze has its axes as an attribute.
    nodes = [helper.make_node("Unsqueeze", ["w", "axis"], ["y"])]
    function = function_of(nodes, ["w", "axis"], "direction")
    del function.opset_import[:]
    W, R, B = arrays_of()
    constants = {"w": W[0], "R": R, "B": B, "zero": np.array([0])}
    called = [call(["w", "zero"], function="direction", output="W"), rnn_node()]
    check(RNNWeights.from_onnx(model_of(called, constants, [function])), [W, R, B])


def test_data_of_a_model_without_a_path_is_refused(tmp_path):
    model = onnx.load(external(tmp_path), load_external_data=False)
    with pytest.raises(ValueError, match=r"pass the path of the model, or load the data with onnx"):
        RNNWeights.from_onnx(model)


def test_the_missing_package_is_named(monkeypatch):
    imported = builtins.__import__

    def without_onnx(name, *rest):
        if name.partition(".")[0] == "onnx":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_onnx)
    with pytest.raises(ImportError, match=r"needs the package onnx\. Install: pip install onnx$"):
        RNNWeights.from_onnx("model.onnx")


def test_the_layout_is_that_of_the_backend():
    model = model_of([rnn_node()], named_arrays())
    assert RNNWeights.from_onnx(model, backend="torch").backend == "torch"
    assert RNNWeights.all_from_onnx(model, backend="miopen")["rnn"].backend == "miopen"
