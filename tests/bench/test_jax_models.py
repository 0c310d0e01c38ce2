"""The models in JAX against the reference, on the CPU."""

from __future__ import annotations

import pytest
from bench.bench_models import SHAPES, check_against_the_reference

jax = pytest.importorskip("jax")

from dnnffi.bench.jax_models import ours  # noqa: E402 - it imports JAX
from dnnffi.bench.jax_scan import scan  # noqa: E402


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", sorted(SHAPES.keys() - {"lengths"}))
def test_against_the_reference(name):
    check_against_the_reference(scan, SHAPES[name])


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_dnnffi_in_jax(name):
    check_against_the_reference(ours, SHAPES[name])
