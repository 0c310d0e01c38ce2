"""PyTorch's autograd through dnnffi.torch on a GPU: cuDNN on the tensors, against torch.nn."""

from __future__ import annotations

import gc
import weakref

import pytest

import dnnffi

torch = pytest.importorskip("torch")

import dnnffi.torch  # noqa: E402 - needs torch

MODES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
STRICT = {"math": "strict"}


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


def module_of(mode, **more):
    torch.manual_seed(0)
    if MODES[mode] == "RNN":
        more["nonlinearity"] = mode.removeprefix("rnn_")
    return getattr(torch.nn, MODES[mode])(3, 4, device="cuda", dtype=torch.float64, **more)


def without_graph(results):
    """The values, so that the graph dies with ``results``.

    A leaf has one AccumulateGrad node, which lives as long as a graph that leads to it and belongs
    to the stream on which the first was made. PyTorch warns where a graph of another stream
    meets it.
    """
    return [one.detach() for one in results]


def flattened(results):
    y, states = results
    return (y, *states) if isinstance(states, tuple) else (y, states)


@pytest.mark.filterwarnings("ignore::dnnffi.PerformanceWarning")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("own_stream", [False, True])
def test_values_and_gradients_are_those_of_torch_nn(mode, own_stream):
    more = {"num_layers": 2, "bidirectional": True}
    module = module_of(mode, **more)
    x, h_0, c_0 = draw(5, 2, 3), draw(4, 2, 4), draw(4, 2, 4)
    hx = (h_0, c_0) if mode == "lstm" else h_0
    inputs = [x, *(hx if isinstance(hx, tuple) else (hx,)), *module.parameters()]
    expected = flattened(module(x, hx))
    by = [torch.randn_like(one) for one in expected]
    wanted = torch.autograd.grad(expected, inputs, by)
    expected = without_graph(expected)
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    torch.cuda.synchronize()
    call = getattr(dnnffi.torch, mode)
    for _ in range(2):  # in its second call the network is known
        with torch.cuda.stream(stream):
            found = flattened(call(x, hx, list(module.parameters()), options=STRICT, **more))
            gradients = torch.autograd.grad(found, inputs, by)
        torch.cuda.synchronize()
        for one, other in zip((*found, *gradients), (*expected, *wanted), strict=True):
            assert one.is_cuda
            torch.testing.assert_close(one, other)
        found = without_graph(found)


@pytest.mark.filterwarnings("ignore::dnnffi.PerformanceWarning")
def test_gradcheck():
    module = module_of("gru")

    def call(x, h_0, *weights):
        return flattened(dnnffi.torch.gru(x, h_0, weights, retain=True))

    inputs = (draw(5, 2, 3), draw(1, 2, 4), *module.parameters())
    assert torch.autograd.gradcheck(call, inputs, nondet_tol=1e-10)


def test_a_flat_buffer_gets_one_gradient():
    module = module_of("lstm")
    host = [p.detach().cpu().numpy() for p in module.parameters()]
    spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, dtype="float64")
    flat = torch.from_numpy(dnnffi.RNNWeights.pack(host, spec).flat).cuda().requires_grad_()
    x = draw(5, 2, 3)
    y, _ = dnnffi.torch.lstm(x, None, flat, spec=spec)
    expected, _ = module(x)
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    expected.sum().backward()
    parts = dnnffi.RNNWeights(flat.grad.cpu().numpy(), spec).arrays()
    for part, parameter in zip(parts, module.parameters(), strict=True):
        torch.testing.assert_close(torch.from_numpy(part), parameter.grad.cpu())


@pytest.mark.filterwarnings("ignore::dnnffi.PerformanceWarning")
@pytest.mark.parametrize("calls", [1, 2])  # in its second call the network is known
def test_results_are_gone_with_their_last_name(calls):
    weights = list(module_of("lstm").parameters())
    for _ in range(calls):
        y, (h_n, c_n) = dnnffi.torch.lstm(draw(5, 2, 3), None, weights)
    gone = [weakref.ref(one) for one in (y, h_n, c_n, y.grad_fn)]
    held = torch.cuda.memory_allocated()
    gc.disable()
    try:
        del y, h_n, c_n
        assert [ref() for ref in gone] == [None] * 4
        assert torch.cuda.memory_allocated() < held
    finally:
        gc.enable()


@pytest.mark.parametrize("own_stream", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
def test_convolutions(name, layout, own_stream):
    more = {"stride": 2, "padding": 1}
    x, w, bias = (draw(*s, dtype=torch.float32) for s in ((2, 4, 9, 8), (4, 4, 3, 3), (4,)))
    x = x.detach().to(memory_format=layout).requires_grad_()
    with torch.backends.cudnn.flags(allow_tf32=False):
        expected = getattr(torch, f"{name}2d")(x, w, bias, **more)
        by = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, (x, w, bias), by)
    (expected,) = without_graph([expected])
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        found = getattr(dnnffi.torch, name)(x, w, bias, options=STRICT, **more)
        gradients = torch.autograd.grad(found, (x, w, bias), by)
    torch.cuda.synchronize()
    assert found.is_contiguous(memory_format=layout)
    for one, other in zip((found, *gradients), (expected, *wanted), strict=True):
        assert one.is_cuda
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
