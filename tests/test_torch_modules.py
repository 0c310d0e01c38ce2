"""The modules of dnnffi.torch compared with those of torch.nn, on the reference."""

from __future__ import annotations

import copy
import doctest
import inspect
import io
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnffi

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import (  # noqa: E402
    PackedSequence,
    pack_padded_sequence,
    pad_packed_sequence,
)

import dnnffi.torch  # noqa: E402 - needs torch

NAMES = ("LSTM", "GRU", "RNN")
INPUT_SIZE, HIDDEN_SIZE, STEPS, BATCH = 3, 4, 5, 3


def pair(name, *arguments, dtype=torch.float64, **keywords):
    """A module of torch.nn and one of dnnffi with the same parameters."""
    made = []
    for library in (torch.nn, dnnffi.torch):
        torch.manual_seed(0)
        made.append(getattr(library, name)(*arguments, dtype=dtype, **keywords))
    return made


def small(name, **keywords):
    return pair(name, INPUT_SIZE, HIDDEN_SIZE, **keywords)


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def states_for(module, *batch, dtype=torch.float64):
    rows = module.num_layers * (2 if module.bidirectional else 1)
    h_0 = draw(rows, *batch, module.proj_size or HIDDEN_SIZE, dtype=dtype)
    return (h_0, draw(rows, *batch, HIDDEN_SIZE, dtype=dtype)) if module.mode == "LSTM" else h_0


def flattened(value):
    """The tensors of results or arguments."""
    if isinstance(value, PackedSequence):
        return [value.data]
    if isinstance(value, tuple):
        return [tensor for part in value for tensor in flattened(part)]
    return [] if value is None else [value]


def assert_same(theirs, ours, x, hx=None, compare=torch.testing.assert_close):
    """Compare the results of two modules, and the gradients of everything that requires one."""
    inputs = [one for one in flattened((x, hx)) if one.is_leaf]
    outcomes = []
    for module in (theirs, ours):
        results = flattened(module(x, hx))
        torch.manual_seed(1)
        by = [torch.randn(one.shape, dtype=one.dtype) for one in results]
        gradients = torch.autograd.grad(results, [*inputs, *module.parameters()], by)
        outcomes.append([*results, *gradients])
    for expected, found in zip(*outcomes, strict=True):
        assert found.dtype == expected.dtype
        compare(found, expected)


@st.composite
def options(draw):
    name = draw(st.sampled_from(NAMES))
    keywords = {
        "num_layers": draw(st.integers(1, 3)),
        "bias": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
        "bidirectional": draw(st.booleans()),
        "dtype": draw(st.sampled_from([torch.float32, torch.float64])),
    }
    if name == "LSTM":
        keywords["proj_size"] = draw(st.sampled_from([0, 2]))
    if name == "RNN":
        keywords["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    form = draw(st.sampled_from(["padded", "without a batch", "packed", "packed, unsorted"]))
    return name, keywords, form, draw(st.booleans())


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # of PyTorch's on the CPU
@settings(max_examples=60, deadline=None)
@given(options())
def test_results_and_gradients_are_those_of_torch_nn(drawn):
    name, keywords, form, has_states = drawn
    theirs, ours = small(name, **keywords)
    dtype, batch = keywords["dtype"], () if form == "without a batch" else (BATCH,)
    shape = (STEPS, *batch, INPUT_SIZE)
    if batch and keywords["batch_first"]:
        shape = (BATCH, STEPS, INPUT_SIZE)
    x = draw(*shape, dtype=dtype)
    if form.startswith("packed"):
        lengths = [2, 5, 4] if "unsorted" in form else [5, 4, 2]
        sorts = "unsorted" not in form
        x = pack_padded_sequence(x, lengths, keywords["batch_first"], enforce_sorted=sorts)
        x = x._replace(data=x.data.detach().requires_grad_())
    assert_same(theirs, ours, x, states_for(theirs, *batch, dtype=dtype) if has_states else None)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch_first", [False, True])
def test_lengths_of_a_padded_batch_compute_what_packing_does(name, batch_first):
    theirs, ours = small(name, num_layers=2, bidirectional=True, batch_first=batch_first)
    x, lengths = draw(*((BATCH, STEPS) if batch_first else (STEPS, BATCH)), 3), [2, 5, 4]
    hx = states_for(theirs, BATCH)
    packed = pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False)
    y, expected_states = theirs(packed, hx)
    expected, _ = pad_packed_sequence(y, batch_first)
    for given_lengths in (lengths, np.array(lengths), torch.tensor(lengths)):
        found, found_states = ours(x, hx, given_lengths)
        torch.testing.assert_close(found, expected)
        for one, other in zip(flattened(found_states), flattened(expected_states), strict=True):
            torch.testing.assert_close(one, other)
    (dx,) = torch.autograd.grad(found.square().sum(), x)
    (expected_dx,) = torch.autograd.grad(expected.square().sum(), x)
    torch.testing.assert_close(dx, expected_dx)


