"""Lengths in device memory, on a GPU: the results of the same lengths on the host."""

from __future__ import annotations

import conformance
import numpy as np
import pytest

import dnnffi
from dnnffi.backends.own.recurrent.candidates import OwnCandidates
from dnnffi.device.cupy import cupy_memory
from dnnffi.errors import PerformanceWarning
from dnnffi.spec.problem import RNNProblem

cupy = pytest.importorskip("cupy")

STEPS, BATCH = 13, 40
CALLS = {
    "lstm": dnnffi.lstm_forward,
    "gru": dnnffi.gru_forward,
    "rnn_tanh": dnnffi.rnn_tanh_forward,
}
ALLOWED = {"float32": 4e-3, "float16": 1e-2, "bfloat16": 5e-2}


@pytest.fixture(autouse=True)
def _able():
    spec = dnnffi.RNNSpec(mode="lstm", input_size=1, hidden_size=1)
    if not OwnCandidates(cupy_memory()).offers(RNNProblem.dense(spec, steps=1, batch=1)):
        pytest.skip("this device has none of our kernels")


def arrays_of(spec, seed=0, batch=BATCH):
    rng = np.random.default_rng(seed)
    flat = dnnffi.RNNWeights.random(spec, rng).to("cudnn").flat
    weights = dnnffi.RNNWeights(cupy.asarray(flat), spec, backend="cudnn")
    x, dy = (
        cupy.asarray(rng.standard_normal(shape), "f4").astype(weights.flat.dtype)
        for shape in (spec.x_shape(STEPS, batch), spec.y_shape(STEPS, batch))
    )
    return x, dy, weights


def lengths_of(seed, low=0, batch=BATCH):
    return np.random.default_rng(seed).integers(low, STEPS + 1, batch)


def training_step(spec, arrays, lengths, **options):
    x, dy, weights = arrays
    options = {"algorithm": "own", **options}
    y, hx, context = CALLS[spec.mode](x, None, weights, lengths=lengths, options=options)
    grads = context.backward(dy)
    return [y, *(hx if isinstance(hx, tuple) else (hx,)), grads.x, grads.weights.flat]


@pytest.mark.parametrize(
    ("mode", "dtype", "hidden", "more"),
    [
        ("lstm", "float32", 96, {"num_layers": 2, "bidirectional": True}),
        ("lstm", "float16", 512, {}),
        ("gru", "float32", 33, {"num_layers": 3}),
        ("gru", "bfloat16", 256, {"bidirectional": True}),
        ("rnn_tanh", "float16", 1024, {"bias": False}),
        ("lstm", "float32", 12, {}),
    ],
)
def test_training_steps(mode, dtype, hidden, more):
    spec = dnnffi.RNNSpec(mode=mode, input_size=24, hidden_size=hidden, dtype=dtype, **more)
    arrays = arrays_of(spec)
    for seed in range(4):
        lengths = lengths_of(seed)
        found = training_step(spec, arrays, cupy.asarray(lengths, "i4"))
        expected = training_step(spec, arrays, lengths.tolist())
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            error = conformance.deviation(one.get(), other.get().astype("f8"))
            assert error <= ALLOWED[dtype], f"result {number} is off by {error:.3g}"


def test_more_rows_than_a_block_ranks():
    spec = dnnffi.RNNSpec(mode="gru", input_size=24, hidden_size=32)
    arrays = arrays_of(spec, batch=3000)
    lengths = lengths_of(0, batch=3000)
    found = training_step(spec, arrays, cupy.asarray(lengths, "i4"))
    expected = training_step(spec, arrays, lengths.tolist())
    for one, other in zip(found, expected, strict=True):
        error = conformance.deviation(one.get(), other.get().astype("f8"))
        assert error <= ALLOWED["float32"]


def test_a_tuned_network_takes_lengths_on_the_device():
    spec = dnnffi.RNNSpec(mode="gru", input_size=24, hidden_size=128)
    arrays = arrays_of(spec)
    for seed in range(4):
        lengths = lengths_of(seed)
        on_device = cupy.asarray(lengths, "i4")
        found = training_step(spec, arrays, on_device, algorithm="auto", tune="now")
        expected = training_step(spec, arrays, lengths.tolist())
        for one, other in zip(found, expected, strict=True):
            error = conformance.deviation(one.get(), other.get().astype("f8"))
            assert error <= ALLOWED["float32"]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("mode", ["gru", "lstm", "rnn_tanh"])
def test_an_inference_of_one_layer(mode, bidirectional, dtype):
    spec = dnnffi.RNNSpec(
        mode=mode, input_size=24, hidden_size=100, bidirectional=bidirectional, dtype=dtype
    )
    x, _, weights = arrays_of(spec)
    lengths = lengths_of(0)
    past = np.arange(STEPS)[:, None] >= np.asarray(lengths)
    x[cupy.asarray(past)] = cupy.nan
    function = getattr(dnnffi, mode)
    y, hx = function(x, None, weights, lengths=cupy.asarray(lengths, "i4"))
    expected, hx_too = function(x, None, weights, lengths=lengths.tolist())
    states, expected_states = ((one if mode == "lstm" else (one,)) for one in (hx, hx_too))
    for one, other in zip((y, *states), (expected, *expected_states), strict=True):
        error = conformance.deviation(one.get(), other.get().astype("f8"))
        assert error <= ALLOWED[dtype]


def test_a_captured_call_reads_the_lengths_of_each_launch():
    spec = dnnffi.RNNSpec(mode="lstm", input_size=24, hidden_size=64)
    x, _, weights = arrays_of(spec)
    lengths = cupy.asarray(lengths_of(0), "i4")
    options = {"algorithm": "own"}
    dnnffi.lstm(x, None, weights, lengths=lengths, options=options)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        y, _ = dnnffi.lstm(x, None, weights, lengths=lengths, options=options)
        graph = stream.end_capture()
    for seed in range(3):
        drawn = lengths_of(seed)
        lengths.set(drawn.astype("i4"))
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        expected, _ = dnnffi.lstm(x, None, weights, lengths=drawn.tolist(), options=options)
        error = conformance.deviation(y.get(), expected.get().astype("f8"))
        assert error <= ALLOWED["float32"]


def test_what_the_kernels_do_not_have_runs_with_a_copy_on_the_host():
    spec = dnnffi.RNNSpec(mode="gru", input_size=24, hidden_size=16, dtype="float64")
    x, _, weights = arrays_of(spec)
    lengths = lengths_of(0)
    expected, _ = dnnffi.gru(x, None, weights, lengths=lengths.tolist())
    with pytest.warns(PerformanceWarning, match="copied to the host"):
        found, _ = dnnffi.gru(x, None, weights, lengths=cupy.asarray(lengths))
    cupy.testing.assert_array_equal(found, expected)


def test_a_module_takes_a_tensor_on_the_device():
    torch = pytest.importorskip("torch")
    from dnnffi import torch as dtorch

    torch.manual_seed(0)
    module = dtorch.LSTM(24, 64, num_layers=2).cuda()
    x = torch.randn(STEPS, BATCH, 24, device="cuda")
    lengths = torch.tensor(lengths_of(0))
    found = []
    for one in (lengths, lengths.cuda(), lengths.cuda()):  # at last the network is known
        module.zero_grad()
        y, _ = module(x, lengths=one)
        y.square().sum().backward()
        found.append([y.detach(), *(p.grad.clone() for p in module.parameters())])
    expected, *of_device = found
    for results in of_device:
        for one, other in zip(expected, results, strict=True):
            assert torch.allclose(one, other, rtol=1e-2, atol=1e-3)
