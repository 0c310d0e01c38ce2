"""Compare dnnffi with trained networks that packages ship, and record their layouts for the tests.

    python tests/formats/oracle_models.py

needs h5py, PyTorch, keras, tf_keras and those packages in `MODELS` that are to be compared; it
installs nothing, and says which are missing. It writes `recorded_models.json`:

* "models": for each package the file, its network, the largest difference from the package's own
  runtime, and those of both from float64. Figures of packages that are not installed are kept.
* "layouts": for each way in which the files name and arrange arrays, a small network with seeded
  weights, and what the runtime of that format computes of it. `test_models.py` makes files of them.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import pickle
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import h5py
import numpy as np
import torch
from record import encoded

import dnnffi
from dnnffi import RNNWeights

RECORD = Path(__file__).with_name("recorded_models.json")
STEPS, ROWS = 160, 4

MODELS = []


class Refused(Exception):
    """The file is refused; the message says why."""


def model(package, release, licence, file):
    """Register a comparison: a function of the file's path that returns the differences found."""

    def register(function):
        MODELS.append((package, release, licence, file, function))
        return function

    return register


def inputs(size, steps=STEPS, rows=ROWS, seed=0):
    return np.random.default_rng(seed).standard_normal((steps, rows, size)).astype("float32")


def run(weights, x, hx=None):
    return getattr(dnnffi, weights.spec.mode)(x, hx, weights)[0]


class Differences(NamedTuple):
    """Largest differences of outputs in [-1, 1]."""

    difference: float
    """Between dnnffi and the package's runtime, both in float32."""
    runtime_rounding: float
    """Between the package's runtime and dnnffi in float64."""
    own_rounding: float
    """Between dnnffi in float32 and in float64."""


def differences(weights, runtime, x=None):
    """Compare with a ``runtime`` that takes [T, B, I]; ``x`` is random by default."""
    x = inputs(weights.spec.input_size) if x is None else x
    exact = {name: one.astype("float64") for name, one in weights.to_torch().items()}
    in_float64 = run(RNNWeights.from_torch(exact, weights.spec.mode), x.astype("float64"))
    expected, found = np.asarray(runtime(x)), run(weights, x)
    pairs = ((expected, found), (expected, in_float64), (found, in_float64))
    return Differences(*(float(np.abs(one - other).max()) for one, other in pairs))


def worst(found):
    """The one with the largest difference."""
    return max(found, key=lambda one: one.difference)


def by_torch(module):
    """The runtime of a module of PyTorch's that is batch-first or not."""

    def runtime(x):
        given = torch.from_numpy(x)
        with torch.no_grad():
            if module.batch_first:
                return module(given.transpose(0, 1))[0].transpose(0, 1).numpy()
            return module(given)[0].numpy()

    return runtime


def by_keras(layer):
    """The runtime of a layer of Keras's, which is made to return all steps."""

    def runtime(x):
        layer.return_sequences = True
        return np.asarray(layer(x.transpose(1, 0, 2))).transpose(1, 0, 2)

    return runtime


# Networks that the packages ship


@model("Resemblyzer", "0.1.4", "Apache-2.0", "resemblyzer/pretrained.pt")
def resemblyzer(path):
    from resemblyzer import VoiceEncoder

    weights = RNNWeights.load(path)
    module = VoiceEncoder("cpu", verbose=False).lstm
    return weights, differences(weights, by_torch(module))


@model("silero-vad", "6.2.3", "MIT", "silero_vad/data/silero_vad_16k.safetensors")
def silero_vad(path):
    # The package runs this file by tinygrad's LSTMCell, which is PyTorch's.
    weights = RNNWeights.load(path)
    cell = torch.nn.LSTMCell(128, 128)
    names = {f"{name}_l0": name for name, _ in cell.named_parameters()}
    cell.load_state_dict(
        {names[name]: torch.from_numpy(one) for name, one in weights.to_torch().items()}
    )
    return weights, differences(weights, by_cell(cell))


def by_cell(cell):
    def runtime(x):
        state, outputs = None, []
        with torch.no_grad():
            for step in torch.from_numpy(x):
                state = cell(step, state)
                outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs).numpy()

    return runtime


