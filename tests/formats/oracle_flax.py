"""Record what whole layers of Flax compute with random weights, for `test_recorded.py`.

    python tests/formats/oracle_flax.py

needs jax and flax, and dnnffi for nothing. It writes `recorded_flax.json`: parameters of RNN and
Bidirectional, linen's and nnx's, and of two such layers, as arguments of `RNNWeights.from_flax`,
and y. `oracle_frameworks.py` records single cells.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
from flax import linen, nnx
from record import encoded

PACKAGES = ("jax", "flax")
T, B, I, H = 4, 2, 3, 2  # noqa: E741 - the symbols of the documentation
x = np.random.default_rng(0).standard_normal((T, B, I)).astype("float32")
normal = jax.nn.initializers.normal()


def linen_cases():
    for kind in (linen.LSTMCell, linen.OptimizedLSTMCell, linen.GRUCell, linen.SimpleCell):

        def rnn(kind=kind):
            return linen.RNN(kind(H, bias_init=normal), time_major=True)

        def both():
            return linen.Bidirectional(rnn(), rnn(), time_major=True)

        for network in (rnn(), both()):
            params = network.init(jax.random.key(0), x)
            yield [params], network.apply(params, x)
        layers = linen.Sequential([both(), both()])
        params = layers.init(jax.random.key(1), x)
        in_order = [params["params"][f"layers_{number}"] for number in (0, 1)]
        yield [in_order], layers.apply(params, x)


def nnx_cases():
    for kind in (nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.GRUCell, nnx.SimpleCell):

        def rnn(seed, inputs=I, kind=kind):
            cell = kind(inputs, H, bias_init=normal, rngs=nnx.Rngs(seed))
            return nnx.RNN(cell, time_major=True, rngs=nnx.Rngs(seed))

        one, second = rnn(0), rnn(1, H)
        both = nnx.Bidirectional(rnn(2), rnn(3), time_major=True)
        deep = nnx.Bidirectional(rnn(4, 2 * H), rnn(5, 2 * H), time_major=True)
        arrays = jax.numpy.asarray(x)
        for network in (one, both):
            yield [nnx.to_pure_dict(nnx.state(network, nnx.Param))], network(arrays)
        for layers in ([one, second], [both, deep]):
            states = [nnx.to_pure_dict(nnx.state(layer, nnx.Param)) for layer in layers]
            yield [states], layers[1](layers[0](arrays))


def main():
    record = {
        "versions": {name: version(name) for name in PACKAGES},
        "x": encoded(x),
        "cases": [
            {"method": "from_flax", "arguments": encoded(arguments), "y": encoded(y)}
            for cases in (linen_cases, nnx_cases)
            for arguments, y in cases()
        ],
    }
    path = Path(__file__).with_name("recorded_flax.json")
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(record['cases'])} networks")


if __name__ == "__main__":
    main()
