"""RNNSpec: shapes, refusal of wrong fields, and a spec as a value."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dnnffi
from dnnffi import RNNSpec, testing

MODES = {"lstm": "ifgo", "gru": "rzn", "rnn_tanh": "h", "rnn_relu": "h"}


def make(**fields):
    return RNNSpec(**{"mode": "lstm", "input_size": 3, "hidden_size": 5, **fields})


# Shapes


@pytest.mark.parametrize(("mode", "gates"), MODES.items())
def test_gates_and_cell(mode, gates):
    spec = make(mode=mode)
    assert spec.gates == tuple(gates)
    assert spec.num_gates == len(gates)
    assert spec.has_cell == (mode == "lstm")


@given(testing.specs(), st.integers(1, 9), st.integers(1, 9))
def test_shapes_of_arrays(spec, steps, batch):
    outputs = spec.output_size * spec.num_directions
    stacked = spec.num_layers * spec.num_directions
    assert spec.num_directions == (2 if spec.bidirectional else 1)
    assert spec.output_size == (spec.proj_size if spec.proj_size else spec.hidden_size)
    assert spec.x_shape(steps, batch) == (steps, batch, spec.input_size)
    assert spec.x_shape(steps, batch, batch_first=True) == (batch, steps, spec.input_size)
    assert spec.y_shape(steps, batch) == (steps, batch, outputs)
    assert spec.y_shape(steps, batch, batch_first=True) == (batch, steps, outputs)
    assert spec.packed_x_shape((batch,) * steps) == (steps * batch, spec.input_size)
    assert spec.packed_y_shape((batch,) * steps) == (steps * batch, outputs)
    assert spec.h_shape(batch) == (stacked, batch, spec.output_size)
    assert spec.c_shape(batch) == (stacked, batch, spec.hidden_size)


def test_parameter_shapes_of_a_projected_bidirectional_lstm():
    first = [("w_ih", (20, 3)), ("w_hh", (20, 2)), ("b_ih", (20,)), ("b_hh", (20,))]
    second = [("w_ih", (20, 4)), *first[1:]]
    projection = [("w_hr", (2, 5))]
    spec = make(num_layers=2, bidirectional=True, proj_size=2)
    assert spec.parameter_shapes() == [
        (layer, direction, name, shape)
        for layer, arrays in enumerate((first, second))
        for direction in (0, 1)
        for name, shape in arrays + projection
    ]
    assert spec.arrays_per_direction == 5


def test_parameter_shapes_of_a_gru_without_biases():
    spec = make(mode="gru", bias=False)
    assert spec.parameter_shapes() == [(0, 0, "w_ih", (15, 3)), (0, 0, "w_hh", (15, 5))]
    assert spec.arrays_per_direction == 2


@given(testing.specs())
def test_a_spec_is_inferred_from_the_shapes_of_its_weights(spec):
    shapes = [parameter.shape for parameter in spec.parameter_shapes()]
    assert len(shapes) == spec.arrays_per_direction * spec.num_layers * spec.num_directions
    inferred = RNNSpec.from_weight_shapes(
        spec.mode,
        shapes,
        num_layers=spec.num_layers,
        bidirectional=spec.bidirectional,
        dtype=spec.dtype,
    )
    assert inferred == spec


# Fields


def test_fields_become_plain_python_values():
    spec = RNNSpec(
        mode="lstm",
        input_size=np.int64(3),
        hidden_size=np.int32(5),
        num_layers=np.uint8(2),
        bidirectional=np.True_,
        bias=np.False_,
        proj_size=np.int16(2),
        dtype=np.dtype("float16"),
    )
    fields = {
        "mode": "lstm",
        "input_size": 3,
        "hidden_size": 5,
        "num_layers": 2,
        "bidirectional": True,
        "bias": False,
        "proj_size": 2,
        "dtype": "float16",
    }
    for name, value in fields.items():
        assert getattr(spec, name) == value
        assert type(getattr(spec, name)) is type(value)
    assert spec == RNNSpec(**fields)


def test_defaults():
    spec = make()
    assert (spec.num_layers, spec.bidirectional, spec.bias) == (1, False, True)
    assert (spec.proj_size, spec.dtype) == (0, "float32")


def test_fields_are_given_by_name():
    with pytest.raises(TypeError, match="positional argument"):
        RNNSpec("lstm", 3, 5)


@pytest.mark.parametrize("mode", ["LSTM", "rnn", "", None, 1, ["lstm"]])
def test_mode_is_one_of_four(mode):
    expected = TypeError if isinstance(mode, list) else ValueError
    with pytest.raises(expected, match=r"^mode must be one of lstm, gru, rnn_tanh, rnn_relu; got"):
        make(mode=mode)


SIZES = ("input_size", "hidden_size", "num_layers", "proj_size")


@pytest.mark.parametrize("value", [3.0, "3", None, True, [3], np.array([3, 3])])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_integers(name, value):
    with pytest.raises(TypeError, match=f"^{name} must be an integer; got "):
        make(**{name: value})


@pytest.mark.parametrize(
    ("name", "most"),
    [("input_size", 2**31 - 1), ("hidden_size", 2**31 - 1), ("num_layers", 10_000)],
)
def test_sizes_are_positive_and_bounded(name, most):
    assert getattr(make(**{name: most}), name) == most
    for value in (0, -1, most + 1):
        with pytest.raises(ValueError, match=rf"^{name} must be from 1 to {most}; got {value}$"):
            make(**{name: value})


def test_projection_is_not_negative():
    with pytest.raises(ValueError, match=r"^proj_size must be from 0 to"):
        make(proj_size=-1)


@pytest.mark.parametrize("mode", ["gru", "rnn_tanh", "rnn_relu"])
def test_only_an_lstm_has_a_projection(mode):
    with pytest.raises(ValueError, match=f"^proj_size: only an LSTM has a projection.*{mode}"):
        make(mode=mode, proj_size=2)


@pytest.mark.parametrize("proj_size", [5, 6])
def test_projection_is_smaller_than_hidden(proj_size):
    with pytest.raises(ValueError, match=rf"^proj_size must be smaller.*\(5\); got {proj_size}$"):
        make(proj_size=proj_size)


@pytest.mark.parametrize("value", [0, 1, None, "yes", 1.0])
@pytest.mark.parametrize("name", ["bidirectional", "bias"])
def test_flags_are_bools(name, value):
    with pytest.raises(TypeError, match=rf"^{name} must be True or False; got "):
        make(**{name: value})


class Written:
    """A dtype that is known by how it is written, as those of PyTorch."""

    def __repr__(self):
        return "torch.float16"


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float32, "float32"),
        (np.float64, "float64"),
        (np.dtype("f2"), "float16"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.dtype(ml_dtypes.bfloat16), "bfloat16"),
        (SimpleNamespace(name="bfloat16"), "bfloat16"),
        (Written(), "float16"),
    ],
)
def test_dtypes_of_libraries_are_taken_by_their_name(dtype, name):
    assert make(dtype=dtype) == make(dtype=name)
    assert type(make(dtype=dtype).dtype) is str
    conv = dnnffi.ConvSpec(in_channels=1, out_channels=1, kernel=(3,), dtype=dtype)
    assert conv.dtype == name


@pytest.mark.parametrize(
    "dtype", ["int32", "float", "double", None, 32, ["float32"], np.int32, float]
)
def test_dtype_is_one_of_four(dtype):
    with pytest.raises(ValueError, match=r"^dtype must be one of float16, bfloat16, float32, "):
        make(dtype=dtype)


# Shapes of weights


def infer(*shapes, mode="lstm", **keywords):
    return RNNSpec.from_weight_shapes(mode, list(shapes), **keywords)


LSTM = [(20, 3), (20, 5), (20,), (20,)]


def test_too_few_and_too_many_weights():
    message = (
        r"^weights: {} arrays for 1 layer\(s\) and 1 direction\(s\); expected 2 to 5 arrays "
        r"per layer and direction$"
    )
    for shapes in ([], LSTM[:1], LSTM + LSTM[:2]):
        with pytest.raises(ValueError, match=message.format(len(shapes))):
            infer(*shapes)


@pytest.mark.parametrize("rows", [0, 19, 21])
def test_a_first_matrix_without_whole_gates(rows):
    message = (
        rf"^weights\[0\]: .* must be a multiple of 4 \(gates of lstm\); got shape \({rows}, 3\)$"
    )
    with pytest.raises(ValueError, match=message):
        infer((rows, 3), *LSTM[1:])


@pytest.mark.parametrize(("num_layers", "bidirectional"), [(2, False), (1, True), (3, True)])
def test_weights_that_do_not_divide_among_layers_and_directions(num_layers, bidirectional):
    directions = 1 + bidirectional
    message = (
        rf"^weights: 7 arrays for {num_layers} layer\(s\) and {directions} direction\(s\); "
        r"expected 2 to 5 arrays per layer and direction$"
    )
    with pytest.raises(ValueError, match=message):
        infer(*[(20, 3)] * 7, num_layers=num_layers, bidirectional=bidirectional)


def test_a_gru_with_projection_weights():
    with pytest.raises(ValueError, match=r"^weights: 3 arrays .*expected 2 or 4 "):
        infer((15, 3), (15, 5), (2, 5), mode="gru")


@pytest.mark.parametrize("index", [0, 1])
def test_matrices_have_two_dimensions(index):
    shapes = LSTM.copy()
    shapes[index] = (20,)
    with pytest.raises(ValueError, match=rf"^weights\[{index}\] must have two dimensions"):
        infer(*shapes)


@pytest.mark.parametrize("rows", [0, 3, 21])
def test_rows_are_a_multiple_of_the_gates(rows):
    with pytest.raises(ValueError, match=r"^weights\[0\]: the first dimension of w_ih must be a m"):
        infer((rows, 3), *LSTM[1:])


@pytest.mark.parametrize(("index", "name"), [(1, "w_hh"), (2, "b_ih"), (3, "b_hh")])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_wrong_shape_names_the_array(layer, index, name):
    shapes = [*LSTM, (20, 5), *LSTM[1:]]
    shapes[4 * layer + index] = (19, 5) if index == 1 else (19,)
    message = rf"^weights\[{4 * layer + index}\] \({name} of layer {layer}, direction 0\) must have"
    with pytest.raises(ValueError, match=message):
        infer(*shapes, num_layers=2)


def test_a_projection_of_the_wrong_shape():
    with pytest.raises(ValueError, match=r"^weights\[4\] \(w_hr .*\(2, 5\); got \(5, 2\)"):
        infer((20, 3), (20, 2), (20,), (20,), (5, 2))


@pytest.mark.parametrize("num_layers", [0, -1])
def test_weights_have_a_layer(num_layers):
    with pytest.raises(
        ValueError, match=rf"^num_layers must be from 1 to 10000; got {num_layers}$"
    ):
        infer(*LSTM, num_layers=num_layers)


@pytest.mark.parametrize("num_layers", [1.0, True, None, "1"])
def test_number_of_layers_of_weights_is_an_integer(num_layers):
    with pytest.raises(TypeError, match=r"^num_layers must be an integer; got"):
        infer(*LSTM, num_layers=num_layers)


def test_mode_and_direction_of_weights():
    with pytest.raises(ValueError, match=r"^mode must be one of"):
        infer(*LSTM, mode="LSTM")
    with pytest.raises(TypeError, match=r"^bidirectional must be True or False"):
        infer(*LSTM, bidirectional=1)


# A spec is a value


@given(testing.specs(), testing.specs())
def test_equal_specs_have_equal_fields_and_hashes(one, other):
    assert (one == other) == (dataclasses.asdict(one) == dataclasses.asdict(other))
    same = RNNSpec(**dataclasses.asdict(one))
    assert same == one
    assert hash(same) == hash(one)
    assert len({one, same}) == 1


def test_a_spec_differs_from_one_with_any_other_field():
    others = {
        "mode": "gru",
        "input_size": 4,
        "hidden_size": 6,
        "num_layers": 2,
        "bidirectional": True,
        "bias": False,
        "proj_size": 1,
        "dtype": "float64",
    }
    specs = {make(), *(make(**{name: value}) for name, value in others.items())}
    assert len(specs) == len(others) + 1


def test_a_spec_equals_no_other_thing():
    assert make() != "lstm"
    assert make() != None  # noqa: E711 - it is the operator that is tested
    assert make().__eq__(1) is NotImplemented


@given(testing.specs())
def test_repr_makes_the_spec_again(spec):
    assert eval(repr(spec)) == spec


@given(testing.specs())
def test_copies_are_equal(spec):
    for made in (
        copy.copy(spec),
        copy.deepcopy(spec),
        *(pickle.loads(pickle.dumps(spec, p)) for p in range(pickle.HIGHEST_PROTOCOL + 1)),
        dataclasses.replace(spec),
    ):
        assert made == spec
        assert hash(made) == hash(spec)
        assert repr(made) == repr(spec)


def test_the_fields_of_a_spec_are_the_arguments_of_the_constructor():
    names = list(inspect.signature(RNNSpec).parameters)
    assert [field.name for field in dataclasses.fields(RNNSpec)] == names
    assert list(dataclasses.asdict(make())) == names


def test_replace_changes_one_field():
    changed = dataclasses.replace(make(), hidden_size=6)
    assert changed == make(hidden_size=6)
    assert hash(changed) == hash(make(hidden_size=6))


def test_a_spec_from_another_process_is_found_in_a_dict():
    # Hashes of strings differ from process to process, and a spec keeps its own.
    code = (
        "import pickle, sys; from dnnffi import RNNSpec;"
        "sys.stdout.buffer.write(pickle.dumps(RNNSpec(mode='gru', input_size=3, hidden_size=5)))"
    )
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": str(Path(dnnffi.__file__).parents[1]),
        }
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=True
        )
        assert pickle.loads(done.stdout) in {make(mode="gru")}


def test_a_spec_does_not_change():
    spec = make()
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.hidden_size = 6
    # Python 3.11 answers a slotted class's unknown name with TypeError.
    with pytest.raises((AttributeError, TypeError)):
        spec.other = 1
    with pytest.raises(ValueError, match="proj_size"):
        dataclasses.replace(spec, proj_size=9)


# Hints at the array that was probably given instead


@pytest.mark.parametrize(
    ("mode", "given"),
    [("gru", "lstm"), ("lstm", "gru"), ("rnn_tanh", "lstm"), ("lstm", "rnn_relu")],
)
def test_weights_of_another_mode_are_recognised(mode, given):
    shapes = [p.shape for p in make(mode=given, hidden_size=12).parameter_shapes()]
    with pytest.raises(ValueError, match=rf"; these are weights of mode .*'{given}'"):
        infer(*shapes, mode=mode)


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_transposed_weights_are_recognised(mode):
    shapes = [p.shape[::-1] for p in make(mode=mode, num_layers=2).parameter_shapes()]
    with pytest.raises(ValueError, match=r"; they fit transposed: matrices are \[G\*H, I\]"):
        infer(*shapes, mode=mode, num_layers=2)


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_a_single_bias_is_recognised(mode):
    parameters = make(mode=mode, bidirectional=True).parameter_shapes()
    shapes = [p.shape for p in parameters if p.name != "b_hh"]
    with pytest.raises(ValueError, match=r"; one bias vector is given where there are two: b_ih a"):
        infer(*shapes, mode=mode, bidirectional=True)


def test_weights_of_keras_are_recognised():
    with pytest.raises(ValueError, match=r"transposed and with two bias vectors: .*from_keras$"):
        infer((3, 20), (5, 20), (20,))


@pytest.mark.parametrize("keywords", [{}, {"bidirectional": True}, {"num_layers": 3}])
@pytest.mark.parametrize("fields", [{}, {"proj_size": 2}, {"bias": False, "proj_size": 2}])
def test_the_order_of_sorted_names_is_recognised(keywords, fields):
    parameters = make(**keywords, **fields).parameter_shapes()
    kinds = {"w": "weight", "b": "bias"}
    shapes = {}
    for layer, direction, name, shape in parameters:
        kind = f"{kinds[name[0]]}{name[1:]}"
        shapes[f"{kind}_l{layer}{'_reverse' * direction}"] = shape
    given = [shapes[name] for name in sorted(shapes)]
    with pytest.raises(ValueError, match=r"; they fit in the alphabetical order of PyTorch's name"):
        infer(*given, **keywords)


@pytest.mark.parametrize(
    ("fields", "keywords", "meant"),
    [
        ({"num_layers": 2}, {}, "num_layers=2"),
        ({"num_layers": 3}, {"num_layers": 2}, "num_layers=3"),
        ({"num_layers": 2, "bias": False, "proj_size": 2}, {}, "num_layers=2"),
        ({"bidirectional": True}, {}, "bidirectional=True"),
        ({}, {"bidirectional": True}, "bidirectional=False"),
        (
            {"num_layers": 2, "bidirectional": True},
            {},
            "num_layers=2, bidirectional=True",
        ),
    ],
    ids=str,
)
def test_weights_of_other_layers_or_directions_are_recognised(fields, keywords, meant):
    shapes = [p.shape for p in make(**fields).parameter_shapes()]
    with pytest.raises(ValueError, match=rf"; they fit with {meant}$"):
        infer(*shapes, **keywords)


def test_weights_of_two_layers_or_two_directions_name_both():
    with pytest.raises(ValueError, match=r"; they fit with bidirectional=True or with num_layers"):
        infer(*[(20, 5)] * 4)  # without biases, I = H


KERAS = [(3, 20), (5, 20), (20,)]
DENSE = [(5, 1), (1,)]


@pytest.mark.parametrize(
    ("shapes", "mode", "layers"),
    [
        (KERAS + DENSE, "lstm", "weights[0:3] are"),
        ([(100, 3), *KERAS, *DENSE], "lstm", "weights[1:4] are"),
        ([*KERAS, (5, 20), (5, 20), (20,)], "lstm", "weights[0:3] and weights[3:6] are"),
        ([(3, 15), (5, 15), (2, 15)], "gru", "weights[0:3] are"),
        ([(3, 20), (5, 20), *DENSE], "lstm", "weights[0:2] are"),
    ],
    ids=str,
)
def test_weights_of_a_model_of_keras_are_recognised(shapes, mode, layers):
    message = (
        rf"; {re.escape(layers)} as a layer of Keras lists its arrays, and model.get_weights\(\) "
        rf"those of all layers: RNNWeights.from_keras takes those of a layer$"
    )
    with pytest.raises(ValueError, match=message):
        infer(*shapes, mode=mode)


def test_shapes_of_no_network_have_no_likely_cause():
    with pytest.raises(ValueError, match=r"must have shape \(20, 5\); got \(20, 7\)$"):
        infer((20, 3), (20, 7), (20,), (20,))


def test_an_array_without_dimensions_is_named():
    with pytest.raises(ValueError, match=r"weights\[0\] must have two dimensions; got shape \(\)$"):
        infer((), (5, 20), (20,), (20,))
