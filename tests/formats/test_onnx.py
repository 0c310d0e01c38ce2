"""ONNX's arrays and nodes: its equations, there and back, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from equations import check, onnx, run, x_of
from hypothesis import given
from hypothesis import strategies as st

import dnnffi
from dnnffi import RNNSpec, RNNWeights, testing

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
MODES = tuple(GATES)
H = 4
TYPES = {float: (1, "f"), int: (2, "i"), bytes: (3, "s")}


def arrays_of(mode, directions=1, inputs=3, seed=0):
    """W, R and B of a node."""
    rng = np.random.default_rng(seed)
    rows = GATES[mode] * H
    shapes = (directions, rows, inputs), (directions, rows, H), (directions, 2 * rows)
    return [rng.uniform(-0.5, 0.5, shape) for shape in shapes]


def attribute(name, value):
    """An AttributeProto: its type says which field counts, the others have their defaults."""
    fields = {"f": 0.0, "i": 0, "s": b"", "floats": [], "strings": [], "ref_attr_name": ""}
    if isinstance(value, list):
        strings = isinstance(value[0], bytes)
        number, field = (8, "strings") if strings else (6, "floats")
    else:
        number, field = TYPES[type(value)]
    return SimpleNamespace(name=name, type=number, **(fields | {field: value}))


def node_of(mode, inputs=("X", "W", "R", "B"), **attributes):
    if mode == "gru":
        attributes.setdefault("linear_before_reset", 1)
    if mode == "rnn_relu":
        attributes.setdefault("activations", [b"Relu"] * (1 + ("direction" in attributes)))
    return SimpleNamespace(
        op_type=mode.upper().partition("_")[0],
        input=list(inputs),
        attribute=[attribute(*item) for item in attributes.items() if item[1] is not None],
    )


def initializers(arrays):
    return dict(zip("WRB", arrays, strict=True)) | {"other": np.zeros(3)}


def expected(mode, layers, weights):
    cells = [[onnx(mode)(*parts) for parts in zip(*layer, strict=True)] for layer in layers]
    return run(cells, x_of(weights.spec), H)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_the_arrays_of_an_operator(mode, directions):
    arrays = arrays_of(mode, directions)
    weights = RNNWeights.from_onnx(*arrays, mode=mode, linear_before_reset=1)
    assert weights.spec == RNNSpec(
        mode=mode, input_size=3, hidden_size=H, bidirectional=directions == 2, dtype="float64"
    )
    check(weights, expected(mode, [arrays], weights))


@pytest.mark.parametrize("mode", MODES)
def test_lists_of_arrays_are_layers(mode):
    layers = [arrays_of(mode, 2), arrays_of(mode, 2, 2 * H, 1)]
    w, r, b = zip(*layers, strict=True)
    weights = RNNWeights.from_onnx(list(w), r, b, mode=mode, linear_before_reset=1)
    check(weights, expected(mode, layers, weights))


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_a_node(mode, directions):
    arrays = arrays_of(mode, directions)
    more = {"direction": b"bidirectional"} if directions == 2 else {}
    node = node_of(mode, hidden_size=H, layout=0, **more)
    weights = RNNWeights.from_onnx(node, initializers(arrays))
    assert weights.spec.mode == mode
    check(weights, expected(mode, [arrays], weights))


def test_nodes_are_layers():
    layers = [arrays_of("gru"), arrays_of("gru", inputs=H, seed=1)]
    named = {f"{n}{at}": a for at, layer in enumerate(layers) for n, a in zip("WRB", layer)}  # noqa: B905
    nodes = [node_of("gru", ("X", f"W{at}", f"R{at}", f"B{at}")) for at in (0, 1)]
    weights = RNNWeights.from_onnx(nodes, named)
    check(weights, expected("gru", layers, weights))


@pytest.mark.parametrize("inputs", [("X", "W", "R"), ("X", "W", "R", "", "lengths")])
def test_a_node_without_biases(inputs):
    arrays = arrays_of("lstm")
    weights = RNNWeights.from_onnx(node_of("lstm", inputs), initializers(arrays))
    assert not weights.spec.bias
    arrays[2] = np.zeros_like(arrays[2])
    check(weights, expected("lstm", [arrays], weights))


@given(testing.specs(projection=False), st.sampled_from(["cudnn", "miopen", "torch"]))
def test_there_and_back(spec, backend):
    weights = RNNWeights.pack(testing.weights(spec, 0), spec, backend=backend)
    back = RNNWeights.from_onnx(
        *weights.to_onnx(), mode=spec.mode, linear_before_reset=1, backend=backend
    )
    assert back.spec == spec
    np.testing.assert_array_equal(back.flat, weights.flat)


def test_activations_that_are_the_usual_ones_may_be_named():
    node = node_of("lstm", activations=[b"SIGMOID", b"Tanh", b"tanh"], input_forget=0)
    assert RNNWeights.from_onnx(node, initializers(arrays_of("lstm"))).spec.mode == "lstm"


@pytest.mark.parametrize("value", [None, 0])
def test_a_gru_resets_behind_the_product(value):
    message = r"^linear_before_reset must be 1; with 0, which is ONNX's default, .*; got "
    with pytest.raises(ValueError, match=message):
        RNNWeights.from_onnx(*arrays_of("gru"), mode="gru", linear_before_reset=value)
    with pytest.raises(ValueError, match=r"^linear_before_reset must be 1; .*; the node has 0$"):
        RNNWeights.from_onnx(
            node_of("gru", linear_before_reset=value), initializers(arrays_of("gru"))
        )


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"clip": 3.0}, "clip: the node limits what goes into its activations, to 3.0"),
        ({"activations": [b"Sigmoid", b"Relu", b"Tanh"]}, "activations of LSTM must be sigmoid, "),
        ({"activations": [b"Sigmoid", b"Tanh"]}, "activations of LSTM must be .*; got Sigmoid, T"),
        ({"activation_alpha": [0.5]}, "activation_alpha must not be given"),
        ({"activation_beta": [0.5]}, "activation_beta must not be given"),
        ({"input_forget": 1}, "input_forget must be 0"),
        ({"direction": b"reverse"}, "direction must be forward, .*; got 'reverse' and 1"),
        ({"direction": b"bidirectional"}, "direction must be .*; got 'bidirectional' and 1"),
        ({"hidden_size": 5}, "hidden_size is 5; the weights have 4"),
        ({"made_up": 1}, "unknown attribute made_up of the node"),
    ],
)
def test_what_a_node_must_not_ask(attributes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        RNNWeights.from_onnx(node_of("lstm", **attributes), initializers(arrays_of("lstm")))


def test_the_arrays_of_a_gru_have_onnxs_default_reset():
    message = r"^linear_before_reset must be 1; with 0, which is ONNX's default, .*; got 0$"
    with pytest.raises(ValueError, match=message):
        RNNWeights.from_onnx(*arrays_of("gru"), mode="gru")
    with pytest.raises(TypeError, match=r"^from_onnx takes W, R, B and mode=, or a node and"):
        RNNWeights.from_onnx(node_of("gru"), initializers(arrays_of("gru")), linear_before_reset=1)


def test_two_directions_are_said():
    with pytest.raises(ValueError, match=r"^direction must be bidirectional: the weights have two"):
        RNNWeights.from_onnx(node_of("lstm"), initializers(arrays_of("lstm", 2)))


def test_peepholes_are_refused():
    node = node_of("lstm", ("X", "W", "R", "B", "", "", "", "peep"))
    with pytest.raises(ValueError, match=r"^P: the node has peepholes \(peep\), which no backend"):
        RNNWeights.from_onnx(node, initializers(arrays_of("lstm")))


def test_other_activations_of_an_rnn_are_refused():
    node = node_of("rnn_tanh", activations=[b"Affine"])
    with pytest.raises(ValueError, match=r"^activations of RNN must be tanh; got Affine$"):
        RNNWeights.from_onnx(node, initializers(arrays_of("rnn_tanh")))


@pytest.mark.parametrize(
    ("node", "given", "message"),
    [
        (node_of("lstm"), {}, "initializers have no W, R, B, which the node reads"),
        (node_of("lstm", ("X", "W")), {"W": 0}, "initializers have no W or R, which the node re"),
        (SimpleNamespace(op_type="MatMul"), {}, "the node must be an LSTM, .*; got MatMul$"),
        (np.zeros(3), {}, "the node must be an LSTM, a GRU or an RNN, .*; got ndarray$"),
        ([node_of("lstm"), node_of("gru")], {}, "nodes must be of one mode; got lstm, gru$"),
    ],
)
def test_what_is_no_node_of_weights(node, given, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        RNNWeights.from_onnx(node, given)


def small_lstm(**changes):
    """A node with X, W, R, B, sequence_lens, initial_h and initial_c, I = H = 1, and its arrays."""
    node = node_of("lstm", ("X", "W", "R", "B", "lens", "h", "c"), **changes.pop("attributes", {}))
    arrays = {
        "W": np.full((1, 4, 1), 0.5),
        "R": np.full((1, 4, 1), 0.5),
        "B": np.zeros((1, 8)),
        "h": np.zeros((1, 1, 1)),
        "c": np.zeros((1, 1, 1)),
    }
    return node, arrays | changes


@pytest.mark.parametrize(
    ("name", "onnx_name"), [("h", "initial_h"), ("c", "initial_c")], ids=["h", "c"]
)
@pytest.mark.parametrize("value", [0.8, np.nan])
def test_an_initial_state_that_is_not_zero_is_refused(name, onnx_name, value):
    node, arrays = small_lstm(**{name: np.full((1, 1, 1), value)})
    message = rf"^{onnx_name}: the node begins from the initializer '{name}', which is not zero; .*"
    with pytest.raises(
        ValueError, match=rf"{message}: {onnx_name} = initializers\.pop\('{name}'\)$"
    ):
        RNNWeights.from_onnx(node, arrays)


def test_an_initial_state_is_taken_out_of_the_mapping_and_passed_to_the_call():
    # y is ONNX Runtime's.
    node, arrays = small_lstm(h=np.full((1, 1, 1), 0.8), c=np.full((1, 1, 1), 2.0))
    hx = arrays.pop("h"), arrays.pop("c")
    weights = RNNWeights.from_onnx(node, arrays)
    y, _ = dnnffi.lstm(np.ones((2, 1, 1)), hx, weights)
    np.testing.assert_allclose(y.ravel(), [0.68168, 0.66349], rtol=0, atol=5e-6)


def test_an_initial_state_of_layout_1_is_passed_with_its_axes_swapped():
    # y is ONNX Runtime's with layout 0; it does not compute layout 1.
    node, arrays = small_lstm(h=np.array([[[0.8]], [[0.0]]]), attributes={"layout": 1})
    with pytest.raises(ValueError, match=r"initializers\.pop\('h'\)\.swapaxes\(0, 1\), because"):
        RNNWeights.from_onnx(node, arrays)
    h = arrays.pop("h").swapaxes(0, 1)
    weights = RNNWeights.from_onnx(node, arrays)
    y, _ = dnnffi.lstm(np.ones((2, 2, 1)), (h, np.zeros((1, 2, 1))), weights)
    np.testing.assert_allclose(y[:, 1].ravel(), [0.17427, 0.30906], rtol=0, atol=5e-6)


def test_an_initial_state_of_a_gru_and_of_an_rnn_is_read():
    for mode in ("gru", "rnn_tanh", "rnn_relu"):
        node = node_of(mode, ("X", "W", "R", "B", "", "h"))
        given = initializers(arrays_of(mode)) | {"h": np.ones((1, 2, H))}
        with pytest.raises(ValueError, match=r"^initial_h: the node begins from"):
            RNNWeights.from_onnx(node, given)


@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_an_initial_state_of_zeros_says_nothing(zero, dtype):
    node, arrays = small_lstm(h=np.full((1, 5, 1), zero, dtype), lens=np.zeros(0, "int32"))
    assert RNNWeights.from_onnx(node, arrays).spec.hidden_size == 1


def test_lengths_that_are_an_initializer_are_refused():
    node, arrays = small_lstm(lens=np.array([2, 1], "int32"))
    message = r"^sequence_lens: the node has lengths, .*: lengths=initializers\.pop\('lens'\)$"
    with pytest.raises(ValueError, match=message):
        RNNWeights.from_onnx(node, arrays)


def test_the_states_of_every_node_are_read():
    node, arrays = small_lstm()
    second = node_of("lstm", ("Y", "W", "R", "B", "", "h1"))
    with pytest.raises(ValueError, match=r"^initial_h: the node begins from the initializer 'h1'"):
        RNNWeights.from_onnx([node, second], arrays | {"h1": np.ones((1, 1, 1))})


@pytest.mark.parametrize(
    ("mode", "inputs", "message"),
    [
        ("lstm", [*"XWRB", *[""] * 4, "more"], "a node of LSTM has 8 inputs .*; this one has 9"),
        ("gru", [*"XWRB", "", "", "c"], "a node of GRU has 6 inputs .*; this one has 7"),
        ("rnn_tanh", [*"XWRB", "", "", "", "p"], "a node of RNN has 6 inputs .*; this one has 8"),
    ],
)
def test_an_input_that_the_operator_does_not_have_is_refused(mode, inputs, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        RNNWeights.from_onnx(node_of(mode, inputs), initializers(arrays_of(mode)))


@pytest.mark.parametrize("domain", ["com.microsoft", "ai.onnx.ml", "example"])
def test_a_node_of_a_foreign_domain_is_refused(domain):
    node = node_of("lstm")
    node.domain = domain
    with pytest.raises(ValueError, match=rf"^the node must be of ONNX's own domain, .*'{domain}'"):
        RNNWeights.from_onnx(node, initializers(arrays_of("lstm")))


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_onnxs_own_domain_has_two_names(domain):
    node = node_of("lstm")
    node.domain = domain
    assert RNNWeights.from_onnx(node, initializers(arrays_of("lstm"))).spec.mode == "lstm"


def test_a_function_of_the_model_is_refused():
    node = node_of("lstm")
    node.overload = "peephole"
    with pytest.raises(ValueError, match=r"^the node must be an operator; got the overload 'peep"):
        RNNWeights.from_onnx(node, initializers(arrays_of("lstm")))


@pytest.mark.parametrize("version", [{"output_sequence": 1}, {"layout": 0}, {"layout": 1}])
@pytest.mark.parametrize("mode", MODES)
def test_attributes_of_one_version_that_change_shapes_only_are_taken(mode, version):
    node = node_of(mode, **version)
    assert RNNWeights.from_onnx(node, initializers(arrays_of(mode))).spec.mode == mode


@pytest.mark.parametrize(
    ("mode", "attributes", "message"),
    [
        ("lstm", {"linear_before_reset": 1}, "unknown attribute linear_before_reset"),
        ("gru", {"input_forget": 0}, "unknown attribute input_forget of the node, an GRU"),
        ("rnn_tanh", {"input_forget": 1}, "unknown attribute input_forget"),
        ("lstm", {"direction": b"Forward"}, "direction must be forward, .*; got 'Forward' and 1"),
        ("lstm", {"direction": b"backward"}, "direction must be forward, .*; got 'backward' and 1"),
        ("lstm", {"layout": 2}, "layout must be 0 or 1; got 2"),
        ("lstm", {"input_forget": 1.0}, "input_forget must be an attribute of type 2 .*; got ty"),
        ("lstm", {"hidden_size": b"4"}, "hidden_size must be an attribute of type 2 .*; got ty"),
    ],
)
def test_attributes_are_those_of_the_operator(mode, attributes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        RNNWeights.from_onnx(node_of(mode, **attributes), initializers(arrays_of(mode)))


def test_an_attribute_without_a_type_is_refused():
    node = node_of("lstm", input_forget=1)
    node.attribute[-1].type = 0  # of files of the first version of ONNX's format
    with pytest.raises(
        ValueError, match=r"^input_forget must be an attribute of type 2 .*; got ty"
    ):
        RNNWeights.from_onnx(node, initializers(arrays_of("lstm")))


def test_an_attribute_that_is_there_twice_is_refused():
    node = node_of("lstm", input_forget=1)
    node.attribute.append(attribute("input_forget", 0))
    with pytest.raises(ValueError, match=r"^the node has the attribute input_forget twice$"):
        RNNWeights.from_onnx(node, initializers(arrays_of("lstm")))


def test_an_attribute_that_is_the_parameter_of_a_function_is_refused():
    node = node_of("lstm", input_forget=0)
    node.attribute[-1].ref_attr_name = "coupled"
    with pytest.raises(ValueError, match=r"^input_forget is the parameter coupled of a function"):
        RNNWeights.from_onnx(node, initializers(arrays_of("lstm")))


def with_one(index, change, mode="lstm"):
    arrays = arrays_of(mode)
    arrays[index] = change(arrays[index])
    return arrays


@pytest.mark.parametrize(
    ("arrays", "mode", "message"),
    [
        (with_one(0, lambda a: a.swapaxes(1, 2)), "lstm", r"W must .*; it is transposed$"),
        (with_one(1, lambda a: a.swapaxes(1, 2)), "lstm", r"R must .*; it is transposed$"),
        (with_one(0, lambda a: a[0]), "lstm", r"W must have shape \[D, G\*H, I\]; got \(16, 3\)$"),
        (with_one(2, lambda a: a[:, :16]), "lstm", r"B must have shape \(1, 32\); got \(1, 16\)$"),
        (arrays_of("lstm"), "gru", r"R must have shape \[D, 3\*H, H\] .*; it is that of mode 'ls"),
        (arrays_of("gru"), "lstm", r"R must have shape .*; it is that of mode 'gru'$"),
        (arrays_of("lstm", 3), "lstm", "R must have one or two directions; got shape"),
        ([[arrays_of("lstm")[0]], [], None], "lstm", "W, R and B must have an entry a layer; got"),
        (arrays_of("lstm"), "rnn", "mode must be one of"),
    ],
)
def test_arrays_that_are_refused(arrays, mode, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        RNNWeights.from_onnx(*arrays, mode=mode, linear_before_reset=1)


def test_a_mode_or_a_mapping_is_needed():
    with pytest.raises(TypeError, match=r"^from_onnx takes W, R, B and mode=, or a node and a ma"):
        RNNWeights.from_onnx(*arrays_of("lstm"))
    with pytest.raises(ValueError, match=r"^mode is 'gru'; the node is 'lstm'$"):
        RNNWeights.from_onnx(node_of("lstm"), initializers(arrays_of("lstm")), mode="gru")


def test_a_projection_has_no_place_in_onnx():
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=4, proj_size=2)
    weights = RNNWeights.pack(testing.weights(spec, 0), spec)
    with pytest.raises(ValueError, match=r"^ONNX has no LSTM with a projection; proj_size is 2$"):
        weights.to_onnx()
