"""Tests of where a call of JAX is going to run."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dnnffi.jax.arrays import as_jax, platform_of


@pytest.fixture
def gpu(monkeypatch):
    """A GPU in front of the host's devices."""
    found = SimpleNamespace(platform="gpu", client=SimpleNamespace(platform_version="cuda 13000"))
    devices = jax.devices

    def with_gpu(backend=None):
        return [found, *devices()] if backend is None else devices(backend)

    monkeypatch.setattr(jax, "devices", with_gpu)
    return found


@pytest.mark.parametrize(
    ("version", "expected"),
    [("PJRT C API\ncuda 13000", "cuda"), ("PJRT C API\nrocm 70000", "rocm"), ("ROCm 7", "rocm")],
)
def test_a_gpu_is_nvidias_or_amds(gpu, version, expected):
    gpu.client.platform_version = version
    assert platform_of(()) == expected


def test_an_array_says_where_it_is(gpu):
    assert platform_of([jnp.ones(1)]) == "cpu"


@pytest.mark.parametrize("name", [True, False], ids=["by name", "by device"])
def test_the_default_device_is_that_of_the_user(gpu, name):
    with jax.default_device("cpu" if name else jax.devices("cpu")[1]):
        assert platform_of(()) == "cpu"


def test_an_array_of_the_other_byte_order_is_converted():
    np.testing.assert_array_equal(as_jax("x", np.arange(3, dtype=">f4")), [0, 1, 2])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([None]), "array of JAX or NumPy with numbers; got ndarray of dtype dtype.'O'.$"),
        (np.array(["a"]), "array of JAX or NumPy with numbers; got ndarray of dtype dtype.'<U1'.$"),
        (np.ma.array([1.0], mask=[True]), "plain array; got MaskedArray$"),
    ],
    ids=["objects", "texts", "masked"],
)
def test_an_array_that_jax_does_not_have_is_named(value, message):
    with pytest.raises(TypeError, match=f"^x must be an? {message}"):
        as_jax("x", value)
