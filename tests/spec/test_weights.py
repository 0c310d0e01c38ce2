"""Weight layouts: against what cuDNN reported, against an oracle, and as covers of the buffer."""

from __future__ import annotations

import copy
import itertools
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi import Parameter, RNNSpec, UnsupportedError, WeightLayout, testing, weight_layout

LAYOUTS = ["cudnn", "miopen", "torch"]
layouts = st.sampled_from(LAYOUTS)


@st.composite
def laid_out(draw, names=LAYOUTS, **fields):
    """A network and the name of a layout that has it: MIOpen's has no projection."""
    name = draw(st.sampled_from(names))
    projection = False if name == "miopen" else None
    return draw(testing.specs(projection=projection, **fields)), name


def network(mode, input_size, hidden_size, **fields):
    return RNNSpec(mode=mode, input_size=input_size, hidden_size=hidden_size, **fields)


def offsets(spec):
    """Offsets in the cuDNN buffer of each weight array, gate by gate."""
    found = {}
    for parameter in weight_layout(spec, "cudnn").parameters:
        found.setdefault(parameter[:3], []).append(parameter.offset)
    return found


# Offsets from cudnnGetRNNWeightParams of cuDNN 9.19 on an H200, in elements


def test_reported_offsets_of_a_projected_lstm():
    spec = network("lstm", 3, 5, proj_size=2)
    assert offsets(spec) == {
        (0, 0, "w_ih"): [0, 15, 30, 45],
        (0, 0, "w_hh"): [60, 70, 80, 90],
        (0, 0, "w_hr"): [100],
        (0, 0, "b_ih"): [110, 115, 120, 125],
        (0, 0, "b_hh"): [130, 135, 140, 145],
    }
    assert weight_layout(spec, "cudnn").size == 150


def test_reported_offsets_of_a_projected_bidirectional_lstm_of_two_layers():
    spec = network("lstm", 3, 5, proj_size=2, num_layers=2, bidirectional=True)
    found = offsets(spec)
    assert found[0, 1, "w_ih"][0] == 110
    assert found[1, 0, "w_ih"] == [220, 240, 260, 280]
    assert found[1, 0, "w_hh"] == [300, 310, 320, 330]
    assert found[1, 0, "w_hr"] == [340]
    assert found[1, 1, "w_ih"][0] == 350
    biases = [
        found[layer, direction, name]
        for layer, direction, name in itertools.product((0, 1), (0, 1), ("b_ih", "b_hh"))
    ]
    assert list(itertools.chain(*biases)) == list(range(480, 640, 5))
    layout = weight_layout(spec, "cudnn")
    assert layout.size == 640
    assert {p.shape for p in layout.parameters if p[:3] == (1, 0, "w_ih")} == {(5, 4)}


@pytest.mark.parametrize(("proj_size", "size"), [(2, 110), (0, 160)])
def test_reported_sizes_without_biases(proj_size, size):
    spec = network("lstm", 3, 5, proj_size=proj_size, bias=False)
    assert weight_layout(spec, "cudnn").size == size


def test_reported_offsets_of_a_bidirectional_gru():
    spec = network("gru", 3, 5, bidirectional=True)
    found = offsets(spec)
    assert found[0, 1, "w_ih"][0] == 120
    assert found[0, 0, "b_ih"][0] == 240
    assert found[0, 1, "b_ih"][0] == 270
    assert weight_layout(spec, "cudnn").size == 300


def test_reported_offsets_of_a_small_rnn():
    spec = network("rnn_tanh", 7, 1, num_layers=2)
    assert offsets(spec) == {
        (0, 0, "w_ih"): [0],
        (0, 0, "w_hh"): [7],
        (1, 0, "w_ih"): [8],
        (1, 0, "w_hh"): [9],
        (0, 0, "b_ih"): [10],
        (0, 0, "b_hh"): [11],
        (1, 0, "b_ih"): [12],
        (1, 0, "b_hh"): [13],
    }
    assert weight_layout(spec, "cudnn").size == 14


# An oracle that knows each offset by itself


def cudnn_oracle(spec):
    """{(layer, direction, name, gate): (offset, shape)} and the size, by closed form."""
    gates = {"lstm": "ifgo", "gru": "rzn"}.get(spec.mode, "h")
    gate_count, h, p = len(gates), spec.hidden_size, spec.proj_size
    out, directions = p or h, 2 if spec.bidirectional else 1
    widths = [spec.input_size] + [out * directions] * (spec.num_layers - 1)
    matrices = [gate_count * h * (width + out) + p * h for width in widths]
    all_matrices = directions * sum(matrices)
    found = {}
    for layer, direction in itertools.product(range(spec.num_layers), range(directions)):
        start = directions * sum(matrices[:layer]) + direction * matrices[layer]
        recurrent = start + gate_count * h * widths[layer]
        biases = all_matrices + (layer * directions + direction) * 2 * gate_count * h
        for k, gate in enumerate(gates):
            where = {
                "w_ih": (start + k * h * widths[layer], (h, widths[layer])),
                "w_hh": (recurrent + k * h * out, (h, out)),
            }
            if spec.bias:
                where["b_ih"] = (biases + k * h, (h,))
                where["b_hh"] = (biases + (gate_count + k) * h, (h,))
            for name, place in where.items():
                found[layer, direction, name, gate] = place
        if p:
            found[layer, direction, "w_hr", None] = (recurrent + gate_count * h * out, (p, h))
    biases = 2 * gate_count * h * directions * spec.num_layers if spec.bias else 0
    return found, all_matrices + biases


