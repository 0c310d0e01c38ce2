"""PyTorch's autograd through dnnffi.torch, on the reference; what is detached elsewhere."""

from __future__ import annotations

import doctest
import gc
import inspect
import re
import subprocess
import sys
import warnings
import weakref

import numpy as np
import pytest
import signatures

import dnnffi
from dnnffi.device import torch_tensors
from dnnffi.installing import install_extra

try:
    import torch
    import torch.utils.checkpoint
except ImportError:
    torch = None
else:
    # Outside the `try`, so that an error of dnnffi's import fails instead of skipping tests.
    import dnnffi.torch
    from dnnffi.torch import tensors

needs_torch = pytest.mark.skipif(torch is None, reason="no PyTorch")
MODES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}


def module_of(mode, **more):
    torch.manual_seed(0)
    if MODES[mode] == "RNN":
        more["nonlinearity"] = mode.removeprefix("rnn_")
    return getattr(torch.nn, MODES[mode])(3, 4, dtype=torch.float64, **more)


def states_of(mode, rows, batch=2, size=4):
    made = [torch.randn(rows, batch, size, dtype=torch.float64, requires_grad=True) for _ in "hc"]
    return tuple(made) if mode == "lstm" else made[0]


def flattened(results):
    y, states = results
    return (y, *states) if isinstance(states, tuple) else (y, states)


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


# Networks


@needs_torch
@pytest.mark.parametrize("mode", MODES)
def test_values_and_gradients_are_those_of_torch_nn(mode):
    more = {"num_layers": 2, "bidirectional": True}
    module = module_of(mode, **more)
    x, hx = draw(5, 2, 3), states_of(mode, 4)
    inputs = [x, *(hx if isinstance(hx, tuple) else (hx,)), *module.parameters()]
    found = flattened(getattr(dnnffi.torch, mode)(x, hx, list(module.parameters()), **more))
    expected = flattened(module(x, hx))
    by = [torch.randn_like(one) for one in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    gradients = torch.autograd.grad(found, inputs, by), torch.autograd.grad(expected, inputs, by)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@needs_torch
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "more", [{"lengths": [5, 2]}, {"dropout": 0.5}, {"batch_first": True}], ids=str
)
def test_gradcheck(mode, more):
    module = module_of(mode, num_layers=2)
    x, hx = draw(2, 5, 3) if "batch_first" in more else draw(5, 2, 3), states_of(mode, 2)
    states = hx if isinstance(hx, tuple) else (hx,)

    def call(x, *tensors):
        hx = tensors[0] if len(states) == 1 else tensors[: len(states)]
        drops = {"dropout_state": dnnffi.DropoutState(3)} if "dropout" in more else {}
        weights = tensors[len(states) :]
        function = getattr(dnnffi.torch, mode)
        return flattened(function(x, hx, weights, num_layers=2, retain=True, **more, **drops))

    assert torch.autograd.gradcheck(call, (x, *states, *module.parameters()))


@needs_torch
def test_gradcheck_of_an_lstm_with_projection_and_without_biases():
    module = module_of("lstm", proj_size=2, bias=False)
    hx = draw(1, 2, 2), draw(1, 2, 4)

    def call(x, h_0, c_0, *weights):
        return flattened(dnnffi.torch.lstm(x, (h_0, c_0), weights, retain=True))

    assert torch.autograd.gradcheck(call, (draw(5, 2, 3), *hx, *module.parameters()))


@needs_torch
def test_gradcheck_of_a_flat_buffer():
    spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, dtype="float64")
    flat = draw(dnnffi.weight_layout(spec, "cudnn").size)

    def call(x, flat):
        return flattened(dnnffi.torch.gru(x, None, flat, spec=spec, retain=True))

    assert torch.autograd.gradcheck(call, (draw(5, 2, 3), flat))


@needs_torch
def test_a_flat_buffer_computes_what_its_arrays_do():
    module = module_of("lstm")
    arrays = [p.detach().numpy() for p in module.parameters()]
    spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, dtype="float64")
    flat = torch.from_numpy(dnnffi.RNNWeights.pack(arrays, spec).flat)
    x = draw(5, 2, 3)
    torch.testing.assert_close(dnnffi.torch.lstm(x, None, flat, spec=spec)[0], module(x)[0])


