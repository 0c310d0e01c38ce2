"""Layers of Keras as objects: stand-ins with the settings recorded by `oracle_keras_layers.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from equations import check, keras, run, x_of
from test_keras import MODES, H, arrays_of, cudnn_arrays_of

from dnnffi import RNNWeights
from dnnffi.formats.keras_layers import check_config

CLASSES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "SimpleRNN", "rnn_relu": "SimpleRNN"}

PATH = Path(__file__).with_name("recorded_keras_layers.json")
LAYERS = json.loads(PATH.read_text(encoding="utf-8"))["layers"]
OF_RELU = {"activation": "relu"}  # what the settings of a SimpleRNN with this activation have


def function_of(module, name):
    """A function of a module; only its name and its module are looked at."""

    def function():
        raise AssertionError("it is not called")

    function.__module__, function.__name__ = module, name
    return function


def made_of(class_name, config, arrays=(), **attributes):
    """An object with the settings and arrays of a layer; Keras's classes are of its package."""
    module, _, name = class_name.rpartition(".")
    module = module or LAYERS[name]["module"]
    methods = {"get_config": lambda self: dict(config), "get_weights": lambda self: list(arrays)}
    made = type(name, (), {"__module__": module} | methods)()
    vars(made).update(attributes)
    return made


def cell_of(mode, arrays, class_name=None, **changes):
    """A cell of a mode; ``changes`` of its settings, a function or the name of one of Keras's."""
    record = LAYERS[f"{CLASSES[mode]}Cell"]
    changes = (OF_RELU if mode == "rnn_relu" else {}) | changes
    functions = {}
    for key, (module, name) in record["functions"].items():
        given = changes.get(key, name)
        functions[key] = function_of(module, given) if isinstance(given, str) else given
    settings = record["settings"] | changes
    return made_of(class_name or f"{CLASSES[mode]}Cell", settings, arrays, **functions)


def layer_of(mode, arrays=None, class_name=None, **changes):
    """A layer whose cell has the same settings, as Keras's has."""
    arrays = arrays_of(mode) if arrays is None else arrays
    record = LAYERS[CLASSES[mode]]["settings"]
    of_cell = LAYERS[f"{CLASSES[mode]}Cell"]["settings"]
    settings = record | changes
    return made_of(
        class_name or CLASSES[mode],
        settings,
        arrays,
        go_backwards=settings["go_backwards"],
        return_sequences=settings["return_sequences"],
        cell=cell_of(mode, arrays, **{k: v for k, v in changes.items() if k in of_cell}),
    )


def two_directions(mode, pair, merge_mode="concat", **changes):
    forward = layer_of(mode, pair[0])
    backward = layer_of(mode, pair[1], go_backwards=True, **changes)
    config = LAYERS["Bidirectional"]["settings"] | {"merge_mode": merge_mode}
    return made_of("Bidirectional", config, forward_layer=forward, backward_layer=backward)


def stacked(mode, cells, **changes):
    """RNN([cell, cell])."""
    of_cells = [cell_of(mode, cell) for cell in cells]
    inner = made_of("StackedRNNCells", LAYERS["StackedRNNCells"]["settings"], cells=of_cells)
    settings = LAYERS["RNN"]["settings"] | changes
    return made_of("RNN", settings, cell=inner, go_backwards=False, return_sequences=True)


def expected(mode, layers, weights):
    cells = [[keras(mode)(*one) for one in layer] for layer in layers]
    return run(cells, x_of(weights.spec), H)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_a_layer_tells_its_mode(mode, biased):
    arrays = arrays_of(mode, biased=biased)
    weights = RNNWeights.from_keras(layer_of(mode, arrays))
    assert weights.spec.mode == mode
    check(weights, expected(mode, [[arrays]], weights))


@pytest.mark.parametrize("mode", MODES)
def test_a_bidirectional_layer_needs_no_word(mode):
    pair = [arrays_of(mode, H), arrays_of(mode, H, seed=1)]
    weights = RNNWeights.from_keras(two_directions(mode, pair))
    assert (weights.spec.num_layers, weights.spec.num_directions) == (1, 2)
    check(weights, expected(mode, [pair], weights))


