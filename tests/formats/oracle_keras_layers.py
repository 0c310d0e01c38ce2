"""Record the settings of Keras's layers, for `test_keras_layers.py`.

    python tests/formats/oracle_keras_layers.py

needs keras and a backend of it, and dnnffi for nothing. It writes `recorded_keras_layers.json`: for
each layer and cell its module, its settings, and module and name of its functions.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

from keras import layers

FUNCTIONS = ("activation", "recurrent_activation")


def described(layer):
    """The settings of a layer, its module, and module and name of its functions."""
    functions = {name: getattr(layer, name) for name in FUNCTIONS if hasattr(layer, name)}
    return {
        "module": type(layer).__module__,
        "settings": json.loads(json.dumps(layer.get_config())),
        "functions": {name: [one.__module__, one.__name__] for name, one in functions.items()},
    }


def main():
    units = 4
    made = [
        layers.LSTM(units, return_sequences=True),
        layers.GRU(units, return_sequences=True),
        layers.SimpleRNN(units, return_sequences=True),
        layers.LSTMCell(units),
        layers.GRUCell(units),
        layers.SimpleRNNCell(units),
        layers.RNN([layers.LSTMCell(units)] * 2, return_sequences=True),
        layers.StackedRNNCells([layers.LSTMCell(units)] * 2),
        layers.Bidirectional(layers.LSTM(units, return_sequences=True)),
    ]
    record = {
        "versions": {"keras": version("keras")},
        "layers": {type(layer).__name__: described(layer) for layer in made},
    }
    path = Path(__file__).with_name("recorded_keras_layers.json")
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(made)} layers")


if __name__ == "__main__":
    main()