def tanh_network(bidirectional):
    """The spec of two layers of size 1, its arrays 0.1, 0.2 and so on, and PyTorch's module."""
    spec = dnnffi.RNNSpec(
        mode="rnn_tanh",
        input_size=1,
        hidden_size=1,
        num_layers=2,
        bidirectional=bidirectional,
        dtype="float64",
    )
    shapes = spec.parameter_shapes()
    arrays = [np.full(p.shape, number / 10) for number, p in enumerate(shapes, 1)]
    module = torch.nn.RNN(1, 1, num_layers=2, bidirectional=bidirectional, dtype=torch.float64)
    with torch.no_grad():
        for parameter, array in zip(module.parameters(), arrays, strict=True):
            parameter.copy_(torch.from_numpy(array))
    return spec, arrays, module


@needs_torch
@pytest.mark.parametrize("layout", ["cudnn", "torch", "miopen"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_weights_in_any_layout_compute_what_torch_nn_does(bidirectional, layout):
    spec, arrays, module = tanh_network(bidirectional)
    weights = dnnffi.RNNWeights.pack(arrays, spec, backend=layout)
    x = torch.ones(1, 1, 1, dtype=torch.float64, requires_grad=True)
    expected = module(x)[0]
    if not bidirectional:
        assert expected.item() == pytest.approx(0.95002, abs=1e-5)
    (dx,) = torch.autograd.grad(expected.sum(), x)
    flat = torch.from_numpy(weights.flat)
    for given, more in ((weights, {}), (flat, {"spec": spec, "layout": layout})):
        y, _ = dnnffi.torch.rnn_tanh(x, None, given, **more)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], dx)


@needs_torch
@pytest.mark.parametrize("layout", ["cudnn", "torch", "miopen"])
def test_the_gradient_of_a_flat_tensor_has_its_layout(layout):
    spec, arrays, module = tanh_network(True)
    weights = dnnffi.RNNWeights.pack(arrays, spec, backend=layout)
    flat = torch.from_numpy(weights.flat).requires_grad_()
    x = torch.ones(3, 1, 1, dtype=torch.float64)
    dnnffi.torch.rnn_tanh(x, None, flat, spec=spec, layout=layout)[0].sum().backward()
    module(x)[0].sum().backward()
    found = weights.like(flat.grad.numpy()).arrays()
    for one, parameter in zip(found, module.parameters(), strict=True):
        torch.testing.assert_close(torch.from_numpy(one.copy()), parameter.grad)


@needs_torch
@pytest.mark.parametrize(
    "fields", [{"num_layers": 2}, {"bidirectional": True}, {"proj_size": 2}], ids=str
)
def test_a_flat_tensor_needs_the_name_of_its_layout(fields):
    spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, dtype="float64", **fields)
    flat = torch.zeros(dnnffi.weight_layout(spec, "cudnn").size, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"flat array without its layout.*Pass an RNNWeights, or"):
        dnnffi.torch.lstm(draw(5, 2, 3), None, flat, spec=spec)
    dnnffi.torch.lstm(draw(5, 2, 3), None, flat, spec=spec, layout="torch")


@needs_torch
def test_weights_that_contradict_the_arguments_are_named():
    spec, arrays, _ = tanh_network(False)
    weights = dnnffi.RNNWeights.pack(arrays, spec)
    x, tensors = draw(3, 1, 1), list(map(torch.from_numpy, arrays))
    for given, more, error in (
        (weights, {"layout": "torch"}, "layout is 'torch'; the weights are in that of 'cudnn'"),
        (weights, {"spec": tanh_network(True)[0]}, "spec is RNNSpec"),
        (tensors, {"layout": "torch", "num_layers": 2}, "layout is for a flat tensor of weights"),
    ):
        with pytest.raises(ValueError, match=error):
            dnnffi.torch.rnn_tanh(x, None, given, **more)
    with pytest.raises(
        ValueError, match=r"weights are of mode 'rnn_tanh', but gru was called; call"
    ):
        dnnffi.torch.gru(x, None, weights)


@needs_torch
def test_only_what_requires_a_gradient_gets_one():
    module = module_of("gru")
    x, h_0 = draw(5, 2, 3), draw(1, 2, 4).detach()
    weights = [p.detach() for p in module.parameters()]
    weights[1].requires_grad_()
    y, _ = dnnffi.torch.gru(x.detach(), h_0, weights)
    y.sum().backward()
    assert [one.grad is not None for one in (x, h_0, *weights)] == [
        *[False] * 3,
        True,
        *[False] * 2,
    ]