@pytest.mark.parametrize("mode", MODES)
def test_cells_in_a_row_need_no_word(mode):
    cells = [arrays_of(mode, H), arrays_of(mode, H, seed=1)]
    weights = RNNWeights.from_keras(stacked(mode, cells))
    assert (weights.spec.num_layers, weights.spec.num_directions) == (2, 1)
    check(weights, expected(mode, [[cell] for cell in cells], weights))


def test_a_list_of_layers():
    pairs = [[arrays_of("gru", size, seed=d) for d in (0, 1)] for size in (3, 2 * H)]
    layers = [two_directions("gru", pair) for pair in pairs]
    weights = RNNWeights.from_keras(layers, "gru", bidirectional=True)
    check(weights, expected("gru", pairs, weights))


def test_one_cell_of_an_rnn_layer():
    arrays = arrays_of("lstm")
    layer = made_of(
        "RNN",
        LAYERS["RNN"]["settings"],
        cell=cell_of("lstm", arrays),
        go_backwards=False,
        return_sequences=False,
    )
    weights = RNNWeights.from_keras(layer)
    check(weights, expected("lstm", [[arrays]], weights))


@pytest.mark.parametrize(
    ("mode", "changes", "message"),
    [
        ("lstm", {"activation": "relu"}, "activation must be tanh; got relu$"),
        ("lstm", {"activation": "linear"}, "activation must be tanh; got linear$"),
        ("gru", {"activation": "relu"}, "activation must be tanh; got relu$"),
        ("rnn_tanh", {"activation": "sigmoid"}, "activation must be tanh or relu; got sigmoid$"),
        (
            "gru",
            {"recurrent_activation": "hard_sigmoid"},
            "recurrent_activation must be sigmoid; got hard_sigmoid$",
        ),
    ],
)
def test_other_activations_are_refused(mode, changes, message):
    with pytest.raises(ValueError, match=f"^weights: {message}"):
        RNNWeights.from_keras(layer_of(mode, **changes))


def test_a_function_of_the_user_that_is_called_tanh_is_refused():
    # get_config() of a layer with this function has "tanh" too.
    layer = layer_of("lstm", activation=function_of("mine", "tanh"))
    with pytest.raises(ValueError, match=r"^weights: activation must be tanh; got mine\.tanh$"):
        RNNWeights.from_keras(layer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reset_after": False}, "weights must have reset_after=True; got False: the GRU resets"),
        ({"stateful": True}, "weights must have stateful=False; got True: weights have no state"),
        ({"go_backwards": True}, "weights must have go_backwards=False; got True"),
        ({"new_setting": 1}, "weights has the setting new_setting, which dnnffi does not know"),
    ],
)
def test_other_settings_are_refused(changes, message):
    # Without biases the arrays of a GRU look the same, whatever its reset_after.
    layer = layer_of("gru", arrays_of("gru", biased=False), use_bias=False, **changes)
    with pytest.raises(ValueError, match=f"^{message}"):
        RNNWeights.from_keras(layer)


