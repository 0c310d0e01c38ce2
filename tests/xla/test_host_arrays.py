"""Arrays of JAX on the host as arguments of dnnffi's own functions: the reference computes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import dnnffi

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
rng = np.random.default_rng(0)


def normal(*shape):
    """Numbers that bfloat16 has, in float32."""
    return rng.standard_normal(shape).astype(BFLOAT16).astype(np.float32)


X, W, BIAS, DY = normal(2, 3, 6, 5), normal(4, 3, 3, 2), normal(4), normal(2, 4, 4, 4)
CONVOLUTIONS = {
    "forward": lambda of: dnnffi.conv(of(X), of(W), of(BIAS)),
    "fused": lambda of: dnnffi.conv(of(X), of(W), residual=of(DY), alpha=0.5, activation="relu"),
    "transposed": lambda of: dnnffi.conv_transpose(of(DY), of(W), stride=2),
    "backward data": lambda of: dnnffi.conv_backward_data(of(DY), of(W), X.shape),
    "backward weights": lambda of: dnnffi.conv_backward_weights(of(DY), of(X), W.shape),
    "backward bias": lambda of: dnnffi.conv_backward_bias(of(DY)),
}


def in_jax(array):
    return jnp.asarray(array, "bfloat16")


def in_ml_dtypes(array):
    return array.astype(BFLOAT16)


@pytest.mark.parametrize("made", [in_jax, in_ml_dtypes])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_in_bfloat16_is_that_in_float32_rounded(name, made):
    call = CONVOLUTIONS[name]
    found = call(made)
    assert (type(found), found.dtype) == (np.ndarray, BFLOAT16)
    np.testing.assert_array_equal(found, call(np.asarray).astype(BFLOAT16))


@pytest.mark.parametrize("made", [in_jax, in_ml_dtypes])
def test_a_network_in_bfloat16_has_its_results_and_gradients(made):
    x, dy = normal(5, 2, 3), normal(5, 2, 4)
    weights = [normal(*shape) / 2 for shape in ((16, 3), (16, 4), (16,), (16,))]

    def step(of):
        y, hx, context = dnnffi.lstm_forward(of(x), None, [of(one) for one in weights])
        gradients = context.backward(of(dy))
        return [y, *hx, gradients.x, *gradients.weights]

    for found, exact in zip(step(made), step(np.asarray), strict=True):
        assert found.dtype == BFLOAT16
        allowed = 2**-6 * max(1, np.abs(exact).max())  # two roundings to 8 bits
        np.testing.assert_allclose(found.astype(np.float32), exact, atol=allowed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arrays_on_any_device_of_the_host(dtype):
    given = [jax.device_put(jnp.asarray(a, dtype), jax.devices("cpu")[1]) for a in (X, W)]
    expected = dnnffi.conv(X, W).astype(dtype)
    np.testing.assert_array_equal(dnnffi.conv(*given), expected)


def test_an_array_in_bfloat16_is_not_written():
    spec = dnnffi.ConvSpec(in_channels=3, out_channels=4, kernel=(3, 2), dtype="bfloat16")
    plan = dnnffi.ConvPlan(spec, X.shape, backend="reference")
    out = in_jax(DY)
    with pytest.raises(ValueError, match=r"^out must be writable; it is read-only"):
        plan.run(in_jax(X), in_jax(W), out=out)
    np.testing.assert_array_equal(np.asarray(out), in_ml_dtypes(DY))


def test_bfloat16_without_its_package(monkeypatch):
    def dtype_object(name):
        raise ImportError(f"{name} needs the package ml_dtypes. Install: pip install ml_dtypes")

    monkeypatch.setattr("dnnffi.device.external.array.dtype_object", dtype_object)
    message = r"^x cannot be seen .*\(bfloat16 needs the package ml_dtypes\. Install: pip install"
    with pytest.raises(TypeError, match=message):
        dnnffi.conv(in_jax(X), in_jax(W))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_other_dtypes_that_numpy_does_not_have_are_refused(dtype):
    with pytest.raises(TypeError, match=r"^x (cannot be seen|must have one of the dtypes)"):
        dnnffi.conv(jnp.asarray(X, dtype), jnp.asarray(W, dtype))
