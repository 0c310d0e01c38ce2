"""Our own kernels by the functions that users call: all of it on the host."""

from __future__ import annotations

import conformance
import numpy as np
import pytest
from emulated_cuda import EmulatedMemory
from host_library import open_host

import build
import dnnffi
from dnnffi.backends.cublas import library as cublas_library
from dnnffi.device.interface import Architecture
from dnnffi.errors import UnsupportedError
from dnnffi.reference.dropout import own_masks
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.rnn import RNNSpec


@pytest.fixture
def host():
    with open_host(build.build()) as host:
        yield host


@pytest.fixture
def emulated(host, cublas, monkeypatch):
    """The stand-in of cuDNN on memory that runs our kernels."""
    kernels = EmulatedMemory(room=6)
    for name in ("_allocate", "kernel", "blocks_at_once", "shared_bytes", "l2_bytes"):
        monkeypatch.setattr(host.memory, name, getattr(kernels, name), raising=False)
    monkeypatch.setattr(host.memory, "constant", host.memory.array, raising=False)
    monkeypatch.setattr(host.memory, "architecture", lambda device: Architecture(9, 0, 6))
    monkeypatch.setattr(cublas_library, "load", lambda: cublas)
    yield host
    host.forget_plans()
    kernels.check_margins()


def test_training_steps_are_the_references_by_the_masks_of_the_state(emulated):
    options = RNNOptions(algorithm="own", tune="off")
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=10, num_layers=3, bidirectional=True)
    problem = conformance.problem_of(
        *(spec, "batch_first_lengths", 4, 5, np.random.default_rng(0)),
        training=True,
        dropout=0.4,
        options=options,
    )
    case = conformance.Case(problem, states=True, seed=0)
    arrays, state = conformance.arrays_of(case), dnnffi.DropoutState(7)
    for number in range(2):
        keywords = {"dropout": 0.4, "dropout_state": state}
        _, found = conformance.run(case, arrays, emulated.asarray, "cudnn", **keywords)
        masks = own_masks(spec, problem.steps, problem.batch, 0.4, 7, 2 * number)
        conformance.assert_close(case, found, conformance.expected(case, arrays, masks))
    assert np.frombuffer(state.save()["states"], np.uint64).tolist() == [7, 4]
    assert repr(state) == "DropoutState(seed=7, cudnn device 0, algorithm 'own')"
    assert emulated.calls("cudnnRNNForward") == 0


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("on_host", [True, False])
def test_resets_run_by_the_kernels_without_being_named(emulated, rows, on_host):
    """The library has none: its kernels are not called, nor compared with."""
    rng = np.random.default_rng(0)
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=10, num_layers=2, bidirectional=True)
    host_weights = dnnffi.RNNWeights.random(spec, rng)
    weights = dnnffi.RNNWeights(
        emulated.asarray(host_weights.to("cudnn").flat), spec, backend="cudnn"
    )
    x, dy = (rng.standard_normal(shape, "f4") for shape in (spec.x_shape(4, 5), spec.y_shape(4, 5)))
    reset_to = [rng.standard_normal(spec.h_shape(rows), "f4") for _ in range(2)]
    flags = rng.random((4, 5)) < 0.4
    more = {"lengths": (4, 0, 3, 4, 2)}
    y, _, context = dnnffi.lstm_forward(
        *(emulated.asarray(x), None, weights),
        resets=flags if on_host else emulated.asarray(flags),
        reset_to=tuple(map(emulated.asarray, reset_to)),
        backend="cudnn",
        **more,
    )
    found = context.backward(emulated.asarray(dy))
    expected_y, _, context = dnnffi.lstm_forward(
        x, None, host_weights, resets=flags, reset_to=tuple(reset_to), **more
    )
    expected = context.backward(dy)
    pairs = [(y, expected_y), (found.x, expected.x)]
    pairs += zip(found.reset_to, expected.reset_to, strict=True)
    pairs.append((found.weights.flat, expected.weights.to("cudnn").flat))
    for one, other in pairs:
        assert conformance.deviation(np.asarray(one), other.astype("f8")) < 2e-3
    assert emulated.calls("cudnnRNNForward") == 0


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_known_call_with_resets_is_not_looked_at_closely(emulated, monkeypatch, rows):
    rng = np.random.default_rng(0)
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=10)
    flat = dnnffi.RNNWeights.random(spec, rng).to("cudnn").flat
    weights = dnnffi.RNNWeights(emulated.asarray(flat), spec, backend="cudnn")
    dy = emulated.asarray(rng.standard_normal(spec.y_shape(4, 5), "f4"))
    reset_to = None
    if rows:
        state = rng.standard_normal(spec.h_shape(rows), "f4")
        reset_to = tuple(map(emulated.asarray, (state, -state)))

    def call(seed):
        drawn = np.random.default_rng(seed)
        x = emulated.asarray(drawn.standard_normal(spec.x_shape(4, 5), "f4"))
        flags = emulated.asarray(drawn.random((4, 5)) < 0.5)
        more = {"resets": flags, "reset_to": reset_to, "backend": "cudnn"}
        y, _, context = dnnffi.lstm_forward(x, None, weights, **more)
        grads = context.backward(dy)
        return [y, grads.x, grads.weights.flat, *(grads.reset_to or ())]

    expected = [call(seed) for seed in (1, 2)][1]
    monkeypatch.setattr("dnnffi.rnn.functions._run_checked", None)
    for one, other in zip(call(2), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_more_steps_than_the_library_takes_run_by_the_kernels(emulated, monkeypatch):
    monkeypatch.setattr("dnnffi.backends.cudnn.rnn_limits.MAX_STEPS", 4)
    rng = np.random.default_rng(0)
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=10)
    host_weights = dnnffi.RNNWeights.random(spec, rng)
    flat = emulated.asarray(host_weights.to("cudnn").flat)
    weights = dnnffi.RNNWeights(flat, spec, backend="cudnn")
    x, dy = (rng.standard_normal(shape, "f4") for shape in (spec.x_shape(5, 2), spec.y_shape(5, 2)))
    y, _, context = dnnffi.gru_forward(emulated.asarray(x), None, weights, backend="cudnn")
    dx = context.backward(emulated.asarray(dy)).x
    expected_y, _, context = dnnffi.gru_forward(x, None, host_weights)
    for one, other in ((y, expected_y), (dx, context.backward(dy).x)):
        assert conformance.deviation(np.asarray(one), other.astype("f8")) < 2e-3
    assert emulated.calls("cudnnRNNForward") == 0