@needs_torch
def test_without_gradients_nothing_is_kept(monkeypatch):
    monkeypatch.delattr(
        dnnffi.torch.network.core, "lstm_forward"
    )  # which keeps what backward data needs
    module = module_of("lstm").requires_grad_(False)
    y, _ = dnnffi.torch.lstm(draw(5, 2, 3).detach(), None, list(module.parameters()))
    assert y.grad_fn is None
    with torch.no_grad():
        y, _ = dnnffi.torch.lstm(draw(5, 2, 3), None, list(module_of("lstm").parameters()))
    assert not y.requires_grad


@needs_torch
def test_without_gradients_elements_are_dropped_too():
    weights, x = list(module_of("lstm", num_layers=2).parameters()), draw(5, 2, 3)
    keywords = {"num_layers": 2, "dropout": 1.0, "dropout_state": dnnffi.DropoutState(0)}
    with torch.no_grad():
        y, _ = dnnffi.torch.lstm(x, None, weights, **keywords)
        of_another_x, _ = dnnffi.torch.lstm(2 * x, None, weights, **keywords)
    torch.testing.assert_close(y, of_another_x)  # of which nothing reaches the second layer


@needs_torch
@pytest.mark.parametrize("tracked_by", ["dy", "x alone"])
def test_a_second_derivative_is_refused(tracked_by):
    module = module_of("gru")
    x = draw(5, 2, 3)
    y, _ = dnnffi.torch.gru(x, None, list(module.parameters()))
    by = torch.ones_like(y, requires_grad=tracked_by == "dy")
    (dx,) = torch.autograd.grad(y, x, by, create_graph=True)
    with pytest.raises(dnnffi.UnsupportedError, match=r"^dnnffi.torch: it has no second deriv"):
        dx.sum().backward()


@needs_torch
def test_going_back_for_the_second_time_needs_retain():
    module, x = module_of("rnn_tanh"), draw(5, 2, 3)
    for retain in (True, False):
        y, _ = dnnffi.torch.rnn_tanh(x, None, list(module.parameters()), retain=retain)
        (first,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        if retain:
            (second,) = torch.autograd.grad(y.sum(), x)
            assert torch.equal(first, second)
        else:
            with pytest.raises(dnnffi.ContextError, match=r"dnnffi.torch.rnn_tanh\(..., retain="):
                torch.autograd.grad(y.sum(), x)


@needs_torch
@pytest.mark.parametrize("written", ["x", "weights", "y"])
def test_a_tensor_that_is_written_to_before_backward_is_noticed(written):
    module, x = module_of("gru"), draw(5, 2, 3)
    y, _ = dnnffi.torch.gru(x, None, list(module.parameters()))
    total = y.sum()
    with torch.no_grad():
        {"x": x, "weights": module.weight_hh_l0, "y": y}[written].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@needs_torch
@pytest.mark.parametrize("written", ["x", "h_0", "weights"])
def test_a_tensor_may_be_written_to_where_hooks_keep_a_copy(written):
    spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, dtype="float64")
    torch.manual_seed(0)
    given = {"x": draw(5, 2, 3), "h_0": draw(1, 2, 4)}
    given["weights"] = draw(dnnffi.weight_layout(spec, "cudnn").size)
    inputs = list(given.values())
    expected = torch.autograd.grad(dnnffi.torch.gru(*inputs, spec=spec)[0].sum(), inputs)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        y, _ = dnnffi.torch.gru(*inputs, spec=spec)
    with torch.no_grad():
        given[written].zero_()
    for one, other in zip(torch.autograd.grad(y.sum(), inputs), expected, strict=True):
        torch.testing.assert_close(one, other)


@needs_torch
@pytest.mark.parametrize("written", ["x", "h_0", "weights[1]"])
def test_a_tensor_that_is_written_to_before_backward_of_a_context_is_named(written):
    module, x, h_0 = module_of("rnn_tanh"), draw(5, 2, 3).detach(), draw(1, 2, 4).detach()
    weights = [p.detach() for p in module.parameters()]
    y, _, ctx = dnnffi.rnn_tanh_forward(x, h_0, weights)
    {"x": x, "h_0": h_0, "weights[1]": weights[1]}[written].zero_()
    named = written.replace("[", r"\[")
    message = f"^{named} was written to after the forward pass"
    with pytest.raises(dnnffi.ContextError, match=message):
        ctx.backward(y)


@needs_torch
def test_what_backward_does_not_read_again_may_be_written_to():
    module, x = module_of("rnn_tanh"), draw(5, 2, 3).detach()
    weights = [p.detach() for p in module.parameters()]
    y, _, ctx = dnnffi.rnn_tanh_forward(x, None, weights)
    expected = ctx.backward(y, retain=True).x
    x.zero_()
    np.testing.assert_array_equal(ctx.backward(y, need="x").x, expected)
    # A tensor with gaps is copied, and the copy is what backward reads.
    x = draw(5, 2, 6).detach()[..., ::2]
    y, _, ctx = dnnffi.rnn_tanh_forward(x, None, weights)
    expected = ctx.backward(y, retain=True).weights[0]
    x.zero_()
    np.testing.assert_array_equal(ctx.backward(y).weights[0], expected)


