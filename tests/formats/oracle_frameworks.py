"""Record what other frameworks compute with random weights, for `test_recorded.py`.

    python tests/formats/oracle_frameworks.py

needs torch, keras, jax, flax, equinox, onnx and onnxruntime, and dnnffi for nothing. It writes
`recorded.json`: for each network the arguments of the method that takes its weights, and y.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import equinox
import jax
import keras
import numpy as np
import onnx
import onnxruntime
import torch
from flax import linen, nnx
from onnx import helper, numpy_helper
from record import encoded

PACKAGES = ("torch", "keras", "jax", "flax", "equinox", "onnx", "onnxruntime")
T, B, I, H = 4, 2, 3, 2  # noqa: E741 - the symbols of the documentation
rng = np.random.default_rng(0)
x = rng.standard_normal((T, B, I)).astype("float32")


def torch_cases():
    for kind, mode, more in (
        (torch.nn.LSTM, "lstm", {}),
        (torch.nn.LSTM, "lstm", {"proj_size": 1}),
        (torch.nn.GRU, "gru", {}),
        (torch.nn.RNN, "rnn_tanh", {"bias": False}),
        (torch.nn.RNN, "rnn_relu", {"nonlinearity": "relu"}),
    ):
        module = kind(I, H, num_layers=2, bidirectional=True, **more)
        state = {name: one.numpy() for name, one in sorted(module.state_dict().items())}
        yield "from_torch", [state, mode], module(torch.tensor(x))[0].detach()


def keras_cases():
    batch_first = x.swapaxes(0, 1)
    for kind, mode, more in (
        (keras.layers.LSTM, "lstm", {}),
        (keras.layers.GRU, "gru", {}),
        (keras.layers.GRU, "gru", {"use_bias": False}),
        (keras.layers.SimpleRNN, "rnn_tanh", {}),
        (keras.layers.SimpleRNN, "rnn_relu", {"activation": "relu"}),
    ):

        def layer(kind=kind, more=more):
            return kind(H, return_sequences=True, bias_initializer="normal", **more)

        for one in (layer(), keras.layers.Bidirectional(layer())):
            y = np.asarray(one(batch_first)).swapaxes(0, 1)
            yield "from_keras", [one.get_weights(), mode], y


def onnx_cases():
    for operator, mode, gates in (
        ("LSTM", "lstm", 4),
        ("GRU", "gru", 3),
        ("RNN", "rnn_tanh", 1),
        ("RNN", "rnn_relu", 1),
    ):
        for directions in (1, 2):
            rows = gates * H
            shapes = (directions, rows, I), (directions, rows, H), (directions, 2 * rows)
            weights = [rng.uniform(-0.7, 0.7, shape).astype("float32") for shape in shapes]
            more = {"linear_before_reset": 1} if mode == "gru" else {}
            said = more | ({"activations": ["Relu"] * directions} if mode == "rnn_relu" else {})
            direction = ("forward", "bidirectional")[directions - 1]
            node = helper.make_node(
                operator, ["X", *"WRB"], ["Y"], hidden_size=H, direction=direction, **said
            )
            graph = helper.make_graph(
                [node],
                "graph",
                [helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, x.shape)],
                [helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)],
                [numpy_helper.from_array(*one) for one in zip(weights, "WRB", strict=True)],
            )
            opset = [helper.make_opsetid("", 14)]
            model = helper.make_model(graph, opset_imports=opset, ir_version=8)
            session = onnxruntime.InferenceSession(model.SerializeToString())
            (y,) = session.run(None, {"X": x})
            yield "from_onnx", [*weights, {"mode": mode} | more], y.swapaxes(1, 2).reshape(T, B, -1)


def flax_cases():
    normal = jax.nn.initializers.normal()
    for kind in (linen.LSTMCell, linen.OptimizedLSTMCell, linen.GRUCell, linen.SimpleCell):
        network = linen.RNN(kind(H, bias_init=normal), time_major=True)
        params = network.init(jax.random.key(0), x)
        yield "from_flax", [params["params"]["cell"]], network.apply(params, x)
    for kind in (nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.GRUCell, nnx.SimpleCell):
        cells = [kind(I, H, bias_init=normal, rngs=nnx.Rngs(seed)) for seed in (0, 1)]
        networks = [nnx.RNN(cell, time_major=True) for cell in cells]
        y = nnx.Bidirectional(*networks, time_major=True)(jax.numpy.asarray(x))
        params = [nnx.to_pure_dict(nnx.state(cell, nnx.Param)) for cell in cells]
        yield "from_flax", [[params]], y


def equinox_cases():
    for kind, start in ((equinox.nn.LSTMCell, 2), (equinox.nn.GRUCell, 1)):
        for biased in (True, False):
            cell = kind(I, H, use_bias=biased, key=jax.random.key(0))

            def step(state, one, cell=cell):
                state = jax.vmap(cell)(one, state)
                return state, state[0] if isinstance(state, tuple) else state

            zeros = jax.numpy.zeros((B, H))
            _, y = jax.lax.scan(step, (zeros,) * 2 if start == 2 else zeros, jax.numpy.asarray(x))
            names = ("weight_ih", "weight_hh", "bias", "bias_n")
            yield "from_equinox", [{name: getattr(cell, name, None) for name in names}], y


def main():
    torch.manual_seed(0)
    keras.utils.set_random_seed(0)
    made = (torch_cases, keras_cases, onnx_cases, flax_cases, equinox_cases)
    record = {
        "versions": {name: version(name) for name in PACKAGES},
        "x": encoded(x),
        "cases": [
            {"method": method, "arguments": encoded(arguments), "y": encoded(y)}
            for cases in made
            for method, arguments, y in cases()
        ],
    }
    path = Path(__file__).with_name("recorded.json")
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(record['cases'])} networks")


if __name__ == "__main__":
    main()
