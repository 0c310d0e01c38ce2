"""Tests of MIOpen in JAX programs, without AMD's hardware: weights, names, limits.

The reference reads weights in MIOpen's layout here, where MIOpen would.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from xla.jax_programs import assert_close, network

import dnnffi
from dnnffi import jax as djax
from dnnffi.errors import UnsupportedError
from dnnffi.jax.rnn import implementations
from dnnffi.jax.rnn.engine import ReferenceEngine, VendorEngine
from dnnffi.jax.rnn.handlers import Handlers
from dnnffi.jax.rnn.implementations import IMPLEMENTATIONS
from dnnffi.jax.rnn.operation import Implementation
from dnnffi.jax.rnn.weights import laid_out
from dnnffi.spec.options import rnn_options
from dnnffi.testing import rnn as strategies

SPEC = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=2, bidirectional=True)
PROBLEM = dnnffi.RNNProblem.dense(SPEC, steps=5, batch=4)
NETWORKS = strategies.specs(dtypes=("float32",), projection=False)


@pytest.fixture(scope="module")
def by_reference():
    """The name of an implementation on the host that reads weights as MIOpen does."""
    handlers = Handlers("dnnffi_laid_out", "cpu", lambda: ReferenceEngine("miopen"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            IMPLEMENTATIONS, "laid out", Implementation("laid out", "cpu", handlers, "miopen")
        )
        patch.setattr(implementations, "NAMES", (*IMPLEMENTATIONS, "scan"))
        yield "laid out"


@given(NETWORKS)
@settings(max_examples=30)
def test_weights_are_laid_out_as_rnn_weights_are(spec):
    arrays = strategies.weights(spec, 0)
    expected = dnnffi.RNNWeights.pack(arrays, spec, backend="miopen").flat
    packed = djax.pack(arrays, spec)
    np.testing.assert_array_equal(laid_out(packed.flat, spec, "cudnn", "miopen"), expected)


@given(NETWORKS)
@settings(max_examples=8)
def test_results_and_gradients_are_those_of_the_scan(by_reference, spec):
    problem = dnnffi.RNNProblem.dense(spec, steps=4, batch=3)
    found, expected = (network(problem, name) for name in (by_reference, "scan"))
    assert_close(found.function(*found.arrays), expected.function(*expected.arrays))
    gradients = [jax.grad(one.loss, (0, 1, 2))(*one.arrays) for one in (found, expected)]
    assert_close(*gradients)


def test_gradients_for_each_row_of_a_map_of_weights(by_reference):
    def rows(one):
        x, hx, weights = one.arrays
        stacked = jax.numpy.stack([weights, -weights])
        return jax.vmap(jax.grad(one.loss, (0, 2)), (None, None, 0))(x, hx, stacked)

    assert_close(*(rows(network(PROBLEM, name)) for name in (by_reference, "scan")))


@pytest.fixture
def lowered(monkeypatch):
    """The program of a gradient for AMD's GPUs, which needs none, nor MIOpen."""
    handlers = IMPLEMENTATIONS["miopen"].handlers
    monkeypatch.setattr(handlers, "_engine", ReferenceEngine("miopen"))
    monkeypatch.setattr(handlers, "_executors", {})
    monkeypatch.setattr(implementations.Implementation, "check_there", lambda way: None)
    one = network(PROBLEM, "miopen")
    traced = jax.jit(jax.grad(one.loss, 2)).trace(*one.arrays)
    return lambda platform: traced.lower(lowering_platforms=(platform,)).as_text()


def test_a_program_for_rocm_calls_the_handlers_of_miopen(lowered):
    text = lowered("rocm")
    assert "@dnnffi_miopen_forward" in text
    assert "@dnnffi_miopen_backward" in text
    assert "cudnn" not in text


def test_a_program_for_cuda_cannot_have_it(lowered):
    with pytest.raises(
        NotImplementedError, match="'miopen' runs on rocm; this program is for cuda"
    ):
        lowered("cuda")


def test_it_asks_for_a_device_of_rocm():
    one = network(PROBLEM, "miopen")
    with pytest.raises(UnsupportedError, match="no device of rocm, where implementation 'miopen'"):
        one.function(*one.arrays)


def test_it_refuses_an_algorithm_of_cudnn():
    options = rnn_options({"algorithm": "persist_static"}, "gru")
    one = network(PROBLEM._replace(options=options), "miopen")
    with pytest.raises(UnsupportedError, match="MIOpen"):
        one.function(*one.arrays)


def test_xla_may_capture_none_of_its_calls(monkeypatch):
    found = {}
    monkeypatch.setattr(
        "dnnffi.jax.handlers.register",
        lambda name, handler, *, platform, capturable: found.update({platform: capturable}),
    )
    for platform in ("CUDA", "ROCM"):
        Handlers("dnnffi_unregistered", platform, ReferenceEngine)
    assert found == {"CUDA": True, "ROCM": False}


def test_its_engine_is_that_of_the_vendor_on_memory_of_any_allocator(monkeypatch):
    class Library:
        memory, vendor, version_text = None, "MIOpen", "3.4.0"

        def without_cupy(self):
            return self

    opened = Library()
    miopen = implementations.named("miopen")._replace(load=lambda: opened)
    monkeypatch.setattr(implementations, "named", lambda name: {"miopen": miopen}[name])
    engine = implementations._miopen()
    assert isinstance(engine, VendorEngine)
    assert engine._library is opened