@needs_torch
def test_a_context_does_not_keep_the_history_of_a_tensor():
    module = module_of("rnn_tanh")
    x = dnnffi.torch.conv(draw(5, 2, 3), torch.ones(2, 2, 1, dtype=torch.float64))
    history = weakref.ref(x.grad_fn)
    with torch.no_grad():
        y, _, ctx = dnnffi.rnn_tanh_forward(x, None, [p.detach() for p in module.parameters()])
    del x
    gc.collect()
    assert history() is None
    ctx.backward(y)


@needs_torch
def test_a_tensor_that_is_negated_lazily_keeps_its_sign():
    # The imaginary part of a conjugate is such a tensor, and so is its gradient in autograd.
    module, x = module_of("gru"), draw(5, 2, 3).detach()
    negated, weights = torch._neg_view(x), dnnffi.RNNWeights.from_torch(module.state_dict(), "gru")
    assert negated.is_neg()
    expected = module(-x)[0].detach()
    for y in (
        dnnffi.torch.gru(negated, None, list(module.parameters()))[0].detach(),
        torch.from_numpy(dnnffi.gru(negated, None, weights)[0]),
    ):
        torch.testing.assert_close(y, expected)


@needs_torch
@pytest.mark.parametrize("name", ["conv", "gru"])
def test_a_gradient_that_is_negated_lazily_keeps_its_sign(name):
    x = draw(5, 2, 3)
    if name == "conv":
        w = draw(1, 2, 1)
        pairs = (dnnffi.torch.conv(x, w), torch.conv1d(x, w)), [x, w]
    else:
        module = module_of("gru")
        weights = list(module.parameters())
        pairs = (dnnffi.torch.gru(x, None, weights)[0], module(x)[0]), [x, *weights]
    (y, other), inputs = pairs
    dy = torch._neg_view(torch.randn_like(y))
    found, expected = (torch.autograd.grad(one, inputs, dy) for one in (y, other))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def allocator_on_the_host():
    return tensors.TensorAllocator(torch.device("cpu", 0))


@needs_torch
def test_a_shape_that_comes_again_gets_memory_of_its_own():
    made = allocator_on_the_host()
    arrays = [made.empty((3, 5), np.dtype("float16")) for _ in range(4)]
    owners = [array.owner for array in arrays]
    assert {owner.shape for owner in owners} == {(3, 5)}
    assert {owner.dtype for owner in owners} == {torch.float16}
    assert all(owner.untyped_storage().nbytes() == 30 for owner in owners)
    assert len({array.data.ptr for array in arrays}) == 4


@needs_torch
def test_templates_of_an_allocator_hold_no_memory():
    made = allocator_on_the_host()
    for _ in range(3):
        made.empty((3, 5), np.dtype("float32"))
    assert [one.untyped_storage().nbytes() for one in made._templates.values()] == [0]


@needs_torch
def test_an_allocator_forgets_the_oldest_shapes(monkeypatch):
    monkeypatch.setattr(tensors, "MAX_TEMPLATES", 2)
    made = allocator_on_the_host()
    for size in (1, 2, 3):
        made.empty((size,), np.dtype("float32"))
    assert [shape for shape, _ in made._templates] == [(2,), (3,)]


@needs_torch
def test_a_result_after_inference_mode_is_a_usual_tensor():
    made = allocator_on_the_host()
    with torch.inference_mode():
        for _ in range(3):
            made.empty((3,), np.dtype("float32"))
    assert not made.empty((3,), np.dtype("float32")).owner.is_inference()


@needs_torch
def test_results_are_gone_with_their_last_name():
    module, x = module_of("lstm"), draw(5, 2, 3)
    y, (h_n, c_n) = dnnffi.torch.lstm(x, None, list(module.parameters()))
    gone = [weakref.ref(one) for one in (y, h_n, c_n, y.grad_fn)]
    gc.disable()
    try:
        del y, h_n, c_n
        assert [ref() for ref in gone] == [None] * 4
    finally:
        gc.enable()


