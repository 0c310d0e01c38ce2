"""Resets of functions and modules on a GPU, by dnnffi's kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dnnffi
from dnnffi.backends.own.recurrent.candidates import OwnCandidates
from dnnffi.device.cupy import cupy_memory
from dnnffi.errors import UnsupportedError
from dnnffi.reference.rnn import backward, forward
from dnnffi.spec.problem import RNNProblem

cupy = pytest.importorskip("cupy")

CALLS = {
    "lstm": (dnnffi.lstm, dnnffi.lstm_forward),
    "gru": (dnnffi.gru, dnnffi.gru_forward),
    "rnn_tanh": (dnnffi.rnn_tanh, dnnffi.rnn_tanh_forward),
}
ALLOWED = {"float32": 4e-3, "float16": 1e-2}


@pytest.fixture(autouse=True)
def _able():
    spec = dnnffi.RNNSpec(mode="lstm", input_size=1, hidden_size=1)
    if not OwnCandidates(cupy_memory()).offers(RNNProblem.dense(spec, steps=1, batch=1)):
        pytest.skip("this device has none of our kernels")


def deviation(found, expected):
    found, expected = np.asarray(found.get(), "f8"), np.asarray(expected, "f8")
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


class Drawn:
    """A network, its arrays on the host, and resets at some steps."""

    def __init__(self, mode, dtype, hidden, steps, batch, rate, **more):
        self.spec = dnnffi.RNNSpec(
            mode=mode, input_size=24, hidden_size=hidden, dtype=dtype, **more
        )
        rng = self.rng = np.random.default_rng(0)
        self.weights = dnnffi.RNNWeights.random(self.spec, rng)
        self.x = self.values(*self.spec.x_shape(steps, batch))
        self.hx, self.reset_to = (self.state(rows) for rows in (batch, batch))
        self.resets = rng.random((steps, batch)) < rate
        self.dy = self.values(*self.spec.y_shape(steps, batch))

    def weights_on_device(self):
        flat = self.weights.to("cudnn").flat
        return dnnffi.RNNWeights(cupy.asarray(flat), self.spec, backend="cudnn")

    def values(self, *shape):
        return self.rng.standard_normal(shape).astype(self.weights.flat.dtype)

    def state(self, rows):
        h = self.values(*self.spec.h_shape(rows))
        return (h, self.values(*self.spec.c_shape(rows))) if self.spec.has_cell else h


def on_device(value):
    return tuple(map(cupy.asarray, value)) if isinstance(value, tuple) else cupy.asarray(value)


def check(drawn, **more):
    """Results and gradients of a call on the device against the reference."""
    spec, mode = drawn.spec, drawn.spec.mode
    infer, train = CALLS[mode]
    arguments = on_device(drawn.x), on_device(drawn.hx), drawn.weights_on_device()
    resets = {"resets": cupy.asarray(drawn.resets), "reset_to": on_device(drawn.reset_to)}
    y, hx, context = train(*arguments, **resets, **more)
    grads = context.backward(cupy.asarray(drawn.dy))
    inferred, _ = infer(*arguments, **resets, **more)

    def up(value):
        one, other = value if isinstance(value, tuple) else (value, None)
        return one.astype("f8"), None if other is None else other.astype("f8")

    done = forward(
        *(spec, drawn.x.astype("f8"), *up(drawn.hx)),
        [w.astype("f8") for w in drawn.weights.arrays()],
        resets=drawn.resets,
        reset_to=up(drawn.reset_to),
        lengths=more.get("lengths"),
    )
    expected = backward(done.tape, drawn.dy.astype("f8"))
    pairs = {"y": (y, done.y), "inference": (inferred, done.y), "dx": (grads.x, expected.x)}
    for name, found, others in (
        ("hx", hx, (done.h_n, done.c_n)),
        ("dhx", grads.hx, (expected.h_0, expected.c_0)),
        ("dreset_to", grads.reset_to, expected.reset_to),
    ):
        parts = found if isinstance(found, tuple) else (found,)
        for part, other in zip(parts, others, strict=False):
            pairs[f"{name} {len(pairs)}"] = part, other
    double = replace(spec, dtype="float64")
    flat = dnnffi.RNNWeights.pack(expected.weights, double, backend="cudnn").flat
    pairs["dweights"] = grads.weights.flat, flat
    for name, (found, other) in pairs.items():
        error = deviation(found, other)
        assert error <= ALLOWED[spec.dtype], f"{name}: off by {error:.3g}"


@pytest.mark.parametrize("rate", [0.01, 0.2])
@pytest.mark.parametrize(
    ("mode", "dtype", "hidden", "steps", "batch", "more"),
    [
        ("gru", "float32", 128, 128, 256, {}),
        ("lstm", "float32", 256, 128, 256, {}),
        ("lstm", "float16", 512, 80, 32, {"num_layers": 2}),
        ("gru", "float16", 1024, 64, 16, {"bidirectional": True}),
        ("rnn_tanh", "float32", 100, 50, 7, {"num_layers": 2, "bidirectional": True}),
        ("lstm", "float32", 32, 40, 3, {}),
    ],
)
def test_results_are_those_of_the_reference(mode, dtype, hidden, steps, batch, more, rate):
    check(Drawn(mode, dtype, hidden, steps, batch, rate, **more))


def test_rows_of_unequal_length():
    drawn = Drawn("gru", "float32", 96, 30, 5, 0.2, bidirectional=True)
    check(drawn, lengths=[30, 7, 1, 22, 30])


def test_a_tuned_network_gives_the_same():
    drawn = Drawn("lstm", "float32", 200, 60, 40, 0.1)
    for _ in range(3):
        check(drawn, options={"tune": "now"})


def test_flags_of_the_host_are_copied():
    drawn = Drawn("gru", "float16", 64, 20, 6, 0.3)
    weights = drawn.weights_on_device()
    x = cupy.asarray(drawn.x)
    expected, _ = dnnffi.gru(x, None, weights, resets=cupy.asarray(drawn.resets))
    found, _ = dnnffi.gru(x, None, weights, resets=drawn.resets.astype(np.int64))
    cupy.testing.assert_array_equal(found, expected)


def test_what_the_kernels_lack_is_refused_by_name():
    drawn = Drawn("lstm", "float64", 8, 3, 2, 0.5)
    weights = drawn.weights_on_device()
    with pytest.raises(UnsupportedError, match="float64"):
        dnnffi.lstm(cupy.asarray(drawn.x), None, weights, resets=drawn.resets)
    with pytest.raises(UnsupportedError, match="has no resets"):
        dnnffi.lstm(
            *(cupy.asarray(drawn.x), None, weights),
            resets=drawn.resets,
            options={"algorithm": "standard"},
        )


@pytest.mark.parametrize("rows", [1, 9])
def test_tensors_of_pytorch_and_their_gradients(rows):
    """Autograd sums the gradients of one row of reset_to for all rows."""
    torch = pytest.importorskip("torch")
    import dnnffi.torch

    torch.manual_seed(0)
    module = dnnffi.torch.LSTM(12, 40, num_layers=2, bidirectional=True)
    found = []
    x, dy = torch.randn(30, 9, 12), torch.randn(30, 9, 80)
    resets, reset_to = torch.rand(30, 9) < 0.2, [torch.randn(4, rows, 40) for _ in range(2)]
    for device in ("cpu", "cuda", "cuda"):  # at last the network is known
        on = module.to(device)
        given = [one.detach().to(device).requires_grad_() for one in (x, *reset_to)]
        y, _ = on(given[0], resets=resets, reset_to=tuple(given[1:]))
        wanted = [*given, *on.parameters()]
        found.append([y, *torch.autograd.grad(y, wanted, dy.to(device))])
    expected, *of_gpu = found
    for results in of_gpu:
        for one, other in zip(results, expected, strict=True):
            assert one.shape == other.shape
            error = (one.detach().cpu() - other.detach()).norm() / other.detach().norm()
            assert error <= 4e-3