@given(testing.specs(max_size=40, max_layers=5))
def test_cudnn_layout_is_the_oracles(spec):
    layout = weight_layout(spec, "cudnn")
    expected, size = cudnn_oracle(spec)
    assert {p[:4]: (p.offset, p.shape) for p in layout.parameters} == expected
    assert layout.size == size


# Offsets from miopenGetRNNLayerParamOffset and ...BiasOffset of MIOpen 3.4, in elements


def test_reported_offsets_of_miopen():
    spec = network("gru", 3, 5, num_layers=2, bidirectional=True)
    parameters = weight_layout(spec, "miopen").parameters
    offsets = {p[:4]: p.offset for p in parameters}
    assert [offsets[0, 0, "w_ih", gate] for gate in "zrn"] == [0, 15, 30]
    assert [offsets[0, 1, "w_ih", gate] for gate in "zrn"] == [45, 60, 75]
    assert [offsets[0, 0, "w_hh", gate] for gate in "zrn"] == [90, 115, 140]
    assert [offsets[0, 1, "w_hh", gate] for gate in "zrn"] == [165, 190, 215]
    assert offsets[1, 0, "w_ih", "z"] == 240
    assert offsets[1, 0, "w_hh", "z"] == 540
    assert [offsets[0, 0, "b_ih", gate] for gate in "zrn"] == [690, 695, 700]
    assert offsets[0, 1, "b_ih", "z"] == 705
    assert offsets[0, 0, "b_hh", "z"] == 720
    assert offsets[1, 0, "b_ih", "z"] == 750


def miopen_oracle(spec):
    """{(layer, direction, name, gate): (offset, shape)} and the size, by closed form."""
    gates = {"lstm": "ifog", "gru": "zrn"}.get(spec.mode, "h")
    rows, h = len(gates) * spec.hidden_size, spec.hidden_size
    directions = 2 if spec.bidirectional else 1
    widths = [spec.input_size] + [h * directions] * (spec.num_layers - 1)
    layers = [directions * rows * (width + h) for width in widths]
    found = {}
    for layer, direction in itertools.product(range(spec.num_layers), range(directions)):
        width, start = widths[layer], sum(layers[:layer])
        biases = sum(layers) + layer * 2 * directions * rows
        for k, gate in enumerate(gates):
            inner = direction * rows + k * h
            found[layer, direction, "w_ih", gate] = (start + inner * width, (h, width))
            recurrent = start + directions * rows * width
            found[layer, direction, "w_hh", gate] = (recurrent + inner * h, (h, h))
            if spec.bias:
                found[layer, direction, "b_ih", gate] = (biases + inner, (h,))
                found[layer, direction, "b_hh", gate] = (biases + directions * rows + inner, (h,))
    biases = 2 * rows * directions * spec.num_layers if spec.bias else 0
    return found, sum(layers) + biases


@given(testing.specs(max_size=40, max_layers=5, projection=False))
def test_miopen_layout_is_the_oracles(spec):
    layout = weight_layout(spec, "miopen")
    expected, size = miopen_oracle(spec)
    assert {p[:4]: (p.offset, p.shape) for p in layout.parameters} == expected
    assert layout.size == size


@given(testing.specs())
def test_torch_layout_is_the_arrays_one_after_the_other(spec):
    layout = weight_layout(spec, "torch")
    offset = 0
    for block, parameter in zip(layout.blocks(), spec.parameter_shapes(), strict=True):
        assert block == (offset, parameter.shape)
        offset += math.prod(parameter.shape)
    assert layout.size == offset


# Any layout


@given(laid_out(max_size=40, max_layers=5))
def test_parameters_cover_the_buffer_exactly_once(asked):
    spec, name = asked
    layout = weight_layout(spec, name)
    end = 0
    for parameter in layout.parameters:
        assert parameter.offset == end  # neither a gap nor an overlap, and in buffer order
        assert parameter.size == math.prod(parameter.shape) > 0
        end += parameter.size
    assert end == layout.size


@given(laid_out())
def test_each_gate_of_each_array_appears_once(asked):
    spec, name = asked
    layout = weight_layout(spec, name)
    expected = {
        (layer, direction, array, gate)
        for layer, direction, array, _ in spec.parameter_shapes()
        for gate in ((None,) if array == "w_hr" else spec.gates)
    }
    found = [parameter[:4] for parameter in layout.parameters]
    assert len(found) == len(expected)
    assert set(found) == expected