@needs_torch
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"x": np.ones((5, 2, 3))}, r"^x must be a torch.Tensor; got ndarray"),
        (
            {"x": "packed"},
            r"^x must be a torch.Tensor; got PackedSequence; give its data, with batch_sizes=x.ba",
        ),
        ({"hx": 3}, r"^hx of an LSTM must be \(h_0, c_0\) or None; got int"),
        ({"hx": (3, None)}, r"^h_0 must be a torch.Tensor; got int"),
        ({"hx": ([0.0], None)}, r"^h_0 must .* got list; use torch.tensor\(h_0\)$"),
        ({"hx": ((torch and torch.ones(1),), None)}, r"^h_0 must be a torch.Tensor; got tuple$"),
        ({"weights": [1]}, r"^weights\[0\] must be a torch.Tensor; got int"),
        ({"weights": 3}, r"^weights must be a sequence.*; got int without spec$"),
        (
            {"weights": "module"},
            r"; got LSTM without spec; list\(module.parameters\(\)\) has those of a module$",
        ),
        (
            {"weights": "state"},
            r"; got OrderedDict without spec; list\(module.parameters\(\)\) has those of a module$",
        ),
        (
            {"weights": "flat"},
            r"^weights must be a sequence of tensors, an RNNWeights, or one",
        ),
        ({"lenghts": [1]}, r"unexpected keyword argument 'lenghts'"),
        ({"num_layers": [1]}, r"^num_layers must be an integer; got list"),
        ({"bidirectional": [True]}, r"^bidirectional must be True or False"),
        ({"weights": "flat", "spec": {}}, r"^spec must be an RNNSpec; got dict"),
        ({"weights": "flat", "spec": "its own", "layout": ["cudnn"]}, r"^layout must be"),
        ({"backend": np.zeros(2)}, r"^backend must be"),
        ({"dropout": np.zeros(2)}, r"^dropout must be a number; got ndarray"),
        ({"resets": "sparse"}, r"^resets must be a dense tensor"),
    ],
)
def test_a_wrong_argument_of_a_network_is_named(change, error):
    given = {"x": draw(5, 2, 3), "hx": None, "weights": list(module_of("lstm").parameters())}
    made = {"flat": lambda: torch.ones(112), "module": lambda: module_of("lstm")}
    made["state"] = lambda: module_of("lstm").state_dict()
    given |= change
    if isinstance(given["x"], str):
        given["x"] = torch.nn.utils.rnn.pack_padded_sequence(draw(5, 2, 3), [5, 4])
    if given.get("spec") == "its own":
        given["spec"] = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
    if "resets" in given:
        given["resets"] = torch.ones(5, 2, dtype=torch.bool).to_sparse()
    if given["weights"] in list(made):
        given["weights"] = made[given["weights"]]()
    arguments = [given.pop(name) for name in ("x", "hx", "weights")]
    with pytest.raises(TypeError, match=error):
        dnnffi.torch.lstm(*arguments, **given)


@needs_torch
@pytest.mark.parametrize("name", ["conv", "conv_transpose", *MODES])
def test_no_annotation_of_a_signature_is_quoted(name):
    assert signatures.quoted(dnnffi.torch, name) == []


# Modes of PyTorch


def frozen(mode="gru", **more):
    """Weights that require no gradient, which a trace takes as constants."""
    return [p.detach() for p in module_of(mode, **more).parameters()]


def calls_on_a_tensor():
    """Functions of x [5, 2, 3] that call dnnffi, by name."""
    w = torch.ones(4, 2, 1, dtype=torch.float64)
    packed = dnnffi.RNNWeights.from_torch(module_of("gru").state_dict(), "gru")
    weights = frozen()
    return {
        "gru": lambda x: dnnffi.torch.gru(x, None, weights)[0],
        "gru, packed": lambda x: dnnffi.torch.gru(x, None, packed)[0],
        "conv": lambda x: dnnffi.torch.conv(x, w),
        "conv_transpose": lambda x: dnnffi.torch.conv_transpose(x, w.swapaxes(0, 1)),
        "core gru": lambda x: torch.from_dlpack(dnnffi.gru(x, None, packed)[0]),
        "core conv": lambda x: torch.from_dlpack(dnnffi.conv(x, w)),
        "core conv_backward_bias": lambda x: torch.from_dlpack(dnnffi.conv_backward_bias(x)),
        "core matmul": lambda x: torch.from_dlpack(dnnffi.matmul(x[0], x[1].T)),
    }


CALLS = list(calls_on_a_tensor()) if torch is not None else []


@needs_torch
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_in_a_trace_is_refused(name):
    call, x = calls_on_a_tensor()[name], draw(5, 2, 3).detach()
    with pytest.raises(dnnffi.UnsupportedError, match=r"is a tensor in torch\.jit\.trace, which"):
        torch.jit.trace(lambda x: x.sum() + call(x).sum(), (x,))
    call(x)