@model("silero-vad", "6.2.3", "MIT", "silero_vad/data/silero_vad.jit")
def silero_vad_jit(path):
    scripted = torch.jit.load(path)
    weights = RNNWeights.from_torch(scripted.state_dict(), prefix="_model.decoder.")
    scripted_cell = scripted._model.decoder.rnn

    def runtime(x):
        state, outputs = None, []
        with torch.no_grad():
            for step in torch.from_numpy(x):
                if state is None:
                    state = (torch.zeros(len(step), 128),) * 2
                state = scripted_cell(step, state)
                outputs.append(state[0])
        return torch.stack(outputs).numpy()

    return weights, differences(weights, runtime)


@model("textgenrnn", "2.0.0", "MIT", "textgenrnn/textgenrnn_weights.hdf5")
def textgenrnn(path):
    import tf_keras

    found = []
    with h5py.File(path) as file:
        characters = file["embedding/embedding/embeddings:0"][()]
    # 40 characters, as in the package: float32 makes this network's outputs differ in longer texts.
    x = characters[np.random.default_rng(0).integers(len(characters), size=(40, ROWS))]
    for name in ("rnn_1", "rnn_2"):
        weights = RNNWeights.load(path, prefix=f"{name}/")
        # The package's layers; tf_keras converts the arrays of CuDNNLSTM as it loads them.
        layer = tf_keras.layers.LSTM(128, return_sequences=True, name=name)
        network = tf_keras.Sequential([tf_keras.Input((None, weights.spec.input_size)), layer])
        network.load_weights(path, by_name=True)
        found.append(differences(weights, by_keras(layer), x))
        x = by_keras(layer)(x)
    return weights, worst(found)


G2P_NAMES = dict(
    zip(
        ("w_ih", "w_hh", "b_ih", "b_hh"),
        ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"),
        strict=True,
    )
)


@model("g2p-en", "2.1.0", "Apache-2.0", "g2p_en/checkpoint20.npz")
def g2p_en(path):
    from g2p_en import G2p

    package = G2p.__new__(G2p)  # without the dictionary of NLTK
    package.load_variables()
    found = []
    for part in ("enc", "dec"):
        weights = RNNWeights.load(path, names={f"{part}_{k}": v for k, v in G2P_NAMES.items()})
        arrays = [getattr(package, f"{part}_{name}") for name in G2P_NAMES]

        def runtime(x, arrays=arrays):
            return package.gru(x.swapaxes(0, 1), len(x), *arrays).swapaxes(0, 1)

        found.append(differences(weights, runtime))
    return weights, worst(found)


@model("arabic-diacritizer", "1.0.0", "MIT", "diacritize/assets/bilstm_best.pt")
def arabic_diacritizer(path):
    from diacritize.baseline.model import BiLSTMDiacritizer

    weights = RNNWeights.load(path)
    package = BiLSTMDiacritizer.from_pretrained(path).eval()
    return weights, differences(weights, by_torch(package.lstm))


@model(
    "arabic-morph-segmenter",
    "0.1.0",
    "MIT",
    "arabic_morph_segmenter/assets/arabic_morph_segmenter_bilstm_crf.pt",
)
def arabic_morph_segmenter(path):
    from arabic_morph_segmenter.segmenter import ArabicMorphSegmenter

    weights = RNNWeights.load(path)
    return weights, differences(weights, by_torch(ArabicMorphSegmenter(path).model.eval().lstm))


@model("fin-sentiment", "0.1.4", "MIT", "fin_sentiment/models/sentiment_lstm.pth")
def fin_sentiment(path):
    from fin_sentiment.sentiment_model import SentimentModel

    weights = RNNWeights.load(path)
    return weights, differences(weights, by_torch(SentimentModel(str(path)).model.lstm))


@model("uzmorph-nn", "0.1.0", "MIT", "uzmorph_nn/data/morph_bilstm.pth")
def uzmorph_nn(path):
    from uzmorph_nn.model import MorphBiLSTM

    weights = RNNWeights.load(path)
    state = torch.load(path, weights_only=True)
    state = state.get("model_state_dict", state)
    package = MorphBiLSTM(
        *(len(state[name]) for name in ("char_embeddings.weight", "hidden2tag.weight"))
    )
    package.load_state_dict(state)
    return weights, differences(weights, by_torch(package.lstm))


@model("instate", "1.1.0", "MIT", "instate/data/state_lang_labels.pt")
def instate(path):
    # The package's class needs pandas; this is its torch.nn.LSTM, on letters of a name of 20.
    weights = RNNWeights.load(path)
    module = torch.nn.LSTM(weights.spec.input_size, weights.spec.hidden_size)
    module.load_state_dict(
        {name: torch.from_numpy(one) for name, one in weights.to_torch().items()}
    )
    letters = torch.load(path, "cpu", weights_only=True)["embedding.weight"].numpy()
    x = letters[np.random.default_rng(0).integers(len(letters), size=(20, ROWS))]
    return weights, differences(weights, by_torch(module), x)