@pytest.mark.parametrize("merge_mode", ["sum", "mul", "ave", None])
def test_other_outputs_of_two_directions_are_refused(merge_mode):
    layer = two_directions("lstm", [arrays_of("lstm")] * 2, merge_mode)
    with pytest.raises(ValueError, match=r"^weights must have merge_mode='concat'; got "):
        RNNWeights.from_keras(layer)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            two_directions("lstm", [arrays_of("lstm")] * 2, activation="relu"),
            "weights.backward_layer: activation must be tanh; got relu$",
        ),
        (
            two_directions("lstm", [arrays_of("lstm")] * 2, reset_after=False),
            "weights.backward_layer must have reset_after=True",
        ),
        (
            layer_of("lstm", class_name="mine.LSTM"),
            "weights must be a layer of Keras.*mine.LSTM, which may compute something else",
        ),
        (
            layer_of("lstm", class_name="keras.src.Dense"),
            r"weights must be a layer of Keras.*got keras\.src\.Dense$",
        ),
        (
            made_of("keras.src.models.Sequential", {}, layers=[]),
            r"weights must be a layer .*Sequential; pass model\.layers\[0\], or a list of its",
        ),
        (
            made_of(
                "RNN",
                LAYERS["RNN"]["settings"],
                cell=cell_of("lstm", arrays_of("lstm"), class_name="mine.LSTMCell"),
                go_backwards=False,
                return_sequences=True,
            ),
            "weights must have cells of LSTMCell, GRUCell, SimpleRNNCell; got mine.LSTMCell$",
        ),
        (layer_of("lstm", arrays=[]), "weights: the layer has no weights yet"),
        (stacked("lstm", [arrays_of("lstm")] * 2, num_constants=1), "weights has the setting num_"),
        (
            [layer_of("lstm", return_sequences=False), layer_of("lstm", arrays_of("lstm", H))],
            r"weights\[0\] must have return_sequences=True for the next layer to read$",
        ),
        (
            [layer_of("lstm"), layer_of("gru", arrays_of("gru", H))],
            r"layers must be of one mode, 'lstm'; weights\[1\] is 'gru'$",
        ),
    ],
)
def test_what_is_refused(layer, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        RNNWeights.from_keras(layer)


def test_two_directions_of_two_cells_each_are_no_network_of_two_layers():
    config = LAYERS["Bidirectional"]["settings"]
    cells = [arrays_of("lstm", H)] * 2
    layer = made_of("Bidirectional", config, forward_layer=stacked("lstm", cells))
    layer.backward_layer = stacked("lstm", cells)
    layer.backward_layer.go_backwards = True
    with pytest.raises(
        ValueError, match=r"^weights must have one cell in each direction: .*2 and 2"
    ):
        RNNWeights.from_keras(layer)


def test_a_config_that_does_not_say_its_direction_is_a_forward_one():
    settings = dict(LAYERS["LSTM"]["settings"])
    del settings["go_backwards"]
    layer = {"class_name": "LSTM", "config": settings}
    assert check_config("layer", layer, is_backward=False) == "lstm"
    with pytest.raises(ValueError, match=r"^layer must have go_backwards=True; got False"):
        check_config("layer", layer, is_backward=True)


def test_words_that_the_layer_contradicts_are_refused():
    with pytest.raises(ValueError, match=r"^mode is 'gru'; the layer is 'lstm'$"):
        RNNWeights.from_keras(layer_of("lstm"), "gru")
    with pytest.raises(ValueError, match=r"^bidirectional is True; weights are those of one dir"):
        RNNWeights.from_keras(layer_of("lstm"), bidirectional=True)
    with pytest.raises(ValueError, match=r"^reset_after must be True: a GRU with reset_after=F"):
        RNNWeights.from_keras(layer_of("gru"), reset_after=False)


def test_a_list_of_layers_and_arrays_is_refused():
    with pytest.raises((TypeError, ValueError), match=r"^weights"):
        RNNWeights.from_keras([layer_of("lstm"), arrays_of("lstm", H)], "lstm")
    with pytest.raises(TypeError, match=r"^weights must be a layer, .*; got dict$"):
        RNNWeights.from_keras(layer_of("lstm").get_config(), "lstm")


# Layers of cuDNN's


def cudnn_layer_of(mode, **changes):
    """A layer as tf_keras has it, with the settings that its ``get_config`` gives."""
    name = {"lstm": "CuDNNLSTM", "gru": "CuDNNGRU"}[mode]
    settings = {"name": "rnn", "return_sequences": True, "return_state": False, "units": H}
    settings |= {"go_backwards": False, "stateful": False, "time_major": False} | changes
    return made_of(
        f"tf_keras.src.layers.{name}", settings, cudnn_arrays_of(mode, hidden=H)[0], **settings
    )


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_cudnn_layers_are_taken_as_their_arrays_are(mode):
    found = RNNWeights.from_keras(cudnn_layer_of(mode))
    assert found.spec.mode == mode
    expected = RNNWeights.from_keras(cudnn_arrays_of(mode, hidden=H)[0], mode)
    assert (found.flat == expected.flat).all()


def test_settings_of_cudnn_layers_are_checked():
    with pytest.raises(ValueError, match=r"^weights must have stateful=False; got True: "):
        RNNWeights.from_keras(cudnn_layer_of("lstm", stateful=True))
    with pytest.raises(ValueError, match=r"^weights must have go_backwards=False; got True\. "):
        RNNWeights.from_keras(cudnn_layer_of("gru", go_backwards=True))