def test_what_nobody_takes_is_refused_with_the_limit_of_the_library(emulated, monkeypatch):
    monkeypatch.setattr("dnnffi.backends.cudnn.rnn_limits.MAX_STEPS", 4)
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=10, dtype="float64")
    flat = dnnffi.RNNWeights.random(spec, np.random.default_rng(0)).to("cudnn").flat
    weights = dnnffi.RNNWeights(emulated.asarray(flat), spec, backend="cudnn")
    with pytest.raises(UnsupportedError, match=r"^cuDNN 9\.\d.*: an RNN takes at most 65535 time"):
        dnnffi.gru(emulated.asarray(np.zeros((5, 2, 3))), None, weights, backend="cudnn")


def test_an_algorithm_without_resets_is_refused_by_name(emulated):
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=10)
    flat = dnnffi.RNNWeights.random(spec, np.random.default_rng(0)).to("cudnn").flat
    weights = dnnffi.RNNWeights(emulated.asarray(flat), spec, backend="cudnn")
    x = emulated.asarray(np.zeros((4, 5, 3), "f4"))
    with pytest.raises(UnsupportedError, match=r"^cuDNN 9.*: has no resets; dnnffi's"):
        dnnffi.gru(
            *(x, None, weights),
            resets=np.ones((4, 5), bool),
            backend="cudnn",
            options={"algorithm": "standard"},
        )