@model("e2k", "0.8.1", "Unlicense", "e2k/models/model-c2k.safetensors")
def e2k(path):
    from e2k import C2K

    package = C2K(path=str(path)).s2s
    weights = RNNWeights.load(path, prefix="encoder.")
    single = RNNWeights.from_torch(
        {name: one.astype("float32") for name, one in weights.to_torch().items()}
    )

    def runtime(x):
        rows = [
            np.concatenate(
                [package.encoder.forward(row)[0], package.encoder_reverse.forward(row)[0]], 1
            )
            for row in x.swapaxes(0, 1)
        ]
        return np.stack(rows, 1)

    return weights, differences(single, runtime)


@model("g2pM", "0.1.2.5", "Apache-2.0", "g2pM/np_ckpt.pkl")
def g2pm(path):
    from g2pM import G2pM

    package = G2pM()
    with path.open("rb") as file:  # a pickle, which the package itself reads
        weights = RNNWeights.from_torch(pickle.load(file))

    def runtime(x):
        halves = []
        for cell, order in ((package.fw_lstm_cell, 1), (package.bw_lstm_cell, -1)):
            state, outputs = None, []
            for step in x[::order]:
                state = cell(step, state)
                outputs.append(state[0])
            halves.append(np.stack(outputs[::order]))
        return np.concatenate(halves, -1)

    return weights, differences(weights, runtime)


@model("dgaintel", "2.3", "MIT", "dgaintel/domain_classifier_model.h5")
def dgaintel(path):
    import tf_keras

    weights = RNNWeights.load(path)
    package = tf_keras.models.load_model(path, compile=False)
    return weights, differences(weights, by_keras(package.get_layer("lstm_4")))


@model("nakdimon", "0.1.2", "MIT", "nakdimon/Nakdimon.h5")
def nakdimon(path):
    import tf_keras

    # The layers add the directions (merge_mode="sum"), so that the arrays have to be named.
    package = tf_keras.models.load_model(path, compile=False)
    weights = RNNWeights.load(
        path,
        names={
            f"model_weights/bidirectional/bidirectional/{at}_lstm/lstm_cell_{number}/{name}:0": (
                f"{at}_layer/{name}"
            )
            for number, at in ((1, "forward"), (2, "backward"))
            for name in ("kernel", "recurrent_kernel", "bias")
        },
    )
    layer = package.get_layer("bidirectional")

    def runtime(x):
        both = (layer.forward_layer, layer.backward_layer)
        outputs = [by_keras(one)(x) for one in both]
        return np.concatenate([outputs[0], outputs[1][::-1]], -1)

    return weights, differences(weights, runtime)


@model("chars2vec", "0.1.7", "Apache-2.0", "chars2vec/trained_models/eng_50/weights.h5")
def chars2vec(path):
    import tf_keras

    # The file is Keras 2.2's and does not show the activation: the package runs it with the
    # default of the Keras that is installed, which is sigmoid.
    found = []
    for at, inputs_size in ((1, 59), (2, 50)):
        names = {f"lstm_{at}/lstm_{at}/{n}:0": n for n in ("kernel", "recurrent_kernel", "bias")}
        weights = RNNWeights.load(path, names=names)
        layer = tf_keras.layers.LSTM(50, return_sequences=True, name=f"lstm_{at}")
        network = tf_keras.Sequential([tf_keras.Input((None, inputs_size)), layer])
        network.load_weights(path, by_name=True)
        found.append(differences(weights, by_keras(layer)))
    return weights, worst(found)


@model("sleepecg", "0.6.0", "BSD-3-Clause", "sleepecg/classifiers/wrn-gru-mesa.zip")
def sleepecg(path):
    import keras

    found = []
    with tempfile.TemporaryDirectory() as where, zipfile.ZipFile(path) as archive:
        path = archive.extract("classifier.keras", where)
        package = keras.models.load_model(path, compile=False)
        for name in ("bidirectional", "bidirectional_1"):
            weights, layer = (
                RNNWeights.load(path, prefix=f"layers/{name}/"),
                package.get_layer(name),
            )

            def runtime(x, layer=layer):
                with torch.no_grad():
                    found = layer(x.transpose(1, 0, 2))
                return keras.ops.convert_to_numpy(found).transpose(1, 0, 2)

            found.append(differences(weights, runtime))
    return weights, worst(found)


