"""Code of a user: mypy takes it, and no line of it that says ``type: ignore`` without that.

`make type` checks it in strict mode, where an ignore that is not needed is an error.
"""

from __future__ import annotations

from typing import Any, assert_type

import cupy
import numpy as np
from numpy.typing import NDArray

import dnnffi
from dnnffi.typing import BackendName, ConvOptionsDict, Mode, RNNOptionsDict

Numbers = NDArray[np.float32]

spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
gru_spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, dtype=np.float32)
rng = np.random.default_rng(0)
x: Numbers = rng.standard_normal((5, 2, 3), np.float32)
h: Numbers = np.zeros((1, 2, 4), np.float32)
arrays: list[Numbers] = [np.zeros(one.shape, np.float32) for one in spec.parameter_shapes()]
weights = dnnffi.RNNWeights.pack(arrays, spec)
on_gpu = cupy.zeros((5, 2, 3), np.float32)
gpu_arrays = [cupy.zeros(one.shape, np.float32) for one in spec.parameter_shapes()]


def arrays_come_back_as_they_went_in() -> None:
    y, (h_n, c_n) = dnnffi.lstm(x, (h, h), weights)
    assert_type(y, Numbers)
    assert_type((h_n, c_n), tuple[Numbers, Numbers])
    y, h_n = dnnffi.gru(x, h, arrays)
    assert_type((y, h_n), tuple[Numbers, Numbers])
    assert_type(dnnffi.conv(x, x), Numbers)
    assert_type(dnnffi.conv_backward_weights(x, x, (2, 3, 1)), Numbers)

    of_gpu, states, _ = dnnffi.lstm_forward(on_gpu, None, gpu_arrays)
    assert_type(of_gpu, cupy.ndarray)
    assert_type(states, tuple[cupy.ndarray, cupy.ndarray])
    assert_type(dnnffi.conv_backward_bias(on_gpu), cupy.ndarray)
    dnnffi.lstm(on_gpu, None, weights)  # type: ignore[misc]
    dnnffi.lstm([[[1.0]]], None, weights)  # type: ignore[misc]
    dnnffi.conv([[[1.0]]], x)  # type: ignore[type-var]
    dnnffi.lstm(x, h, weights)  # type: ignore[arg-type]
    dnnffi.gru(x, (h, h), weights)  # type: ignore[arg-type]


def gradients_are_arrays_too() -> None:
    y, _, ctx = dnnffi.lstm_forward(x, None, weights, dropout=0.5)
    grads = ctx.backward(y, need=("x", "weights"))
    assert_type(grads.x, Numbers | None)
    ctx.backward(y, need=("x", "w"))  # type: ignore[arg-type]
    ctx.backward(on_gpu)  # type: ignore[arg-type]


def weights_know_their_arrays() -> None:
    assert_type(weights.flat, Numbers)
    assert_type(weights.arrays(), list[Numbers])
    assert_type(dnnffi.RNNWeights(cupy.zeros((112,)), spec).flat, cupy.ndarray)
    assert_type(weights.to("miopen").backend, dnnffi.typing.LayoutName)
    loaded: dnnffi.RNNWeights = dnnffi.RNNWeights.load("net.npz")
    state: dict[str, Any] = loaded.to_torch()
    dnnffi.RNNWeights.from_torch(state, "lstm", backend="reference")
    weights.to("reference")  # type: ignore[arg-type]
    dnnffi.RNNWeights.from_torch(state, "LSTM")  # type: ignore[arg-type]
    dnnffi.RNNWeights.random(spec, rng, like="flax")  # type: ignore[arg-type]
    print(weights.known)  # type: ignore[attr-defined]


def lengths_are_integers_in_order() -> None:
    dnnffi.gru(x, None, arrays, lengths=[5, 2])
    dnnffi.gru(x, None, arrays, lengths=np.array([5, 2]))
    dnnffi.gru(x, None, arrays, lengths=(np.int64(5), 2))
    dnnffi.RNNPlan(spec, batch=2, steps=5, lengths=np.array([5, 2]))
    dnnffi.gru(x, None, arrays, lengths={5, 2})  # type: ignore[arg-type]
    dnnffi.gru(x, None, arrays, lengths=[5.0, 2.0])  # type: ignore[list-item]
    dnnffi.gru(x, None, arrays, lengths="52")  # type: ignore[arg-type]


def names_are_known(mode: Mode, backend: BackendName, anything: str) -> None:
    dnnffi.RNNSpec(mode=mode, input_size=3, hidden_size=4, dtype=x.dtype)
    dnnffi.lstm(x, None, weights, backend=backend)
    dnnffi.RNNSpec(mode="LSTM", input_size=3, hidden_size=4)  # type: ignore[arg-type]
    dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, dtype="float")  # type: ignore[arg-type]
    dnnffi.RNNSpec(mode=anything, input_size=3, hidden_size=4)  # type: ignore[arg-type]
    dnnffi.lstm(x, None, weights, backend="cudn")  # type: ignore[arg-type]
    dnnffi.conv(x, x, activation="gelu")  # type: ignore[arg-type]
    dnnffi.weight_layout(spec, "cuda")  # type: ignore[arg-type]
    dnnffi.lsmt(x, None, weights)  # type: ignore[attr-defined]


def packages_are_attributes() -> None:
    dnnffi.foreign.using(lambda shape, dtype: None)
    dnnffi.testing.specs(modes=("gru",))
    dnnffi.testing.specs(modes=("GRU",))  # type: ignore[arg-type]


def options_have_keys_and_values() -> None:
    options: RNNOptionsDict = {"math": "strict", "clip": (-1.0, 1.0), "algorithm": "own"}
    dnnffi.lstm(x, None, weights, options=options)
    dnnffi.lstm(x, None, weights, options={"validate": True, "tune": "now"})
    of_conv: ConvOptionsDict = {"deterministic": True, "allocator": lambda shape, dtype: None}
    dnnffi.conv(x, x, padding="same", options=of_conv)
    dnnffi.conv(x, x, padding="valid")
    dnnffi.lstm(x, None, weights, options={"maths": "strict"})  # type: ignore[arg-type]
    dnnffi.lstm(x, None, weights, options={"math": "exact"})  # type: ignore[arg-type]
    dnnffi.conv(x, x, options={"tune": "now"})
    dnnffi.conv(x, x, options={"tune": True})  # type: ignore[arg-type]
    dnnffi.conv(x, x, options={"find": "search"})  # type: ignore[arg-type]
    dnnffi.conv(x, x, padding="half")  # type: ignore[arg-type]


def plans_are_of_names_and_arrays() -> None:
    with dnnffi.RNNPlan(spec, batch=2, steps=5, training=True, backend="reference") as plan:
        y, _ = plan.forward(x, None, weights)
        assert_type(y, Numbers)
        plan.backward_weights(accumulate=1)  # type: ignore[arg-type]
    with dnnffi.RNNStream(weights, batch=2, batch_first=True) as stream:
        assert_type(stream.run(x, rows=[1, 0]), Numbers)
        stream.run(on_gpu)  # type: ignore[arg-type]
        stream.run(x, rows=1)  # type: ignore[arg-type]
    dnnffi.RNNStream(arrays, batch=2)  # type: ignore[arg-type]
    conv = dnnffi.ConvSpec(in_channels=3, out_channels=4, kernel=(3,), padding="same")
    with dnnffi.ConvPlan(conv, (2, 3, 8), operation="backward_data") as held:
        assert_type(held.run(x, x), Numbers)
    dnnffi.ConvPlan(conv, (2, 3, 8), operation="backward")  # type: ignore[arg-type]
