"""Arguments of the converters that are refused."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

from dnnffi import RNNSpec, RNNWeights, testing
from dnnffi.device import dtypes

W, R, B = np.ones((1, 16, 3)), np.ones((1, 16, 4)), np.ones((1, 32))


class NotShown:
    """An array that its library does not show."""

    def __init__(self, error, device_type):
        self._error = error
        self._device_type = device_type

    def __dlpack_device__(self):
        return self._device_type, 0

    def __dlpack__(self, **keywords):
        raise self._error


@pytest.mark.parametrize(("r", "b"), [(R, [B]), ([R], B), (R, None)])
def test_lists_of_onnx_are_lists_of_layers(r, b):
    with pytest.raises(TypeError, match=r"^R and B must be lists, one entry for each layer, as W"):
        RNNWeights.from_onnx([W], r, b, mode="lstm")


def test_initializers_of_onnx_are_a_mapping():
    with pytest.raises(TypeError, match=r"^from_onnx takes W, R, B and mode=, or a node and a map"):
        RNNWeights.from_onnx(W, [("R", R)])


@pytest.mark.parametrize(
    ("device_type", "message"),
    [
        (1, r"^W cannot be seen as an array of NumPy or CuPy \(no\)"),
        (2, r"^W does not show its memory by DLPack: no$"),
    ],
)
@pytest.mark.parametrize("error", [BufferError("no"), RuntimeError("no")])
def test_an_array_that_is_not_shown_is_named(error, device_type, message):
    value = NotShown(error, device_type)
    with pytest.raises(TypeError, match=message):
        RNNWeights.from_onnx(value, R, B, mode="lstm")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_file_of_bfloat16_needs_ml_dtypes(suffix, tmp_path, monkeypatch):
    pytest.importorskip("ml_dtypes")
    pytest.importorskip("safetensors")
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=4, dtype="bfloat16")
    path = tmp_path / f"net{suffix}"
    RNNWeights.pack(testing.weights(spec, 0), spec).save(path)
    dtypes.dtype_object.cache_clear()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match=r"^bfloat16 needs the package ml_dtypes\. Install: pip"):
        RNNWeights.load(path)


@pytest.mark.parametrize(("name", "shape"), [("W", "D, G*H, I"), ("R", "D, G*H, H")])
def test_arrays_of_onnx_have_three_dimensions(name, shape):
    given = {"W": W, "R": R}
    given[name] = given[name][0]
    message = rf"^{name} must have shape \[{re.escape(shape)}\]; got \(16, [34]\)$"
    with pytest.raises(ValueError, match=message):
        RNNWeights.from_onnx(*given.values(), B, mode="lstm")


class UniformAlone:
    """A generator that draws from one distribution."""

    def uniform(self, low, high, size):
        return np.zeros(size)


class NormalAlone:
    """A generator that draws from the other distribution."""

    def standard_normal(self, size):
        return np.zeros(size)


@pytest.mark.parametrize("rng", [UniformAlone(), NormalAlone(), 3])
@pytest.mark.parametrize("like", ["torch", "keras"])
def test_a_generator_draws_from_both_distributions(rng, like):
    spec = RNNSpec(mode="gru", input_size=2, hidden_size=3)
    with pytest.raises(TypeError, match=r"^rng must be "):
        RNNWeights.random(spec, rng, like=like)


@pytest.mark.parametrize(
    ("index", "message"),
    [(0, r"kernel must have shape \[I, G\*H\]"), (1, r"recurrent_kernel must have shape \[H, G")],
)
def test_matrices_of_keras_have_two_dimensions(index, message):
    arrays = [np.ones((3, 16)), np.ones((4, 16)), np.ones(16)]
    arrays[index] = arrays[index][0]
    with pytest.raises(ValueError, match=rf"^[^:]*: {message}.*; got \(16,\)$"):
        RNNWeights.from_keras(arrays, "lstm")