def refused(path, **keywords):
    try:
        RNNWeights.load(path, **keywords)
    except ValueError as error:
        raise Refused(str(error).replace(f"{path}: ", "")) from error
    raise AssertionError(f"{path} was loaded")


@model("astrorapid", "0.2.17", "MIT", "astrorapid/keras_model_with_redshift_0804020.hdf5")
def astrorapid(path):
    refused(path, prefix="model_weights/lstm/")


@model("shakkala", "1.7", "MIT", "shakkala/model/second_model6.h5")
def shakkala(path):
    refused(path, prefix="model_weights/bidirectional_19/")


@model("crema", "0.2.0", "ISC", "crema/models/chord/model.h5")
def crema(path):
    refused(path, prefix="model_weights/bidirectional_1/")


@model("rnnmorph", "0.4.1", "Apache-2.0", "rnnmorph/models/en/eval_model.h5")
def rnnmorph(path):
    refused(path, prefix="bidirectional_1/")


def compared():
    """Compare all packages that are installed: one entry for each."""
    entries = []
    for package, release, licence, file, function in MODELS:
        entry = {"package": package, "version": release, "licence": licence, "file": file}
        try:
            installed = version(package)
            path = next(
                Path(one.locate()) for one in importlib.metadata.files(package) if one.match(file)
            )
        except (PackageNotFoundError, StopIteration):
            print(f"{package}: not installed")
            continue
        if installed != release:
            print(f"{package}: {installed} is installed, not {release}")
            continue
        print(f"{package} {file}")
        try:
            weights, found = function(path)
            entry |= found._asdict()
            entry["network"] = network_of(weights.spec)
        except Refused as error:
            entry["refused"] = str(error)
        print("  ", list(entry.values())[4:])
        entries.append(entry)
    return entries


def network_of(spec):
    layers = f"{spec.num_layers} layers" if spec.num_layers > 1 else "1 layer"
    both = ", both directions" if spec.bidirectional else ""
    return f"{spec.mode.upper()} {spec.input_size} to {spec.hidden_size}, {layers}{both}"


# Small networks in the same names and layouts

LAYOUTS = []
SIZE, HIDDEN = 3, 2


def layout(suffix, **load):
    """Register a function that returns arrays by name, attributes, and y of x."""

    def register(function):
        LAYOUTS.append((function.__name__, suffix, load, function))
        return function

    return register


def seeded(*shapes):
    rng = np.random.default_rng(1)
    return [rng.uniform(-0.5, 0.5, shape).astype("float32") for shape in shapes]


X = inputs(SIZE, steps=4, rows=2, seed=2)


def module_of(module):
    torch.manual_seed(3)
    module.reset_parameters()
    return module, {name: one.detach().numpy() for name, one in module.state_dict().items()}


@layout(".pt", prefix="model_state.lstm.")
def checkpoint():
    """A checkpoint with nested dictionaries, as Resemblyzer's."""
    module, state = module_of(torch.nn.LSTM(SIZE, HIDDEN, 2))
    arrays = {f"model_state.lstm.{name}": one for name, one in state.items()}
    return arrays | {"model_state.linear.weight": seeded((2, HIDDEN))[0]}, {}, by_torch(module)(X)


@layout(".safetensors")
def lstm_cell():
    """Names of LSTMCell, as silero-vad's."""
    cell, state = module_of(torch.nn.LSTMCell(SIZE, HIDDEN))
    arrays = {f"lstm_cell.{name}": one for name, one in state.items()}
    return arrays | {"conv1.weight": seeded((2, 2, 3))[0]}, {}, by_cell(cell)(X)


@layout(".npz", names={f"enc_{name}": value for name, value in G2P_NAMES.items()})
def own_names():
    """Names of g2p-en's."""
    module, state = module_of(torch.nn.GRU(SIZE, HIDDEN))
    arrays = {f"enc_{name}": state[value] for name, value in G2P_NAMES.items()}
    return arrays | {"enc_emb": seeded((4, SIZE))[0]}, {}, by_torch(module)(X)