@needs_torch
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CALLS)
def test_a_compiled_function_computes_what_it_does_uncompiled(name, backend):
    call = calls_on_a_tensor()[name]

    def function(x):
        return (call(2 * x) + 1).sin()

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend)
    for seed in range(3):
        torch.manual_seed(seed)
        x = draw(5, 2, 3).detach()
        torch.testing.assert_close(compiled(x), function(x))


@needs_torch
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of PyTorch's own code
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_training_step_has_the_gradients_of_torch_nn(backend):
    module, x = module_of("lstm", num_layers=2), draw(5, 2, 3)
    w = draw(4, 2, 1)

    def step(x, parameters, w):
        y, (h_n, c_n) = dnnffi.torch.lstm(2 * x, None, parameters, num_layers=2)
        return dnnffi.torch.conv(y, w).square().sum() + h_n.sum() * c_n.sum()

    def expected_step(x, w):
        y, (h_n, c_n) = module(2 * x)
        return torch.conv1d(y, w).square().sum() + h_n.sum() * c_n.sum()

    torch.compiler.reset()
    compiled, inputs = torch.compile(step, backend=backend), [x, w, *module.parameters()]
    found = torch.autograd.grad(compiled(x, list(module.parameters()), w), inputs)
    expected = torch.autograd.grad(expected_step(x, w), inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@needs_torch
def test_a_context_in_a_compiled_function_gives_its_gradients():
    weights = dnnffi.RNNWeights.from_torch(module_of("gru").state_dict(), "gru")

    def function(x):
        y, _, ctx = dnnffi.gru_forward(2 * x, None, weights)
        return torch.from_dlpack(ctx.backward(torch.from_dlpack(y) + 1).x) * 2

    torch.compiler.reset()
    x = draw(5, 2, 3).detach()
    torch.testing.assert_close(torch.compile(function, backend="eager")(x), function(x))


@needs_torch
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_dropout_in_a_forward_pass_that_a_checkpoint_repeats_is_refused(use_reentrant):
    module, x = module_of("lstm", num_layers=2), draw(5, 2, 3)
    state = dnnffi.DropoutState(0)

    def block(x):
        weights = list(module.parameters())
        keywords = {"num_layers": 2, "dropout": 0.5, "dropout_state": state}
        return dnnffi.torch.lstm(x, None, weights, **keywords)[0].square()

    y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=use_reentrant)
    with pytest.raises(dnnffi.UnsupportedError, match=r"dropout is 0\.5 in a forward pass that"):
        y.sum().backward()


