"""Weights of other frameworks as CuPy arrays: they stay on their device, in cuDNN's layout."""

from __future__ import annotations

import numpy as np
import pytest

import dnnffi
from dnnffi import RNNSpec, RNNWeights, testing

cupy = pytest.importorskip("cupy")

SPEC = RNNSpec(mode="gru", input_size=3, hidden_size=5, num_layers=2, bidirectional=True)
READ = {
    "torch": lambda given: RNNWeights.from_torch(given, "gru"),
    "keras": lambda given: RNNWeights.from_keras(given, "gru"),
    "onnx": lambda given: RNNWeights.from_onnx(*given, mode="gru", linear_before_reset=1),
}


def on_host():
    return RNNWeights.pack(testing.weights(SPEC, 0), SPEC, backend="torch")


def on_device(value):
    if isinstance(value, dict):
        return {name: cupy.asarray(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [on_device(one) for one in value]
    return cupy.asarray(value)


@pytest.mark.parametrize("name", READ)
def test_arrays_stay_on_their_device(name):
    given = getattr(on_host(), f"to_{name}")()
    weights = READ[name](on_device(given))
    assert isinstance(weights.flat, cupy.ndarray)
    assert weights.backend == "cudnn"
    x = np.random.default_rng(0).standard_normal((4, 2, 3)).astype("float32")
    y, _ = dnnffi.gru(cupy.asarray(x), None, weights, options={"math": "strict"})
    expected, _ = dnnffi.gru(x, None, READ[name](given))
    np.testing.assert_allclose(y.get(), expected, atol=1e-5)


@pytest.mark.parametrize("like", ["torch", "keras"])
def test_random_weights_are_where_the_generator_draws(like):
    weights = RNNWeights.random(SPEC, cupy.random.default_rng(0), like=like)
    assert isinstance(weights.flat, cupy.ndarray)
    assert weights.backend == "cudnn"


def test_weights_on_a_device_are_saved(tmp_path):
    weights = on_host().to("cudnn")
    on_gpu = RNNWeights(cupy.asarray(weights.flat), SPEC)
    on_gpu.save(tmp_path / "net.npz")
    loaded = RNNWeights.load(tmp_path / "net.npz", backend="cudnn")
    np.testing.assert_array_equal(loaded.flat, weights.flat)