def cudnn(kind, gates):
    import tf_keras

    kernel, recurrent, bias = seeded(
        (SIZE, gates * HIDDEN), (HIDDEN, gates * HIDDEN), (2 * gates * HIDDEN,)
    )
    arrays = {
        f"rnn_1/rnn_1/{name}:0": one
        for name, one in (("kernel", kernel), ("recurrent_kernel", recurrent), ("bias", bias))
    }
    layer = getattr(tf_keras.layers, kind)(HIDDEN, return_sequences=True, name="rnn_1")
    network = tf_keras.Sequential([tf_keras.Input((None, SIZE)), layer])
    with tempfile.TemporaryDirectory() as where:
        path = Path(where, "weights.h5")
        with h5py.File(path, "w") as file:
            file.attrs["layer_names"] = [b"rnn_1"]
            file.attrs["keras_version"] = b"2.1.5"
            file.attrs["backend"] = b"tensorflow"
            group = file.create_group("rnn_1")
            group.attrs["weight_names"] = [name.removeprefix("rnn_1/").encode() for name in arrays]
            for name, one in arrays.items():
                file[name] = one
        network.load_weights(path, by_name=True)
    return arrays, {"keras_version": "2.1.5"}, by_keras(layer)(X)


@layout(".hdf5")
def cudnn_lstm():
    """CuDNNLSTM, as textgenrnn's."""
    return cudnn("LSTM", 4)


@layout(".hdf5")
def cudnn_gru():
    return cudnn("GRU", 3)


def saved_by(package, ending):
    """The arrays and attributes that Keras saves of a model, and the output of its first layer."""
    layers = package.layers
    network = package.Sequential(
        [
            package.Input((None, SIZE)),
            layers.Bidirectional(layers.GRU(HIDDEN, return_sequences=True), name="both"),
            layers.LSTM(HIDDEN, return_sequences=True, dropout=0.5, name="top"),
        ]
    )
    rng = np.random.default_rng(4)
    network.set_weights(
        [rng.uniform(-0.5, 0.5, one.shape).astype("float32") for one in network.get_weights()]
    )
    with tempfile.TemporaryDirectory() as where:
        path = Path(where, f"model{ending}")
        (network.save_weights if ending == ".weights.h5" else network.save)(path)
        attributes = {}
        content = path
        if ending == ".keras":
            with zipfile.ZipFile(path) as archive:
                content = io.BytesIO(archive.read("model.weights.h5"))
                for name in ("config", "metadata"):
                    attributes[name] = archive.read(f"{name}.json").decode()
        arrays = {}
        with h5py.File(content) as file:
            file.visititems(
                lambda name, one: (
                    arrays.update({name: one[()]})
                    if isinstance(one, h5py.Dataset) and one.dtype == "float32"
                    else None
                )
            )
            for name in ("model_config", "keras_version"):
                if name in file.attrs:
                    attributes[name] = str(file.attrs[name])
    with torch.no_grad():
        found = network.layers[0](X.transpose(1, 0, 2))
    found = found.numpy() if hasattr(found, "numpy") else found
    return arrays, attributes, np.asarray(found).transpose(1, 0, 2)


NEWER, OLDER = "layers/bidirectional/", "model_weights/both/"


@layout(".keras", prefix=NEWER)
def keras_3():
    import keras

    return saved_by(keras, ".keras")


@layout(".h5", prefix=OLDER)
def keras_3_hdf5():
    import keras

    return saved_by(keras, ".h5")


@layout(".h5", prefix=NEWER)
def keras_3_weights():
    import keras

    return saved_by(keras, ".weights.h5")


@layout(".keras", prefix=NEWER)
def tf_keras():
    import tf_keras as package

    return saved_by(package, ".keras")


@layout(".h5", prefix=OLDER)
def tf_keras_hdf5():
    import tf_keras as package

    return saved_by(package, ".h5")


def recorded_layouts():
    layouts = []
    for name, suffix, load, function in LAYOUTS:
        arrays, attributes, y = function()
        layouts.append(
            {
                "name": name,
                "suffix": suffix,
                "load": load,
                "arrays": {one: encoded(array) for one, array in arrays.items()},
                "attributes": attributes,
                "y": encoded(y),
            }
        )
        print(f"{name}: {len(arrays)} arrays")
    return layouts


def main():
    before = json.loads(RECORD.read_text(encoding="utf-8"))["models"] if RECORD.exists() else []
    models = compared()
    done = {(one["package"], one["file"]) for one in models}
    models += [one for one in before if (one["package"], one["file"]) not in done]
    record = {
        "versions": {name: version(name) for name in ("h5py", "keras", "tf_keras", "torch")},
        "models": sorted(models, key=lambda one: (one["package"].lower(), one["file"])),
        "x": encoded(X),
        "layouts": recorded_layouts(),
    }
    RECORD.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(f"{RECORD.name}: {len(record['models'])} models, {len(record['layouts'])} layouts")


if __name__ == "__main__":
    main()