@pytest.mark.parametrize("name", NAMES)
def test_a_module_is_one_of_torch_nn_with_its_parameters_and_initial_values(name):
    theirs, ours = small(name, num_layers=2, bidirectional=True, bias=False)
    assert isinstance(ours, getattr(torch.nn, name))
    assert repr(ours) == repr(theirs)
    expected = dict(theirs.named_parameters())
    assert list(dict(ours.named_parameters())) == list(expected)
    for key, parameter in ours.named_parameters():
        assert torch.equal(parameter, expected[key])


@pytest.mark.parametrize("name", NAMES)
def test_a_state_dict_is_loaded_in_both_directions(name):
    theirs, ours = small(name, num_layers=2)
    x = draw(STEPS, BATCH, INPUT_SIZE)
    for source, target in ((theirs, ours), (ours, theirs)):
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.add_(0.1)
        target.load_state_dict(source.state_dict())
        assert_same(theirs, ours, x)


def test_parameters_that_are_assigned_by_loading_are_used():
    theirs, ours = small("GRU")
    state = {name: value + 0.1 for name, value in theirs.state_dict().items()}
    theirs.load_state_dict(state)
    ours.load_state_dict(state, assign=True)
    assert_same(theirs, ours, draw(STEPS, BATCH, INPUT_SIZE))


@pytest.mark.parametrize("name", NAMES)
def test_dropout_acts_between_layers_in_training_only(name):
    theirs, ours = small(name, num_layers=2, dropout=1.0)
    x = draw(STEPS, BATCH, INPUT_SIZE)
    assert torch.equal(ours(x)[0], ours(2 * x)[0])  # nothing reaches the second layer
    with torch.no_grad():
        assert torch.equal(ours(x)[0], ours(2 * x)[0])  # nor without gradients
    theirs.eval()
    ours.eval()
    assert_same(theirs, ours, x)


def test_dropout_is_repeated_by_the_seed_of_pytorch_and_not_by_a_copy():
    _, ours = small("LSTM", num_layers=2, dropout=0.5)
    x = draw(STEPS, BATCH, INPUT_SIZE)
    found = []
    for seed in (3, 3, 4):
        module = copy.deepcopy(ours)
        torch.manual_seed(seed)
        found.append([module(x)[0] for _ in range(2)])
    (first, second), again, other = found
    assert not torch.equal(first, second)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    assert not torch.equal(first, other[0])
    used = copy.deepcopy(module)
    assert not torch.equal(used(x)[0], module(x)[0])


