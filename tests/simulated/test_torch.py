"""Tensors of a GPU that the stand-in for cuDNN plays: what dnnffi.torch hands over and makes."""

from __future__ import annotations

import copy
import gc
import sys
from types import MappingProxyType

import numpy as np
import pytest
from simulated import external_memory

import dnnffi
from dnnffi.device.external import device_array
from dnnffi.errors import UnsupportedError

torch = pytest.importorskip("torch")

from simulated.gpu_tensors import (  # noqa: E402 - needs torch
    GpuTensor,
    all_tensors_on_gpu,
    on_gpu,
    played_gpu,
)

import dnnffi.torch  # noqa: E402
from dnnffi.torch import convolutions, modules, network, weights  # noqa: E402

STEPS, BATCH, INPUT_SIZE, HIDDEN_SIZE = 5, 2, 3, 4
DTYPE = torch.float64


@pytest.fixture
def gpu(simulator, monkeypatch):
    with played_gpu(simulator, monkeypatch) as made:
        yield made


def network_of(**keywords):
    torch.manual_seed(0)
    return torch.nn.LSTM(INPUT_SIZE, HIDDEN_SIZE, dtype=DTYPE, **keywords)


def parameters_of(module, form):
    """The parameters on the GPU: each in its own memory, or views of one buffer."""
    parameters = list(module.parameters())
    if form == "separate":
        return list(map(on_gpu, parameters)), None
    form = weights.list_form("lstm", parameters, module.num_layers, module.bidirectional, None)
    flat = torch.zeros(form.layout.size, dtype=DTYPE).as_subclass(GpuTensor)
    given = list(map(on_gpu, parameters))
    for parameter, view in zip(given, form.views(flat), strict=True):
        view.copy_(parameter.detach())
        parameter.data = view
    return given, flat


@pytest.mark.parametrize("form", ["separate", "one buffer"])
@pytest.mark.parametrize(
    "keywords", [{}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 2}], ids=str
)
def test_a_training_step_gives_the_gradients_of_torch_nn(gpu, form, keywords):
    module = network_of(**keywords)
    given, _ = parameters_of(module, form)
    x = torch.randn(STEPS, BATCH, INPUT_SIZE, dtype=DTYPE, requires_grad=True)
    ours = on_gpu(x)
    keywords.pop("proj_size", None)
    expected, states = module(x)
    dy = torch.randn(expected.shape, dtype=DTYPE)
    wanted = torch.autograd.grad(expected, [x, *module.parameters()], dy)
    for _ in range(2):  # a list in one buffer is known in the second call
        y, (h_n, c_n) = dnnffi.torch.lstm(ours, None, given, **keywords)
        for one, other in ((y, expected), *zip((h_n, c_n), states, strict=True)):
            torch.testing.assert_close(one.as_subclass(torch.Tensor), other)
        found = torch.autograd.grad(y, [ours, *given], on_gpu(dy))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one.as_subclass(torch.Tensor), other)
        storages = {one.untyped_storage().data_ptr() for one in found[1:]}
        assert len(storages) == 1  # of one gradient


def test_a_list_in_one_buffer_is_not_copied_and_read_once(gpu):
    module = network_of(num_layers=2)
    given, flat = parameters_of(module, "one buffer")
    x = on_gpu(torch.randn(STEPS, BATCH, INPUT_SIZE, dtype=DTYPE))
    expected, _ = module(x.as_subclass(torch.Tensor))
    for number in range(3):
        y, _ = dnnffi.torch.lstm(x, None, list(given), num_layers=2)
        torch.testing.assert_close(y.detach().as_subclass(torch.Tensor), expected)
        assert gpu.arrays.count("weights") == 1, number
    with torch.no_grad():
        flat.zero_()
        y, _ = dnnffi.torch.lstm(x, None, list(given), num_layers=2)
    assert not y.any()


def test_a_list_is_read_again_if_a_parameter_moved(gpu):
    module = network_of()
    given, _ = parameters_of(module, "one buffer")
    x = on_gpu(torch.randn(STEPS, BATCH, INPUT_SIZE, dtype=DTYPE))
    dnnffi.torch.lstm(x, None, given)
    with torch.no_grad():
        given[1].data = given[1].data.clone().mul_(2)
        module.weight_hh_l0.mul_(2)
    y, _ = dnnffi.torch.lstm(x, None, given)
    torch.testing.assert_close(
        y.detach().as_subclass(torch.Tensor), module(x.as_subclass(torch.Tensor))[0].detach()
    )


