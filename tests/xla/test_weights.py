"""Flat arrays of weights in cuDNN's layout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import dnnffi
from dnnffi import jax as djax
from dnnffi.testing import rnn as strategies

SPEC = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2, bidirectional=True)


@settings(max_examples=30)
@given(strategies.specs(dtypes=("float16", "bfloat16", "float32")))
def test_packed_as_rnn_weights_are_and_unpacked_again(spec):
    arrays = strategies.weights(spec, 0)
    flat = djax.pack(arrays, spec)
    np.testing.assert_array_equal(flat, dnnffi.RNNWeights.pack(arrays, spec).flat)
    assert flat.dtype.name == spec.dtype
    for found, expected in zip(djax.unpack(flat, spec), arrays, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_initial_weights_are_uniform(dtype):
    spec = dnnffi.RNNSpec(mode="gru", input_size=50, hidden_size=64, dtype=dtype)
    flat = djax.init(jax.random.key(0), spec)
    assert flat.dtype.name == dtype
    values = np.asarray(flat).astype("float64")
    assert abs(values).max() <= 1 / 8
    assert abs(values.mean()) < 1e-3
    assert values.std() == pytest.approx(1 / 8 / 3**0.5, rel=0.02)
    assert (flat != djax.init(jax.random.key(1), spec)).any()
    assert len(np.unique(values)) > 2**10  # more than were drawn of bfloat16 alone


def test_gradients_pass_through_packing():
    arrays = [jnp.asarray(array) for array in strategies.weights(SPEC, 0)]
    gradient = jax.grad(lambda arrays: (djax.pack(arrays, SPEC) ** 2).sum())(arrays)
    for found, array in zip(gradient, arrays, strict=True):
        np.testing.assert_array_equal(found, 2 * array)


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (TypeError, "arrays must be a sequence", lambda arrays, flat: djax.pack({}, SPEC)),
        (ValueError, "expected 16 arrays; got 15", lambda a, flat: djax.pack(a[:-1], SPEC)),
        (
            TypeError,
            r"weights\[0\] must have dtype float32; got float16",
            lambda a, flat: djax.pack([a[0].astype("float16"), *a[1:]], SPEC),
        ),
        (TypeError, r"weights\[1\] must be an array", lambda a, _: djax.pack([a[0], "w"], SPEC)),
        (ValueError, r"weights must have shape \(\d+,\)", lambda a, w: djax.unpack(w[1:], SPEC)),
        (TypeError, "must have dtype float32", lambda a, w: djax.unpack(w.astype("int32"), SPEC)),
        (TypeError, "spec must be an RNNSpec", lambda a, w: djax.unpack(w, None)),
        (
            TypeError,
            "float64 needs .*jax_enable_x64",
            lambda a, w: djax.init(
                jax.random.key(0),
                dnnffi.RNNSpec(mode="gru", input_size=1, hidden_size=1, dtype="float64"),
            ),
        ),
    ],
)
def test_what_does_not_fit_is_named(error, words, call):
    arrays = strategies.weights(SPEC, 0)
    with pytest.raises(error, match=words):
        call(arrays, djax.pack(arrays, SPEC))