def test_dropout_in_another_dtype_has_random_numbers_of_its_own():
    # On a GPU the kernels may be others, and a DropoutState stays with those that first used it.
    _, ours = small("LSTM", num_layers=2, dropout=0.5, dtype=torch.float32)
    x = draw(STEPS, BATCH, INPUT_SIZE, dtype=torch.float32)
    ours(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours(x)
    ours.double()(x.double())
    ours(x.double())
    assert len(ours._dropout_states) == 3


def test_dropout_of_one_layer_is_warned_of_as_in_torch_nn():
    with pytest.warns(UserWarning, match="num_layers greater than 1"):
        module = dnnffi.torch.GRU(INPUT_SIZE, HIDDEN_SIZE, dropout=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(torch.ones(STEPS, BATCH, INPUT_SIZE))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_autocast_computes_in_its_dtype_and_gives_gradients_in_that_of_the_parameters(name, dtype):
    theirs, ours = small(name, dtype=torch.float32)
    x, hx = draw(STEPS, BATCH, INPUT_SIZE, dtype=torch.float32), states_for(theirs, BATCH)
    hx = tuple(map(torch.Tensor.float, hx)) if name == "LSTM" else hx.float()
    with torch.autocast("cpu", dtype=dtype):
        y, last = ours(x, hx)
    expected, _ = theirs(x, hx)
    assert {one.dtype for one in flattened((y, last))} == {dtype}
    torch.testing.assert_close(y.float(), expected, atol=0.02, rtol=0.02)
    found = torch.autograd.grad(y.float().sum(), [x, *ours.parameters()])
    wanted = torch.autograd.grad(expected.sum(), [x, *theirs.parameters()])
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, atol=0.05, rtol=0.05)


def test_autocast_takes_an_input_that_is_in_its_dtype_already_and_leaves_float64_alone():
    _, ours = small("GRU", dtype=torch.float32)
    x = draw(STEPS, BATCH, INPUT_SIZE, dtype=torch.float32)
    double_theirs, double_ours = small("GRU")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ours(x)[0], ours(x.bfloat16())[0])
        y, _ = double_ours(x.double())
    assert y.dtype == torch.float64
    torch.testing.assert_close(y, double_theirs(x.double())[0])


def test_autocast_leaves_the_input_of_a_float64_module_as_it_is():
    _, ours = small("GRU")
    x = draw(STEPS, BATCH, INPUT_SIZE, dtype=torch.float32)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ValueError, match=r"^input must .* torch.float64; got torch.float32"),
    ):
        ours(x)


def test_autocast_leaves_the_input_of_float64_weights_as_it_is():
    weights = list(torch.nn.GRU(INPUT_SIZE, HIDDEN_SIZE, dtype=torch.float64).parameters())
    x = draw(STEPS, BATCH, INPUT_SIZE, dtype=torch.float32)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(TypeError, match=r"^x must have .* float64; got float32"),
    ):
        dnnffi.torch.gru(x, None, weights)


def test_autocast_is_for_flat_and_separate_weights_of_the_functions_too():
    spec = dnnffi.RNNSpec(mode="gru", input_size=INPUT_SIZE, hidden_size=HIDDEN_SIZE)
    module = torch.nn.GRU(INPUT_SIZE, HIDDEN_SIZE)
    weights = [parameter.detach() for parameter in module.parameters()]
    flat = torch.cat([one.reshape(-1) for one in weights]).requires_grad_()
    x = draw(STEPS, BATCH, INPUT_SIZE, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = dnnffi.torch.gru(x, None, flat, spec=spec, layout="cudnn")
        expected, _ = dnnffi.torch.gru(x, None, weights)
    assert torch.equal(y, expected)
    y.float().sum().backward()
    assert flat.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_module_is_converted_to_another_dtype(dtype):
    theirs, ours = small("LSTM", dtype=torch.float32)
    x = draw(STEPS, BATCH, INPUT_SIZE, dtype=torch.float32)
    y, _ = ours.to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), theirs(x)[0], atol=0.02, rtol=0.02)


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), saved_and_loaded]
)
def test_a_copy_computes_the_same_and_shares_no_parameters(copied):
    theirs, ours = small("LSTM", num_layers=2, dropout=0.5)
    ours(draw(STEPS, BATCH, INPUT_SIZE))
    found = copied(ours)
    with torch.no_grad():
        ours.weight_ih_l0.zero_()
    assert_same(theirs.eval(), found.eval(), draw(STEPS, BATCH, INPUT_SIZE))


def test_an_optimizer_changes_what_a_module_computes():
    theirs, ours = small("GRU")
    x = draw(STEPS, BATCH, INPUT_SIZE)
    for module in (theirs, ours):
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(x)[0].square().sum().backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
    assert_same(theirs, ours, x)


