"""Calls on tensors of PyTorch with its allocator, compared to CuPy's and without CuPy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dnnffi
from dnnffi.dropout import DropoutState

torch = pytest.importorskip("torch")


# The programs of without_cupy.py, which blocks the import of CuPy.
PROGRAMS = (
    *("loop", "loop on a stream", "training", "own kernels", "dropout", "threads"),
    *("modules", "full device", "JAX"),
)


def options():
    return {
        "allocator": lambda shape, dtype: torch.empty(
            shape, dtype=getattr(torch, dtype), device="cuda"
        ),
        "stream": lambda: torch.cuda.current_stream().cuda_stream,
        "math": "strict",
    }


def problem(module):
    torch.manual_seed(0)
    made = module(3, 5, num_layers=2, bidirectional=True, device="cuda")
    x = torch.randn(7, 4, 3, device="cuda")
    dy = torch.randn(7, 4, 10, device="cuda")
    return [p.detach() for p in made.parameters()], x, dy


@pytest.mark.parametrize(("mode", "module"), [("lstm", "LSTM"), ("gru", "GRU")])
@pytest.mark.parametrize("own_stream", [False, True])
def test_tensors_in_and_tensors_out(mode, module, own_stream):
    parameters, x, dy = problem(getattr(torch.nn, module))
    keywords = {"num_layers": 2, "bidirectional": True, "lengths": (7, 2, 5, 1)}
    forward = getattr(dnnffi, f"{mode}_forward")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        y, _, ctx = forward(x, None, parameters, options=options(), **keywords)
        grads = ctx.backward(dy)
    stream.synchronize()
    assert all(isinstance(a, torch.Tensor) for a in (y, grads.x, *grads.weights))
    wanted, _, ctx = forward(x, None, parameters, options={"math": "strict"}, **keywords)
    expected = ctx.backward(dy)
    pairs = [(y, wanted), (grads.x, expected.x)]
    pairs += zip(grads.weights, expected.weights, strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one.cpu().numpy(), other.get(), rtol=1e-4, atol=1e-5)


def test_a_network_is_known_although_cupy_holds_the_tensor_of_its_weights(monkeypatch):
    spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=5)
    flat = torch.randn(dnnffi.weight_layout(spec, "cudnn").size, device="cuda")
    weights = dnnffi.RNNWeights(flat, spec)
    dnnffi.gru(torch.randn(4, 2, 3, device="cuda"), None, weights, options=options())
    monkeypatch.setattr("dnnffi.rnn.call_path.weights_of", None)  # what is known does without
    x = torch.randn(6, 3, 3, device="cuda")
    y, _ = dnnffi.gru(x, None, weights, options=options())
    monkeypatch.undo()
    expected, _ = dnnffi.gru(x, None, weights, options={"math": "strict"})
    np.testing.assert_allclose(y.cpu().numpy(), expected.get(), rtol=1e-5, atol=1e-6)


def test_tensors_of_an_empty_batch():
    parameters, x, dy = problem(torch.nn.GRU)
    keywords = {"num_layers": 2, "bidirectional": True, "options": options()}
    y, h_n, ctx = dnnffi.gru_forward(x[:, :0], None, parameters, **keywords)
    grads = ctx.backward(dy[:, :0])
    assert (y.shape, h_n.shape, grads.x.shape) == ((7, 0, 10), (4, 0, 5), (7, 0, 3))
    assert all(isinstance(a, torch.Tensor) for a in (y, h_n, grads.x, *grads.weights))
    assert [a.shape for a in grads.weights] == [a.shape for a in parameters]
    assert not any(bool(a.any()) for a in grads.weights)


def test_dropout_and_a_flat_buffer():
    parameters, x, dy = problem(torch.nn.LSTM)
    spec = dnnffi.RNNSpec(
        mode="lstm", input_size=3, hidden_size=5, num_layers=2, bidirectional=True
    )
    host = [p.cpu().numpy() for p in parameters]
    flat = torch.from_numpy(dnnffi.RNNWeights.pack(host, spec).flat).cuda()
    weights = dnnffi.RNNWeights(flat, spec)
    results = []
    for _ in range(2):
        state = DropoutState(3)
        y, _, ctx = dnnffi.lstm_forward(
            x, None, weights, dropout=0.5, dropout_state=state, options=options()
        )
        results.append((y.cpu(), ctx.backward(dy).x.cpu(), state.save()["states"]))
    for one, other in zip(results[0][:2], results[1][:2], strict=True):
        assert torch.equal(one, other)
    assert results[0][2] == results[1][2]


@pytest.mark.alone  # one of them fills the device
@pytest.mark.parametrize("name", PROGRAMS)
def test_without_cupy(name):
    if name == "JAX":
        pytest.importorskip("jax")
    program = Path(__file__).with_name("without_cupy.py")
    environment = os.environ | {"DNNFFI_CACHE_DIR": "off"}
    done = subprocess.run(
        [sys.executable, program, name],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout
