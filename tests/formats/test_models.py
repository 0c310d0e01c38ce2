"""Files in the names and layouts of trained networks, recorded by `oracle_models.py`."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from record import decoded

import dnnffi
from dnnffi import RNNWeights

RECORD = json.loads(Path(__file__).with_name("recorded_models.json").read_text(encoding="utf-8"))
LAYOUTS = {one["name"]: one for one in RECORD["layouts"]}
PAGE = Path(__file__).parents[2] / "docs" / "weights.md"


def hdf5_bytes(arrays, attributes):
    h5py = pytest.importorskip("h5py")
    file = io.BytesIO()
    with h5py.File(file, "w") as content:
        for name, one in arrays.items():
            content[name] = one
        for name in ("model_config", "keras_version"):
            if name in attributes:
                content.attrs[name] = attributes[name]
    return file.getvalue()


def nested(torch, arrays):
    """Arrays of dotted names as the nested dictionaries of a checkpoint."""
    state = {}
    for name, one in arrays.items():
        kind, _, rest = name.partition(".")
        state.setdefault(kind, {})[rest] = torch.from_numpy(one)
    return state


def written(layout, folder):
    """A file with the arrays and attributes of a layout."""
    arrays = {name: decoded(one) for name, one in layout["arrays"].items()}
    attributes = layout["attributes"]
    path = folder / f"model{layout['suffix']}"
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".safetensors":
        pytest.importorskip("safetensors.numpy").save_file(arrays, path)
    elif path.suffix == ".pt":
        torch = pytest.importorskip("torch")
        torch.save(nested(torch, arrays) | {"step": 3}, path)
    elif path.suffix == ".keras":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model.weights.h5", hdf5_bytes(arrays, {}))
            archive.writestr("config.json", attributes["config"])
            archive.writestr("metadata.json", attributes["metadata"])
    else:
        path.write_bytes(hdf5_bytes(arrays, attributes))
    return path


@pytest.mark.parametrize("backend", ["cudnn", "torch"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_results_are_the_runtimes(tmp_path, name, backend):
    layout = LAYOUTS[name]
    weights = RNNWeights.load(written(layout, tmp_path), backend=backend, **layout["load"])
    y, _ = getattr(dnnffi, weights.spec.mode)(decoded(RECORD["x"]), None, weights)
    np.testing.assert_allclose(y, decoded(layout["y"]), rtol=0, atol=5e-7)


def changed(name, **settings):
    """A layout of Keras with other settings in its config, of the layer "both"."""
    layout = json.loads(json.dumps(LAYOUTS[name]))
    key = "config" if layout["suffix"] == ".keras" else "model_config"
    config = json.loads(layout["attributes"][key])
    layer = next(one for one in config["config"]["layers"] if one["config"].get("name") == "both")
    for setting, value in settings.items():
        (layer if setting == "class_name" else layer["config"])[setting] = value
    layout["attributes"][key] = json.dumps(config)
    return layout


KERAS_MODELS = ["keras_3", "keras_3_hdf5", "tf_keras", "tf_keras_hdf5"]


def inner(name, **settings):
    """The layer in a Bidirectional layer, with other settings."""
    layout = LAYOUTS[name]
    key = "config" if layout["suffix"] == ".keras" else "model_config"
    config = json.loads(layout["attributes"][key])
    layer = next(one for one in config["config"]["layers"] if one["config"].get("name") == "both")
    layer = layer["config"]["layer"]
    for setting, value in settings.items():
        (layer if setting in layer else layer["config"])[setting] = value
    return layer


@pytest.mark.parametrize("name", KERAS_MODELS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation": "relu"}, "activation must be tanh; got relu$"),
        ({"recurrent_activation": "hard_sigmoid"}, "recurrent_activation must be sigmoid; got ha"),
        ({"reset_after": False}, "must have reset_after=True; got False: "),
        ({"stateful": True}, "must have stateful=False; got True: "),
        ({"go_backwards": True}, "must have go_backwards=False; got True. Where the input is rev"),
        (
            {"class_name": "Mine"},
            "must be a layer of Keras, .*; got Mine, which may compute someth",
        ),
        ({"something_new": 1}, "has the setting something_new, which dnnffi does not know"),
    ],
)
def test_settings_in_a_file_are_checked(tmp_path, name, settings, message):
    layout = changed(name, layer=inner(name, **settings))
    path = written(layout, tmp_path)
    with pytest.raises(ValueError, match=rf"^{path}: \S+/: {message}|^{path}: \S+/ {message}"):
        RNNWeights.load(path, **layout["load"])


@pytest.mark.parametrize("name", KERAS_MODELS)
def test_directions_that_are_added_are_refused(tmp_path, name):
    path = written(changed(name, merge_mode="sum"), tmp_path)
    with pytest.raises(ValueError, match="must have merge_mode='concat'; got 'sum'"):
        RNNWeights.load(path, **LAYOUTS[name]["load"])


def test_a_class_of_another_package_is_refused(tmp_path):
    path = written(changed("keras_3", layer=inner("keras_3") | {"module": "mine.layers"}), tmp_path)
    with pytest.raises(
        ValueError, match=r"got mine\.layers\.GRU, which may compute something else"
    ):
        RNNWeights.load(path, prefix="layers/bidirectional/")


def test_settings_are_not_looked_at_where_arrays_are_named(tmp_path):
    name = "keras_3"
    path = written(changed(name, merge_mode="sum"), tmp_path)
    names = {
        f"layers/bidirectional/{direction}/cell/vars/{at}": f"{direction}/{variable}"
        for direction in ("forward_layer", "backward_layer")
        for at, variable in enumerate(("kernel", "recurrent_kernel", "bias"))
    }
    found = RNNWeights.load(path, names=names)
    expected = RNNWeights.load(written(LAYOUTS[name], tmp_path), **LAYOUTS[name]["load"])
    np.testing.assert_array_equal(found.flat, expected.flat)


@pytest.mark.parametrize("name", KERAS_MODELS)
def test_the_layers_of_a_model_are_listed(tmp_path, name):
    path = written(LAYOUTS[name], tmp_path)
    with pytest.raises(ValueError, match=rf"^{path}: 2 networks; pass prefix='.*' or prefix='.*'$"):
        RNNWeights.load(path)


@pytest.mark.parametrize("name", KERAS_MODELS)
def test_a_mode_that_the_config_contradicts_is_refused(tmp_path, name):
    path = written(LAYOUTS[name], tmp_path)
    with pytest.raises(ValueError, match=r"mode is 'lstm'; \S+ is 'gru'$"):
        RNNWeights.load(path, "lstm", **LAYOUTS[name]["load"])


def test_two_layers_of_one_name_are_told_apart_by_their_arrays_only(tmp_path):
    layout = json.loads(json.dumps(LAYOUTS["tf_keras_hdf5"]))
    config = json.loads(layout["attributes"]["model_config"])
    config["config"]["layers"] *= 2
    layout["attributes"]["model_config"] = json.dumps(config)
    with pytest.raises(ValueError, match=r"several layers of the model are called 'both'; pass na"):
        RNNWeights.load(written(layout, tmp_path), **layout["load"])


def test_a_layer_whose_name_begins_like_a_direction_is_checked(tmp_path):
    layer = {"class_name": "LSTM", "config": {"name": "forward_lstm", "activation": "tanh"}}
    layer["config"]["recurrent_activation"] = "hard_sigmoid"
    path = tmp_path / "model.h5"
    arrays = {name.replace("lstm_1", "forward_lstm"): one for name, one in keras_arrays().items()}
    config = json.dumps({"class_name": "Sequential", "config": {"layers": [layer]}})
    path.write_bytes(hdf5_bytes(arrays, {"model_config": config}))
    with pytest.raises(ValueError, match="recurrent_activation must be sigmoid; got hard_sigmoid"):
        RNNWeights.load(path)


def cell(kind="LSTMCell", recurrent_activation="sigmoid", activation="tanh", **settings):
    settings |= {"activation": activation, "recurrent_activation": recurrent_activation}
    return {"class_name": kind, "config": settings}


def stacked(*cells):
    return {"class_name": "StackedRNNCells", "config": {"cells": list(cells)}}


def file_of_cells(folder, cells):
    """A file with the config of a layer RNN with these cells, and the arrays of one LSTMCell."""
    path = folder / "model.h5"
    arrays = {name.replace("lstm_1", "net"): one for name, one in keras_arrays().items()}
    layer = {"class_name": "RNN", "config": {"name": "net", "cell": cells}}
    config = json.dumps({"class_name": "Sequential", "config": {"layers": [layer]}})
    path.write_bytes(hdf5_bytes(arrays, {"model_config": config}))
    return path


@pytest.mark.parametrize("cells", [cell(), stacked(cell()), stacked(cell(), cell())])
def test_cells_in_a_layer_are_known(tmp_path, cells):
    assert RNNWeights.load(file_of_cells(tmp_path, cells)).spec.mode == "lstm"


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (cell(activation="relu"), "activation must be tanh; got relu$"),
        (cell(activation={"class_name": "Mine"}), "activation must be tanh; got {'class_name': 'M"),
        (stacked(cell(), cell(recurrent_activation="linear")), "recurrent_activation must be sig"),
        (cell("MyCell"), "must have cells of LSTMCell, GRUCell, SimpleRNNCell; got 'MyCell'$"),
        (stacked(cell(), cell("MyCell")), "must have cells of LSTMCell, .*; got 'MyCell'$"),
        (
            stacked(cell(), cell("GRUCell", reset_after=True)),
            r"must have cells of one mode; got \[",
        ),
        (stacked(), r"must have cells of one mode; got \[\]$"),
        (cell(reset_after=False), "must have reset_after=True; got False"),
        (cell(strange=1), "has the setting strange, which dnnffi does not know"),
        (None, "the file must describe a layer; got None$"),
    ],
)
def test_cells_in_a_layer_are_checked(tmp_path, cells, message):
    path = file_of_cells(tmp_path, cells)
    with pytest.raises(ValueError, match=rf"^{path}: net/net/:? {message}"):
        RNNWeights.load(path)


@pytest.mark.parametrize("name", KERAS_MODELS)
def test_a_direction_that_is_missing_is_told(tmp_path, name):
    layout = json.loads(json.dumps(LAYOUTS[name]))
    layout["arrays"] = {
        path: one for path, one in layout["arrays"].items() if "/backward_" not in path
    }
    message = "must have one cell in each direction; the config says Bidirectional, and .* 1 cells"
    with pytest.raises(ValueError, match=message):
        RNNWeights.load(written(layout, tmp_path), **layout["load"])


def keras_arrays(gates=4, bias=True):
    rng = np.random.default_rng(0)
    arrays = {
        "lstm_1/lstm_1/kernel:0": rng.uniform(-1, 1, (3, gates * 2)),
        "lstm_1/lstm_1/recurrent_kernel:0": rng.uniform(-1, 1, (2, gates * 2)),
    }
    shape = (2, gates * 2) if gates == 3 else (gates * 2,)
    return arrays | ({"lstm_1/lstm_1/bias:0": rng.uniform(-1, 1, shape)} if bias else {})


def weights_file(folder, arrays, version="2.4.0"):
    path = folder / "weights.h5"
    path.write_bytes(hdf5_bytes(arrays, {"keras_version": version} if version else {}))
    return path


@pytest.mark.parametrize("gates", [3, 4])
@pytest.mark.parametrize("version", ["2.2.4", "2.1.5", "1.2.2"])
def test_old_files_that_do_not_show_the_activation_are_refused(tmp_path, gates, version):
    path = weights_file(tmp_path, keras_arrays(gates), version)
    with pytest.raises(ValueError, match=r"used recurrent_activation='hard_sigmoid' by default"):
        RNNWeights.load(path)


@pytest.mark.parametrize("version", ["2.3.1", "3.0.0", None])
def test_newer_files_of_weights_have_the_usual_activation(tmp_path, version):
    path = weights_file(tmp_path, keras_arrays(), version)
    found = RNNWeights.load(path)
    expected = RNNWeights.from_keras(list(keras_arrays().values()), "lstm")
    np.testing.assert_array_equal(found.flat, expected.flat)


def test_old_files_of_a_simple_rnn_have_no_such_activation(tmp_path):
    path = weights_file(tmp_path, keras_arrays(1), "2.1.5")
    assert RNNWeights.load(path, "rnn_relu").spec.mode == "rnn_relu"
    with pytest.raises(
        ValueError, match="does not show the mode; pass mode='rnn_tanh' or mode='rn"
    ):
        RNNWeights.load(path)


def test_a_gru_without_biases_does_not_show_reset_after(tmp_path):
    path = weights_file(tmp_path, keras_arrays(3, bias=False))
    with pytest.raises(ValueError, match="a GRU without biases does not show reset_after"):
        RNNWeights.load(path)
    names = {name: name.split("/")[-1].removesuffix(":0") for name in keras_arrays(3, bias=False)}
    assert not RNNWeights.load(path, names=names).spec.bias


def test_layers_of_a_file_are_stacked(tmp_path):
    first = keras_arrays()
    second = {name.replace("lstm_1", "lstm_2"): one for name, one in first.items()}
    second["lstm_2/lstm_2/kernel:0"] = second["lstm_2/lstm_2/kernel:0"][:2]
    path = weights_file(tmp_path, first | second)
    weights = RNNWeights.load(path, prefix=["lstm_1/", "lstm_2/"])
    assert weights.spec.num_layers == 2


def test_moments_of_the_optimizer_are_no_networks(tmp_path):
    arrays = keras_arrays()
    moments = {f"optimizer_weights/Adam/m/{name}": one for name, one in arrays.items()}
    assert RNNWeights.load(weights_file(tmp_path, arrays | moments)).spec.mode == "lstm"


# The table of the page


@pytest.mark.parametrize("model", RECORD["models"], ids=lambda one: one["package"])
def test_the_page_has_a_row_for_each_model(model):
    text = PAGE.read_text(encoding="utf-8")
    name = f"| {model['package']} {model['version']}, {model['licence']} |"
    (row,) = [one for one in text.splitlines() if one.startswith(f"{name} `{model['file']}` |")]
    if "refused" in model:
        assert row.endswith("| refused |")
    else:
        figures = [model[name] for name in ("difference", "runtime_rounding", "own_rounding")]
        assert row.endswith(f"| {' | '.join(f'{one:.1e}' for one in figures)} |")
        assert model["network"] in row


def test_dnnffi_rounds_no_more_than_the_runtimes():
    compared = [one for one in RECORD["models"] if "refused" not in one]
    assert len(compared) >= 14
    for one in compared:
        assert one["own_rounding"] <= max(2 * one["runtime_rounding"], 5e-6), one


def test_each_model_has_one_way_to_load_it():
    text = PAGE.read_text(encoding="utf-8")
    assert len(re.findall(r"^\| \S+ \d\S*, ", text, re.MULTILINE)) == len(RECORD["models"])