def test_a_graph_that_is_retained_gives_its_gradients_twice():
    _, ours = small("GRU")
    x = draw(STEPS, BATCH, INPUT_SIZE)
    y, _ = ours(x)
    (first,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (second,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(y.sum(), x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_model_computes_what_it_does_uncompiled(name, backend):
    theirs, ours = small(name)

    def function(module, x):
        return module(2 * x)[0].sin()

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend)
    x = draw(STEPS, BATCH, INPUT_SIZE)
    torch.testing.assert_close(compiled(ours, x), function(theirs, x))
    torch.testing.assert_close(torch.compile(ours, backend=backend)(x)[0], theirs(x)[0])


def test_parameters_that_are_swapped_for_a_call_are_used():
    theirs, ours = small("LSTM")
    x = draw(STEPS, BATCH, INPUT_SIZE)
    other = {name: value.detach() * 2 for name, value in theirs.named_parameters()}
    for one in other.values():
        one.requires_grad_()
    expected, _ = torch.func.functional_call(theirs, other, x)
    found, _ = torch.func.functional_call(ours, other, x)
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(expected.sum(), list(other.values()))
    for one, two in zip(
        torch.autograd.grad(found.sum(), list(other.values())), wanted, strict=True
    ):
        torch.testing.assert_close(one, two)
    torch.testing.assert_close(ours(x)[0], theirs(x)[0])


def test_parameters_that_are_computed_from_others_are_used():
    theirs, ours = small("GRU")
    for module in (theirs, ours):
        torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    assert_same(theirs, ours, draw(STEPS, BATCH, INPUT_SIZE))


def test_a_replica_computes_with_the_parameters_that_it_is_given():
    theirs, ours = small("LSTM", num_layers=2)
    x = draw(STEPS, BATCH, INPUT_SIZE)
    replica = ours._replicate_for_data_parallel()
    for name, parameter in ours.named_parameters():  # as torch.nn.parallel.replicate does
        setattr(replica, name, 2 * parameter)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(2)
    expected, found = theirs(x)[0], replica(x)[0]
    torch.testing.assert_close(found, expected)
    gradients = (
        torch.autograd.grad(y.sum(), list(module.parameters()))
        for y, module in ((found, ours), (expected, theirs))
    )
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, 2 * other)


def test_dropout_of_a_replica_goes_on_where_the_one_before_ended():
    _, ours = small("LSTM", num_layers=2, dropout=0.5)
    x = draw(STEPS, BATCH, INPUT_SIZE)
    outputs = []
    for _ in range(2):
        replica = ours._replicate_for_data_parallel()
        for name, parameter in ours.named_parameters():
            setattr(replica, name, parameter.clone())
        torch.manual_seed(0)
        outputs.append(replica(x)[0])
    assert not torch.equal(*outputs)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_backend_with_another_layout_is_given_the_list(monkeypatch, autocast):
    _, ours = small("GRU", num_layers=2, dtype=torch.float32)
    x = draw(STEPS, BATCH, INPUT_SIZE, dtype=torch.float32)
    expected = ours(x)[0]
    monkeypatch.setattr(dnnffi.torch.weights, "KIND", "rocm")
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        found = ours(x)[0]
    tolerances = {"atol": 0.05, "rtol": 0.05} if autocast else {}
    torch.testing.assert_close(found.float(), expected, **tolerances)
    gradients = (
        torch.autograd.grad(y.float().sum(), [x, *ours.parameters()]) for y in (found, expected)
    )
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, **tolerances)


def test_a_frozen_module_in_no_grad_keeps_nothing_for_backward():
    _, ours = small("GRU")
    x = draw(STEPS, BATCH, INPUT_SIZE)
    with torch.no_grad():
        assert ours(x)[0].grad_fn is None
    with torch.inference_mode():
        assert ours(x)[0].is_inference()
    assert ours.requires_grad_(False)(x.detach())[0].grad_fn is None


# Wrong arguments


def kind_of_error(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its type is the result
        call()
    return caught.type


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((3, 0), {}),
        ((3, -1), {}),
        ((0, 4), {}),
        ((3.0, 4), {}),
        ((3, 4.0), {}),
        ((3, 4), {"num_layers": 0}),
        ((3, 4), {"dropout": 1.5}),
        ((3, 4), {"dropout": True}),
        ((3, 4), {"bias": 1}),
        ((3, 4), {"batch_first": None}),
        ((3, 4), {"proj_size": 4}),
        ((3, 4), {"proj_size": -1}),
        ((3, 4), {"hidden": 4}),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_wrong_arguments_of_a_constructor_raise_what_torch_nn_raises(name, arguments, keywords):
    theirs, ours = (
        kind_of_error(lambda library=library: getattr(library, name)(*arguments, **keywords))
        for library in (torch.nn, dnnffi.torch)
    )
    assert ours is theirs


def test_a_nonlinearity_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="Unknown nonlinearity 'gelu'"):
        dnnffi.torch.RNN(3, 4, nonlinearity="gelu")


