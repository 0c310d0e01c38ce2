"""Tests of where a call of JAX is going to run."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from dnnffi.jax.arrays import platform_of


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