@needs_torch
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_of_layers_with_pytorchs_dropout_has_the_right_gradients(use_reentrant):
    first, second = module_of("lstm"), torch.nn.LSTM(4, 4, dtype=torch.float64)
    x = draw(5, 2, 3)

    def block(x):
        y, _ = dnnffi.torch.lstm(x, None, list(first.parameters()))
        y = torch.nn.functional.dropout(y, 0.5)
        return dnnffi.torch.lstm(y, None, list(second.parameters()))[0].square()

    found = []
    for checkpointed in (False, True):
        torch.manual_seed(7)
        y = (
            torch.utils.checkpoint.checkpoint(block, x, use_reentrant=use_reentrant)
            if checkpointed
            else block(x)
        )
        torch.rand(3)  # moves PyTorch's random numbers on, as the rest of a model does
        x.grad = None
        first.zero_grad()
        second.zero_grad()
        y.sum().backward()
        found.append([x.grad, *(p.grad for p in (*first.parameters(), *second.parameters()))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@needs_torch
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of PyTorch's own code
@pytest.mark.parametrize("name", ["gru", "conv", "conv_transpose"])
def test_forward_mode_is_refused(name):
    call, x = calls_on_a_tensor()[name], draw(5, 2, 3).detach()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(NotImplementedError, match="jvp"):
            call(dual)


# Convolutions


@needs_torch
@pytest.mark.parametrize(
    "more", [{}, {"stride": 2, "padding": 1}, {"groups": 2, "dilation": 2}], ids=str
)
@pytest.mark.parametrize("transposed", [False, True])
def test_gradcheck_of_convolutions(transposed, more):
    x, bias = draw(2, 4, 6, 7), draw(4)
    w = draw(4, 4 // more.get("groups", 1), 3, 2)
    name = "conv_transpose" if transposed else "conv"

    def call(x, w, bias):
        return getattr(dnnffi.torch, name)(x, w, bias, **more)

    expected = getattr(torch, f"{name}2d")(x, w, bias, **more)
    torch.testing.assert_close(call(x, w, bias), expected)
    assert torch.autograd.gradcheck(call, (x, w, bias))


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_convolution_keeps_channels_last(dtype):
    torch.manual_seed(0)
    x = torch.randn(2, 4, 6, 7, dtype=getattr(torch, dtype))
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    w = torch.randn(3, 4, 3, 2, dtype=x.dtype)
    y = dnnffi.torch.conv(x, w)
    expected = torch.conv2d(x, w)
    torch.testing.assert_close(y, expected, rtol=0.02, atol=0.02)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    for result in (y, dx):
        assert result.dtype is x.dtype
        assert result.is_contiguous(memory_format=torch.channels_last)


@needs_torch
def test_a_convolution_without_a_bias():
    x, w = draw(2, 4, 6), draw(5, 4, 3)
    assert torch.autograd.gradcheck(lambda x, w: dnnffi.torch.conv(x, w, padding="same"), (x, w))


@needs_torch
@pytest.mark.parametrize("padding", [((0, 1), (2, 0)), "same"], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_gradcheck_of_asymmetric_padding(transposed, padding):
    x, bias, w = draw(2, 4, 6, 7), draw(4), draw(4, 4, 3, 2)
    name = "conv_transpose" if transposed else "conv"

    def call(x, w, bias):
        return getattr(dnnffi.torch, name)(x, w, bias, stride=2, padding=padding)

    (top, bottom), (left, right) = ((0, 1), (0, 1)) if padding == "same" else padding
    if transposed:
        whole = torch.conv_transpose2d(x, w, bias, stride=2)
        expected = whole[:, :, top : whole.shape[2] - bottom, left : whole.shape[3] - right]
        if padding == "same":  # a kernel of 2 needs no padding for twice the size
            expected = whole[:, :, : whole.shape[2] - 1]
    else:
        padded = torch.nn.functional.pad(x, (left, right, top, bottom))
        expected = torch.conv2d(padded, w, bias, stride=2)
    torch.testing.assert_close(call(x, w, bias), expected)
    assert torch.autograd.gradcheck(call, (x, w, bias))


@needs_torch
@pytest.mark.parametrize("transposed", [False, True])
def test_a_tensor_in_bfloat16_on_the_host(transposed):
    x, w = (one.detach().to(torch.bfloat16) for one in (draw(2, 4, 6, 7), draw(4, 4, 3, 2)))
    x = x.to(memory_format=torch.channels_last) if transposed else x
    y = (dnnffi.conv_transpose if transposed else dnnffi.conv)(x, w)
    assert (type(y), y.dtype.name) == (np.ndarray, "bfloat16")
    expected = (torch.conv_transpose2d if transposed else torch.conv2d)(x.float(), w.float())
    np.testing.assert_allclose(y.astype("f4"), expected.numpy(), rtol=2**-8, atol=1e-6)


@needs_torch
def test_a_second_derivative_of_a_convolution_is_refused():
    x, w = draw(2, 4, 6), draw(5, 4, 3)
    (dx,) = torch.autograd.grad(dnnffi.torch.conv(x, w).sum(), x, create_graph=True)
    with pytest.raises(dnnffi.UnsupportedError, match=r"^dnnffi.torch: it has no second deriv"):
        dx.sum().backward()


@needs_torch
def test_a_wrong_argument_of_a_convolution_is_named():
    for name in ("conv", "conv_transpose"):
        with pytest.raises(TypeError, match=r"^w must be a torch.Tensor; got NoneType"):
            getattr(dnnffi.torch, name)(draw(2, 4, 6), None)
        with pytest.raises(TypeError, match=r"^x must be a torch.Tensor; got ndarray"):
            getattr(dnnffi.torch, name)(np.ones((2, 4, 6)), draw(4, 4, 1))


@needs_torch
@pytest.mark.parametrize("name", [*MODES, "conv", "conv_transpose"])
def test_the_example_of_a_docstring_runs(name):
    torch.manual_seed(0)
    text = inspect.getdoc(getattr(dnnffi.torch, name))
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    said = []
    doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert example.examples
    assert not "".join(said)


# Detachment from autograd


class Tracked:
    """A tensor that requires a gradient, of a library that exports none such."""

    requires_grad = True

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **more):
        raise BufferError("detach it first")

    def detach(self):
        return self.array


@pytest.fixture
def unsaid(monkeypatch):
    monkeypatch.setattr(torch_tensors, "_warned", False)


def test_an_array_that_requires_a_gradient_is_detached_with_one_warning(unsaid):
    x, w = np.ones((1, 2, 5)), np.ones((3, 2, 2))
    with pytest.warns(UserWarning, match=r"^x requires a gradient.*dnnffi\.torch") as said:
        y = dnnffi.conv(Tracked(x), w)
    assert [one.filename for one in said] == [__file__]
    assert np.array_equal(dnnffi.conv(x, Tracked(w)), y)  # a warning would be an error


@needs_torch
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of PyTorch's own code
def test_a_tensor_with_a_tangent_is_detached_with_one_warning(unsaid):
    x, w = draw(1, 2, 5).detach(), np.ones((3, 2, 2))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.warns(UserWarning, match=r"^x requires a gradient.*dnnffi\.torch"):
            dnnffi.conv(dual, w)


@needs_torch
def test_without_gradients_a_parameter_is_taken_in_silence(unsaid):
    weights = list(module_of("gru").parameters())
    x = draw(5, 2, 3)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        dnnffi.gru(x, None, weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dnnffi.torch.gru(x, None, weights)[0].sum().backward()
    with pytest.warns(UserWarning, match=r"^x requires a gradient"):
        dnnffi.gru(x, None, weights)


def test_importing_dnnffi_imports_no_torch():
    uses_all = "import sys, dnnffi; [getattr(dnnffi, name) for name in dnnffi.__all__]"
    code = f"{uses_all}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_pytorch_the_install_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "dnnffi.torch", raising=False)
    with pytest.raises(ImportError, match=re.escape(install_extra("torch"))):
        __import__("dnnffi.torch")


@needs_torch
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")  # of PyTorch
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr"])
def test_a_sparse_tensor_is_refused_by_name(layout):
    sparse = torch.eye(3).to_sparse(layout=getattr(torch, layout))
    with pytest.raises(TypeError, match=rf"^a must be a dense tensor, .* one of torch\.{layout}: "):
        dnnffi.matmul(sparse, torch.eye(3))


def allocate_tensor(shape, dtype):
    return torch.full(shape, float("nan"), dtype=getattr(torch, dtype))


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_allocator_of_tensors_on_the_host_makes_the_results(dtype):
    weights = [w.detach().to(getattr(torch, dtype)) for w in module_of("gru").parameters()]
    x = draw(5, 2, 3).detach().to(weights[0].dtype)
    y, h_n, ctx = dnnffi.gru_forward(x, None, weights, options={"allocator": allocate_tensor})
    gradients = ctx.backward(torch.ones_like(y))
    expected, _ = dnnffi.torch.gru(x.float(), None, [w.float() for w in weights])
    torch.testing.assert_close(y.float(), expected, atol=1e-2, rtol=1e-2)
    results = [y, h_n, gradients.x, *gradients.weights]
    assert all(type(one) is torch.Tensor and one.dtype == x.dtype for one in results)


@needs_torch
def test_an_allocator_on_the_host_takes_parameters_that_require_a_gradient():
    weights, x = list(module_of("gru").parameters()), draw(5, 2, 3).detach()
    with torch.no_grad():
        y, _ = dnnffi.gru(x, None, weights, options={"allocator": allocate_tensor})
        expected, _ = dnnffi.gru(x, None, weights)
    np.testing.assert_array_equal(y.numpy(), expected)


@needs_torch
@pytest.mark.parametrize("written", ["x", "y", "weights[1]"])
def test_a_write_to_a_tensor_is_noticed_with_an_allocator_on_the_host(written):
    weights = [w.detach() for w in module_of("gru").parameters()]
    x = draw(5, 2, 3).detach().to(weights[0].dtype)
    y, _, ctx = dnnffi.gru_forward(x, None, weights, options={"allocator": allocate_tensor})
    {"x": x, "y": y, "weights[1]": weights[1]}[written].zero_()
    with pytest.raises(dnnffi.ContextError, match=rf"^{re.escape(written)} was written to after"):
        ctx.backward(torch.ones_like(y))


@needs_torch
@pytest.mark.parametrize("missing", ["h_0", "c_0"])
def test_an_lstm_has_both_states_or_none(missing):
    weights = list(torch.nn.LSTM(3, 4).parameters())
    hx = tuple(None if name == missing else torch.zeros(1, 2, 4) for name in ("h_0", "c_0"))
    with pytest.raises(TypeError, match=f"^{missing} must be an array; give hx=None for zero"):
        dnnffi.torch.lstm(torch.zeros(5, 2, 3), hx, weights)