@given(testing.specs(), st.sampled_from(["cudnn", "torch"]))
def test_gates_of_an_array_lie_together(spec, name):
    layout = weight_layout(spec, name)
    for shape, block in zip(spec.parameter_shapes(), layout.blocks(), strict=True):
        assert block.shape == shape.shape
        parts = {p.gate: p for p in layout.parameters if p[:3] == shape[:3]}
        order = [None] if shape.name == "w_hr" else spec.gates
        rows = 0
        for gate in order:
            part = parts[gate]
            assert part.offset == block.offset + rows * math.prod(block.shape[1:])
            assert part.shape[1:] == block.shape[1:]
            rows += part.shape[0]
        assert rows == block.shape[0]


def test_a_layout_with_other_gates_has_no_blocks():
    spec = network("gru", 1, 1, bias=False)
    gates = ("z", "r", "n")
    parameters = tuple(
        Parameter(0, 0, name, gate, offset, (1, 1))
        for offset, (name, gate) in enumerate(itertools.product(("w_ih", "w_hh"), gates))
    )
    with pytest.raises(ValueError, match=r"the other layout does not keep .*w_ih.* together"):
        WeightLayout(spec, "other", 6, parameters).blocks()
    assert WeightLayout(spec, "other", 6, parameters).find_blocks() is None


@given(testing.specs(projection=False))
def test_only_a_single_gate_keeps_an_array_of_miopen_together(spec):
    layout = weight_layout(spec, "miopen")
    if spec.num_gates > 1:
        assert layout.find_blocks() is None
        with pytest.raises(ValueError, match=r"^the miopen layout does not keep .* together$"):
            layout.blocks()
    else:
        assert layout.find_blocks() == layout.blocks()
        assert [block.shape for block in layout.blocks()] == [
            shape.shape for shape in spec.parameter_shapes()
        ]


def test_a_layout_says_what_it_is():
    spec = network("lstm", 3, 5)
    layout = weight_layout(spec, "torch")
    assert layout.spec == spec
    assert layout.name == "torch"
    assert layout.parameters[1] == Parameter(0, 0, "w_ih", "f", 15, (5, 3))


@given(laid_out())
def test_copies_are_equal(asked):
    layout = weight_layout(*asked)
    for made in (copy.deepcopy(layout), pickle.loads(pickle.dumps(layout))):
        assert made == layout
        assert made.find_blocks() == layout.find_blocks()


# Conversion between layouts


@given(testing.specs(projection=False), layouts, layouts)
def test_moves_bring_every_gate_to_its_place(spec, source, target):
    before, after = weight_layout(spec, source), weight_layout(spec, target)
    origin = {}
    for move in before.moves_to(after):
        for step in range(move.size):
            assert origin.setdefault(move.target + step, move.source + step) == move.source + step
    assert sorted(origin) == sorted(origin.values()) == list(range(before.size))
    places = {p[:4]: p.offset for p in before.parameters}
    for parameter in after.parameters:
        assert origin[parameter.offset] == places[parameter[:4]]


@given(laid_out())
def test_a_layout_moves_into_itself_at_once(asked):
    layout = weight_layout(*asked)
    assert layout.moves_to(layout) == ((0, 0, layout.size),)


def test_moves_are_joined():
    # Within a layer the matrices stay together up to the gates g and o, which change places.
    spec = network("lstm", 3, 5)
    moves = weight_layout(spec, "cudnn").moves_to(weight_layout(spec, "miopen"))
    assert moves[:3] == ((0, 0, 30), (30, 45, 15), (45, 30, 15))
    assert len(moves) == 12


def test_moves_stay_within_a_network():
    one, other = (weight_layout(network("gru", 3, size), "cudnn") for size in (5, 6))
    with pytest.raises(ValueError, match=r"^the other layout is of RNNSpec\("):
        one.moves_to(other)


@pytest.mark.parametrize("bias", [False, True])
def test_miopen_has_no_projection(bias):
    spec = network("lstm", 3, 5, proj_size=2, bias=bias)
    message = r"^MIOpen: it has no projection \(proj_size 2\); .*'cudnn' and 'reference' have$"
    with pytest.raises(UnsupportedError, match=message):
        weight_layout(spec, "miopen")


@pytest.mark.parametrize("backend", ["jax", "", None, ["cudnn"]])
def test_unknown_layout(backend):
    expected = TypeError if isinstance(backend, list) else ValueError
    with pytest.raises(expected, match=r"^backend must be one of cudnn.*; got "):
        weight_layout(network("gru", 3, 5), backend)


@pytest.mark.parametrize("spec", ["lstm", None, {"mode": "lstm"}])
def test_spec_is_a_spec(spec):
    with pytest.raises(TypeError, match=r"^spec must be an RNNSpec; got "):
        weight_layout(spec, "cudnn")