def test_a_parameter_that_was_transposed_in_place_is_copied(gpu):
    module = torch.nn.LSTM(4, 1, bias=False, dtype=DTYPE)  # w_ih [4, 4]
    given, _ = parameters_of(module, "one buffer")
    x = on_gpu(torch.randn(STEPS, BATCH, 4, dtype=DTYPE))
    dnnffi.torch.lstm(x, None, given)
    given[0].data = given[0].data.t()
    module.weight_ih_l0.data = module.weight_ih_l0.data.t()
    y, _ = dnnffi.torch.lstm(x, None, given)
    torch.testing.assert_close(
        y.detach().as_subclass(torch.Tensor), module(x.as_subclass(torch.Tensor))[0].detach()
    )


def test_a_flat_tensor_is_read_once(gpu):
    _, flat = parameters_of(network_of(), "one buffer")
    flat.requires_grad_()
    spec = dnnffi.RNNSpec(
        mode="lstm", input_size=INPUT_SIZE, hidden_size=HIDDEN_SIZE, dtype="float64"
    )
    x = on_gpu(torch.randn(STEPS, BATCH, INPUT_SIZE, dtype=DTYPE))
    for _ in range(3):
        y, _ = dnnffi.torch.lstm(x, None, flat, spec=spec)
    assert gpu.arrays.count("weights") == 1
    (gradient,) = torch.autograd.grad(y, flat, on_gpu(torch.ones(y.shape, dtype=DTYPE)))
    assert gradient.shape == flat.shape
    shorter = flat.detach()[1:]
    with pytest.raises(ValueError, match=r"^flat must have shape \(144,\); got \(143,\)"):
        dnnffi.torch.lstm(x, None, shorter, spec=spec)


def test_weights_that_are_retained_keep_no_memory(gpu):
    given, flat = parameters_of(network_of(), "one buffer")
    x = on_gpu(torch.randn(STEPS, BATCH, INPUT_SIZE, dtype=DTYPE))
    with torch.no_grad():
        dnnffi.torch.lstm(x, None, given)
    before, memory = len(weights._retained), flat.untyped_storage()._weak_ref()
    gpu.release(flat.data_ptr())
    del flat
    for parameter in given:
        parameter.data = parameter.data.clone()  # as module.to() does
    gc.collect()
    assert torch.UntypedStorage._expired(memory)
    del parameter, given
    assert len(weights._retained) == before - 1


def test_results_are_gone_with_their_last_name(gpu):
    given, _ = parameters_of(network_of(), "one buffer")
    x = on_gpu(torch.randn(STEPS, BATCH, INPUT_SIZE, dtype=DTYPE))
    dnnffi.torch.lstm(x, None, given)  # makes the workspace, which the stream keeps
    gpu.results.clear()
    gc.disable()
    try:
        y, (h_n, c_n) = dnnffi.torch.lstm(x, None, given)
        del y, h_n, c_n
        assert gpu.results
        assert [one() for one in gpu.results] == [None] * len(gpu.results)
    finally:
        gc.enable()


def test_an_argument_on_another_device_is_named(gpu):
    given, _ = parameters_of(network_of(), "one buffer")
    x = on_gpu(torch.randn(STEPS, BATCH, INPUT_SIZE, dtype=DTYPE))
    h_0 = torch.zeros(1, BATCH, HIDDEN_SIZE, dtype=DTYPE)
    with pytest.raises(ValueError, match=r"^h_0 must be on the device of x"):
        dnnffi.torch.lstm(x, (h_0, h_0), given)


@pytest.fixture
def all_on_gpu(gpu, monkeypatch):
    with all_tensors_on_gpu(monkeypatch, gpu):
        yield gpu