BAD_INPUT = {
    "dimensions": (lambda: (torch.zeros(1, 1, 1, 3).double(),), "input must have 2 dimensions"),
    "no dimensions": (lambda: (torch.tensor(1.0).double(),), "got 0"),
    "size": (lambda: (draw(5, 3, 2),), r"input_size \(3\) as its last dimension; got .* 2\]"),
    "dtype": (lambda: (draw(5, 3, 3).float(),), r"dtype of the parameters, torch.float64; got"),
    "states": (lambda: (draw(5, 3, 3), draw(1, 2, 4)), r"h_0 must have shape \[1, 3, 4\]; got"),
    "states without a batch": (lambda: (draw(5, 3), draw(1, 1, 4)), r"\[1, 4\]; got \[1, 1, 4\]"),
    "states of a batch": (lambda: (draw(5, 3, 3), draw(1, 4)), r"\[1, 3, 4\]; got \[1, 4\]"),
    "dtype of states": (lambda: (draw(5, 3, 3), draw(1, 3, 4).float()), "h_0 must have dtype"),
}


@pytest.mark.parametrize("fault", BAD_INPUT)
@pytest.mark.parametrize("name", NAMES)
def test_wrong_input_raises_what_torch_nn_raises_and_is_named(name, fault):
    made, text = BAD_INPUT[fault]
    theirs, ours = small(name)
    x, *hx = made()
    if name == "LSTM" and hx:
        hx = [(hx[0], hx[0])]
    with pytest.raises(kind_of_error(lambda: theirs(x, *hx)), match=text):
        ours(x, *hx)


def test_input_that_is_no_tensor_is_named():
    _, ours = small("LSTM")
    x = draw(STEPS, BATCH, INPUT_SIZE)
    for arguments, text in (
        ((x.detach().numpy(),), r"^input must be a torch.Tensor; got ndarray"),
        ((x, draw(1, BATCH, 4)), r"^hx of an LSTM must be \(h_0, c_0\) or None; got Tensor"),
        ((x, (None, draw(1, BATCH, 4))), r"^h_0 must be a torch.Tensor; got NoneType"),
        ((x, None, 5), r"^lengths must be a sequence of integers; got int"),
    ):
        with pytest.raises(TypeError, match=text):
            ours(*arguments)


def test_lengths_are_for_a_padded_batch():
    _, ours = small("GRU")
    packed = pack_padded_sequence(draw(STEPS, BATCH, INPUT_SIZE), [5, 3, 2])
    for x, text in (
        (packed, "a PackedSequence has lengths of its own"),
        (draw(STEPS, INPUT_SIZE), "input has no dimension for one"),
    ):
        with pytest.raises(ValueError, match=text):
            ours(x, lengths=[5, 3, 2])
    with pytest.raises(ValueError, match=r"lengths\[1\] must be from 0 to 5 \(T\); got 6"):
        ours(draw(STEPS, BATCH, INPUT_SIZE), lengths=[5, 6, 2])


def test_a_tensor_of_a_device_that_dnnffi_does_not_know_is_named():
    ours = dnnffi.torch.GRU(INPUT_SIZE, HIDDEN_SIZE, device="meta")
    with pytest.raises(TypeError, match=r"^x must be on the CPU or on a GPU .* it is on meta"):
        ours(torch.zeros(STEPS, BATCH, INPUT_SIZE, device="meta"))
    with pytest.raises(ValueError, match=r"^weights\[0\] must be on the device of x, cpu; it is"):
        ours(torch.zeros(STEPS, BATCH, INPUT_SIZE))
    h_0 = torch.zeros(1, BATCH, HIDDEN_SIZE, device="meta")
    with pytest.raises(RuntimeError, match=r"^h_0 must be on cpu like input; got meta"):
        dnnffi.torch.GRU(INPUT_SIZE, HIDDEN_SIZE)(torch.zeros(STEPS, BATCH, INPUT_SIZE), h_0)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_docstring_runs(name):
    torch.manual_seed(0)
    text = inspect.getdoc(getattr(dnnffi.torch, name))
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    reported = []
    doctest.DocTestRunner(verbose=False).run(example, out=reported.append)
    assert example.examples
    assert not "".join(reported)