@pytest.mark.parametrize("name", ["x", "h_0", "weights", "y", "h_n"])
def test_a_write_to_a_tensor_before_backward_is_noticed_in_a_known_call(all_on_gpu, name):
    spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, dtype="float64")
    size = dnnffi.weight_layout(spec, "cudnn").size
    shapes = {"x": (STEPS, BATCH, 3), "h_0": (1, BATCH, 4), "weights": (size,)}

    def allocate(shape, dtype):
        return torch.zeros(shape, dtype=getattr(torch, dtype))

    given = {key: allocate(shape, "float64") for key, shape in shapes.items()}
    weights = dnnffi.RNNWeights(device_array("weights", given["weights"]), spec)
    keywords = {"backend": "cudnn", "options": {"allocator": allocate}}
    for _ in range(2):
        y, h_n, context = dnnffi.gru_forward(given["x"], given["h_0"], weights, **keywords)
        written = {**given, "y": y, "h_n": h_n}[name]
        written.add_(1)
        if name == "h_n":  # which the backward pass does not read
            assert context.backward(y).x.shape == (STEPS, BATCH, 3)
        else:
            with pytest.raises(dnnffi.ContextError, match=f"^{name} was written to"):
                context.backward(torch.ones_like(y))
    assert len(weights._networks) == 1


def test_a_write_to_constant_weights_is_noticed_in_every_call_of_tensors(all_on_gpu):
    spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, dtype="float64")
    flat = torch.zeros(dnnffi.weight_layout(spec, "cudnn").size, dtype=torch.float64)
    x = torch.zeros(STEPS, BATCH, 3, dtype=torch.float64)
    weights = dnnffi.RNNWeights(device_array("weights", flat), spec)
    for _ in range(3):  # from the second one on the network is known
        y, _ = dnnffi.torch.gru(x.detach().requires_grad_(), None, weights)
        flat.add_(1)
        with pytest.raises(dnnffi.ContextError, match=r"^weights was written to"):
            y.sum().backward()


def in_one_buffer(module):
    """The parameters of a module of torch.nn on the GPU, as views of one buffer."""
    parameters = list(module.parameters())
    form = weights.list_form("lstm", parameters, module.num_layers, module.bidirectional, None)
    flat = torch.zeros(form.layout.size, dtype=DTYPE)
    for parameter, view in zip(parameters, form.views(flat), strict=True):
        view.copy_(parameter.detach())
        parameter.data = view
    return parameters


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("name", ["x", "h_0"])
def test_backward_reads_what_hooks_for_saved_tensors_kept(all_on_gpu, name, is_known):
    module = network_of()
    x = torch.randn(STEPS, BATCH, INPUT_SIZE, dtype=DTYPE)
    h_0, c_0 = torch.randn(2, 1, BATCH, HIDDEN_SIZE, dtype=DTYPE)
    y, _ = module(x, (h_0, c_0))
    expected = torch.autograd.grad(y, list(module.parameters()), torch.ones_like(y))
    given = in_one_buffer(module)
    if is_known:
        dnnffi.torch.lstm(x, (h_0, c_0), given)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        y, _ = dnnffi.torch.lstm(x, (h_0, c_0), given)
    {"x": x, "h_0": h_0}[name].add_(1)
    found = torch.autograd.grad(y, given, torch.ones_like(y))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


# Convolutions


@pytest.fixture
def kernels(simulator, monkeypatch):
    """Run our kernels on the host; an import of CuPy fails."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    external_memory.install_kernels(simulator, monkeypatch)


def plain(tensor):
    return tensor.detach().as_subclass(torch.Tensor)


LAYOUTS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("more", [{}, {"stride": 2, "padding": 1}, {"groups": 2}], ids=str)
def test_a_convolution_and_its_gradients_are_those_of_torch(gpu, kernels, layout, transposed, more):
    torch.manual_seed(0)
    name, layout = "conv_transpose" if transposed else "conv", LAYOUTS[layout]
    x = torch.randn(2, 4, 6, 7).to(memory_format=layout).requires_grad_()
    w = torch.randn(4, 4 // more.get("groups", 1), 3, 2).to(memory_format=layout).requires_grad_()
    bias = torch.randn(4, requires_grad=True)
    expected = getattr(torch, f"{name}2d")(x, w, bias, **more)
    dy = torch.randn_like(expected)  # in its layout
    given = list(map(on_gpu, (x, w, bias)))
    y = getattr(dnnffi.torch, name)(*given, **more)
    found = torch.autograd.grad(y, given, on_gpu(dy))
    wanted = torch.autograd.grad(expected, (x, w, bias), dy)
    for one, other in zip((y, *found), (expected, *wanted), strict=True):
        torch.testing.assert_close(plain(one), other, rtol=1e-4, atol=1e-4)
    for result in (y, found[0], found[1]):
        assert result.is_contiguous(memory_format=layout)
    made = [one() for one in gpu.results]
    assert any(one is not None and one.data_ptr() == y.data_ptr() for one in made)


def test_tensors_that_are_not_contiguous_are_read_where_they_are(gpu, kernels):
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, 6, 14)[..., ::2], torch.randn(4, 1, 3, 3).expand(4, 4, 3, 3)
    addresses = []
    for tensor in (x, w):
        gpu.register(tensor)
        addresses.append(tensor.data_ptr())
    ours = [tensor.as_subclass(GpuTensor) for tensor in (x, w)]
    y = dnnffi.torch.conv(*ours)
    torch.testing.assert_close(plain(y), torch.conv2d(x, w), rtol=1e-4, atol=1e-4)
    y = dnnffi.torch.conv(torch._neg_view(ours[0]), ours[1])
    torch.testing.assert_close(plain(y), -torch.conv2d(x, w), rtol=1e-4, atol=1e-4)
    assert [tensor.data_ptr() for tensor in ours] == addresses


def test_a_gradient_with_strides_of_0_is_that_of_a_sum(gpu, kernels):
    torch.manual_seed(0)
    x, w, bias = torch.randn(2, 4, 9), torch.randn(6, 4, 3), torch.randn(6)
    ours = [on_gpu(tensor).requires_grad_() for tensor in (x, w, bias)]
    theirs = [tensor.requires_grad_() for tensor in (x, w, bias)]
    y, expected = dnnffi.torch.conv(*ours), torch.conv1d(*theirs)
    one = torch.ones(())
    gpu.register(one)
    dy = one.expand(y.shape).as_subclass(GpuTensor)
    found = torch.autograd.grad(y, ours, dy)
    wanted = torch.autograd.grad(expected.sum(), theirs)
    for gradient, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(plain(gradient), other, rtol=1e-4, atol=1e-4)


def test_the_options_of_a_convolution_are_kept_with_the_allocator(gpu):
    x, w = on_gpu(torch.randn(1, 2, 5)), on_gpu(torch.randn(3, 2, 2))
    with pytest.raises(ValueError, match=r"^options.*math"):
        dnnffi.torch.conv(x, w, options={"math": "exact"})
    calls = []

    def allocate(shape, dtype):
        calls.append((shape, dtype))
        return gpu.empty(shape, np.dtype(dtype))

    y = dnnffi.torch.conv(x, w, options={"math": "strict", "allocator": allocate})
    torch.testing.assert_close(plain(y), torch.conv1d(plain(x), plain(w)), rtol=1e-4, atol=1e-4)
    assert ((1, 3, 4), "float32") in calls


@pytest.mark.parametrize("name", ["w", "bias"])
def test_an_argument_of_a_convolution_on_another_device_is_named(gpu, name):
    given = {"x": torch.ones(1, 2, 5), "w": torch.ones(3, 2, 2), "bias": torch.ones(3)}
    given = {key: value if key == name else on_gpu(value) for key, value in given.items()}
    with pytest.raises(ValueError, match=rf"^{name} must be on the device of x"):
        dnnffi.torch.conv(*given.values())


def test_a_convolution_gets_arrays_over_the_memory_of_tensors(gpu, monkeypatch):
    calls, shapes = [], {"forward": (2, 4, 5), "backward_data": (2, 3, 6)}
    shapes |= {"backward_weights": (4, 3, 2), "backward_bias": (4,)}

    def result(operation, arrays, allocator):
        calls.append((operation, *(one.data.ptr for one in arrays if one is not None)))
        made = allocator.empty(shapes[operation], np.dtype("float64"))
        made.owner.fill_(1)
        return made.owner

    def run_embedded(asked, arrays, options, embedding):
        return result(asked[0], arrays, embedding.allocator)

    def sum_of_bias(dy, *, backend, options):
        return result("backward_bias", (dy,), options["allocator"])

    monkeypatch.setattr(convolutions.core, "run_embedded", run_embedded)
    monkeypatch.setattr(convolutions.core, "conv_backward_bias", sum_of_bias)
    x, w, bias = (
        on_gpu(torch.randn(*shape, dtype=DTYPE).requires_grad_())
        for shape in ((2, 3, 6), (4, 3, 2), (4,))
    )
    y = dnnffi.torch.conv(x, w, bias)
    dy = on_gpu(torch.ones(y.shape, dtype=DTYPE))
    gradients = torch.autograd.grad(y, [x, w, bias], dy)
    assert [tuple(one.shape) for one in (y, *gradients)] == list(shapes.values())
    assert calls == [
        ("forward", x.data_ptr(), w.data_ptr(), bias.data_ptr()),
        ("backward_data", dy.data_ptr(), w.data_ptr()),
        ("backward_weights", dy.data_ptr(), x.data_ptr()),
        ("backward_bias", dy.data_ptr()),
    ]


def test_a_convolution_that_needs_no_gradient_does_not_go_through_autograd(gpu, monkeypatch):
    monkeypatch.setattr(convolutions._Convolution, "apply", None)
    x, w = (on_gpu(torch.randn(*shape)) for shape in ((2, 3, 6), (4, 3, 2)))
    expected = torch.conv1d(plain(x), plain(w))
    torch.testing.assert_close(plain(dnnffi.torch.conv(x, w)), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(
            plain(dnnffi.torch.conv(x, w.requires_grad_())), expected, rtol=1e-4, atol=1e-4
        )


# The layout of a module's parameters


@pytest.fixture
def laid_out(monkeypatch):
    """Modules lay out their parameters on the host too."""
    monkeypatch.setattr(modules, "_can_move", lambda weight: type(weight) is torch.nn.Parameter)


def is_one_buffer(module):
    names = module._flat_weights_names
    given = [getattr(module, name) for name in names]
    mode = modules._MODES[module.mode]
    form = weights.list_form(mode, given, module.num_layers, module.bidirectional, None)
    return form.find_flat(given) is not None


def module_of(library=dnnffi.torch, name="LSTM", **keywords):
    torch.manual_seed(0)
    keywords = {"num_layers": 2, "bidirectional": True, "dtype": DTYPE, **keywords}
    return getattr(library, name)(INPUT_SIZE, HIDDEN_SIZE, **keywords)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_module_has_its_parameters_in_one_buffer(laid_out, name, bias):
    module = module_of(name=name, bias=bias)
    assert is_one_buffer(module)
    expected = module_of(torch.nn, name, bias=bias).state_dict()
    for key, value in module.state_dict().items():
        assert torch.equal(value, expected[key])


def convert(module):
    return module.float()


def move(module):
    return module.to_empty(device="cpu")


def unpickle(module):
    return copy.deepcopy(module)


def replace_and_lay_out(module):
    module.load_state_dict(module_of(torch.nn).state_dict(), assign=True)
    assert not is_one_buffer(module)
    module.flatten_parameters()
    return module


@pytest.mark.parametrize("change", [convert, move, unpickle, replace_and_lay_out])
def test_a_module_that_is_changed_has_its_parameters_in_one_buffer(laid_out, change):
    assert is_one_buffer(change(module_of()))


def test_a_module_that_is_in_one_buffer_stays_where_it_is(laid_out):
    module = module_of()
    parameters = list(module.parameters())
    before = [parameter.data_ptr() for parameter in parameters]
    module.flatten_parameters()
    module.share_memory()
    module.flatten_parameters()
    assert is_one_buffer(module)
    assert all(one is two for one, two in zip(parameters, module.parameters(), strict=True))
    assert all(parameter.is_shared() for parameter in parameters)
    assert len(before) == len(parameters)


def test_a_module_that_was_called_is_converted_by_swapping_its_parameters(all_on_gpu, laid_out):
    module = module_of()
    with torch.no_grad():
        module(torch.ones(STEPS, BATCH, INPUT_SIZE, dtype=DTYPE))
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module.float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert module.weight_ih_l0.dtype is torch.float32


def test_an_optimizer_that_knows_the_parameters_before_they_move_goes_on(laid_out):
    theirs, ours = module_of(torch.nn), module_of()
    x = torch.randn(STEPS, BATCH, INPUT_SIZE)
    for module in (theirs, ours):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        module.float()
        for _ in range(3):
            optimizer.zero_grad()
            module(x)[0].square().sum().backward()
            optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_parameters_that_share_memory_or_are_not_plain_stay_where_they_are(laid_out):
    module = module_of(num_layers=1)
    module.weight_hh_l0_reverse = module.weight_hh_l0
    module.flatten_parameters()
    assert module.weight_hh_l0_reverse is module.weight_hh_l0
    y, _ = module(torch.ones(STEPS, BATCH, INPUT_SIZE, dtype=DTYPE))
    y.sum().backward()
    other = module_of(num_layers=1)
    other.bias_ih_l0 = torch.nn.Parameter(other.bias_ih_l0.detach().float())
    addresses = [parameter.data_ptr() for parameter in other.parameters()]
    other.flatten_parameters()
    assert [parameter.data_ptr() for parameter in other.parameters()] == addresses


@pytest.mark.parametrize(
    "dtype",
    [torch.int8, torch.uint8, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64],
    ids=str,
)
def test_lengths_on_the_gpu_are_clamped_in_every_dtype(gpu, dtype):
    most = torch.iinfo(dtype).max
    given = on_gpu(torch.tensor([0, 3, most], dtype=dtype))
    found = network._lengths(given, on_gpu(torch.ones(1)))
    assert found.dtype is torch.int32
    assert found.tolist() == [0, 3, min(most, 2**31 - 1)]


@pytest.mark.parametrize("is_known", [True, False])
def test_backward_reads_weights_where_they_were_moved(gpu, is_known):
    """FSDP frees the memory of the weights after the forward pass, and fills it again."""
    module = network_of()
    given, flat = parameters_of(module, "one buffer")
    values = torch.randn(BATCH, STEPS, INPUT_SIZE, dtype=DTYPE).transpose(0, 1)
    x = on_gpu(values.contiguous()) if is_known else on_gpu(values)
    x.requires_grad_()
    for _ in range(3):
        y, _ = dnnffi.torch.lstm(x, None, given)
    expected_x = values.clone().requires_grad_()
    (expected,) = torch.autograd.grad(module(expected_x)[0].sum(), expected_x)
    storage, held = flat.untyped_storage(), flat.detach().as_subclass(torch.Tensor).clone()
    nbytes, before = storage.nbytes(), storage.data_ptr()
    gpu.release(before)
    taken = []
    for _ in range(100):  # the C library may give the same memory although others took some
        storage.resize_(0)
        taken.append(torch.empty(nbytes, dtype=torch.uint8))
        storage.resize_(nbytes)
        if storage.data_ptr() != before:
            break
    assert storage.data_ptr() != before
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(flat):
        flat.as_subclass(torch.Tensor).copy_(held)
    gpu.register(given[0].as_subclass(torch.Tensor))
    (found,) = torch.autograd.grad(y, x, on_gpu(torch.ones(y.shape, dtype=DTYPE)))
    torch.testing.assert_close(found.as_subclass(torch.Tensor), expected)


def test_options_on_the_gpu_may_be_any_mapping(gpu):
    given, _ = parameters_of(network_of(), "one buffer")
    x = on_gpu(torch.randn(STEPS, BATCH, INPUT_SIZE, dtype=DTYPE))
    expected, _ = dnnffi.torch.lstm(x, None, given, options={"tune": "off"})
    found, _ = dnnffi.torch.lstm(x, None, given, options=MappingProxyType({"tune": "off"}))
    torch.testing.assert_close(found, expected)


def test_a_gradient_that_an_allocator_cannot_sum_is_refused_before_it_is_computed(all_on_gpu):
    spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, dtype="float64")

    def allocate(shape, dtype):
        return torch.zeros(shape, dtype=getattr(torch, dtype))

    flat = torch.zeros(dnnffi.weight_layout(spec, "cudnn").size, dtype=DTYPE)
    y, _, ctx = dnnffi.gru_forward(
        torch.zeros(STEPS, BATCH, 3, dtype=DTYPE),
        torch.zeros(1, BATCH, 4, dtype=DTYPE),
        dnnffi.RNNWeights(device_array("weights", flat), spec),
        lengths=[0] * BATCH,
        resets=torch.zeros(STEPS, BATCH, dtype=torch.uint8),
        reset_to=torch.zeros(1, 1, 4, dtype=DTYPE),
        backend="cudnn",
        options={"allocator": allocate},
    )
    with pytest.raises(UnsupportedError, match="no gradient of reset_to with one row for all"):
        ctx.backward(torch.ones_like(y))
    assert ctx.backward(torch.ones_like(y), need="x").x.shape == (STEPS, BATCH, 3)
